"""Holds each request for the time it asks for, unless it is cancelled."""

import os
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

POLL_S = 0.01


class TritonPythonModel:
    def execute(self, requests):
        return [hold(request) for request in requests]


def hold(request):
    seconds = int(pb_utils.get_input_tensor_by_name(request, "ms").as_numpy()[0]) / 1000
    began = time.monotonic()
    while (held := time.monotonic() - began) < seconds:
        if request.is_cancelled():
            report("cancelled", request.request_id(), int(held * 1000))
            error = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
            return pb_utils.InferenceResponse(error=error)
        time.sleep(min(POLL_S, seconds - held))
    report("completed", request.request_id(), int(held * 1000))
    held_ms = pb_utils.Tensor("held_ms", np.array([held * 1000], dtype=np.int32))
    return pb_utils.InferenceResponse(output_tensors=[held_ms])


def report(how, request_id, after):
    """One write of one line: O_APPEND keeps lines of several processes whole."""
    if path := os.environ.get("TEST_MODEL_REPORT"):
        with Path(path).open("a") as file:
            file.write(f"{how} {request_id} after {after}\n")
