"""Has the fleet's heads cosigned by witnesses, who sign only what extends what they have seen (C2SP tlog-witness)."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from urllib.parse import urlsplit

from audit.asking import ask
from audit.merkle import Frontier, grown, leaf_hash
from audit.spool import write_whole
from audit.tlog import SIGNATURES, NoteError, Verifier, cosignature_time, parse_checkpoint, parse_note

__all__ = ["Witness", "WitnessError", "Witnesses", "add_checkpoint"]

TIMEOUT: Final = 5.0  # seconds of one step on the network
WHOLE: Final = 15.0  # seconds of one answer, however it drips
AGAIN: Final = 3600.0  # seconds after which the same head is cosigned anew: so is told that nothing was cut off since
LATE: Final = 2 * AGAIN  # seconds without a cosignature after which it is told, whatever the witness says or doesn't
BACKOFF: Final = 5.0  # seconds before a witness that failed is asked again, doubled up to:
BACKOFF_MOST: Final = 600.0
_ANSWER_BYTES: Final = 64 * 1024
_SIZE: Final = re.compile(r"[0-9]{1,18}")


class WitnessError(OSError):
    """A witness did not cosign; waiting may help, unless it has seen another history: the message says."""


@dataclass(frozen=True, slots=True)
class Witness:
    """``url``: its submission prefix; ``verifier``: its key, a cosignature's (kind 4)."""

    url: str
    verifier: Verifier


def add_checkpoint(witness: Witness, old: int, proof: Sequence[bytes], note: str) -> str | int:
    """The line it signed with, or the size that it has seen where that is not ``old``. Raises WitnessError."""
    head = "".join(f"{base64.b64encode(each).decode()}\n" for each in proof)
    status, answer = _post(f"{witness.url.rstrip('/')}/add-checkpoint", f"old {old}\n{head}\n{note}".encode())
    if status == http.HTTPStatus.CONFLICT and _SIZE.fullmatch(answer.strip()):
        return int(answer)
    if status != http.HTTPStatus.OK:
        raise WitnessError(f"{witness.url}: answers {status} {answer.strip()[:200]}".rstrip())
    for line in answer.split("\n")[:SIGNATURES]:  # its own alone: another's, of its making, would spoil the note
        with contextlib.suppress(NoteError):
            if cosignature_time(parse_note(f"{note}{line}\n"), witness.verifier) is not None:
                return f"{line}\n"
    raise WitnessError(f"{witness.url}: did not sign with the key of {witness.verifier.name}")


def _post(url: str, body: bytes) -> tuple[int, str]:
    place = urlsplit(url)
    kind = http.client.HTTPSConnection if place.scheme == "https" else http.client.HTTPConnection
    connection = kind(place.hostname or "", place.port, timeout=TIMEOUT)
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    try:
        status, data = ask(connection, "POST", place.path, body, headers, most=_ANSWER_BYTES, within=WHOLE)
    except (OSError, http.client.HTTPException) as fault:
        raise WitnessError(f"{url}: {fault or type(fault).__name__}") from None
    if len(data) > _ANSWER_BYTES:
        raise WitnessError(f"{url}: its answer is longer than {_ANSWER_BYTES} bytes")
    return status, data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class _Reached:
    """A place in the mirror: after how many entries, in their tree, and after how many bytes."""

    tree: Frontier = Frontier()  # noqa: RUF009 — frozen
    offset: int = 0


@dataclass(frozen=True, slots=True)
class _Failure:
    """Not before ``until`` is it asked again, which is ``wait`` seconds after it failed."""

    until: float
    wait: float
    words: str


