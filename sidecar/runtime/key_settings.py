"""warden.yaml's ``audit.keys``: who keeps the tenants' master keys."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from audit.awskms import ARN, AwsKey
from audit.gcpkms import NAME, GcpKey
from policies.document import Name
from policies.units import parse_duration

__all__ = ["AwsSection", "GcpSection", "MasterKeysSection", "VaultSection", "https_url"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def https_url(value: str) -> str:
    """TLS, or this very host: what travels there is secret, or must not be altered on its way."""
    match = re.fullmatch(r"(https?)://(\[[0-9a-fA-F:]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?(/[A-Za-z0-9._/-]*)?", value)
    if match is None or (match[1] == "http" and match[2] not in {"127.0.0.1", "[::1]", "localhost"}):
        raise ValueError(f"{value!r} is no https://HOST[:PORT] (or http:// on loopback)")
    return value


def _server(value: str) -> str:
    """As ``https_url``, without a path: the engine's is ``mount``."""
    if urlsplit(https_url(value)).path not in ("", "/"):
        raise ValueError(f"{value!r} has a path; the engine's place is mount")
    return value


class VaultSection(_Section):
    """The transit engine of a HashiCorp Vault or OpenBao that makes, keeps and destroys the tenants' master keys."""

    address: Annotated[str, AfterValidator(_server)]
    token_file: Path  # as its agent writes it; read anew at each call
    mount: str = Field(default="transit", pattern=r"^[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*$")
    prefix: str = Field(default="warden-", pattern=r"^[A-Za-z0-9_-]{0,64}$")  # of the keys' names
    ca_file: Path | None = None


def _arn(value: str) -> str:
    match = ARN.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is no arn:aws:kms:REGION:ACCOUNT:key/ID; an alias could be pointed at another key")
    if match[4].startswith("mrk-"):
        raise ValueError(f"{value!r} is a multi-Region key: its material may lie in another jurisdiction")
    return value


class AwsSection(_Section):
    """One symmetric key of AWS KMS, which the tenants' master keys are wrapped under in their directory.

    ``jurisdiction``: whose law the key's region is under; nothing but that can tell, so it is stated.
    """

    key: Annotated[str, AfterValidator(_arn)]
    jurisdiction: Name
    endpoint: Annotated[str, AfterValidator(https_url)] | None = None  # of the VPC; left out: Amazon's own
    ca_file: Path | None = None

    @property
    def region(self) -> str:
        return AwsKey(self.key).region


def _resource(value: str) -> str:
    match = NAME.fullmatch(value)
    if match is None:
        raise ValueError(f"{value!r} is no projects/P/locations/L/keyRings/R/cryptoKeys/K")
    if match[2] == "global":
        raise ValueError(f"{value!r} lies in global, which is no place: its material may be in any jurisdiction")
    return value


class GcpSection(_Section):
    """One symmetric key (ENCRYPT_DECRYPT) of Google Cloud KMS; as ``AwsSection``."""

    key: Annotated[str, AfterValidator(_resource)]
    jurisdiction: Name
    endpoint: Annotated[str, AfterValidator(_server)] | None = None  # left out: Google's own

    @property
    def region(self) -> str:
        return GcpKey(self.key).region


class MasterKeysSection(_Section):
    """Where the tenants' master keys are, which stored content is sealed under: a directory that all sidecars and
    officers of the jurisdiction share, and that no database backup holds. Without it, ``tenant-keys`` beside
    ``database.key_file``. With ``vault`` the keys are there, and the directory only holds what is wrapped under them;
    with ``aws`` or ``gcp`` they are in the directory, wrapped.
    """

    directory: Path | None = None
    vault: VaultSection | None = None
    aws: AwsSection | None = None
    gcp: GcpSection | None = None
    backups: Annotated[float, BeforeValidator(parse_duration), Field(ge=0)] = 0.0  # how long copies of it are kept

    @model_validator(mode="after")
    def _one_keeper(self) -> Self:
        if sum(each is not None for each in (self.vault, self.aws, self.gcp)) > 1:
            raise ValueError("write one of vault, aws and gcp: who keeps the master keys")
        return self

    @property
    def cloud(self) -> AwsSection | GcpSection | None:
        """Whose KMS wraps them."""
        return self.aws or self.gcp

    @property
    def cloud_name(self) -> str:
        """As it is written."""
        return "gcp" if self.aws is None else "aws"
