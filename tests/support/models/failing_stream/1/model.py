"""Sends so many good responses and then the error it is asked for."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            answer(request)


def answer(request):
    given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
    sender = request.get_response_sender()
    for n in range(int(given.get("after", 0))):
        text = pb_utils.Tensor("text_output", np.array([f"word{n} ".encode()], dtype=np.object_))
        sender.send(pb_utils.InferenceResponse(output_tensors=[text]))
    message = given.get("message", b"as asked for").decode()
    error = pb_utils.TritonError(message, getattr(pb_utils.TritonError, given["code"].decode()))
    sender.send(pb_utils.InferenceResponse(error=error), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
