"""Counts who is here. One thread for all of its streams, so that hundreds of them cost it little."""

import asyncio
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

POLL_S = 0.02
ACTIVE = "nv_trt_llm_request_metrics"


class TritonPythonModel:
    def initialize(self, args):
        families = {
            name: pb_utils.MetricFamily(name=name, description=name, kind=pb_utils.MetricFamily.GAUGE)
            for name in ("crowd_now", "crowd_peak", "crowd_ended", ACTIVE)
        }
        self.families = families
        labels = {"model": args["model_name"], "version": "1"}
        self.gauges = {name: family.Metric(labels=labels) for name, family in families.items() if name != ACTIVE}
        self.gauges[ACTIVE] = families[ACTIVE].Metric(labels={**labels, "request_type": "active"})
        self.now = self.peak = self.ended = self.turn = 0
        self.tell()
        self.loop = asyncio.new_event_loop()
        self.tasks = set()  # the loop itself holds its tasks only weakly
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def execute(self, requests):
        for request in requests:
            self.loop.call_soon_threadsafe(self.start, request)

    def start(self, request):
        if pb_utils.get_input_tensor_by_name(request, "count").as_numpy()[0] == 0:
            self.turn += 1
            request.get_response_sender().send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        self.now += 1
        self.peak = max(self.peak, self.now)
        self.tell()
        task = self.loop.create_task(self.run(request, request.get_response_sender()))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def tell(self):
        told = {"crowd_now": self.now, "crowd_peak": self.peak, "crowd_ended": self.ended, ACTIVE: self.now}
        for name, value in told.items():
            self.gauges[name].set(value)

    async def run(self, request, sender):
        given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
        cancelled, turn = False, self.turn
        for n in range(int(given["count"])):
            due = time.monotonic() + float(given["delay_ms"]) / 1000
            while (left := due - time.monotonic()) > 0 and not cancelled and turn == self.turn:
                await asyncio.sleep(min(left, POLL_S))
                cancelled = not given["deaf"] and sender.is_cancelled()
            if cancelled or turn != self.turn:
                break
            text = pb_utils.Tensor("text_output", np.array([f"word{n} ".encode()], dtype=np.object_))
            sender.send(pb_utils.InferenceResponse(output_tensors=[text]))
        self.now -= 1  # before it says so: whoever hears of its end may send the next at once
        self.ended += 1
        self.tell()
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
        if cancelled:
            error = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
            sender.send(pb_utils.InferenceResponse(error=error), flags=final)
        else:
            sender.send(flags=final)

    def finalize(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
