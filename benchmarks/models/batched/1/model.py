"""An engine's batch without its arithmetic: a step every so often, one token for each request that has a slot."""

import json
import threading
import time
from collections import deque

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"]
        self.slots = int(given["slots"]["string_value"])
        self.step_s = int(given["step_ms"]["string_value"]) / 1000
        self.waiting, self.running, self.over = deque(), [], False
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def execute(self, requests):
        self.waiting.extend(Generation(request) for request in requests)

    def work(self):
        due = time.monotonic()
        while not self.over:
            due = max(due + self.step_s, time.monotonic() - self.step_s)  # a late step is made up for, many are not
            time.sleep(max(0.0, due - time.monotonic()))
            while self.waiting and len(self.running) < self.slots:
                self.running.append(self.waiting.popleft())
            self.running = [each for each in self.running if each.step()]

    def finalize(self):
        self.over = True
        self.thread.join()


class Generation:
    def __init__(self, request):
        given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
        self.left = int(json.loads(given.get("sampling_parameters", "{}")).get("max_tokens", 16))
        self.prompt = len(given["text_input"].split())
        self.given = given
        self.sender = request.get_response_sender()

    def step(self):
        """One token; whether there are more to come."""
        if self.sender.is_cancelled():
            error = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
            self.sender.send(pb_utils.InferenceResponse(error=error), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return False
        self.left -= 1
        outputs = {"text_output": np.array([b"word "], dtype=np.object_)}
        for name, count in (("num_input_tokens", self.prompt), ("num_output_tokens", 1)):
            if self.given.get(f"return_{name}"):
                outputs[name] = np.array([count], dtype=np.uint32)
        answer = pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if self.left <= 0 else 0
        self.sender.send(answer, final)
        return self.left > 0
