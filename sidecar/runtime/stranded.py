"""That no database is taken out of the configuration while its journal holds records for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from audit.follow import Follower, read_shipped
from audit.rootkeys import Root
from sidecar.runtime.settings import journal_of

__all__ = ["StrandedError", "refuse_stranded"]


class StrandedError(Exception):
    """A journal holds records for a database that is no longer configured."""


def refuse_stranded(journal: Path, root: Root, jurisdictions: Sequence[str]) -> None:
    """Raises StrandedError where a database was taken out before it had all that was for it.

    ``journal`` is the directory of the pod's own; those of the others are in it.
    What is stored elsewhere instead might be where it may not be; what is let go would be lost. Raises OSError.
    """
    try:
        known = sorted(path.name for path in journal_of(journal, "x").parent.iterdir())
    except FileNotFoundError:
        return
    for name in known:
        if name in jurisdictions:
            continue
        place = journal_of(journal, name)
        follower = Follower(place, root, sequence=read_shipped(place) + 1)
        try:
            waiting = next(iter(follower), None)
            unread = follower.waiting()
        finally:
            follower.close()
        if waiting is not None or unread:
            told = f"records of {name!r}" if waiting is None else f"records of {name!r} from sequence {waiting[0]} on"
            raise StrandedError(
                f"the journal in {place} holds {told}, and no database of {name!r} is configured: put "
                f"audit.databases.{name} back until they are shipped"
            )
