"""audit.witness without a network: what is read of the mirror, when a witness is asked again, and what is told."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from audit import witness
from audit.fleet import FLEET
from audit.logbook import log_signer, origin_of
from audit.merkle import Frontier, leaf_hash, verify_consistency
from audit.tlog import Checkpoint
from audit.witness import AGAIN, BACKOFF, BACKOFF_MOST, LATE, Witness, WitnessError, Witnesses
from sidecar.core.model import Secret
from tests.support.stack import eventually

SIGNER = log_signer(Secret(b"r" * 32), origin_of("EU", FLEET))
PLACES = [Witness(f"http://{name}.example", SIGNER.verifier) for name in ("one", "two")]


class World:
    """A mirror, the clock, and witnesses that check the proof they are given; those of ``down`` don't answer."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.mirror, self.now, self.tree = directory / "fleet.jsonl", 0.0, Frontier()
        self.mirror.touch()
        self.seen = {each.url: Frontier() for each in PLACES}
        self.down: set[str] = set()
        self.asked: list[str] = []
        self.read: list[tuple[int, int]] = []  # from which offset, up to how many entries
        monkeypatch.setattr(witness, "add_checkpoint", self._answer)
        real = witness._read

        def noted(file: object, start: witness._Reached, size: int) -> object:
            self.read.append((start.offset, size))
            return real(file, start, size)  # type: ignore[arg-type]

        monkeypatch.setattr(witness, "_read", noted)
        self.witnesses = self.begin()

    def begin(self) -> Witnesses:
        return Witnesses(PLACES, self.mirror, lambda: self.now)

    def _answer(self, place: Witness, old: int, proof: Sequence[bytes], _: str) -> str | int:
        self.asked.append(place.url)
        seen = self.seen[place.url]
        if place.url in self.down:
            raise WitnessError(f"{place.url}: down")
        if old != seen.size:
            return seen.size
        if old:
            assert verify_consistency(old, self.tree.size, seen.root, self.tree.root, proof)
        self.seen[place.url] = self.tree
        return f"\u2014 {place.url}\n"

    def grow(self, more: int) -> None:
        lines = [json.dumps({"n": n}).encode() for n in range(self.tree.size, self.tree.size + more)]
        with self.mirror.open("ab") as file:
            file.writelines(line + b"\n" for line in lines)
        self.tree = self.tree.extended(map(leaf_hash, lines))

    def offer(self) -> list[str]:
        """Who was asked for it."""
        self.asked.clear()
        note = SIGNER.sign(Checkpoint(SIGNER.verifier.name, self.tree.size, self.tree.root).text)
        self.witnesses.offer(note)
        eventually(lambda: not self.witnesses._busy, what="the witnesses to be asked", within_s=30)
        return [each.removeprefix("http://").removesuffix(".example") for each in self.asked]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_what_a_witness_has_seen_is_hashed_once(world: World) -> None:
    world.grow(100)
    assert world.offer() == ["one", "two"]
    assert world.read == []  # the first head needs no proof
    for more in (7, 30, 1):
        world.grow(more)
        world.offer()
    begun = [offset for offset, _ in world.read]
    assert begun.count(0) == 2  # once for each
    assert world.read[-1][0] > world.read[0][0]
    nbytes = world.mirror.stat().st_size
    world.read.clear()
    world.grow(5)
    world.offer()
    assert world.read == [(nbytes, 143), (nbytes, 143)]
    assert all(tree == world.tree for tree in world.seen.values())


def test_after_a_restart_and_where_memory_is_wrong_it_is_read_from_the_beginning(world: World) -> None:
    world.grow(9)
    world.offer()
    (world.mirror.with_name("witnesses.json")).write_text(json.dumps({PLACES[0].url: 4}))
    world.witnesses = world.begin()
    world.grow(3)
    assert world.offer() == ["one", "one", "two", "two"]  # 4 is not what it has seen; of the other nothing is known
    assert all(tree == world.tree for tree in world.seen.values())
    assert world.witnesses.trouble == ""


def test_one_that_fails_is_asked_ever_less_often_and_told_until_it_answers(world: World) -> None:
    world.grow(3)
    world.down.add(PLACES[1].url)
    assert world.offer() == ["one", "two"]
    assert world.witnesses.trouble == f"{PLACES[1].url}: down"
    assert world.offer() == []
    wait = BACKOFF
    while wait < BACKOFF_MOST:
        world.now += wait - 1
        assert world.offer() == []
        world.now += 1
        assert world.offer() == ["two"]
        wait *= 2
    world.grow(1)
    assert world.offer() == ["one"]  # the others go on
    assert "down" in world.witnesses.trouble
    world.down.clear()
    world.now += BACKOFF_MOST
    assert world.offer() == ["two"]
    assert world.witnesses.trouble == ""


def test_silence_is_told(world: World) -> None:
    """A witness that hangs, or that nobody offers anything, says nothing itself."""
    world.grow(3)
    world.offer()
    world.now = AGAIN
    assert world.offer() == ["one", "two"]
    world.now += LATE
    assert world.witnesses.trouble == ""
    world.now += 1
    assert world.witnesses.trouble.count("has cosigned nothing") == 2


def test_a_mirror_that_is_shorter_than_it_was_is_told(world: World) -> None:
    world.grow(3)
    world.offer()
    world.grow(3)
    world.mirror.write_bytes(world.mirror.read_bytes()[:-3])
    world.offer()
    assert "5 leaves, not 6" in world.witnesses.trouble
