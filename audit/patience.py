"""Waits troubles out: capped backoff with full jitter, told in the status; a stop ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import psycopg
import sqlalchemy as sa

from audit import store, storing
from audit.logbook import ForkError
from audit.ship_parts import Bounds, JournalError, Parts, Status, StoppedError

T = TypeVar("T")

__all__ = ["Patience"]


class Patience:
    """One shipper's. ``measure`` is called before each wait, so that the age of what waits is told meanwhile."""

    def __init__(
        self, parts: Parts, bounds: Bounds, status: Status, stop: threading.Event, measure: Callable[[], None]
    ) -> None:
        self._parts, self._bounds, self.status, self._stop, self._measure = parts, bounds, status, stop, measure

    def until_it_works(self, act: Callable[[], T], *, local: bool = False) -> T:
        """Until it works: capped backoff with full jitter; asked to stop, one try and no more."""
        wait, failed = self._bounds.backoff, False
        while True:
            try:
                result = act()
            except (store.WrongJurisdictionError, storing.FencedError, storing.BehindError):
                raise
            except (storing.ForeignTreeError, ForkError) as fault:
                self.status.tampered = True
                self._wait_out(fault, self._bounds.backoff_most)
            except (sa.exc.SQLAlchemyError, psycopg.Error, store.MismatchError, JournalError, OSError) as fault:
                failed = True
                self._wait_out(fault, wait)
                wait = min(wait * 2, self._bounds.backoff_most)
            else:
                if failed or not local:  # what works on our own disk says nothing of the database
                    self.status.last_error = None
                return result

    def _wait_out(self, fault: Exception, seconds: float) -> None:
        """Raises StoppedError where we are asked to stop meanwhile."""
        self.trouble(fault)
        self._parts.engine.dispose()
        self._measure()
        if self._stop.wait(seconds * self._parts.chance()):
            raise StoppedError from fault

    def trouble(self, fault: Exception) -> None:
        if isinstance(fault, sa.exc.SQLAlchemyError | psycopg.Error | store.MismatchError):
            self.status.database_up = False
        self.status.last_error = " ".join(str(getattr(fault, "orig", None) or fault).split())[:500]
