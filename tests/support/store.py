"""A journal in memory that a shipper can follow, and entries to put in it."""

from __future__ import annotations

import hashlib
import itertools
import pickle
import random
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from audit import store
from audit.assemble import CallRecord, Place
from audit.content import ContentSealer
from audit.filekeys import FileKeys
from audit.fleet import FileAnchor, Fleet
from audit.keyring import Keyring, held_in
from audit.keys import KeyProvider
from audit.logbook import LogBook, log_signer, origin_of
from audit.objects import ObjectStore, StoreAt
from audit.poison import PoisonKeeper
from audit.record import Admitted, CallFacts, Content, Entry, Event, Output, Refused, Settled, encode
from audit.seal import load_root_key
from audit.ship import Bounds, Item, Parts, Shipper
from audit.tlog import Signer
from audit.uploading import UploadTo
from audit.vault import Vault
from audit.witness import Witness
from sidecar.core.model import Secret
from sidecar.runtime.settings import load
from sidecar.runtime.shipping import ship

ROOT = b"r" * 32
PLACE = Place("pod-1", "journal-1", "eu-west-1", "EU")
_ids = itertools.count(1)


@dataclass
class FakeJournal:
    """Sequences from 0. ``data`` may be anything, as on a damaged disk."""

    place: Place = PLACE
    items: list[Item] = field(default_factory=list)
    position: int = 0
    shipped_to: int = -1

    @property
    def identity(self) -> str:
        return self.place.journal

    def append(self, *entries: Entry | bytes) -> None:
        for entry in entries:
            data = entry if isinstance(entry, bytes) else encode(entry)
            sequence = self.items[-1].sequence + 1 if self.items else 0
            self.items.append(Item(sequence, data, self.place))

    def seek(self, sequence: int) -> None:
        self.position = next((n for n, item in enumerate(self.items) if item.sequence >= sequence), len(self.items))

    def read(self, limit: int) -> Sequence[Item]:
        items = self.items[self.position : self.position + limit]
        self.position += len(items)
        return items

    def waiting(self) -> int:
        return len(self.items) - self.position

    def sync(self) -> None:
        """It is in memory."""

    def shipped(self, sequence: int) -> None:
        self.shipped_to = sequence


def content(*parts: bytes) -> Content:
    whole = b"".join(parts)
    return Content(len(whole), hashlib.sha256(whole).digest(), list(parts))


def facts(at: datetime | None = None, **changes: Any) -> CallFacts:
    """One call of tenant acme; the id grows with each."""
    started = int((at or datetime.now(UTC)).timestamp() * 1e9)
    base = CallFacts(
        call_id=f"0192e4a0-0000-7000-8000-{next(_ids):012d}",
        started_ns=started,
        decided_ns=started + 30_000,
        method="/inference.GRPCInferenceService/ModelInfer",
        tenant="acme",
        principal="ada",
        principal_kind="jwt",
        model="chat",
        rule="tenants/acme.yaml:models",
        bundle="sha256:b1",
        prompt=content(b"Where is the ", b"library?"),
        prompt_tokens=5,
        requested_tokens=16,
        may_trace=True,
    )
    return msgspec.structs.replace(base, **changes)


def settled(call: CallFacts, *texts: bytes, offset: int = 0, before: bytes = b"", **changes: Any) -> Settled:
    """``texts`` are the last of the output, ``before`` what earlier Output entries carried."""
    whole = before + b"".join(texts)
    base = Settled(
        call_id=call.call_id,
        at_ns=call.started_ns + 5_000_000,
        outcome="completed",
        status=0,
        reason="",
        internal="",
        offset=offset or len(before),
        texts=list(texts),
        output_bytes=len(whole),
        output_sha256=hashlib.sha256(whole).digest(),
        input_tokens=5,
        output_tokens=3,
        input_exact=True,
        output_exact=False,
        responses=1,
        response_bytes=len(whole) + 100,
        first_response_ns=2_000_000,
        duration_ns=5_000_000,
        model_version="1",
    )
    return msgspec.structs.replace(base, **changes)


def completed(at: datetime | None = None, **changes: Any) -> list[Entry]:
    """A whole call: admission, a run of output, outcome."""
    call = facts(at, **changes)
    output = Output(call.call_id, call.started_ns + 1_000_000, 0, [b"Over "])
    return [Admitted(call), output, settled(call, b"there.", before=b"Over ")]


