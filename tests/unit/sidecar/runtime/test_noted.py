"""Each change of settings or models is one event, told until it stands, whatever is full, restarts or flaps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, Field

from sidecar.core.model import Denial, ParameterValue, Secret
from sidecar.core.reasons import Reason
from sidecar.runtime import noted
from sidecar.runtime.inforce import Announcer
from sidecar.runtime.noted import FILE, Noted, leaves
from sidecar.triton.knowledge import Knowledge, ModelFacts

KEY = Secret(b"k" * 32)
FULL = Denial(Reason.AUDIT_UNAVAILABLE, internal="disk full")
ECHO = ModelFacts("echo", versions=("1",), backend="python")
CHAT = ModelFacts("chat", versions=("1", "2"), backend="vllm")


class Inner(BaseModel):
    posture: str = "fair_share"
    url: str = Field(default="redis://:secret@host", repr=False)


class Outer(BaseModel):
    mode: str = "enforce"
    redis: Inner = Inner()
    ports: tuple[int, ...] = (8000, 8002)
    stores: dict[str, Path] = {"here": Path("/a")}
    missing: str | None = None


class Issuer(BaseModel):
    issuer: str
    level: str


class Several(BaseModel):
    issuers: tuple[Issuer, ...]


class Log:
    """A sidecar's directory and its journal, over any number of starts."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.full, self.counted, self.at, self.version = directory, False, 0, 0.0, "1.2"
        self.events: list[tuple[str, Mapping[str, ParameterValue]]] = []
        self.noted = self.started()

    def started(self, settings: BaseModel | None = None) -> Noted:
        self.noted = Noted(self.directory, Announcer(self.tell, self.count), self.version, KEY, lambda: self.at)
        self.noted.begin(settings or Outer())
        return self.noted

    def tell(self, _store: str, kind: str, _actor: str, detail: Mapping[str, ParameterValue]) -> Denial | None:
        if self.full:
            return FULL
        self.events.append((kind, detail))
        return None

    def count(self, _: Denial) -> None:
        self.counted += 1

    def take(self) -> list[tuple[str, Mapping[str, ParameterValue]]]:
        told, self.events = self.events, []
        return told


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path)


def models(*found: ModelFacts, unlearnt: tuple[str, ...] = ()) -> Knowledge:
    return Knowledge.of(found, unlearnt)


def test_settings_are_told_by_their_dotted_names_and_none_that_may_hold_a_password() -> None:
    assert dict(leaves(Outer(), b"k")) == {
        "mode": "enforce", "redis.posture": "fair_share", "ports": "8000, 8002", "stores.here": "/a",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("https://me:secret@host/jwks?key=secret", "https://"),
        ("https://me:se@cret@host/", "https://"),
        ("https://me:se/cret@host/", "https://"),
        ("https://u:se#cret@host/", "https://"),
        ("HTTPS://me:secret@host/?k=secret", "HTTPS://"),
        ("https://me:p?secret@host", "https://"),
        ("postgresql://u:secret@host", "postgresql://"),
        ("see https://host:8443/secret for more", "see https://host:8443 for more"),
        ("url=https://host#token=secret", "url=https://host"),
        ("https://hooks.host/services/T0/B0/secret", "https://hooks.host"),
        ("a" * 300 + "secret", "a" * 200),
    ],
)
def test_of_a_url_no_more_than_its_host_is_told_and_a_mark_of_the_rest(written: str, told: str) -> None:
    shown = dict(leaves(Outer(mode=written), b"k"))["mode"]
    assert re.fullmatch(re.escape(told) + r"… \([0-9a-f]{12}\)", shown), shown
    assert shown != dict(leaves(Outer(mode=f"{written}2"), b"k"))["mode"], "another value is another one"
    assert shown != dict(leaves(Outer(mode=written), b"other"))["mode"], "nobody without the key guesses it"


@pytest.mark.parametrize("written", ["https://host", "spiffe://cluster/ns/?cme/*", "127.0.0.1:8001", "plain words"])
def test_what_hides_nothing_is_told_whole(written: str) -> None:
    assert dict(leaves(Outer(mode=written), b"k"))["mode"] == written


