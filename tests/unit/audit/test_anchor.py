"""audit.anchor: heads are kept once each, read back, and a store that lies, forgets or forks is named."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit import anchor as anchor_module
from audit.anchor import BACKOFF_S, EVERY_S, ObjectAnchor, anchored_in, head_name, size_of
from audit.fleet import FLEET
from audit.logbook import log_signer, origin_of
from audit.objects import StoreAt
from audit.tlog import Signer
from tests.support.objects import MemoryObjects
from tests.unit.audit.test_fleet import ROOT, note

SIGNER = log_signer(ROOT, origin_of("EU", FLEET))


class Bench:
    """An anchor on a store in memory, and the clock it reads."""

    def __init__(self, directory: Path) -> None:
        self.store, self.at, self.state = MemoryObjects(), 1000.0, directory / "anchored.json"
        self.anchor = self.begin()

    def begin(self, signer: Signer = SIGNER) -> ObjectAnchor:
        return ObjectAnchor(StoreAt("memory", lambda: self.store), self.state, signer.verifier, lambda: self.at)

    def keep(self, size: int, after: float = EVERY_S) -> str:
        self.at += after
        self.anchor.offer(note(size))
        if self.anchor._thread is not None:
            self.anchor._thread.join(10)
        return self.anchor.trouble


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_the_newest_head_is_the_first_by_name(sizes: list[int]) -> None:
    """Invariant: names sort from the largest head to the smallest, and tell their sizes."""
    names = sorted(map(head_name, sizes))
    assert [size_of(name) for name in names] == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    "name", ["heads/7fffffffffff/fffe-2", "heads/7fffffffffff/ffff", "x/7fffffffffff/fffe-1", "heads/a", "heads/0-0"]
)
def test_other_names_are_no_heads(name: str) -> None:
    assert size_of(head_name(1)) == 1
    assert size_of(name) is None


def test_heads_are_kept_a_minute_apart_each_once_and_read_back(bench: Bench) -> None:
    assert bench.keep(3) == ""
    assert bench.keep(4, after=EVERY_S / 2) == ""
    assert [each.size for each in anchored_in(bench.store)] == [3]
    assert bench.keep(5, after=EVERY_S / 2) == ""
    assert [(each.size, each.note) for each in anchored_in(bench.store)] == [(5, note(5)), (3, note(3))]
    assert bench.anchor.size == 5
    assert bench.anchor.take() == []
    bench.anchor.offer(note(6), last=True)  # not due, but the sidecar ends
    assert bench.begin().size == bench.anchor.size == 6


def test_a_head_that_others_have_kept_is_not_kept_again(bench: Bench) -> None:
    bench.store.kept[head_name(9)] = note(9).encode()
    assert bench.keep(7) == ""
    assert bench.anchor.size == 9
    assert list(bench.store.kept) == [head_name(9)]
    assert bench.keep(9) == ""


def test_a_store_that_writes_over_what_is_there_anchors_nothing(bench: Bench) -> None:
    bench.store.overwrites = True
    assert "ignores If-None-Match" in bench.keep(3)
    assert bench.anchor.size == 0


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        (note(3).replace(note(3).split("\n")[2], "A" * 43 + "="), "not signed by this log's key"),
        ("no note", "not signed by this log's key"),
        (note(2), "not signed by this log's key"),  # a true head under another's name
        ("\udcff", "not signed by this log's key"),
    ],
)
def test_what_is_no_head_of_the_log_is_named(bench: Bench, kept: str, words: str) -> None:
    for size in (3, 8):
        bench.store.kept = {head_name(size): kept.encode("utf-8", "surrogateescape")}
        assert words in bench.keep(3, after=3600)
    assert bench.anchor.size == 0


def test_another_history_that_is_anchored_already_is_named_and_stays(bench: Bench) -> None:
    """Who has the key signed both: the first to be anchored cannot be taken back."""
    other = SIGNER.sign(note(3).split("\n\n")[0].replace(note(3).split("\n")[2], "A" * 43 + "=") + "\n")
    bench.store.kept[head_name(3)] = other.encode()
    assert "another head of 3 entries is anchored there" in bench.keep(3)
    assert bench.anchor.take() == [("anchor_disagrees", {"where": "memory", "size": 3})]
    assert bench.store.kept[head_name(3)] == other.encode()


def test_a_store_that_was_put_back_is_named_once_and_given_the_newest_head(bench: Bench) -> None:
    bench.keep(3)
    bench.keep(8)
    del bench.store.kept[head_name(8)]
    bench.anchor = bench.begin()
    assert bench.keep(8) == ""
    noted = ("anchor_rolled_back", {"where": "memory", "size": 3, "anchored_size": 8})
    assert bench.anchor.take() == [noted]
    assert bench.keep(9) == ""
    assert bench.anchor.take() == []
    assert [each.size for each in anchored_in(bench.store)] == [9, 8, 3]


def test_that_it_was_put_back_is_seen_without_anything_new(bench: Bench) -> None:
    bench.keep(3)
    bench.store.kept.clear()
    bench.keep(3, after=3600)
    assert [kind for kind, _ in bench.anchor.take()] == ["anchor_rolled_back"]
    assert bench.store.kept


def test_another_store_is_not_the_one_that_was_put_back(bench: Bench) -> None:
    bench.keep(3)
    moved = ObjectAnchor(StoreAt("elsewhere", MemoryObjects), bench.state, SIGNER.verifier, lambda: bench.at)
    assert moved.size == 0


@pytest.mark.parametrize("state", [b"", b"{}", b"[1]", b'{"where": "memory", "size": "x"}', b"\xff"])
def test_a_state_that_cannot_be_read_is_what_the_store_says(bench: Bench, state: bytes) -> None:
    bench.state.write_bytes(state)
    assert bench.begin().size == 0


def test_a_store_that_fails_is_asked_again_ever_more_seldom(bench: Bench) -> None:
    bench.store.fail = OSError("no space")
    assert "memory: OSError('no space')" in bench.keep(3)
    asked = len(bench.store.puts)
    bench.keep(4, after=BACKOFF_S / 2)
    assert len(bench.store.puts) == asked
    bench.store.fail = None
    assert bench.keep(4, after=BACKOFF_S / 2) == ""
    bench.store.lies = True
    assert "not signed" in bench.keep(5)
    assert bench.anchor.size == 4


def test_a_store_that_cannot_be_opened_or_goes_mad_is_told(tmp_path: Path) -> None:
    def mad() -> Any:
        raise ZeroDivisionError("a bug")

    anchor = ObjectAnchor(StoreAt("mad", mad), tmp_path / "state", SIGNER.verifier, lambda: 1000.0)
    anchor.offer(note(3), last=True)
    assert "ZeroDivisionError" in anchor.trouble


def test_a_store_that_hangs_holds_up_nobody(bench: Bench) -> None:
    bench.store.hold = threading.Event()
    bench.at += EVERY_S
    bench.anchor.offer(note(3))
    assert bench.store.entered.wait(10)
    bench.anchor.offer(note(4))  # returns: one at a time
    bench.store.hold.set()
    assert bench.anchor._thread is not None
    bench.anchor._thread.join(10)
    assert bench.anchor.size == 3


def test_a_store_that_hangs_at_the_end_is_given_no_second_thread(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anchor_module, "FINISH_S", 0.05)
    bench.store.hold = threading.Event()
    bench.at += EVERY_S
    bench.anchor.offer(note(3))
    assert bench.store.entered.wait(10)
    first = bench.anchor._thread
    bench.anchor.offer(note(4), last=True)
    assert bench.anchor._thread is first
    bench.store.hold.set()
    assert first is not None
    first.join(10)
    assert (bench.anchor.size, first.is_alive()) == (3, False)
    bench.anchor.offer(note(4), last=True)
    assert bench.anchor._thread is not first
