"""audit.fleet's own memory and its anchor: a torn end is cut, and damage is never begun anew."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from audit.fleet import FLEET, FileAnchor, Fleet, body_of, event_body, head_due, read_notes
from audit.logbook import ForkError, log_signer, origin_of
from audit.merkle import Frontier, leaf_hash
from audit.rows import EVENT_COLUMNS
from audit.tlog import Checkpoint
from sidecar.core.model import Secret

ROOT = Secret(b"r" * 32)
AT = datetime(2026, 11, 30, tzinfo=UTC)


def note(size: int) -> str:
    signer = log_signer(ROOT, origin_of("EU", FLEET))
    tree = Frontier().extended(leaf_hash(b"%d" % n) for n in range(size))
    return signer.sign(Checkpoint(signer.verifier.name, size, tree.root).text)


def test_a_head_is_told_each_minute_and_again_where_the_clock_was_set_back() -> None:
    seen = [head_due(3600.0, at) for at in (3600.0, 3659.9, 3660.0, 3590.0, 3540.0, 0.0)]
    assert seen == [False, False, True, False, True, True]


def test_the_last_whole_note_of_an_anchor_counts(tmp_path: Path) -> None:
    path = tmp_path / "anchor" / "fleet.notes"
    anchor = FileAnchor(path)
    assert anchor.last() is None
    anchor.put(note(3))
    anchor.put(note(5))
    assert anchor.last() == note(5)
    assert read_notes(path) == [note(3), note(5)]
    path.write_bytes(path.read_bytes()[:-3])  # power went while it was written
    assert anchor.last() == note(3)


def mirror(directory: Path, *bodies: str) -> Path:
    path = directory / "fleet.jsonl"
    directory.mkdir(exist_ok=True)
    path.write_text("".join(f"{body}\n" for body in bodies), encoding="utf-8")
    return path


BORN = body_of("born", AT, log="pod-1.aa", sidecar="pod-1")
HEAD = body_of("head", AT, log="pod-1.aa", size=3, root="cm9vdA==")


def test_a_mirror_is_remembered_and_its_torn_last_line_cut(tmp_path: Path) -> None:
    path = mirror(tmp_path / "fleet", BORN, HEAD)
    whole = path.read_bytes()
    path.write_bytes(whole + HEAD.encode()[:20])
    assert Fleet(tmp_path / "fleet", "EU", ROOT).size == 2
    assert path.read_bytes() == whole
    assert Fleet(tmp_path / "new", "EU", ROOT).size == 0


@pytest.mark.parametrize("line", ["{", '{"no": "kind"}', '{"kind": "head", "log": "x"}', "\x00"])
def test_a_mirror_that_was_damaged_is_not_begun_anew(tmp_path: Path, line: str) -> None:
    mirror(tmp_path / "fleet", BORN, line, HEAD)
    with pytest.raises(ForkError, match="is damaged"):
        Fleet(tmp_path / "fleet", "EU", ROOT)


def test_an_officers_act_can_be_put_back_whole() -> None:
    values = ["e1", AT, "content_shown", "officer", "asked", {"b": 1, "a": [2]}] + [None] * 7 + [False]
    told = json.loads(event_body(dict(zip(EVENT_COLUMNS, values, strict=True))))
    assert (told["kind"], told["id"], len(told["leaf"])) == ("event", "e1", 64)
    assert list(EVENT_COLUMNS) == sorted(told["values"], key=EVENT_COLUMNS.index)
    assert datetime.fromisoformat(told["values"]["at"]) == AT
    assert told["values"]["detail"] == {"a": [2], "b": 1}
