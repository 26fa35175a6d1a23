"""Sends one response for each number, then the final flag alone; stops where it is cancelled."""

import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            threading.Thread(target=repeat, args=(request.get_response_sender(), *given(request))).start()


def given(request):
    return tuple(pb_utils.get_input_tensor_by_name(request, name).as_numpy().copy() for name in ("IN", "DELAY", "WAIT"))


def repeat(sender, numbers, delays, _wait):
    for index, (number, delay) in enumerate(zip(numbers, delays, strict=True)):
        time.sleep(delay / 1000)
        if sender.is_cancelled():
            break
        outputs = [
            pb_utils.Tensor("OUT", np.array([number], dtype=np.int32)),
            pb_utils.Tensor("IDX", np.array([index], dtype=np.uint32)),
        ]
        sender.send(pb_utils.InferenceResponse(output_tensors=outputs))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
