"""The composition root: what it needs to start, and that it says what is missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.rootkeys import NewRootKey, RootKeys, new_root_key
from audit.segments import read_info
from sidecar.core.governor import Mode
from sidecar.core.model import Credential, Durability, Principal, Secret
from sidecar.runtime import rootkeys
from sidecar.runtime.compose import IN_KUBERNETES, Rooms, StartError, build, check, named_problems
from sidecar.runtime.settings import load
from tests.support.config import document, write
from tests.support.identity import ISSUER


@pytest.fixture
def built(tmp_path: Path) -> Iterator[Callable[..., Rooms]]:
    rooms: list[Rooms] = []

    def start(**changes: Any) -> Rooms:
        rooms.append(build(load(write(tmp_path, **changes))))
        return rooms[-1]

    yield start
    for each in rooms:
        assert each.journal.close() is None


def test_the_rooms_are_wired_by_the_configuration(built: Callable[..., Rooms], tmp_path: Path) -> None:
    keys = {"pepper_file": "keys/pepper"}
    rooms = built(mode="observe", identity=document(tmp_path)["identity"] | {"keys": keys})
    assert rooms.governor.mode is Mode.OBSERVE
    assert rooms.policies.current().place.jurisdiction == "EU"
    assert len(rooms.jwks) == 1
    assert rooms.ring is not None
    assert rooms.keys is not None
    assert (tmp_path / "journal").is_dir()


def test_without_keys_there_is_no_ring(built: Callable[..., Rooms]) -> None:
    rooms = built()
    assert rooms.ring is None  # and what keeps it fresh is kept for the deny-list of tokens


@pytest.mark.parametrize("mode", Durability)
def test_the_journals_mode_is_the_configurations(built: Callable[..., Rooms], tmp_path: Path, mode: Durability) -> None:
    audit = document(tmp_path)["audit"]
    audit["journal"]["mode"] = str(mode)
    assert built(audit=audit).recorder._durability is mode


def changed(directory: Path, section: str, **values: Any) -> dict[str, Any]:
    """One section of the good document with values put in, ``__`` between levels."""
    whole = document(directory)
    for path, value in values.items():
        *levels, last = path.split("__")
        place = whole.setdefault(section, {})
        for level in levels:
            place = place[level] if not level.isdigit() else place[int(level)]
        place[last] = value
    return {section: whole[section]}


@pytest.mark.parametrize(
    ("section", "values", "told"),
    [
        ("sidecar", {"region": "mars-1"}, "mars-1"),
        ("sidecar", {"evidence": None}, r"sidecar\.evidence: needed in mode enforce"),
        ("audit", {"database__jurisdiction": "US"}, r"audit\.database\.jurisdiction: US, but eu-west-1 lies in EU"),
        (
            "audit",
            {"databases": {"MARS": {"dsn": "postgresql://127.0.0.1:1/m", "key_file": "m.key"}}},
            r"the database's jurisdiction MARS is not in the bundle",
        ),
        (
            "audit",
            {"keys": {"aws": {"key": "arn:aws:kms:us-east-1:123456789012:key/1", "jurisdiction": "EU"}}},
            r"audit\.keys\.aws\.key: us-east-1 lies in US, says bundle\.yaml, .* records of EU",
        ),
        (
            "audit",
            {"keys": {"gcp": {"key": "projects/p/locations/us-east-1/keyRings/r/cryptoKeys/k", "jurisdiction": "EU"}}},
            r"audit\.keys\.gcp\.key: us-east-1 lies in US, says bundle\.yaml, .* records of EU",
        ),
        ("policy", {"bundle": "absent"}, "absent"),
        ("audit", {"journal__key_file": "absent.key"}, "audit.journal.key_file"),
        (
            "audit",
            {"journal__keys_directory": "journal/roots"},
            r"audit\.journal\.keys_directory: .* beside what its keys seal",
        ),
        ("audit", {"journal__directory": "keys/pepper"}, "audit.journal"),
        ("identity", {"keys": {"pepper_file": "absent"}}, "identity.keys.pepper_file"),
        ("identity", {"issuers__0__jwks": "http://elsewhere.example/jwks"}, f"identity.issuers: {ISSUER}: jwks"),
    ],
)
def test_what_is_missing_is_said_with_its_place(
    tmp_path: Path, section: str, values: dict[str, Any], told: str
) -> None:
    settings = load(write(tmp_path, **changed(tmp_path, section, **values)))
    with pytest.raises(StartError, match=told):
        build(settings)


def test_the_journal_is_under_the_root_key_in_use_and_a_missing_one_is_told_at_a_start(
    built: Callable[..., Rooms], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    roots = tmp_path / "roots"
    old = new_root_key(roots, os.urandom)
    assert isinstance(old, NewRootKey)
    audit = document(tmp_path)["audit"]
    audit["journal"]["keys_directory"] = "roots"
    settings = load(write(tmp_path, audit=audit))
    assert rootkeys.problems(settings.audit.journal, RootKeys(Secret(b"k" * 32), roots)) == []
    rooms = build(settings)
    assert isinstance(rooms.journal.append(b"x"), int)
    assert rooms.journal.close() is None
    assert {each.root for each in rootkeys.sealed_in(tmp_path / "journal")} == {old.identity}
    assert isinstance(new_root_key(roots, os.urandom), NewRootKey)
    second = build(settings)  # what is open now is under the new one, and recovery needs the old one no more
    assert isinstance(second.journal.append(b"y"), int)
    assert second.journal.close() is None
    old.path.unlink()
    with pytest.raises(StartError, match=f"sealed under root key {old.identity.hex()}"):
        build(settings)  # what calls took in the last hour is not known
    for path in (tmp_path / "journal").glob("*.seg"):
        os.utime(path, (0, 0))
    third = built(audit=audit)
    assert isinstance(third.journal.append(b"z"), int)
    (told,) = [record for record in caplog.records if record.getMessage() == "journal.key_missing"]
    assert old.identity.hex() in told.warden["error"]  # type: ignore[attr-defined]
    (roots / "current").write_text("0123456789abcdef")
    with pytest.raises(StartError, match=r"audit\.journal\.keys_directory: key file .*0123456789abcdef\.key: No such"):
        build(settings)


def test_a_sidecar_that_could_not_start_leaves_the_journal_to_the_next(
    built: Callable[..., Rooms], tmp_path: Path
) -> None:
    with pytest.raises(StartError):
        build(load(write(tmp_path, **changed(tmp_path, "identity", keys={"pepper_file": "absent"}))))
    built()
    with pytest.raises(StartError, match=r"audit\.journal"):  # one sidecar a journal
        build(load(tmp_path / "warden.yaml"))


def test_observing_needs_no_evidence(built: Callable[..., Rooms]) -> None:
    assert built(mode="observe", sidecar={"name": "pod-1", "region": "eu-west-1"}).policies.current().place.doubt == ""


def test_a_pod_in_doubt_starts_and_its_journal_bears_the_evidence(built: Callable[..., Rooms], tmp_path: Path) -> None:
    def evidence(rooms: Rooms) -> str:
        assert rooms.recorder.event("test", "test", {}) is None
        descriptor = os.open(max((tmp_path / "journal").glob("*.seg")), os.O_RDONLY)
        found = read_info(descriptor)
        os.close(descriptor)
        assert found is not None
        return found[0].evidence

    sure = built()
    assert sure.policies.current().place.doubt == ""
    assert evidence(sure) == f"configuration + node labels {tmp_path / 'node-labels'}"
    assert sure.journal.close() is None
    (tmp_path / "node-labels").write_text('topology.kubernetes.io/region="us-east-1"')
    doubted = build(load(tmp_path / "warden.yaml"))
    assert "us-east-1" in doubted.policies.current().place.doubt
    assert evidence(doubted) == "configuration"
    assert doubted.journal.close() is None


def test_a_check_makes_nothing(tmp_path: Path) -> None:
    settings = load(write(tmp_path))
    assert check(settings).current().digest.startswith("sha256:")
    assert named_problems(settings) == []
    assert not (tmp_path / "journal").exists()


def test_all_problems_of_identity_are_told_at_once(tmp_path: Path) -> None:
    values = {"keys": {"pepper_file": "absent"}, "issuers__0__jwks": "http://elsewhere.example/jwks"}
    problems = named_problems(load(write(tmp_path, **changed(tmp_path, "identity", **values))))
    assert [problem.partition(" ")[0] for problem in problems] == ["identity.keys.pepper_file:", "identity.issuers:"]


PERF: dict[str, Any] = {"address": "127.0.0.1:8015", "principal": {"tenant": "acme", "name": "perf"}}


def test_a_bound_listeners_principal_is_the_configurations(built: Callable[..., Rooms]) -> None:
    rooms = built(listeners=[PERF])
    found = rooms.governor._ports.identity.identify(Credential("listener", Secret(b"127.0.0.1:8015")), 0.0)
    assert found == Principal("acme", "perf", "listener", frozenset({"tenant"}))


def test_a_bound_listener_of_an_unknown_tenant_is_told(tmp_path: Path) -> None:
    stranger = PERF | {"principal": {"tenant": "nobody", "name": "perf"}}
    settings = load(write(tmp_path, listeners=[PERF, stranger | {"address": "127.0.0.1:8016"}]))
    with pytest.raises(StartError, match=r"listeners\[1\] 127\.0\.0\.1:8016: principal\.tenant.*'nobody'"):
        check(settings, {})


def test_under_kubernetes_a_bound_listener_needs_its_risk_stated(tmp_path: Path) -> None:
    in_pod = {IN_KUBERNETES: "10.96.0.1"}
    settings = load(write(tmp_path, listeners=[PERF]))
    assert check(settings, {})
    with pytest.raises(StartError, match=r"listeners\[0\].*every container of this pod could call as acme/perf"):
        check(settings, in_pod)
    stated = PERF | {"under_kubernetes": "every container of this pod may use it"}
    assert check(load(write(tmp_path, listeners=[stated])), in_pod)
