"""What breaks others' loggers, from the wire on: NULs, no UTF-8, half a character, 10 MB; stored, found, verified."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from sidecar.triton.protos import ModelStreamInferResponse
from tests.support.kserve import packed, request
from tests.support.sidecar import Sidecar, final, slow

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

# NUL; bytes of no encoding; a lone surrogate as some encode it; characters that pieces of five bytes cut; half of one.
ODD = b"\x00\xff\xfe\xed\xa0\x80 \xf0\x9d\x94\x98\xf0\x9d\x94\x98 caf\xc3\xa9 caf\xc3"
TEN_MB = 10 * 2**20


def said(responses: list[Any]) -> bytes:
    return b"".join(raw[4:] for each in responses for raw in each.infer_response.raw_output_contents[:1])


def saying(prompt: bytes, told: dict[str, Any]) -> bytes:
    message = request(
        "slow",
        ("text_input", "BYTES", [1], packed(prompt)),
        ("sampling_parameters", "BYTES", [1], packed(json.dumps(told).encode())),
    )
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    return bytes(message.SerializeToString())


def streamed(sidecar: Sidecar, message: bytes, **headers: str) -> tuple[str, bytes]:
    """A call's id, and the bytes its client read of its output."""
    with sidecar.bare() as bare:
        stream = bare.stream([message], sidecar.headers(**headers))
        responses = list(stream)
        answer = stream.answer()
    assert answer.code == "OK", answer
    assert [each.error_message for each in responses if each.error_message] == []
    assert final(responses[-1])
    assert isinstance(responses[0], ModelStreamInferResponse)
    return f"{answer.call_id}/1", said(responses)


def verified(sidecar: Sidecar) -> dict[str, Any]:
    command = [sys.executable, "-m", "sidecar.cli.main", "audit", "verify", "--config", str(sidecar.stack.config)]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=120)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_bytes_that_are_no_text_reach_the_model_the_client_and_the_record(sidecar: Sidecar) -> None:
    prompt, output = b"okapi " + ODD, b"quagga " + ODD
    call, read = streamed(sidecar, saying(prompt, {"say_hex": output.hex()}), **{"x-warden-subject": "odd-1"})
    assert read == output
    record = sidecar.record(call)
    assert (record["outcome"], record["prompt"], record["output"]) == (
        "completed", prompt.decode("utf-8", "replace"), output.decode("utf-8", "replace")
    )  # fmt: skip
    assert (record["prompt_bytes"], record["output_bytes"]) == (len(prompt), len(output))
    for asked in ({"text": "okapi"}, {"text": "quagga"}, {"text": "𝔘𝔘 café"}, {"subject": "odd-1"}):
        assert call in [each["call_id"] for each in sidecar.search(**asked)], asked


def test_surrogates_and_nuls_escaped_in_json_reach_the_model_and_the_record(sidecar: Sidecar) -> None:
    """Parameters are kept too, as text that the database takes."""
    told = {"say": "a\u0000b é", "stop": ["\ud800"]}
    call, read = streamed(sidecar, saying(b"lone", told))
    assert read == "a\u0000b é".encode()
    record = sidecar.record(call)
    assert (record["outcome"], record["output"]) == ("completed", "a\u0000b é")


def test_ten_megabytes_of_output_and_prompt_are_kept_within_the_bound_with_their_length(sidecar: Sidecar) -> None:
    call, read = streamed(sidecar, slow(1, size=TEN_MB, prompt=b"p" * TEN_MB))
    assert len(read) == TEN_MB
    record = sidecar.record(call)
    assert (record["outcome"], record["output_bytes"], record["prompt_bytes"]) == ("completed", TEN_MB, TEN_MB)
    kept = record["output"].encode()
    assert 0 < len(kept) <= 2**20
    assert read.startswith(kept)
    assert call in [each["call_id"] for each in sidecar.search(text="word0")]
    told = verified(sidecar)  # with the records above
    assert (told["ok"], told["faults"]) == (True, [])