class Witnesses:
    """All witnesses of one fleet's log, in a thread of their own: whether they answer holds up nothing.

    ``mirror`` is the file of the log's entries, one a line (audit.fleet), which only grows: what a witness has seen is
    hashed once, and then only what came since. ``witnesses.json`` beside it keeps how much that was. ``now`` is
    monotonic, in seconds.
    """

    def __init__(self, witnesses: Sequence[Witness], mirror: Path, now: Callable[[], float]) -> None:
        self._witnesses, self._mirror, self._now = tuple(witnesses), mirror, now
        self._state = mirror.with_name("witnesses.json")
        self._seen: dict[str, int] = self._load()
        self._reached: dict[str, _Reached] = {}  # what it has seen, where that was hashed here
        self._at: dict[str, float] = {}
        self._began = now()
        self._failures: dict[str, _Failure] = {}
        self._lock = threading.Lock()
        self._cosigned: dict[int, str] = {}
        self._busy = False

    def offer(self, note: str) -> None:
        """Have this head cosigned, where it is due; one at a time, and what is offered meanwhile comes again."""
        size = parse_checkpoint(parse_note(note).text).size
        with self._lock:
            due = [each for each in self._witnesses if self._due(each, size)]
            if not due or self._busy:
                return
            self._busy = True
        threading.Thread(target=self._run, args=(due, note, size), name="witnesses", daemon=True).start()

    def take(self) -> dict[int, str]:
        """Cosigned heads, by size, that are to be stored; each is given once."""
        with self._lock:
            taken, self._cosigned = self._cosigned, {}
        return taken

    @property
    def trouble(self) -> str:
        """What keeps heads from being cosigned, in words; "": nothing."""
        failed, at = dict(self._failures), self._now()
        silent = [each.url for each in self._witnesses if at - self._at.get(each.url, self._began) > LATE]
        words = [each.words for each in failed.values()]
        words += [f"{url}: has cosigned nothing for {LATE:.0f} s" for url in silent if url not in failed]
        return "; ".join(words)[:500]

    def _due(self, witness: Witness, size: int) -> bool:
        at, last, failure = self._now(), self._at.get(witness.url), self._failures.get(witness.url)
        if failure is not None and at < failure.until:
            return False
        return last is None or at - last >= AGAIN or self._seen.get(witness.url, 0) < size

    def _run(self, due: Sequence[Witness], note: str, size: int) -> None:
        lines = []
        try:
            for witness in due:
                try:
                    lines.append(self._ask(witness, note, size))
                    self._failures.pop(witness.url, None)
                except (OSError, ValueError) as fault:  # one that lies is no reason to lose what others signed
                    self._put_off(witness, str(fault))
            if lines:
                with self._lock:
                    self._cosigned[size] = note + "".join(lines)
        finally:
            self._busy = False

    def _put_off(self, witness: Witness, words: str) -> None:
        last = self._failures.get(witness.url)
        wait = BACKOFF if last is None else min(last.wait * 2, BACKOFF_MOST)
        self._failures[witness.url] = _Failure(self._now() + wait, wait, words)

    def _ask(self, witness: Witness, note: str, size: int) -> str:
        old = min(self._seen.get(witness.url, 0), size)
        for _ in range(2):
            proof, reached = self._proof(witness, old, size)
            answer = add_checkpoint(witness, old, proof, note)
            if isinstance(answer, str):
                self._seen[witness.url], self._at[witness.url] = size, self._now()
                if reached is not None:
                    self._reached[witness.url] = reached
                write_whole(self._state, json.dumps(self._seen).encode())
                return answer
            if answer > size:
                raise WitnessError(f"{witness.url}: has seen {answer} entries, here there are {size}")
            old = answer
        raise WitnessError(f"{witness.url}: cannot say what it has seen")

    def _proof(self, witness: Witness, old: int, size: int) -> tuple[Sequence[bytes], _Reached | None]:
        """That the first ``size`` entries extend the first ``old``. Raises OSError and ValueError."""
        if old in {0, size}:
            return (), None
        start = self._reached.get(witness.url, _Reached())
        if start.tree.size > old:
            start = _Reached()
        with self._mirror.open("rb") as file:
            if start.tree.size < old:
                _, start = _read(file, start, old)
            return _read(file, start, size)

    def _load(self) -> dict[str, int]:
        try:
            found = json.loads(self._state.read_bytes())
            return {str(url): int(size) for url, size in found.items()}
        except (OSError, ValueError, AttributeError):
            return {}  # the witness says what it has seen


def _read(file: BinaryIO, start: _Reached, size: int) -> tuple[list[bytes], _Reached]:
    """The proof from where ``start`` is to ``size`` entries, and that place. Raises OSError and ValueError."""
    file.seek(start.offset)
    offset = start.offset

    def leaves() -> Iterator[bytes]:
        nonlocal offset
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield leaf_hash(line[:-1])

    proof, tree = grown(start.tree, leaves(), size)
    return proof, _Reached(tree, offset)
