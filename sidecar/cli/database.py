"""What the commands on the audit database share: opening it, its keys, and how its faults are told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import sqlalchemy as sa

from audit import store
from audit.keys import KeyFaultError
from audit.opening import Opener
from audit.secretfile import KeyFault
from sidecar.cli.common import Exit, fail
from sidecar.cli.desk import load_settings
from sidecar.core.model import Secret
from sidecar.runtime.dsn import command_dsn
from sidecar.runtime.masterkeys import keys_of
from sidecar.runtime.settings import Settings
from sidecar.runtime.shipping import content_root

__all__ = ["Database", "database", "opener_of", "root_of", "settings_of"]


@dataclass(frozen=True, slots=True)
class Database:
    """A configuration, and the database it names: ``dsn`` is the login's, with its password."""

    settings: Settings
    engine: sa.Engine
    dsn: str = field(repr=False)

    @property
    def jurisdiction(self) -> str:
        return self.settings.audit.database.jurisdiction


def settings_of(config: Path, jurisdiction: str | None) -> Settings:
    """The configuration with the one database that is asked about; exit 2 where it doesn't say which of several."""
    settings = load_settings(config)
    known = settings.audit.jurisdictions
    if jurisdiction is None and len(known) > 1:
        fail(Exit.USAGE, f"{config} has databases of {', '.join(known)}: say which, with --jurisdiction")
    if jurisdiction is not None and jurisdiction not in known:
        fail(Exit.USAGE, f"--jurisdiction {jurisdiction!r}: {config} has a database of {', '.join(known)} only")
    return settings.of(jurisdiction or known[0])


@contextmanager
def database(config: Path, jurisdiction: str | None, *, application: str) -> Iterator[Database]:
    """The database that ``config`` names, of several that of ``jurisdiction``.

    Its faults end the command: 3 where it is away, 1 where it is a wrong one.
    """
    settings = settings_of(config, jurisdiction)
    dsn = command_dsn(settings.audit.database)
    if isinstance(dsn, KeyFault):
        fail(Exit.USAGE, dsn.detail)
    engine = store.connect(dsn, application=application, pool=2)
    try:
        yield Database(settings, engine, dsn)
    except store.WrongJurisdictionError as fault:
        fail(Exit.NO, f"{config}: {fault}")
    except store.MismatchError as fault:
        fail(Exit.DEPENDENCY, str(fault))
    except KeyFaultError as fault:
        fail(Exit.DEPENDENCY, f"the tenants' master keys: {fault}")
    except sa.exc.SQLAlchemyError as fault:
        fail(Exit.DEPENDENCY, f"the audit database does not answer: {words(fault)}")
    finally:
        engine.dispose()


def words(fault: sa.exc.SQLAlchemyError) -> str:
    """The driver's class, SQLSTATE and first line: libpq names host and port in it, never the password."""
    cause = getattr(fault, "orig", None) or fault
    first = next(iter(str(cause).splitlines()), "")
    return " ".join(filter(None, [type(cause).__name__, getattr(cause, "sqlstate", None), first]))


def opener_of(opened: Database) -> Opener:
    """Opens what was sealed, as far as the tenants' master keys are here."""
    return Opener(keys_of(opened.settings, opened.engine))


def root_of(settings: Settings) -> Secret:
    """The jurisdiction's root key, which the logs' keys follow from."""
    root = content_root(settings)
    if isinstance(root, KeyFault):
        fail(Exit.USAGE, root.detail)
    return root
