"""Every kind of model that Triton serves, governed: embeddings, images, sound, ensembles, sequences, batches."""

from __future__ import annotations

import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.support.sidecar import Sidecar
from tests.support.stack import Triton, eventually, filled, tensor

pytestmark = pytest.mark.integration


def embed(sidecar: Sidecar, *texts: str, version: str = "1") -> np.ndarray[Any, Any]:
    array = np.array([[text.encode()] for text in texts], dtype=np.object_)
    with sidecar.client() as client:
        result = client.infer(
            "embed", [filled("text", "BYTES", array)], headers=sidecar.headers(), model_version=version
        )
    found: np.ndarray[Any, Any] = result.as_numpy("embedding")
    return found


def test_embeddings_of_a_batch_are_near_where_texts_are(sidecar: Sidecar) -> None:
    house, home, other = embed(sidecar, "a red house by the sea", "the house by the sea is red", "quarterly tax report")
    assert np.allclose([np.linalg.norm(each) for each in (house, home, other)], 1)
    assert house @ home > 0.5 > house @ other
    two = embed(sidecar, "house", "houses", version="2")
    one = embed(sidecar, "house", "houses", version="1")
    assert two[0] @ two[1] > 0.3 > one[0] @ one[1], "version 2 knows parts of words"


def test_a_png_goes_and_comes_back_byte_for_byte(sidecar: Sidecar) -> None:
    png = b"\x89PNG\r\n\x1a\n" + zlib.compress(bytes(range(256)) * 4096)
    with sidecar.client() as client:
        given = filled("text", "BYTES", np.array([png, b"\x00" * 7, b""], dtype=np.object_))
        result = client.infer("echo", [given], headers=sidecar.headers())
    assert list(result.as_numpy("text")) == [png, b"\x00" * 7, b""]


def test_a_minute_of_sound_goes_and_comes_back(sidecar: Sidecar) -> None:
    sound = np.sin(np.arange(60 * 16_000, dtype=np.float32) * (2 * np.pi * 440 / 16_000)).astype(np.float32)
    with sidecar.client() as client:
        result = client.infer("echo", [filled("tensor", "FP32", sound)], headers=sidecar.headers())
    assert np.array_equal(result.as_numpy("tensor"), sound)
    record = eventually(
        lambda: [r for r in sidecar.search(tenant="acme", model="echo", limit=20) if r["prompt_bytes"] == 0],
        what="its record",
        within_s=60,
    )[0]
    assert (record["outcome"], record["prompt"]) == ("completed", None), "what no contract reads is not kept as text"


def test_many_tenants_requests_are_batched_together(sidecar: Sidecar, triton: Triton) -> None:
    """Triton's own counters: far fewer executions than inferences, though each came from another client."""
    before = [triton.metric(name, model="embed", version="1") for name in COUNTS]

    def one(n: int) -> np.ndarray[Any, Any]:
        return embed(sidecar, f"text number {n}")

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, range(128)))
    assert len({each.tobytes() for each in found}) > 64, "each its own answer"
    inferences, executions = (
        triton.metric(name, model="embed", version="1") - was for name, was in zip(COUNTS, before, strict=True)
    )
    assert inferences == 128
    assert executions < inferences


COUNTS = ("nv_inference_count", "nv_inference_exec_count")


def test_all_of_them_at_once(sidecar: Sidecar) -> None:
    """Ensemble, sequence, batch, embedding and echo side by side, each answered right and each on record."""
    headers = sidecar.headers()

    def rag() -> bool:
        with sidecar.client() as client:
            inputs = [
                tensor("text_input", "BYTES", "What happens when Postgres is down?"),
                tensor("max_tokens", "INT32", 4),
            ]
            return bool(client.infer("rag", inputs, headers=headers).as_numpy("sources")[0] == b"When Postgres is down")

    def counter() -> bool:
        with sidecar.client() as client:
            totals = []
            for step, number in enumerate((5, 7, -2)):
                given = filled("number", "INT32", np.array([[number]], np.int32))
                result = client.infer(
                    "counter",
                    [given],
                    headers=headers,
                    sequence_id=77,
                    sequence_start=step == 0,
                    sequence_end=step == 2,
                )
                totals.append(int(result.as_numpy("total")[0, 0]))
        return totals == [5, 12, 10]

    def vision() -> bool:
        image = np.zeros((1, 3, 224, 224), np.float32)
        image[0, 2] = 0.9
        with sidecar.client() as client:
            scores = client.infer("vision", [filled("image", "FP32", image)], headers=headers).as_numpy("scores")
        return int(scores.argmax()) == 2

    def echo() -> bool:
        sent = struct.pack("<4f", 1, 2, 3, 4)
        with sidecar.client() as client:
            result = client.infer("echo", [filled("tensor", "FP32", np.frombuffer(sent, np.float32))], headers=headers)
        return bool(result.as_numpy("tensor").tobytes() == sent)

    with ThreadPoolExecutor(5) as pool:
        each = [
            pool.submit(work) for work in (rag, counter, vision, echo, lambda: embed(sidecar, "x").shape == (1, 64))
        ]
        assert [work.result() for work in each] == [True] * 5
