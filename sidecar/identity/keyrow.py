"""One API key as the database keeps it, and whom it is of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_network

import msgspec

from sidecar.core.model import Network, Principal

__all__ = ["KeyRow"]


class KeyRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One row of ``api_keys`` as the ring needs it; times in seconds since the UNIX epoch, None where there is none.

    Not seen by the garbage collector, which 100,000 of them would otherwise hold up for longer than a call may wait.
    """

    id: str
    tenant: str
    name: str
    environment: str
    secret_mac: bytes
    expires_at: float | None = None
    not_before: float | None = None
    revoked_at: float | None = None
    models: tuple[str, ...] | None = None
    roles: tuple[str, ...] = ("tenant",)
    rotated_mac: bytes | None = None
    rotated_until: float | None = None
    methods: tuple[str, ...] | None = None
    regions: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None

    def __repr__(self) -> str:
        return f"KeyRow({self.id}, {self.tenant})"

    def principal(self) -> Principal:
        return Principal(
            tenant=self.tenant,
            name=self.name,
            kind="api_key",
            roles=frozenset(self.roles),
            key_id=self.id,
            models=self.models,
            expires_at=self.expires_at,
            methods=self.methods,
            networks=None if self.networks is None else tuple(_networks(self.networks)),
        )


def _networks(texts: Sequence[str]) -> Iterator[Network]:
    """What is no network (written into the table by hand) lets nobody in, and spoils no other."""
    for text in texts:
        with suppress(ValueError):
            yield ip_network(text)
