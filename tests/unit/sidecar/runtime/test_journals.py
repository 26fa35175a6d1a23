"""One journal for each database: side by side in one space, each copied to its own jurisdiction's stores."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from audit.files import OsFiles
from audit.journal import Journal, close_all
from audit.objects import LocalObjects
from audit.reassembly import journals_in
from audit.segments import Origin
from sidecar.runtime.journals import open_journals
from sidecar.runtime.settings import load
from tests.support.config import document, write

Opened = dict[str, Journal]


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., Opened | str]]:
    """Of a pod in the EU with a further database of the US; ``journal`` and ``us`` go into their sections."""
    running: list[Journal] = []

    def opened(journal: dict[str, Any], us: dict[str, Any]) -> Opened | str:
        (tmp_path / "us").mkdir(exist_ok=True)
        (tmp_path / "us" / "root.key").write_bytes(secrets.token_bytes(32))
        audit = document(tmp_path)["audit"]
        audit["journal"] |= journal
        audit["databases"] = {"US": {"dsn": "postgresql://us/none", "key_file": "us/root.key", **us}}
        found = open_journals(load(write(tmp_path, audit=audit)), Origin("pod-1", "eu-west-1", "EU"), OsFiles())
        running.extend(() if isinstance(found, str) else found.values())
        return found

    yield opened
    if running:
        close_all(running)


def store(directory: Path, jurisdiction: str) -> dict[str, Any]:
    directory.mkdir()
    return {"directory": str(directory), "jurisdiction": jurisdiction, "same_volume": True}


def test_a_journal_is_copied_to_each_store_of_its_own_database_and_to_no_other(
    opened: Callable[..., Opened | str], tmp_path: Path
) -> None:
    here = {"eu-a": store(tmp_path / "eu-a", "EU"), "eu-b": store(tmp_path / "eu-b", "EU")}
    journals = opened({"copy": here}, {"copy": {"us-a": store(tmp_path / "us-a", "US")}})
    assert isinstance(journals, dict)
    for journal in journals.values():
        assert isinstance(journal.append(b"x"), int)
    assert journals["EU"].copied(("eu-a", "eu-b")).result(30) is None
    assert journals["US"].copied().result(30) is None
    held = {
        name: {each.journal for each in journals_in(LocalObjects(tmp_path / name))} for name in ("eu-a", "eu-b", "us-a")
    }
    eu, us = {journals["EU"].identity}, {journals["US"].identity}
    assert held == {"eu-a": eu, "eu-b": eu, "us-a": us}
    fault = journals["US"].copied(("eu-a",)).result(0)
    assert fault is not None
    assert "has no store named 'eu-a'" in fault.detail


def test_one_that_cannot_be_opened_leaves_none_open(opened: Callable[..., Opened | str], tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    copy = {"outside": {"directory": str(tmp_path / "copies"), "jurisdiction": "EU"}}
    told = opened({"copy": copy}, {})
    assert isinstance(told, str)
    assert "lies on the journal's own volume" in told
    (tmp_path / "journal" / "databases").mkdir(parents=True)
    (tmp_path / "journal" / "databases" / "US").write_text("no directory")
    assert isinstance(opened({}, {}), str)
    (tmp_path / "journal" / "databases" / "US").unlink()
    assert isinstance(opened({}, {}), dict)


def test_one_that_is_full_leaves_the_others_their_part(opened: Callable[..., Opened | str]) -> None:
    journals = opened({"max_bytes": 2**20, "segment_bytes": 2**17, "min_free": 2**16}, {})
    assert isinstance(journals, dict)
    while isinstance(journals["US"].append(bytes(10_000)), int):
        pass
    assert journals["US"].nbytes <= 2**19 + 2**14
    for _ in range(40):
        assert isinstance(journals["EU"].append(bytes(10_000)), int)
    while isinstance(journals["US"].append(bytes(1000), reserve=True), int):  # calls that were admitted end on record
        pass
    assert 2**19 < journals["US"].nbytes <= 2**19 + 2**15 + 2**14
