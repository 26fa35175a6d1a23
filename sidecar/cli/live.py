"""What a running sidecar would meet: whether what its configuration names answers, and is what it must be."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa

from audit import store
from audit.secretfile import KeyFault
from sidecar.quotas.reach import look
from sidecar.runtime import compose, migrate, restricted, selfcheck
from sidecar.runtime.ask import TritonDesk
from sidecar.runtime.dsn import sidecar_dsn
from sidecar.runtime.settings import Settings
from sidecar.triton.selfcheck import Finding, Severity

__all__ = ["Live", "ask"]


@dataclass(frozen=True, slots=True)
class Live:
    """``problems``: what answers and cannot be used. ``away``: what does not answer. ``findings``: Triton's."""

    problems: tuple[str, ...] = ()
    away: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def critical(self) -> bool:
        return any(each.severity is Severity.CRITICAL for each in self.findings)


def ask(settings: Settings) -> Live:
    """Asks Triton, Redis and each database, each with a deadline of seconds; none is changed."""
    problems, away = list[str](), list[str]()
    if settings.quotas.redis is not None:
        fault = look(compose.redis_access(settings.quotas.redis), settings.sidecar.region)
        problems += [f"quotas.redis: {fault}"] if fault else []
    own = settings.audit.database.jurisdiction
    for jurisdiction in settings.audit.jurisdictions:
        place = "audit.database" if jurisdiction == own else f"audit.databases.{jurisdiction}"
        amiss, silent = _database(settings, jurisdiction)
        (away if silent else problems).extend([f"{place}: {amiss}"] if amiss else [])
    findings = _triton(settings)
    if findings is None:
        away.append(f"Triton at {settings.triton.grpc} does not answer")
    return Live(tuple(problems), tuple(away), findings or ())


def _triton(settings: Settings) -> tuple[Finding, ...] | None:
    """What is amiss with it; None where it does not answer."""
    bundle = compose.check(settings).current().bundle
    secret = restricted.load(settings.triton.restricted_secret, os.environ)
    assert not isinstance(secret, str), "checked before"
    return selfcheck.once(settings, bundle, TritonDesk(settings.triton.grpc, secret))


def _database(settings: Settings, jurisdiction: str) -> tuple[str, bool]:
    """What is amiss with one, "" for nothing, and whether that is that it does not answer."""
    dsn = sidecar_dsn(settings.audit.of(jurisdiction).database)
    assert not isinstance(dsn, KeyFault), "checked before"
    engine = store.connect(dsn, application="warden-check")
    try:
        found = migrate.status(engine, today=datetime.now(UTC).date())
    except sa.exc.DBAPIError as fault:
        # Who was let in, or was told why not, has met a server; its words hold no password.
        words = str(fault.orig).strip()
        told_why = "FATAL:" in words or getattr(fault.orig, "sqlstate", None) is not None
        return words, fault.connection_invalidated or not told_why
    finally:
        engine.dispose()
    if found.newer:
        return f"is at revision {found.revision}, which this release does not know", False
    if found.revision != found.head:
        return f"is at revision {found.revision or 'none'}, not {found.head}: run `warden db upgrade`", False
    if found.jurisdiction != jurisdiction:
        return f"belongs to jurisdiction {found.jurisdiction!r}, not {jurisdiction!r}", False
    return "", False
