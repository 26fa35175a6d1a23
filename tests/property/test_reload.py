"""Reload under load: no call sees half a bundle, and a broken one changes nothing."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

from policies.explain import Asked, Explanation, explain
from policies.source import BundleSource, Loaded, Pod
from sidecar.core.governor import Governor, Ports, Refused
from sidecar.core.model import Admission, Head, InferenceFacts, Method, ModelProfile, Principal
from tests.support.core import AT, FakeInstruments, FakeJournal, FakePorts, a_call
from tests.support.policy import DEMO_BUNDLE

ROUNDS = 12
MODELS = ("chat", "rag", "vision", "absent")


class Around(FakePorts):
    """The governor's rooms, with the bundle's own; the message is the model's name."""

    source: BundleSource

    def identify(self, credential: object, at: float) -> Principal:
        return Principal("acme", "alice", "jwt")

    def current(self) -> object:  # type: ignore[override]  # the real thing in place of the fake
        return self.source.current()

    def head(self, method: Method, message: bytes) -> Head:
        return Head(message.decode())

    def facts(self, method: Method, message: bytes, profile: ModelProfile, head: Head) -> InferenceFacts:
        return InferenceFacts(model=message.decode())


def test_each_answer_is_explained_by_the_bundle_it_names(tmp_path: Path) -> None:
    """Two bundles that differ in every answer take turns, with broken ones between, while four threads ask."""
    directory = Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle"))
    shutil.rmtree(directory / "tests")  # they hold of one of the two only
    policy, tenant = directory / "access" / "health-data.cedar", directory / "tenants" / "acme.yaml"
    texts = (policy.read_text(), policy.read_text().replace('Model::"rag"', 'Model::"chat"'))
    grants = (
        tenant.read_text(),
        tenant.read_text().replace("models: [chat, vision,", "models: [chat,"),
    )
    assert texts[0] != texts[1]
    assert grants[0] != grants[1]
    source = BundleSource.open(directory, Pod("eu-west-1", "EU", "EU"))
    assert isinstance(source, BundleSource)
    bundles = {source.current().digest: source.current().bundle}
    around = Around()
    around.source = source
    governor = Governor(Ports(around, around, around, around, FakeJournal(around), FakeInstruments()))
    told: list[list[tuple[str, str, str, str]]] = [[] for _ in range(4)]
    done = threading.Event()

    def ask(into: list[tuple[str, str, str, str]]) -> None:
        while not done.is_set():
            for model in MODELS:
                found = governor.admit(a_call(message=model.encode(), data_class="phi"), AT)
                if isinstance(found, Refused):
                    into.append((model, found.bundle, found.denial.reason, found.denial.rule))
                else:
                    assert isinstance(found, Admission)
                    into.append((model, found.verdict.bundle, "allow", found.verdict.rule))

    threads = [threading.Thread(target=ask, args=(into,)) for into in told]
    for thread in threads:
        thread.start()
    try:
        for n in range(1, ROUNDS):
            before = source.current()
            plans = (directory / "plans.yaml").read_text()
            (directory / "plans.yaml").write_text(plans.replace("burst: 400", "burst: 0"))
            assert isinstance(source.reload(), list)
            assert source.current() is before, "a broken bundle changes nothing"
            (directory / "plans.yaml").write_text(plans)
            policy.write_text(texts[n % 2])
            tenant.write_text(grants[n % 2])
            assert isinstance(source.reload(), Loaded)
            bundles[source.current().digest] = source.current().bundle
    finally:
        done.set()
        for thread in threads:
            thread.join()
    answers = {answer for each in told for answer in each}
    assert len({digest for _, digest, _, _ in answers}) == 2
    for model, digest, verdict, rule in answers:
        asked = Asked("acme", model, "eu-west-1", data_class="phi", principal="alice", at=AT.wall)
        explained = explain(bundles[digest], asked)
        assert isinstance(explained, Explanation)
        assert (verdict, rule) == (str(explained.reason or "allow"), explained.verdict.rule)