def test_one_of_several_is_called_by_what_it_is_known_by(log: Log) -> None:
    log.take()
    log.started(Several(issuers=(Issuer(issuer="https://b", level="low"),)))
    log.take()
    both = (Issuer(issuer="https://a", level="high"), Issuer(issuer="https://b", level="low"))
    log.started(Several(issuers=both))
    _, (_, changed) = log.take()
    assert changed["changes"] == (
        "issuers.[https://a].issuer: (unset) → https://a; issuers.[https://a].level: (unset) → high"
    )


def test_a_start_is_told_with_its_version_and_what_differs_from_the_last(log: Log) -> None:
    ((kind, first),) = log.take()
    assert (kind, first["version"], first["previous"]) == ("sidecar_started", "1.2", "")
    log.started()
    assert log.take() == [("sidecar_started", {**first, "previous": first["settings"]})], "nothing differs"
    log.started(Outer(mode="observe", redis=Inner(posture="refuse", url="other"), ports=(8000,), missing="there"))
    started, changed = log.take()
    assert started[1]["settings"] != first["settings"]
    assert changed == (
        "posture_changed",
        {
            "changes": "missing: (unset) → there; mode: enforce → observe; ports: 8000, 8002 → 8000; "
            "redis.posture: fair_share → refuse",
            "count": 4,
        },
    )
    log.started(Outer(mode="observe", redis=Inner(posture="refuse", url="other"), ports=(8000,), missing="there"))
    assert [kind for kind, _ in log.take()] == ["sidecar_started"], "what was told stands"


def test_models_that_come_change_and_go_are_told_once(log: Log) -> None:
    log.take()
    both = models(ECHO, CHAT)
    log.noted.learnt(both)
    log.noted.learnt(both)
    ((kind, detail),) = log.take()
    assert (kind, detail["models"], detail["unloaded"], detail["changed"]) == ("models_changed", 2, "", "")
    assert str(detail["loaded"]).startswith("chat (vllm, versions 1 2, ")
    assert "; echo (python, versions 1, " in str(detail["loaded"])
    log.noted.learnt(models(replace(CHAT, versions=("2", "3"))))
    ((_, detail),) = log.take()
    assert (detail["models"], detail["loaded"], detail["unloaded"]) == (1, "", "echo")
    assert "versions 1 2" in str(detail["changed"]).split("→")[0]
    assert "versions 2 3" in str(detail["changed"]).split("→")[1]
    log.noted.learnt(models(replace(CHAT, versions=("2", "3"), max_batch_size=8)))
    assert log.take()[0][1]["changed"], "whatever it says of itself counts"


def test_what_a_restart_finds_unchanged_is_not_told_again(log: Log) -> None:
    log.noted.learnt(models(ECHO))
    log.take()
    log.started().learnt(models(ECHO))
    assert [kind for kind, _ in log.take()] == ["sidecar_started"]
    log.started().learnt(models(CHAT))
    assert [(kind, detail.get("unloaded")) for kind, detail in log.take()][1:] == [("models_changed", "echo")]


def test_a_model_that_cannot_be_asked_about_and_a_triton_that_is_away_change_nothing(log: Log) -> None:
    log.noted.learnt(models(ECHO, CHAT))
    log.take()
    log.noted.learnt(models(ECHO, unlearnt=("chat", "never seen")))
    log.noted.learnt(Knowledge())
    assert log.take() == []


def test_an_issuers_keys_are_told_as_they_come_and_go_and_once(log: Log) -> None:
    log.take()
    first = {"https://idp": {"k1": "EdDSA aa", "k2": "EdDSA bb"}, "https://other": {}}
    log.noted.trusted(first)
    log.noted.trusted(first)
    told = {"issuer": "https://idp", "added": "k1 (EdDSA aa); k2 (EdDSA bb)", "removed": "", "keys": 2}
    assert log.take() == [("issuer_keys_changed", told)]
    log.noted.trusted({"https://idp": {"k2": "EdDSA cc", "k3": "RS256 dd"}})
    ((_, told),) = log.take()
    assert told["added"] == "k2 (EdDSA cc); k3 (RS256 dd)"
    assert told["removed"] == "k1 (EdDSA aa); k2 (EdDSA bb)", "one kid, another key: nobody replaces one unnoticed"
    log.noted.trusted({"https://idp": {}})
    assert log.take() == [], "an issuer that is away has not lost its keys"
    log.started().trusted({"https://idp": {"k2": "EdDSA cc", "k3": "RS256 dd"}})
    assert [kind for kind, _ in log.take()] == ["sidecar_started"]


