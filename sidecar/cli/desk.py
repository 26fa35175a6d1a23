"""Where commands that change keys and tokens get their database, their pepper and the name of who asks."""

from __future__ import annotations

import os
import pwd
import secrets
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from audit import rows
from audit import store as audit_store
from audit.secretfile import KeyFault
from policies.bundle import load
from policies.yamlfile import suggest
from sidecar.cli.common import Exit, fail, need
from sidecar.core.model import Secret
from sidecar.identity.files import load_pepper
from sidecar.identity.store import KeyEvent, Office, Refusal
from sidecar.runtime import settings as settings_module
from sidecar.runtime.dsn import command_dsn
from sidecar.runtime.ids import uuid7
from sidecar.runtime.settings import KeysSection, Settings, SettingsError

_STATEMENT_MS: Final = 5_000
_MAY_NOT: Final = "42501"  # insufficient_privilege
_NO_LOGIN: Final = 2**32 - 1  # (uid_t)-1: started by no login
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Desk:
    """The database with what a life-cycle step needs."""

    settings: Settings
    office: Office

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """One transaction; whatever the database fails at ends the command with its exit code."""
        dsn = command_dsn(self.settings.audit.database)
        if isinstance(dsn, KeyFault):
            fail(Exit.USAGE, dsn.detail)
        engine = audit_store.connect(dsn, application="warden-keys-cli", pool=1)
        try:
            with audit_store.transaction(engine, statement_ms=_STATEMENT_MS) as connection:
                yield connection
        except sa.exc.ProgrammingError as fault:
            if getattr(fault.orig, "sqlstate", None) == _MAY_NOT:
                fail(Exit.NO, "this login may not change keys; one for that: warden db enroll NAME --for keys")
            fail(Exit.DEPENDENCY, f"the database is not prepared ({_state(fault)}); run: warden db upgrade")
        except (sa.exc.OperationalError, sa.exc.TimeoutError) as fault:
            fail(Exit.DEPENDENCY, f"the database does not answer ({_state(fault)}); nothing was changed")
        finally:
            engine.dispose()


def key_desk(config: Path) -> Desk:
    """For steps in the life of API keys."""
    settings = load_settings(config)
    section = settings.identity.keys
    if section is None:
        fail(Exit.USAGE, f"{config}: identity.keys is not configured")
    return _desk_of(settings, _pepper(section), section.environment)


def token_desk(config: Path) -> Desk:
    """For steps in the life of tokens, which need no pepper."""
    return _desk_of(load_settings(config), Secret(b""), "")


def _desk_of(settings: Settings, pepper: Secret, environment: str) -> Desk:
    office = Office(
        pepper=pepper,
        environment=environment,
        randomness=secrets.token_bytes,
        record=record_key_event,
        actor=f"cli:{operator()}",
    )
    return Desk(settings, office)


def _pepper(section: KeysSection) -> Secret:
    pepper = load_pepper(section.pepper_file)
    if isinstance(pepper, str):
        fail(Exit.USAGE, pepper)
    return pepper


def _state(fault: sa.exc.SQLAlchemyError) -> str:
    """The driver's class and SQLSTATE; its message might quote the connection string."""
    cause = getattr(fault, "orig", None) or fault
    return " ".join(filter(None, [type(cause).__name__, getattr(cause, "sqlstate", None)]))


def load_settings(config: Path) -> Settings:
    """The configuration, or exit 2 with everything that is wrong with it."""
    need(config)
    try:
        return settings_module.load(config)
    except SettingsError as fault:
        fail(Exit.USAGE, str(fault))


def operator() -> str:
    """Who runs this command, as the kernel knows them: no variable of the environment is asked.

    Whose the process is; of root, whom they logged in as before sudo or su (proc_pid_loginuid(5)), which root alone
    could alter. In a container all may be one account: there the database's login tells people apart
    (``audit.store.record_event``).
    """
    uid = os.getuid()
    if uid == 0:
        try:
            logged_in = int(Path("/proc/self/loginuid").read_text(encoding="ascii"))
        except (OSError, ValueError):
            logged_in = _NO_LOGIN
        uid = uid if logged_in == _NO_LOGIN else logged_in
    return _account(uid)


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def record_key_event(connection: sa.Connection, event: KeyEvent) -> None:
    """The step's audit event, in the step's transaction."""
    event_id = uuid7(time.time_ns(), secrets.token_bytes(10))
    audit_store.record_event(
        connection, rows.officer_row(event_id, event.at, event.kind, event.actor, "", dict(event.detail))
    )


def record_act(connection: sa.Connection, kind: str, detail: dict[str, Any], reason: str = "") -> None:
    """What the operator does now, in the transaction of it."""
    at = time.time_ns()
    row = rows.officer_row(
        uuid7(at, secrets.token_bytes(10)), datetime.fromtimestamp(at / 1e9, UTC), kind, f"cli:{operator()}", reason,
        detail,
    )  # fmt: skip
    audit_store.record_event(connection, row)


def done(result: _T | Refusal) -> _T:
    """What a step made; a refused step is the answer no. Raised inside the transaction, so that it is rolled back."""
    if isinstance(result, Refusal):
        fail(Exit.NO, result.detail)
    return result


def warn_of_unnamed(settings: Settings, tenant: str, models: Collection[str] = ()) -> None:
    """Say on stderr where this machine's bundle doesn't serve ``tenant``, or gives it none of ``models``: a credential
    for it would only be refused.

    Not a refusal: the sidecars may have a newer bundle than this machine.
    """
    bundle = load(settings.policy.bundle)
    if isinstance(bundle, list):
        return  # `warden policy check` is who tells that
    found = bundle.tenants.get(tenant)
    if found is None or not found.active:
        why = "is suspended in" if found is not None else "is not named by"
        near = suggest(tenant, bundle.tenants) if found is None else ""
        sys.stderr.write(
            f"Warning: tenant {tenant} {why} {settings.policy.bundle}, so calls for it are refused{near}\n"
        )
        return
    known = (*found.models, *found.aliases)
    for model in models:
        if not any(fnmatchcase(model, each) or fnmatchcase(each, model) for each in known):
            near = suggest(model, known)
            words = f"tenant {tenant} is given no model {model} by {settings.policy.bundle}"
            sys.stderr.write(f"Warning: {words}, so calls for it are refused{near}\n")
