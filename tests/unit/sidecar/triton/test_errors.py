"""What a caller may read of an error: Triton's own words, and of values its own or public ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.core.model import InferenceFacts, TensorFacts
from sidecar.triton.errors import TEMPLATES, Said, bare, said_by, tell
from tests.support.reading import admitted

FACTS = InferenceFacts(
    request_id="mine",
    model="m",
    inputs=(TensorFacts("ms", "INT32", (2, 3), 24), TensorFacts("text", "BYTES", (1,), 9)),
    outputs=("held",),
    parameters={"sequence_id": 77, "temperature": 0.5, "inputs/ms/odd": 1},
)
SAID = said_by(admitted(FACTS))
NOTE = next(template for template in TEMPLATES if "NOTE:" in template).partition(" NOTE:")[2]

# As the real server of version 2.51 wrote them (test_errors.py of the wire tests provokes them again), with the values
# of the request above; the second column where it reads otherwise.
START = "model 'm' must specify the START flag on the first request of the sequence"
MISSING = "Got input(s) ['text','ms'], but missing required input(s) {}. Please provide all required input(s)."
TOLD = [
    ("unexpected inference input 'ms' for model 'm'", None),
    ("unexpected inference output 'held' for model 'm'", None),
    (
        "[request id: abc] unexpected shape for input 'ms' for model 'm'. Expected [9], got [2,3]. ",
        "[request id: mine] unexpected shape for input 'ms' for model 'm'. Expected …, got [2,3]. ",
    ),
    (
        "[request id: abc] unexpected shape for input 'ms' for model 'm'. Expected [-1,9], got [2,3]. NOTE:" + NOTE,
        "[request id: mine] unexpected shape for input 'ms' for model 'm'. Expected …, got [2,3]. NOTE:" + NOTE,
    ),
    ("inference input 'ms' data-type is 'INT32', but model 'm' expects 'FP32'", None),
    (
        "input byte size mismatch for input 'ms' for model 'm'. Expected 24, got 8",
        "input byte size mismatch for input 'ms' for model 'm'. Expected 24, got …",
    ),
    (
        "expected 1 inputs but got 2 inputs for model 'm'. " + MISSING.format("['secret']"),
        "expected 1 inputs but got 2 inputs for model 'm'. " + MISSING.format("['…']"),
    ),
    (
        "expected 1 inputs but got 2 inputs for model 'm'. " + MISSING.format("]"),
        None,
    ),
    (
        "in ensemble 'rag', [request id: abc] inference request batch-size must be <= 1 for 'inner'",
        "in ensemble '…', [request id: mine] inference request batch-size must be <= 1 for '…'",
    ),
    (
        "in ensemble 'm', in ensemble 'inner', Request was cancelled",
        "in ensemble 'm', in ensemble '…', Request was cancelled",
    ),
    (
        "inference request for sequence 123456 to " + START,
        "inference request for sequence 77 to " + START,
    ),
    ("ModelInfer RPC doesn't support models with decoupled transaction policy", None),
    ("invalid value type for 'temperature' parameter, expected bool_param.", None),
    ("Stub process 'm_0_0' is not healthy.", "Stub process '…' is not healthy."),
    (
        "LoRA mine is not supported, we currently support ['a', 'b']",
        "LoRA … is not supported, we currently support ['…', '…']",
    ),
]


@pytest.mark.parametrize(("text", "told"), TOLD)
def test_tritons_own_words_with_the_callers_own_values(text: str, told: str | None) -> None:
    assert tell(text, SAID) == (text if told is None else told)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        "Failed to process the request(s) for model 'm_0_0', message: ValueError: ['a prompt', 'another']",
        "unexpected inference input 'ms' for model 'm': a prompt",
        "a prompt: unexpected inference input 'ms' for model 'm'",
        "unexpected inference input 'ms' for model 'm'\na prompt",
        "[request id: a prompt] it failed",
        "unexpected inference input 'it's' for model 'm'",
        "in ensemble 'm', ",
        "Error generating stream: a prompt",
        "x" * 100_000,
    ],
)
def test_anything_else_is_not_told(text: str) -> None:
    assert tell(text, SAID) is None


@pytest.mark.parametrize("template", TEMPLATES)
def test_no_value_that_is_not_the_callers_gets_through(template: str) -> None:
    """Whatever a model writes where a template has a value: only what the caller itself said is told again."""
    secrets = {
        "{name}": "s3cret", "{names}": "['s3cret','s3']", "{type}": "s3cret", "{shape}": "[777,888]",
        "{number}": "999", "{sequence}": "s3cret",
    }  # fmt: skip
    text = template
    for hole, secret in secrets.items():
        text = text.replace(hole, secret)
    told = tell(f"in ensemble 's3cret', [request id: s3cret] {text}", replace(SAID, sequence=""))
    assert told is not None
    for secret in ("s3", "777", "888", "999"):
        assert secret not in told, told
    assert told.startswith("in ensemble '…', [request id: mine] ")


def test_a_list_of_anything_but_quoted_names_is_hidden_whole() -> None:
    words = "LoRA x is not supported, we currently support {}"
    assert tell(words.format("[s3cret, 'a']"), SAID) == words.format("…").replace("x", "…", 1)


def test_a_request_without_an_id_has_none_in_its_errors() -> None:
    told = tell("[request id: 0123abcd] Request was cancelled", Said(call="c"))
    assert told == "[request id: <id_unknown>] Request was cancelled"


def test_what_triton_puts_before_its_words_is_known() -> None:
    assert bare("in ensemble 'a', in ensemble 'b', [request id: 7] x") == "x"
    assert bare("[request id: 7") == "[request id: 7"
    assert bare("") == ""
