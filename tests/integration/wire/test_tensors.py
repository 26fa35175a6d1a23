"""A tenant that keeps tensors: what went in and came out is in the object store, byte for byte, behind the record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.kserve import packed
from tests.support.sidecar import Sidecar, final, slow
from tests.support.stack import eventually, filled

pytestmark = pytest.mark.integration
TENANT = "keeps-tensors"


def shown(sidecar: Sidecar, call_id: str, directory: Path) -> tuple[dict[str, Any], list[tuple[str, int, str, bytes]]]:
    """The record once its objects are in the store, and its tensors: side, response, name, bytes."""
    words = [sys.executable, "-m", "sidecar.cli.main", "audit", "show", call_id, "--config", str(sidecar.stack.config)]
    words += ["--json", "--reveal", "--reason", "test", "--tensors", str(directory)]

    def done() -> str:
        ran = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        return ran.stdout if ran.returncode == 0 else ""

    record = json.loads(eventually(done, what=f"the tensors of {call_id}", within_s=60))
    told = json.loads((directory / "tensors.json").read_text())
    found = [(each["side"], each["response"], each["name"], (directory / each["file"]).read_bytes()) for each in told]
    return record, found


def test_inputs_and_outputs_are_kept_and_what_is_too_large_by_digest(sidecar: Sidecar, tmp_path: Path) -> None:
    small, large = np.arange(100, dtype=np.float32), np.zeros(20_000, dtype=np.float32)
    ids = []
    for array in (small, large):
        with sidecar.client() as client:
            result = client.infer(
                "echo", [filled("tensor", "FP32", array)], headers=sidecar.headers(TENANT), request_id="r"
            )
        assert np.array_equal(result.as_numpy("tensor"), array)
    records = eventually(
        lambda: found if len(found := sidecar.search(tenant=TENANT, model="echo", limit=10)) == 2 else None,
        what="both records", within_s=60,
    )  # fmt: skip
    ids = [record["call_id"] for record in records]  # newest first
    record, tensors = shown(sidecar, ids[1], tmp_path / "small")
    assert tensors == [("inputs", 0, "tensor", small.tobytes()), ("outputs", 0, "tensor", small.tobytes())]
    assert [each["state"] for each in record["objects"]] == ["there", "there"]
    record, tensors = shown(sidecar, ids[0], tmp_path / "large")
    assert (tensors, record["objects"]) == ([], [])
    for side in ("inputs", "outputs"):
        told = record["payloads"][side]
        assert (told["unkept"], told["tensors"][0][2:5]) == ("bound", ["FP32", [20_000], 80_000])
        assert len(told["tensors"][0][5]) == 64


def test_each_answer_of_a_stream_is_kept(sidecar: Sidecar, tmp_path: Path) -> None:
    with sidecar.bare() as bare:
        stream = bare.stream([slow(3, prompt=b"three words please")], sidecar.headers(TENANT))
        assert any(final(response) for response in stream)
        assert stream.answer().code == "OK"
    (record,) = eventually(
        lambda: sidecar.search(tenant=TENANT, model="slow", limit=10), what="the record", within_s=60
    )
    told, tensors = shown(sidecar, record["call_id"], tmp_path / "stream")
    prompt = [body for side, _, name, body in tensors if (side, name) == ("inputs", "text_input")]
    assert prompt == [packed(b"three words please")]
    texts = [(response, body) for side, response, name, body in tensors if name == "text_output"]
    assert [response for response, _ in texts] == [0, 1, 2, 3]  # the model's own end is one more, without a text
    assert b"".join(body[4:] for _, body in texts).decode() == told["output"]
    assert told["output"]
