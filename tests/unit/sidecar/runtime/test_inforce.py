"""A bundle's content and its event are written until both stand, in order, and a failure is told once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from audit.spool import read_bundle
from policies.bundle import Bundle, compile_bundle
from sidecar.core.model import Denial, ParameterValue
from sidecar.core.reasons import Reason
from sidecar.runtime import inforce
from sidecar.runtime.inforce import Announcer, InForce
from tests.support.policy import demo_bundle

FULL = Denial(Reason.AUDIT_UNAVAILABLE, internal="disk full")


class Journal:
    """Where events go, unless ``denial`` is set; ``counted`` is what was told to be missing."""

    def __init__(self) -> None:
        self.denial: Denial | None = None
        self.events: list[tuple[str, Mapping[str, ParameterValue]]] = []
        self.counted: list[Denial] = []
        self.announcer = Announcer(self.event, self.counted.append)

    def event(self, store: str, kind: str, actor: str, detail: Mapping[str, ParameterValue]) -> Denial | None:
        assert (store, actor) == ("", "serve")
        if self.denial is None:
            self.events.append((kind, detail))
        return self.denial


def test_an_event_that_cannot_be_written_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    journal = Journal()
    journal.denial = FULL
    with caplog.at_level(logging.ERROR, "warden.lifecycle"):
        assert not journal.announcer.write("sidecar_stopped", {})
    assert (journal.counted, caplog.messages) == ([FULL], ["event.unrecorded"])


def test_a_load_that_the_journal_refuses_is_written_later_and_told_once(tmp_path: Path) -> None:
    journal, bundle = Journal(), demo_bundle()
    force = InForce(tmp_path, "enforce", journal.announcer)
    journal.denial = FULL
    force.loaded(bundle, "before")
    force.retry()
    journal.denial = None
    force.retry()
    force.retry()
    detail = {"digest": bundle.digest, "previous": "before", "mode": "enforce", "changes": "", "source": ""}
    assert journal.events == [("bundle_loaded", detail)]
    assert journal.counted == [FULL]
    assert read_bundle(tmp_path, bundle.digest) == bundle.content()


def test_the_content_comes_before_the_digest(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    journal, bundle = Journal(), demo_bundle()
    (tmp_path / "bundles").write_text("in the way")
    force = InForce(tmp_path, "enforce", journal.announcer)
    with caplog.at_level(logging.ERROR, "warden.lifecycle"):
        force.loaded(bundle, "")
        force.retry()
    assert journal.events == []
    assert caplog.messages == ["bundle.unspooled"]
    (tmp_path / "bundles").unlink()
    force.retry()
    assert len(journal.events) == 1
    assert read_bundle(tmp_path, bundle.digest) == bundle.content()


def test_loads_keep_their_order_and_only_so_many_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inforce, "MOST", 2)
    journal, bundle = Journal(), demo_bundle()
    force = InForce(tmp_path, "enforce", journal.announcer)
    journal.denial = FULL
    for n in range(3):
        force.loaded(replace(bundle, digest=f"sha256:{n}"), "")
    journal.denial = None
    force.retry()
    assert [detail["digest"] for _, detail in journal.events] == ["sha256:1", "sha256:2"]


def test_a_load_says_what_changed_by_whom_and_from_where(tmp_path: Path) -> None:
    journal = Journal()
    files = dict(demo_bundle().files)
    files["bundle.yaml"] += b"change: {author: ada, reference: PR 7}\n"
    bundle = compile_bundle(files)
    assert isinstance(bundle, Bundle)
    force = InForce(tmp_path, "enforce", journal.announcer)
    force.loaded(bundle, "before", "files: ~bundle.yaml", "/etc/bundle")
    told = journal.events[0][1]
    assert {name: told[name] for name in ("changes", "source", "author", "reference")} == {
        "changes": "files: ~bundle.yaml", "source": "/etc/bundle", "author": "ada", "reference": "PR 7",
    }  # fmt: skip
