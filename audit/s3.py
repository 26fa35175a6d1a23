"""Objects in an S3 bucket (AWS signature version 4), through the Rust client of obstore: bounded in time, retried."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from audit.objects import Stored, check_name
from audit.secretfile import KeyFault, read_secret

if TYPE_CHECKING:
    from obstore.store import S3Credential

__all__ = ["S3Access", "S3Objects"]

_RENEW: Final = timedelta(minutes=1)  # how long credentials from a file are believed before it is read again
_RETRIES: Final = 2
_WORDS: Final = 400  # characters of an error
_CODE: Final = re.compile(r"<Code>([A-Za-z0-9]{1,64})</Code>")


@dataclass(frozen=True, slots=True)
class S3Access:
    """Which bucket, where, and as whom.

    ``credentials``: JSON ``{"access_key_id", "secret_access_key", "session_token"?}``, read again every minute; None:
    what AWS's own variables and metadata say (``AWS_WEB_IDENTITY_TOKEN_FILE`` …). ``deadline_s`` bounds each call.
    """

    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    endpoint: str | None = None  # None: Amazon's own
    credentials: Path | None = None
    ca_file: Path | None = None
    deadline_s: float = 5.0


class S3Objects:
    """``audit.objects.ObjectStore`` over a bucket."""

    def __init__(self, access: S3Access) -> None:
        """Raises OSError where a file can't be read, ValueError where it can't be used. Asks no server."""
        self._access = access
        provider = None
        if access.credentials is not None:
            provider = _FromFile(access.credentials)
            provider()
        client: dict[str, Any] = {
            "timeout": timedelta(seconds=access.deadline_s / 2),
            "connect_timeout": timedelta(seconds=access.deadline_s / 2),
            "allow_http": access.endpoint is not None and access.endpoint.startswith("http://"),
        }
        if access.ca_file is not None:
            client["root_certificate"] = access.ca_file.read_bytes()
        config: dict[str, Any] = {
            "bucket": access.bucket, "region": access.region,
            # Amazon's buckets have names of their own; elsewhere they are folders of the one host.
            "virtual_hosted_style_request": access.endpoint is None,
        }  # fmt: skip
        if access.endpoint is not None:
            config["endpoint"] = access.endpoint
        try:
            self._store = S3Store(
                prefix=access.prefix or None,
                config=config,  # type: ignore[arg-type]
                client_options=client,  # type: ignore[arg-type]
                retry_config={
                    "max_retries": _RETRIES, "retry_timeout": timedelta(seconds=access.deadline_s / 2),
                    "backoff": {
                        "init_backoff": timedelta(milliseconds=50), "max_backoff": timedelta(seconds=1), "base": 2,
                    },
                },
                credential_provider=provider,
            )  # fmt: skip
        except BaseError as fault:
            raise ValueError(_words(fault)) from fault

    @property
    def where(self) -> str:
        place = f"s3://{self._access.bucket}/{self._access.prefix}".rstrip("/")
        return place if self._access.endpoint is None else f"{place} at {self._access.endpoint}"

    def put(self, name: str, data: bytes) -> None:
        try:
            obstore.put(self._store, check_name(name), data, use_multipart=False)
        except (BaseError, FileNotFoundError) as fault:
            raise self._failed("put", name, fault) from fault

    def put_new(self, name: str, data: bytes) -> bool:
        """By ``If-None-Match: *``; whoever counts on it looks whether the server keeps to that (audit.anchor)."""
        try:
            obstore.put(self._store, check_name(name), data, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except (BaseError, FileNotFoundError) as fault:
            raise self._failed("put", name, fault) from fault
        return True

    def get(self, name: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, check_name(name)).bytes())
        except FileNotFoundError as fault:
            if (code := _CODE.search(str(fault))) is not None and code[1] == "NoSuchBucket":
                raise self._failed("get", name, fault) from fault
            return None
        except BaseError as fault:
            raise self._failed("get", name, fault) from fault

    def list(self, prefix: str = "") -> Iterator[Stored]:
        try:
            for chunk in obstore.list(self._store, check_name(prefix) if prefix else None):
                for each in chunk:
                    yield Stored(str(each["path"]), each["size"], each["last_modified"].timestamp())
        except (BaseError, FileNotFoundError) as fault:
            raise self._failed("list", prefix, fault) from fault

    def folders(self, prefix: str) -> Sequence[str]:
        try:
            found = obstore.list_with_delimiter(self._store, check_name(prefix))
        except (BaseError, FileNotFoundError) as fault:
            raise self._failed("list", prefix, fault) from fault
        return sorted(each.rstrip("/").rpartition("/")[2] for each in found["common_prefixes"])

    def delete(self, name: str) -> None:
        try:
            obstore.delete(self._store, check_name(name))
        except FileNotFoundError:
            return
        except BaseError as fault:
            raise self._failed("delete", name, fault) from fault

    def _failed(self, what: str, name: str, fault: Exception) -> OSError:
        return OSError(f"{self.where}: {what} {name}: {_words(fault)}")


def _words(fault: Exception) -> str:
    """The store's own code where it has one; the client's text goes on for pages."""
    told = str(fault).split("\n\nDebug source")[0]
    code = _CODE.search(told)
    told = told.split(" - Server returned")[0] if code is not None else told
    return " ".join(f"{told}{f': {code[1]}' if code else ''}".split())[:_WORDS]


@dataclass(slots=True)
class _FromFile:
    """obstore's credential provider: asked again once what it gave is over."""

    path: Path
    config: dict[str, Any] = field(default_factory=dict)  # obstore looks for it on a provider
    prefix: str | None = None

    def __call__(self) -> S3Credential:
        """Raises OSError and ValueError, naming the file and never what it holds."""
        data = read_secret(self.path)
        if isinstance(data, KeyFault):
            raise OSError(data.detail)
        try:
            told = json.loads(data)
            found: S3Credential = {
                "access_key_id": told["access_key_id"], "secret_access_key": told["secret_access_key"],
                "token": told.get("session_token"), "expires_at": datetime.now(UTC) + _RENEW,
            }  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError):
            found = {"access_key_id": "", "secret_access_key": "", "expires_at": None}
        if not all(isinstance(found[name], str) and found[name] for name in ("access_key_id", "secret_access_key")):
            raise ValueError(f'{self.path}: not JSON with "access_key_id" and "secret_access_key"')
        return found
