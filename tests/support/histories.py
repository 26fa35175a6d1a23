"""Honest histories at random: restarts, crashes, failovers, erasures and retention, in any order."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from audit import erasing, store
from audit.erasing import Officer, UnknownError
from audit.fleet import read_notes
from audit.logbook import log_signer, origin_of
from audit.opening import Opener
from audit.retain import retain
from audit.verify import Options, Report, verify
from sidecar.core.model import Secret
from tests.support.postgres import Server
from tests.support.store import ROOT, FakeJournal, Shipping, completed, event, keys_in, refused, signer_of, wait_until

STEPS = ("ship", "ship", "crash", "failover", "erase", "retain", "officer")


class History:
    """One sidecar's life, by a seed; ``report`` is what verify says at its end."""

    def __init__(self, seed: int, postgres: Server, dsn: str, directory: Path) -> None:
        self._chance, self._postgres, self._dsn, self._directory = random.Random(seed), postgres, dsn, directory
        self._journal, self._written = FakeJournal(), 0
        self._ids = (f"history-{seed}-{n}" for n in itertools.count())
        self._at = datetime.now(UTC)
        self.steps: list[str] = []

    def run(self, steps: int) -> Report:
        self._ship()
        snapshots = [self._postgres.snapshot(self._dsn)]
        for _ in range(steps):
            step = self._chance.choice(STEPS)
            self.steps.append(step)
            match step:
                case "failover":
                    self._postgres.restore(snapshots[-1], self._dsn)
                case "crash":
                    self._ship(finish=False)
                case "erase":
                    self._act(self._erase)
                case "retain":
                    self._retain()
                case "officer":
                    self._act(self._hold)
                case _:
                    self._ship()
                    if self._chance.random() < 0.5:
                        snapshots.append(self._postgres.snapshot(self._dsn))
        self._ship()
        self._retain()  # as after each restore: what that has forgotten of holds and erasures is done again
        self._ship()
        anchor = read_notes(self._directory / "anchor")[-1:]
        options = Options(lambda log: log_signer(Secret(ROOT), origin_of("EU", log)).verifier, self._at, anchor)
        return verify(self._dsn, options, jurisdiction="EU")

    def _write(self) -> None:
        for _ in range(self._chance.randint(1, 12)):
            age = timedelta(days=self._chance.choice((0, 0, 0, 9)))
            more = {
                "subject": self._chance.choice(("", "alice", "bob")),
                "retention_days": self._chance.choice((None, 5)),
            }
            entries = self._chance.choice(
                (completed(self._at - age, **more), [refused(self._at - age, **more)], [event()])
            )
            self._journal.append(*entries)
            self._written += 1

    def _ship(self, *, finish: bool = True) -> None:
        """To the end, signed and in the fleet's log; or left wherever it is."""
        self._write()
        with Shipping(self._journal, self._dsn, self._directory, anchor=self._directory / "anchor") as shipping:
            status = shipping.shipper.status
            if finish:
                wait_until(
                    lambda: (
                        shipping.fault
                        or (
                            status.position >= self._written
                            and status.signed_size == status.position
                            and not status.last_error
                        )
                    )
                )
            else:
                wait_until(lambda: shipping.fault or status.database_up)
                shipping.shipper._parts.book.sign = _died  # type: ignore[method-assign]
        assert shipping.fault is None or not finish, shipping.fault

    def _settled(self, status: Any) -> bool:
        done = status.position >= self._written and status.signed_size == status.position
        return bool(done and not status.last_error)

    def _act(self, act: Any) -> None:
        engine = store.connect(self._dsn, application="history")
        try:
            with store.transaction(engine) as connection:
                act(connection, Opener(keys_in(self._directory)))
        finally:
            engine.dispose()

    def _erase(self, connection: sa.Connection, opener: Opener) -> None:
        with suppress(UnknownError):  # nothing was recorded of it since it was erased last
            erasing.request(
                connection, opener, self._officer(), erasure_id=next(self._ids), tenant="acme", two_people=False,
                subject=self._chance.choice(("alice", "bob")), copies=timedelta(), unknown=True,
            )  # fmt: skip

    def _hold(self, connection: sa.Connection, opener: Opener) -> None:
        hold = next(self._ids)
        erasing.place_hold(connection, opener.provider, self._officer(), hold, "birch", None)
        erasing.release_hold(connection, self._officer(), hold)

    def _retain(self) -> None:
        engine = store.connect(self._dsn, application="history")
        try:
            retain(engine, Opener(keys_in(self._directory)), self._officer(), copies=timedelta(), signer_of=signer_of)
        finally:
            engine.dispose()

    def _officer(self) -> Officer:
        return Officer("cli:ada", self._at, self._ids, "honest")


def _died(*_: Any) -> str:
    raise SystemExit("killed")
