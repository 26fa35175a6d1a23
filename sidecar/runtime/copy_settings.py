"""warden.yaml's ``audit.journal.copy``: where the journal is copied to outside the node, and how long that may take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from audit.copying import CopyTo
from audit.objects import LocalObjects, ObjectStore
from policies.units import Duration

__all__ = ["CopyError", "CopySection", "S3Section", "copy_to", "store_of"]

_LOOPBACK: Final = {"127.0.0.1", "::1", "localhost"}
_BUCKET: Final = r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$"
_FOLDER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*")


class CopyError(Exception):
    """The store cannot be used; the message names the key and why."""


def _endpoint(value: str) -> str:
    """TLS, or this very host: credentials sign what goes there, and nobody may read or alter it on its way."""
    parts = urlsplit(value)
    if parts.scheme not in ("https", "http") or not parts.hostname or parts.path not in ("", "/") or parts.query:
        raise ValueError(f"{value!r} is no https://HOST[:PORT]")
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK:
        raise ValueError(f"{value!r} is neither https nor on loopback")
    return value.rstrip("/")


def _prefix(value: str) -> str:
    if value and _FOLDER.fullmatch(value) is None:
        raise ValueError(f"{value!r} is no folder's name; write eu/pods, without slashes at its ends")
    return value


class S3Section(BaseModel):
    """A bucket. ``credentials_file``: JSON, ``access_key_id`` and ``secret_access_key``, and ``session_token`` where
    there is one; read again every minute. Without it, what AWS's own variables and metadata services say.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    bucket: str = Field(pattern=_BUCKET)
    prefix: Annotated[str, AfterValidator(_prefix)] = ""
    region: str = Field(default="us-east-1", pattern=r"^[a-z0-9-]{1,64}$")
    endpoint: Annotated[str, AfterValidator(_endpoint)] | None = None  # left out: Amazon's own
    credentials_file: Path | None = None
    ca_file: Path | None = None


class CopySection(BaseModel):
    """``directory`` is one that is mounted from elsewhere, or ``s3`` a bucket; in the jurisdiction of the database.

    ``deadline``: what a call waits at most for its copy; ``every``: how often what nobody waits for is copied.
    ``same_volume``: that the directory lies on the journal's own volume and is lost with it, which is meant.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path | None = None
    s3: S3Section | None = None
    jurisdiction: str = Field(min_length=1)
    deadline: Duration = 5.0
    every: Duration = 1.0
    same_volume: bool = False

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.directory is None) == (self.s3 is None):
            raise ValueError("write either directory or s3: where the copies go")
        return self


def store_of(section: CopySection) -> ObjectStore:
    """Opens it; asks no server. Raises CopyError."""
    try:
        if section.directory is not None:
            return LocalObjects(section.directory)
        assert section.s3 is not None
        from audit.s3 import S3Access, S3Objects  # noqa: PLC0415 — an extra, for those that use it

        s3 = section.s3
        return S3Objects(
            S3Access(s3.bucket, s3.prefix, s3.region, s3.endpoint, s3.credentials_file, s3.ca_file, section.deadline)
        )
    except ImportError as fault:
        raise CopyError("audit.journal.copy.s3: needs the extra s3: pip install 'triton-warden[s3]'") from fault
    except OSError as fault:
        where = f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault)
        raise CopyError(f"audit.journal.copy: {where}") from fault
    except ValueError as fault:
        raise CopyError(f"audit.journal.copy: {fault}") from fault


def copy_to(section: CopySection, journal: Path) -> CopyTo:
    """``journal``: the directory of what is copied, which need not be there yet. Raises CopyError."""
    store = store_of(section)
    if isinstance(store, LocalObjects) and not section.same_volume and store.on_volume_of(_nearest(journal)):
        words = f"{store.where} lies on the journal's own volume, and would be lost with it"
        raise CopyError(f"audit.journal.copy: {words}; mount another there, or write same_volume: true")
    return CopyTo(store, section.every, section.deadline)


def _nearest(path: Path) -> Path:
    """It, or the folder above it that is there."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())
