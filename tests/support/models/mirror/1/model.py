"""Reports all that a Python model can see of its request."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.version = args["model_version"]

    def execute(self, requests):
        return [self.report(request) for request in requests]

    def report(self, request):
        said = {
            "version": self.version,
            "id": request.request_id(),
            "sequence": request.correlation_id(),
            "flags": request.flags(),
            "timeout": request.timeout(),
            "parameters": json.loads(request.parameters() or "{}"),
            "outputs": sorted(request.requested_output_names()),
            "inputs": {tensor.name(): self.tensor(tensor.as_numpy()) for tensor in request.inputs()},
        }
        outputs = {
            "report": np.array([json.dumps(said).encode()], dtype=np.object_),
            "extra": np.zeros(1, dtype=np.int8),
        }
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, value) for name, value in outputs.items()]
        )

    def tensor(self, array):
        if array.dtype == np.object_:
            content = [bytes(each).hex() for each in array.reshape(-1)]
        else:
            content = array.tobytes().hex()
        return [str(array.dtype), list(array.shape), content]
