"""Sends a response every so often; a cancel is noticed before each of them and every 10 ms between.

The sampling parameter ``say`` is told in pieces of five characters, in place of words; ``say_hex``, bytes in
hexadecimal, in pieces of five bytes, which may end amid a character.
"""

import asyncio
import json
import os
import threading
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils

POLL_S = 0.01


class TritonPythonModel:
    def initialize(self, _args):
        self.loop = asyncio.new_event_loop()
        self.tasks = set()  # the loop itself holds its tasks only weakly
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def execute(self, requests):
        for request in requests:
            self.loop.call_soon_threadsafe(self.start, Stream(request))

    def start(self, stream):
        task = self.loop.create_task(stream.run())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def finalize(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


class Stream:
    def __init__(self, request):
        given = {tensor.name(): tensor.as_numpy().reshape(-1)[0] for tensor in request.inputs()}
        sampling = json.loads(given.get("sampling_parameters", "{}"))
        self.id = request.request_id()
        self.sender = request.get_response_sender()
        self.prompt_tokens = len(given["text_input"].split())
        said = sampling.get("say", "") or bytes.fromhex(sampling.get("say_hex", ""))
        self.pieces = [said[at : at + 5] for at in range(0, len(said), 5)]
        self.count = len(self.pieces) or int(given.get("count", sampling.get("max_tokens", 10)))
        self.delay_s = float(given.get("delay_ms", sampling.get("delay_ms", 10))) / 1000
        self.length = int(given.get("response_bytes", 0))
        self.given = given

    async def run(self):
        for n in range(self.count):
            if await self.cancelled_within(self.delay_s):
                error = pb_utils.TritonError("Request was cancelled", pb_utils.TritonError.CANCELLED)
                self.end(pb_utils.InferenceResponse(error=error))
                report("cancelled", self.id, n)
                return
            text = self.pieces[n] if self.pieces else f"word{n} ".ljust(self.length, ".")
            self.sender.send(self.response(text, tokens=1, reason="None"))
        self.end(self.response("", tokens=0, reason="stop"))
        report("completed", self.id, self.count)

    async def cancelled_within(self, seconds):
        end = time.monotonic() + seconds
        while not self.sender.is_cancelled():
            left = end - time.monotonic()
            if left <= 0:
                return False
            await asyncio.sleep(min(left, POLL_S))
        return True

    def end(self, response):
        self.sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def response(self, text, *, tokens, reason):
        said = text.encode() if isinstance(text, str) else text
        outputs = {"text_output": np.array([said], dtype=np.object_)}
        if self.given.get("return_finish_reason"):
            outputs["finish_reason"] = np.array([reason.encode()], dtype=np.object_)
        if self.given.get("return_num_input_tokens"):
            outputs["num_input_tokens"] = np.array([self.prompt_tokens], dtype=np.uint32)
        if self.given.get("return_num_output_tokens"):
            outputs["num_output_tokens"] = np.array([tokens], dtype=np.uint32)
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor(n, value) for n, value in outputs.items()])


def report(how, request_id, after):
    """One write of one line: O_APPEND keeps lines of several processes whole."""
    if path := os.environ.get("TEST_MODEL_REPORT"):
        with Path(path).open("a") as file:
            file.write(f"{how} {request_id} after {after}\n")
