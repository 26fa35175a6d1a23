"""Has the fleet's heads cosigned by witnesses, who sign only what extends what they have seen (C2SP tlog-witness)."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from audit.asking import ask
from audit.merkle import Tree, leaf_hash
from audit.spool import write_whole
from audit.tlog import SIGNATURES, NoteError, Verifier, cosignature_time, parse_checkpoint, parse_note

__all__ = ["Witness", "WitnessError", "Witnesses", "add_checkpoint"]

TIMEOUT: Final = 5.0  # seconds of one step on the network
WHOLE: Final = 15.0  # seconds of one answer, however it drips
AGAIN: Final = 3600.0  # seconds after which the same head is cosigned anew: so is told that nothing was cut off since
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


class Witnesses:
    """All witnesses of one fleet's log, in a thread of their own: whether they answer holds up nothing.

    ``mirror`` is the file of the log's entries, one a line (audit.fleet); ``state`` keeps what each has seen.
    """

    def __init__(self, witnesses: Sequence[Witness], mirror: Path, now: Callable[[], float]) -> None:
        self._witnesses, self._mirror, self._now = tuple(witnesses), mirror, now
        self._state = mirror.with_name("witnesses.json")
        self._seen: dict[str, int] = self._load()
        self._at: dict[str, float] = {}
        self._lock = threading.Lock()
        self._cosigned: dict[int, str] = {}
        self._busy = False
        self.fault = ""

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

    def _due(self, witness: Witness, size: int) -> bool:
        last = self._at.get(witness.url)
        return last is None or self._now() - last >= AGAIN or self._seen.get(witness.url, 0) < size

    def _run(self, due: Sequence[Witness], note: str, size: int) -> None:
        try:
            lines, faults, leaves = [], [], self._leaves(size)
            for witness in due:
                try:
                    lines.append(self._ask(witness, leaves, note, size))
                except (OSError, ValueError) as fault:  # one that lies is no reason to lose what others signed
                    faults.append(str(fault))
            self.fault = "; ".join(faults)[:500]
            if lines:
                with self._lock:
                    self._cosigned[size] = note + "".join(lines)
        except (OSError, ValueError) as fault:
            self.fault = str(fault)[:500]
        finally:
            self._busy = False

    def _ask(self, witness: Witness, leaves: Sequence[bytes], note: str, size: int) -> str:
        old = min(self._seen.get(witness.url, 0), size)
        tree = Tree(leaves)
        for _ in range(2):
            answer = add_checkpoint(witness, old, tree.consistency(old, size) if 0 < old < size else (), note)
            if isinstance(answer, str):
                self._seen[witness.url], self._at[witness.url] = size, self._now()
                write_whole(self._state, json.dumps(self._seen).encode())
                return answer
            if answer > size:
                raise WitnessError(f"{witness.url}: has seen {answer} entries, here there are {size}")
            old = answer
        raise WitnessError(f"{witness.url}: cannot say what it has seen")

    def _leaves(self, size: int) -> list[bytes]:
        leaves: list[bytes] = []
        with self._mirror.open("rb") as file:
            for line in file:
                if len(leaves) == size:
                    break
                leaves.append(leaf_hash(line.rstrip(b"\n")))
        if len(leaves) != size:
            raise ValueError(f"{self._mirror} has {len(leaves)} entries, not {size}")
        return leaves

    def _load(self) -> dict[str, int]:
        try:
            found = json.loads(self._state.read_bytes())
            return {str(url): int(size) for url, size in found.items()}
        except (OSError, ValueError, AttributeError):
            return {}  # the witness says what it has seen
