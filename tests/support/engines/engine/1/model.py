"""Custom metrics by command (pb_utils.MetricFamily)."""

import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, _args):
        self.families = {}
        self.metrics = {}  # those told last

    def execute(self, requests):
        return [self.say(request) for request in requests]

    def say(self, request):
        said = pb_utils.get_input_tensor_by_name(request, "say").as_numpy()[0]
        told = json.loads(said)
        kept = {}
        for name, series in told.items():
            if name not in self.families:
                gauge = pb_utils.MetricFamily.GAUGE
                self.families[name] = pb_utils.MetricFamily(name=name, description="told", kind=gauge)
            for labels, value in series:
                place = (name, json.dumps(labels, sort_keys=True))
                kept[place] = self.metrics.get(place) or self.families[name].Metric(labels=labels)
                kept[place].set(float(value))
        self.metrics = kept
        return pb_utils.InferenceResponse([pb_utils.Tensor("said", np.array([said], dtype=np.object_))])
