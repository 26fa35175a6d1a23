"""Keeps its running requests by request id alone, whoever sent them: what makes shared ids dangerous."""

import threading

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def first(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)[0]


class TritonPythonModel:
    def initialize(self, _args):
        self.stops = {}

    def execute(self, requests):
        for request in requests:
            sender, name = request.get_response_sender(), request.request_id()
            if first(request, "stop"):
                if name in self.stops:
                    self.stops[name].set()
                sender.send(flags=FINAL)
                continue
            self.stops[name] = stopped = threading.Event()
            count = int(first(request, "max_tokens"))
            threading.Thread(target=self.talk, args=(sender, stopped, count), daemon=True).start()

    def talk(self, sender, stopped, count):
        said = 0
        while said < count and not sender.is_cancelled() and not stopped.wait(0.01):
            said += 1
            sender.send(response("word "))
        sender.send(response("stopped" if stopped.is_set() else "completed"), flags=FINAL)


def response(text):
    return pb_utils.InferenceResponse(
        output_tensors=[pb_utils.Tensor("text_output", np.array([text.encode()], dtype=np.object_))]
    )
