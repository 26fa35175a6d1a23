"""Answers a prompt with itself: as little work as the Python backend can do."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "text_input")) for request in requests]

    def answer(self, prompt):
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("text_output", prompt.as_numpy())])
