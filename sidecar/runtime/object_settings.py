"""warden.yaml's object stores beside the journal's copies: a mounted directory, or an S3 bucket."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from audit.objects import LocalObjects, ObjectStore, StoreAt
from policies.units import Duration, Size
from sidecar.runtime.copy_settings import S3Section

__all__ = ["ObjectsSection", "TensorStoreSection", "objects_at", "place_of_objects"]


class ObjectsSection(BaseModel):
    """``directory`` is one that is mounted from elsewhere, or ``s3`` a bucket; ``deadline`` bounds each question."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path | None = None
    s3: S3Section | None = None
    deadline: Duration = 5.0

    @model_validator(mode="after")
    def _one_place(self) -> Self:
        if (self.directory is None) == (self.s3 is None):
            raise ValueError("write either directory or s3: where the objects go")
        return self


class TensorStoreSection(ObjectsSection):
    """Where the bytes of tensors go that a tenant keeps; in the jurisdiction of the database beside it.

    ``waiting``: how much may wait for it on the sidecar's own disk before no further record is read.
    """

    jurisdiction: str = Field(min_length=1)
    waiting: Size = 2 * 2**30


def place_of_objects(section: ObjectsSection) -> tuple[str, ...]:
    """What tells two stores apart; the first is for people."""
    if section.s3 is None:
        return (str(section.directory),)
    return (f"s3://{section.s3.bucket}/{section.s3.prefix}", section.s3.endpoint or "")


def objects_at(section: ObjectsSection, key: str) -> StoreAt:
    """Opened when it is first asked; ``key`` is where it stands in the configuration, for the words of an OSError."""
    place, *endpoint = place_of_objects(section)
    where = place.rstrip("/") if section.s3 is not None else place
    where += f" at {endpoint[0]}" if endpoint and endpoint[0] else ""
    return StoreAt(where, lambda: _open(section, key))


def _open(section: ObjectsSection, key: str) -> ObjectStore:
    """Asks no server. Raises OSError."""
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
        raise OSError(f"{key}.s3: needs the extra s3: pip install 'triton-warden[s3]'") from fault
    except OSError as fault:
        where = f"{fault.filename}: {fault.strerror}" if fault.filename else str(fault)
        raise OSError(f"{key}: {where}") from fault
    except ValueError as fault:
        raise OSError(f"{key}: {fault}") from fault
