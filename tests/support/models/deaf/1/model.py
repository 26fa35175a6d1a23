"""Sends a response every so often and never asks whether it was cancelled; it reports when it has really ended."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=run, args=(request, request.get_response_sender())).start()


def run(request, sender):
    given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
    for n in range(int(given["count"])):
        time.sleep(float(given["delay_ms"]) / 1000)
        text = pb_utils.Tensor("text_output", np.array([f"word{n} ".encode()], dtype=np.object_))
        sender.send(pb_utils.InferenceResponse(output_tensors=[text]))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    if path := os.environ.get("TEST_MODEL_REPORT"):
        with Path(path).open("a") as file:
            file.write(f"completed {request.request_id()} after {n}\n")
