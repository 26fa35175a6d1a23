"""Reads one chat request: the vLLM backend's inputs, checked, and turned into what llama.cpp's server understands."""

import json
from dataclasses import dataclass

# vLLM's name → (llama.cpp's name, types, lowest, highest). vLLM refuses names it doesn't know, and so do we.
SAMPLING = {
    "max_tokens": ("max_tokens", (int,), 1, 1_000_000),
    "temperature": ("temperature", (int, float), 0, 100),
    "top_p": ("top_p", (int, float), 0, 1),
    "top_k": ("top_k", (int,), -1, 1_000_000),
    "min_p": ("min_p", (int, float), 0, 1),
    "seed": ("seed", (int,), 0, 2**32 - 2),  # llama.cpp's 2^32 - 1 means: choose one
    "presence_penalty": ("presence_penalty", (int, float), -2, 2),
    "frequency_penalty": ("frequency_penalty", (int, float), -2, 2),
    "repetition_penalty": ("repeat_penalty", (int, float), 0, 100),
}
DEFAULTS = {"max_tokens": 16, "temperature": 1.0}  # vLLM's
MAX_STOPS = 16


@dataclass(frozen=True)
class Ask:
    """One request, checked."""

    text: str
    stream: bool
    prepend_input: bool
    want_reason: bool
    want_input_tokens: bool
    want_output_tokens: bool
    sampling: dict


def read(request, tensor):
    """The request's Ask; ValueError says what is wrong with it. ``tensor(name)`` gives an input's first element."""
    stream = bool(tensor("stream"))
    exclude = tensor("exclude_input_in_output")
    if stream and exclude is not None and not exclude:
        raise ValueError("When streaming, `exclude_input_in_output` = False is not allowed.")
    given = tensor("sampling_parameters")
    return Ask(
        text=tensor("text_input").decode("utf-8"),
        stream=stream,
        prepend_input=not stream and not exclude,
        want_reason=bool(tensor("return_finish_reason")),
        want_input_tokens=bool(tensor("return_num_input_tokens")),
        want_output_tokens=bool(tensor("return_num_output_tokens")),
        # Without the tensor vLLM's backend takes the request's parameters.
        sampling=sampling(json.loads(given if given is not None else request.parameters() or "{}")),
    )


def sampling(given):
    """llama.cpp's options for vLLM's sampling parameters; ValueError names the one that can't be used."""
    if not isinstance(given, dict):
        raise ValueError("sampling_parameters must be a JSON object")  # noqa: TRY004  # the caller's data, not our types
    options = dict(DEFAULTS)
    for name, value in given.items():
        if name == "stop":
            options["stop"] = _stops(value)
        elif name == "ignore_eos":
            options["ignore_eos"] = value is True or value == "true"
        elif name in ("n", "best_of") and value == 1:
            continue
        elif name in SAMPLING:
            options[SAMPLING[name][0]] = _number(name, value)
        else:
            raise ValueError(f"sampling parameter {name!r} is not supported")
    if options.get("top_k") == -1:  # vLLM's "all of them" is llama.cpp's 0
        options["top_k"] = 0
    return options


def _number(name, value):
    _, types, lowest, highest = SAMPLING[name]
    if name == "max_tokens" and value is None:
        return -1  # to the end of the context
    if isinstance(value, bool) or not isinstance(value, types) or not lowest <= value <= highest:
        raise ValueError(f"{name} must be a number from {lowest} to {highest}, got {value!r}")
    return value


def _stops(value):
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(isinstance(s, str) and s for s in stops):
        raise ValueError(f"stop must be a text or at most {MAX_STOPS} of them")
    return stops
