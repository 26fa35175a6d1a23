"""A canary moved under load, and aliases: which version answered each call, why, and with which weights."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pytest
import tritonclient.grpc as kserve
from tritonclient.utils import InferenceServerException

from sidecar.runtime.digests import digest_directory
from sidecar.triton.protos import ModelInferRequest, ModelInferResponse
from tests.support.kserve import packed, request
from tests.support.sidecar import Bare, Launch, Sidecar, slow
from tests.support.stack import ROOT, eventually, filled, tensor

pytestmark = pytest.mark.integration
EMBED = ROOT / "examples" / "models" / "embed"
WORKERS = 4
ALIASES = '"aliases": {"assistant": "slow", "vectors": "embed"}'


def embed(text: bytes = b"a house", **fields: str) -> bytes:
    return bytes(request("embed", ("text", "BYTES", [1, 1], packed(text)), **fields).SerializeToString())


def move(sidecar: Sidecar, old: str, new: str, *, file: str = "models.yaml") -> float:
    """Change the bundle as an operator would; the seconds until it was in force."""
    path = sidecar.stack.bundle / file
    text = path.read_text()
    assert len(re.findall(old, text)) == 1, old
    before, began = bundle(sidecar), time.monotonic()
    path.write_text(re.sub(old, new, text))
    eventually(lambda: bundle(sidecar) != before, what="the new bundle to be in force", within_s=30)
    return time.monotonic() - began


def bundle(sidecar: Sidecar) -> str:
    return str(sidecar.stack.readyz()["checks"]["bundle"]["detail"]).split(",", maxsplit=1)[0]


@dataclass
class Load:
    """Calls without end from several clients; each answer with the moment its call began."""

    answers: list[tuple[float, str, str]] = field(default_factory=list)  # began, call id, version
    faults: list[str] = field(default_factory=list)

    def since(self, moment: float, least: int) -> list[tuple[str, str]]:
        """The answers to calls that began after ``moment``: call id, version; at least so many."""
        found: list[tuple[str, str]] = []

        def enough() -> bool:
            found[:] = [(call, version) for began, call, version in list(self.answers) if began > moment]
            return len(found) >= least

        eventually(enough, what=f"{least} calls; faults: {self.faults[:3]}", within_s=240)
        return found


@contextmanager
def load(sidecar: Sidecar) -> Iterator[Load]:
    made, over = Load(), threading.Event()

    def work() -> None:
        with sidecar.bare() as bare:
            headers = sidecar.headers()
            while not over.is_set():
                began = time.monotonic()
                answer = bare.unary(embed(), headers)
                if answer.code == "OK" and answer.message is not None:
                    version = ModelInferResponse.FromString(answer.message).model_version
                    made.answers.append((began, answer.call_id, version))
                else:
                    made.faults.append(f"{answer.code} {answer.text}")

    with ThreadPoolExecutor(WORKERS) as pool:
        tasks = [pool.submit(work) for _ in range(WORKERS)]
        try:
            yield made
        finally:
            over.set()
    for task in tasks:
        task.result()


def share(answers: list[tuple[str, str]]) -> float:
    return sum(version == "2" for _, version in answers) / len(answers)


def test_a_canary_is_moved_from_0_to_10_to_100_and_back_to_0_under_load(own: Launch) -> None:
    sidecar = own()
    move(sidecar, r"percent: 10, sticky: principal", "percent: 0, sticky: request")
    counted = 300
    told: dict[int, list[tuple[str, str]]] = {}
    with load(sidecar) as running:
        told[0] = running.since(time.monotonic(), counted)
        assert share(told[0]) == 0
        move(sidecar, r"percent: 0,", "percent: 10,")
        told[10] = running.since(time.monotonic(), counted)
        n = len(told[10])
        assert abs(share(told[10]) - 0.1) <= 5 * (0.1 * 0.9 / n) ** 0.5, f"{share(told[10])} of {n}"
        move(sidecar, r"percent: 10,", "percent: 100,")
        told[100] = running.since(time.monotonic(), counted)
        assert share(told[100]) == 1
        seconds = move(sidecar, r"percent: 100,", "percent: 0,")
        assert seconds < 10, "reverted in seconds"
        back = running.since(time.monotonic(), counted)
        assert share(back) == 0
    assert not running.faults, running.faults[:3]
    for percent, answers in told.items():
        for call, version in [answers[0], answers[-1], *(a for a in answers if a[1] == "2")][:4]:
            record = sidecar.record(call)
            assert (record["model"], record["model_version"], record["routed_version"]) == ("embed", version, version)
            assert record["route"] == ("canary" if version == "2" else "stable")
            words = f"{percent}% of canary 2 by request"
            assert record["route_why"] == ("in " if version == "2" else "not in ") + words
            assert record["model_digest"] == digest_directory(EMBED / version)
    answered = {v: sum(version == v for _, _, version in running.answers) for v in "12"}
    for version, route in (("1", "stable"), ("2", "canary")):
        labels = {"model": "embed", "version": version, "route": route, "outcome": "completed"}
        assert sidecar.metric("warden_routed_calls_total", **labels) == answered[version]


def test_a_principal_keeps_its_version_and_others_have_another(own: Launch) -> None:
    sidecar = own()
    move(sidecar, r"percent: 10,", "percent: 50,")
    with sidecar.bare() as bare:
        mine = {version(bare, sidecar.headers()) for _ in range(20)}
        assert len(mine) == 1, "one principal, one version"
        others = [version(bare, sidecar.headers("acme", **as_subject(sidecar, n))) for n in range(16)]
    assert set(others) == {"1", "2"}


def as_subject(sidecar: Sidecar, n: int) -> dict[str, str]:
    """A token of another subject of acme."""
    return {"authorization": f"Bearer {sidecar.token('acme', subject=f'user-{n}')}"}


def version(bare: Bare, headers: dict[str, str], **fields: str) -> str:
    answer = bare.unary(embed(**fields), headers)
    assert answer.code == "OK", answer.text
    assert answer.message is not None
    return str(ModelInferResponse.FromString(answer.message).model_version)


def test_a_version_that_the_client_names_is_what_it_gets(own: Launch) -> None:
    sidecar = own()
    move(sidecar, r"percent: 10,", "percent: 100,")
    with sidecar.bare() as bare:
        assert version(bare, sidecar.headers()) == "2"
        answer = bare.unary(embed(model_version="1"), sidecar.headers())
        assert answer.message is not None
        assert ModelInferResponse.FromString(answer.message).model_version == "1"
        record = sidecar.record(answer.call_id)
        assert (record["route"], record["route_why"]) == ("client", "the client asked for it")
        assert record["routed_version"] is None


def test_an_alias_answers_by_the_name_that_was_asked_for(own: Launch) -> None:
    sidecar = own()
    move(sidecar, r"ample: \{", f"ample: {{{ALIASES}, ", file="plans.yaml")
    headers = sidecar.headers()
    with sidecar.client() as client:
        result = client.infer("vectors", [texts("a house")], headers=headers)
        assert result.get_response().model_name == "vectors"
        assert result.as_numpy("embedding").shape == (1, 64)
        assert client.get_model_metadata("vectors", headers=headers).name == "vectors"
        assert client.is_model_ready("vectors", headers=headers)
        with pytest.raises(InferenceServerException) as failure:
            client.infer("no-such", [texts("a house")], headers=headers)
        assert "NOT_FOUND" in str(failure.value.status())
        with pytest.raises(InferenceServerException, match="'vectors'") as failure:  # Triton's words, of `embed`
            client.infer("vectors", [texts("a house"), tensor("odd", "INT32", 1)], headers=headers)
        assert "embed" not in str(failure.value)
    with sidecar.bare() as bare:
        asked = ModelInferRequest.FromString(slow(3, 0, id="s"))
        asked.model_name = "assistant"
        stream = bare.stream([asked.SerializeToString()], headers)
        names = {response.infer_response.model_name for response in stream}
        assert names == {"assistant"}
        record = sidecar.record(f"{stream.answer().call_id}/1")
    assert (record["model"], record["alias"], record["outcome"]) == ("slow", "assistant", "completed")
    assert record["output"] == "word0 word1 word2 ", "read by the contract of the model that answered"


def texts(*each: str) -> kserve.InferInput:
    return filled("text", "BYTES", np.array([[text.encode()] for text in each], dtype=np.object_))
