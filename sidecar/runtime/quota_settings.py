"""warden.yaml's ``quotas``: the Redis in which the pods of one region share their limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from policies.units import Duration
from sidecar.quotas.leases import ALONE_S

__all__ = ["QuotasSection", "RedisSection", "RedisTlsSection"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RedisTlsSection(_Section):
    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


class RedisSection(_Section):
    """Where pods of one region share their tenants' requests, tokens and concurrency. Never across a jurisdiction."""

    url: str = Field(pattern=r"^(redis|rediss|unix)://", repr=False)  # may hold a password
    username: str | None = None
    password_file: Path | None = None  # read again for each connection
    tls: RedisTlsSection | None = None  # of rediss://; None: the system's authorities, no certificate of its own
    posture: Literal["fair_share", "refuse"] = "fair_share"  # once the last lease is spent while it is away
    alone: Annotated[Duration, Field(ge=10, le=43_200)] = ALONE_S  # how long the share is gone on with, and left to it
    pods: int | None = Field(
        default=None, ge=1
    )  # that share, for one that starts while it is away; None: no share then


class QuotasSection(_Section):
    redis: RedisSection | None = None  # without it every limit is each pod's own
