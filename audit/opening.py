"""Opens stored records: data keys by id, whose they are by name, what was sealed in a row."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA

from audit.content import ContentError
from audit.keys import KeyGoneError, KeyProvider
from audit.rows import Identity
from audit.tables import data_keys
from audit.vault import KeyRow, Opened, lookup, open_column, open_content, record_key, unwrap

__all__ = ["ALTERED", "ERASED", "NO_KEY", "Opener", "Unsealed", "key_row"]

ERASED: Final = "erased"
NO_KEY: Final = "unreadable: the key it is sealed under is not here"
ALTERED: Final = "unreadable: the key it is sealed under was altered"
CONVERSATION_KEYS: Final = 100_000  # data keys that one search for a conversation may open
_TEXTS: Final = msgspec.msgpack.Decoder(list[bytes])
_IDENTITY: Final = msgspec.msgpack.Decoder(Identity)
_COLUMNS: Final = (
    data_keys.c.id, data_keys.c.tenant, data_keys.c.days, data_keys.c.day, data_keys.c.version, data_keys.c.wrapped,
    data_keys.c.subject_sealed, data_keys.c.subject_mac,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Unsealed:
    """What of one record could be opened; ``why`` says what could not be, and why ("": all)."""

    identity: Identity | None = None
    prompt: list[bytes] | None = None
    output: list[bytes] | None = None
    salts: Mapping[str, bytes] = field(default_factory=dict)  # of prompt and output (audit.vault.commitment)
    why: str = ""
    error: list[bytes] | None = None  # Triton's words that the client was not told


class Opener:
    """Who may open: it holds the master keys' provider. Not for several threads at once."""

    def __init__(self, provider: KeyProvider) -> None:
        self.provider = provider
        self._known: dict[str, Opened] = {}

    def load(self, connection: sa.Connection, ids: Iterable[str]) -> None:
        """Unwrap these data keys, so that records under them open. Raises KeyFaultError."""
        self._known = {key_id: opened for key_id, opened in self._known.items() if key_id in set(ids)}
        wanted = [key_id for key_id in dict.fromkeys(ids) if key_id not in self._known]
        if not wanted:
            return
        for row in connection.execute(sa.select(*_COLUMNS).where(data_keys.c.id.in_(wanted))):
            found = key_row(row)
            self._known[found.id] = unwrap(self.provider, found)

    def secret(self, key_id: str) -> Opened:
        """Of a key that was loaded."""
        return self._known.get(key_id, Opened(None))

    def record_key(self, row: Mapping[str, Any]) -> bytes | None:
        """The key that opens this record and no other; None where it was destroyed."""
        secret = self.secret(row["data_key"]).secret
        return None if secret is None else record_key(secret, row["data_key"], row["tenant"], row["call_id"])

    def open(self, row: Mapping[str, Any], *, content: bool) -> Unsealed:
        """``row`` holds the sealed columns."""
        key = self.record_key(row)
        if key is None:
            found = self.secret(row["data_key"])
            return Unsealed(why=ERASED if found.destroyed else ALTERED if found.altered else NO_KEY)
        try:
            identity = _IDENTITY.decode(open_column(key, "identity", bytes(row["identity_sealed"])))
            if not content:
                return Unsealed(identity)
            opened = {
                name: open_content(key, name, bytes(row[f"{name}_sealed"]))
                for name in ("prompt", "output")
                if row[f"{name}_sealed"] is not None
            }
            sealed = row["error_sealed"]
            error = None if sealed is None else _TEXTS.decode(open_column(key, "error", bytes(sealed)))
        except (ContentError, msgspec.DecodeError) as fault:
            return Unsealed(why=f"unreadable: {fault}")
        texts = {name: parts for name, (_, parts) in opened.items()}
        salts = {name: salt for name, (salt, _) in opened.items()}
        return Unsealed(identity, texts.get("prompt"), texts.get("output"), salts, error=error)

    def keys_of(self, connection: sa.Connection, tenant: str | None, subject: str) -> list[str]:
        """The data keys of one subject, of one tenant or of all."""
        return [key_id for key_id, _ in self.dated_keys_of(connection, tenant, subject)]

    def dated_keys_of(self, connection: sa.Connection, tenant: str | None, subject: str) -> list[tuple[str, date]]:
        """The data keys of one subject, each with the one day that what it seals began on."""
        c = data_keys.c
        tenants = [tenant] if tenant is not None else list(connection.scalars(sa.select(c.tenant).distinct()))
        named = [(name, mac) for name in tenants for mac in self.macs(name, subject)]
        wanted = (
            sa.func.unnest(
                sa.cast(sa.literal([name for name, _ in named], ARRAY(sa.Text)), ARRAY(sa.Text)),
                sa.cast(sa.literal([mac for _, mac in named], ARRAY(BYTEA)), ARRAY(BYTEA)),
            )
            .table_valued(sa.column("tenant", sa.Text), sa.column("mac", BYTEA), name="wanted")
            .render_derived()
        )
        same = sa.and_(c.tenant == wanted.c.tenant, c.subject_mac == wanted.c.mac)
        return [(row.id, row.day) for row in connection.execute(sa.select(c.id, c.day).join(wanted, same))]

    def macs(self, tenant: str, subject: str) -> list[bytes]:
        """What a subject's name looks like under each of the tenant's master keys that live."""
        macs = []
        for version in self.provider.versions(tenant):
            with suppress(KeyGoneError):
                macs.append(self.provider.mac(tenant, version, subject.encode("utf-8", "surrogatepass")))
        return macs

    def conversation_macs(
        self, connection: sa.Connection, conversation: str, *, tenant: str | None, days: tuple[date | None, date | None]
    ) -> list[tuple[bytes, date]]:
        """What a conversation's name looks like under each data key of the time, with the one day that it seals.

        Bounded by CONVERSATION_KEYS.
        """
        c = data_keys.c
        query = sa.select(*_COLUMNS).where(c.wrapped.is_not(None))
        if tenant is not None:
            query = query.where(c.tenant == tenant)
        since, until = days
        if since is not None:
            query = query.where(c.day >= since)
        if until is not None:
            query = query.where(c.day <= until)
        found = connection.execute(query.order_by(c.day.desc()).limit(CONVERSATION_KEYS))
        opened = ((unwrap(self.provider, key_row(row)).secret, row.day) for row in found)
        return [(lookup(secret, "conversation", conversation), day) for secret, day in opened if secret is not None]

    def pseudonym(self, tenant: str | None, name: str) -> str:
        """A name as a record of a search may keep it: equal for equal names, until the tenant's key is renewed."""
        version = self.provider.current(tenant or "")
        return self.provider.mac(tenant or "", version, name.encode("utf-8", "surrogatepass")).hex()


def key_row(row: Any) -> KeyRow:
    """A row of ``data_keys``."""
    raw: Sequence[Any] = [bytes(value) if isinstance(value, memoryview) else value for value in row]
    return KeyRow(*raw[:8])


def day_range(since: datetime | None, until: datetime | None) -> tuple[date | None, date | None]:
    """The UTC days that a time range touches."""
    return tuple(None if at is None else at.astimezone(UTC).date() for at in (since, until))  # type: ignore[return-value]