def test_an_issuer_whose_keys_flap_fills_no_log(log: Log) -> None:
    log.take()
    for n in range(40):
        log.noted.trusted({"https://idp": {f"k{n}": "EdDSA aa"}})
    assert len(log.take()) == noted.MOST
    log.at += noted.WITHIN
    log.noted.trusted({"https://idp": {"k39": "EdDSA aa"}})
    ((_, told),) = log.take()
    assert (told["added"], told["removed"]) == ("k39 (EdDSA aa)", "k9 (EdDSA aa)")


def test_what_the_journal_refuses_is_written_later_and_counted_once(log: Log) -> None:
    log.take()
    log.full = True
    log.started(Outer(mode="observe")).learnt(models(ECHO))
    log.noted.learnt(models(ECHO))
    log.full = False
    log.noted.learnt(models(ECHO))
    assert [kind for kind, _ in log.take()] == ["sidecar_started", "posture_changed", "models_changed"]
    assert log.counted == 2, "of the start and of the models"
    log.started(Outer(mode="observe"))
    assert [kind for kind, _ in log.take()] == ["sidecar_started"]


def test_a_flapping_model_does_not_fill_the_log_and_its_end_is_told(log: Log) -> None:
    log.take()
    for n in range(100):
        log.at += 1.0
        log.noted.learnt(models(ECHO, CHAT) if n % 2 else models(ECHO))
    assert len(log.take()) == noted.MOST
    log.at += noted.WITHIN
    log.noted.learnt(models(ECHO))
    ((_, detail),) = log.take()
    assert detail["unloaded"] == "chat"


def test_thousands_of_models_fit_one_event(log: Log) -> None:
    log.take()
    log.noted.learnt(models(*(replace(ECHO, name=f"model-{n:04}") for n in range(4000))))
    ((_, detail),) = log.take()
    assert len(str(detail["loaded"])) < noted._TEXT_CHARS + 30
    assert str(detail["loaded"]).endswith(" more")
    assert detail["models"] == 4000


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"models": 3}', b"\xff", b"[" * 100_000])
def test_a_note_that_is_none_is_told_with_the_start(log: Log, content: bytes) -> None:
    """Otherwise who can spoil one file would change what a sidecar stands for, and no record would say so."""
    log.take()
    (log.directory / FILE).write_bytes(content)
    log.started(Outer(mode="observe"))
    ((kind, told),) = log.take()
    assert (kind, told["previous"]) == ("sidecar_started", noted.UNREADABLE)
    log.started(Outer(mode="observe"))
    ((kind, again),) = log.take()
    assert (kind, again["previous"]) == ("sidecar_started", told["settings"])


def test_a_start_that_could_not_be_recorded_is_as_soon_as_it_can(log: Log) -> None:
    """Triton need not answer for that."""
    log.take()
    log.full = True
    log.started()
    log.full = False
    log.noted.retry()
    log.noted.retry()
    assert [kind for kind, _ in log.take()] == ["sidecar_started"]


def test_another_release_that_knows_more_of_a_model_has_not_changed_it(log: Log) -> None:
    log.noted.learnt(models(ECHO, CHAT))
    log.take()
    log.version = "1.3"
    log.started().learnt(models(replace(ECHO, max_batch_size=8), replace(CHAT, versions=("2", "3"))))
    started, (_, changed) = log.take()
    assert started[1]["version"] == "1.3"
    assert str(changed["changed"]).startswith("chat (")
    assert "echo" not in str(changed["changed"])
    log.noted.learnt(models(ECHO, replace(CHAT, versions=("2", "3"))))
    ((_, changed),) = log.take()
    assert str(changed["changed"]).startswith("echo (")


def test_a_note_that_cannot_be_written_is_no_reason_to_stop(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(noted, "write_whole", fail)
    log.take()
    log.noted.learnt(models(ECHO))
    assert [kind for kind, _ in log.take()] == ["models_changed"]
