"""Answers every request with the error it asks for."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(error=wanted(request)) for request in requests]


def wanted(request):
    given = {tensor.name(): tensor.as_numpy().reshape(-1)[0].decode() for tensor in request.inputs()}
    return pb_utils.TritonError(given.get("message", "as asked for"), getattr(pb_utils.TritonError, given["code"]))
