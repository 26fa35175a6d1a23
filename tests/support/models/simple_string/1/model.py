"""Adds and subtracts numbers written as text."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [answer(request) for request in requests]


def answer(request):
    a, b = (numbers(request, name) for name in ("INPUT0", "INPUT1"))
    outputs = [pb_utils.Tensor(name, text(values)) for name, values in (("OUTPUT0", a + b), ("OUTPUT1", a - b))]
    return pb_utils.InferenceResponse(output_tensors=outputs)


def numbers(request, name):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy().astype(np.int64)


def text(values):
    return np.array([str(value).encode() for value in values.reshape(-1)], dtype=np.object_).reshape(values.shape)