def refused(at: datetime | None = None, **changes: Any) -> Refused:
    return Refused(facts(at, **changes), "RATE_TOKENS", 8, "try later", "bucket empty")


def event(kind: str = "posture", **detail: Any) -> Event:
    return Event(f"event-{next(_ids)}", time.time_ns(), kind, "serve", detail)


PROVIDERS: dict[Path, Callable[[], KeyProvider]] = {}  # by a test's directory, where they are not files


def signer_of(log: str) -> Signer:
    """The key of a log's name, in the jurisdiction of these tests."""
    return log_signer(Secret(ROOT), origin_of("EU", log))


def keys_in(directory: Path) -> KeyProvider:
    """The tenants' master keys of a test."""
    if directory in PROVIDERS:
        return PROVIDERS[directory]()
    return FileKeys(directory / "tenant-keys", secrets.token_bytes)


def shipper(
    source: Any,
    dsn: str,
    directory: Path,
    *,
    stop: threading.Event | None = None,
    jurisdiction: str = "EU",
    ended: Any = None,
    bounds: Bounds | None = None,
    seed: int = 7,
    anchor: Path | None = None,
    witnesses: Sequence[Witness] = (),
    sidecar: str = "pod-1",
    region: str = "eu-west-1",
    objects: ObjectStore | None = None,
    tensors: UploadTo | None = None,
) -> Shipper:
    """A shipper on real parts but for its source; small bounds, so that tests are quick."""
    sealer = ContentSealer(ROOT)
    engine = store.connect(dsn, application="warden-test-ship")
    parts = Parts(
        source=source,
        engine=engine,
        redaction_key=sealer.redaction_key,
        vault=Vault(Keyring(keys_in(directory), held_in(engine)), secrets.token_bytes),
        book=LogBook(directory / "log", sidecar, jurisdiction, Secret(ROOT), secrets.token_bytes),
        poison=PoisonKeeper(directory / "poison", sealer),
        directory=directory,
        sidecar=sidecar,
        region=region,
        jurisdiction=jurisdiction,
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        chance=random.Random(seed).random,
        ended=ended,
        objects=tensors,
        fleet=Fleet(
            directory / "fleet",
            jurisdiction,
            Secret(ROOT),
            None if anchor is None else FileAnchor(anchor),
            witnesses,
            None if objects is None else StoreAt(objects.where, lambda: objects),
        ),
    )
    return Shipper(
        parts,
        stop or threading.Event(),
        bounds or Bounds(seconds=0.02, idle=0.005, cursor=0.05, backoff_most=0.2, fleet=0.05),
    )


class Shipping:
    """A shipper in a thread; leaving waits for it and closes its connections."""

    def __init__(self, source: Any, dsn: str, directory: Path, **options: Any) -> None:
        self.stop = threading.Event()
        self.shipper = shipper(source, dsn, directory, stop=self.stop, **options)
        self.fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            self.shipper.run()
        except BaseException as fault:  # noqa: BLE001 — handed to the test's thread
            self.fault = fault

    def __enter__(self) -> Shipping:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(30)
        assert not self._thread.is_alive()
        self.shipper._parts.engine.dispose()

    def wait_for_end(self) -> None:
        """Until the shipper ends by itself."""
        self._thread.join(30)
        assert not self._thread.is_alive()


def wait_until(holds: Any, *, seconds: float = 60.0) -> None:
    """Poll a condition; the poll's pause is no sleep a result depends on."""
    until = time.monotonic() + seconds
    pause = threading.Event()
    while not holds():
        assert time.monotonic() < until, "condition did not come true"
        pause.wait(0.01)


__all__ = ["CallRecord", "FakeJournal", "Shipping", "completed", "event", "facts", "refused", "settled", "wait_until"]


def ship_for_real(config: str) -> None:
    """`warden ship` as a forked child: the real follower, without the second that a new interpreter takes."""
    settings = load(Path(config))
    root = load_root_key(settings.audit.journal.key_file)
    assert isinstance(root, Secret)
    ship(settings, root, threading.Event())


def ship_until_killed(dsn: str, items: str, directory: str) -> None:
    """The body of a child process that a test kills: small batches, so that it is killed in every phase."""
    journal = FakeJournal(items=pickle.loads(Path(items).read_bytes()))
    bounds = Bounds(rows=25, rows_most=25, seconds=0.001, idle=0.001, read=40, cursor=0.001)
    shipper(journal, dsn, Path(directory), bounds=bounds).run()
