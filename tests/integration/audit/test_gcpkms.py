"""audit.gcpkms in Google's own messages: what it wraps is bound, checked both ways, and every refusal names its key."""

from __future__ import annotations

import importlib
import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import grpc
import pytest

from audit.filekeys import COVER_SECONDS, FileKeys
from audit.gcpkms import GcpKey, GcpKms
from audit.keys import KeyFaultError
from tests.support.gcpkms import CloudKms


@pytest.fixture
def kms() -> Iterator[CloudKms]:
    server = CloudKms()
    yield server
    server.close()


def made(kind: str, **values: Any) -> Any:
    """A message of Google's."""
    return getattr(importlib.import_module("google.cloud.kms_v1"), kind)(**values)


def cover(kms: CloudKms) -> GcpKms:
    return GcpKms(GcpKey(kms.key(), kms.endpoint))


def test_what_is_wrapped_is_bound_to_its_place_and_outlives_a_rotation(kms: CloudKms, tmp_path: Path) -> None:
    wraps = cover(kms)
    keys = FileKeys(tmp_path, secrets.token_bytes, wraps)
    wrapped = keys.wrap("acme", keys.current("acme"), b"k" * 32, b"here")
    kms.rotate(wraps.name)
    keys.rotate("acme")
    assert FileKeys(tmp_path, secrets.token_bytes, wraps).unwrap("acme", 1, wrapped, b"here") == b"k" * 32
    data = (tmp_path / "t-acme/1.key").read_bytes()
    assert keys._known["acme", 1][0] not in data
    assert keys.covers("acme") == {1: wraps.name, 2: wraps.name}
    (tmp_path / "t-birch").mkdir()
    (tmp_path / "t-birch/1.key").write_bytes(data)
    with pytest.raises(KeyFaultError, match=r"t-birch/1\.key: projects/warden/.*: decrypt: INVALID_ARGUMENT"):
        keys.mac("birch", 1, b"x")
    elsewhere = GcpKms(GcpKey(kms.key("us-east1"), kms.endpoint))
    with pytest.raises(KeyFaultError, match="no key of us-east1"):
        FileKeys(tmp_path, secrets.token_bytes, elsewhere).mac("acme", 1, b"x")


def test_a_key_that_is_disabled_ends_its_use_within_a_quarter_of_an_hour(kms: CloudKms, tmp_path: Path) -> None:
    at, wraps = 0.0, cover(kms)
    keys = FileKeys(tmp_path, secrets.token_bytes, wraps, lambda: at)
    mac = keys.mac("acme", keys.current("acme"), b"x")
    kms.disabled.add(f"{wraps.name}/cryptoKeyVersions/1")
    assert keys.mac("acme", 1, b"x") == mac
    at = COVER_SECONDS
    with pytest.raises(KeyFaultError, match=r"FAILED_PRECONDITION .*DISABLED"):
        keys.mac("acme", 1, b"x")
    kms.disabled.clear()
    assert keys.mac("acme", 1, b"x") == mac


def _refuse(code: grpc.StatusCode) -> Callable[..., Any]:
    return lambda act, request, rpc: rpc.abort(code, "not today")


def _other_plaintext(act: str, request: Any, rpc: Any) -> Any:
    if act == "Encrypt":
        return None
    return made("DecryptResponse", plaintext=b"z" * 32, plaintext_crc32c=google_crc32c.value(b"z" * 32))


def _encrypted(request: Any, **changes: Any) -> Any:
    told: dict[str, Any] = {
        "name": f"{request.name}/cryptoKeyVersions/1",
        "ciphertext": b"c",
        "ciphertext_crc32c": google_crc32c.value(b"c"),
        "verified_plaintext_crc32c": True,
        "verified_additional_authenticated_data_crc32c": True,
    }
    return made("EncryptResponse", **told | changes)


TROUBLES: list[tuple[str, Callable[..., Any], str]] = [
    ("throttled", _refuse(grpc.StatusCode.RESOURCE_EXHAUSTED), "RESOURCE_EXHAUSTED .*not today"),
    ("away", _refuse(grpc.StatusCode.UNAVAILABLE), "UNAVAILABLE .*not today"),
    ("denied", _refuse(grpc.StatusCode.PERMISSION_DENIED), "PERMISSION_DENIED .*not today"),
    ("deleted", _refuse(grpc.StatusCode.NOT_FOUND), "NOT_FOUND .*not today"),
    ("broken", _refuse(grpc.StatusCode.INTERNAL), "INTERNAL .*not today"),
    ("nothing", lambda act, request, rpc: made("EncryptResponse"), "answered under another key"),
    ("another key", lambda act, request, rpc: _encrypted(request, name="projects/p"), "answered under another key"),
    ("unchecked", lambda act, request, rpc: _encrypted(request, verified_plaintext_crc32c=False), "did not check"),
    ("empty", lambda act, request, rpc: _encrypted(request, ciphertext=b""), "holds nothing"),
    ("altered", lambda act, request, rpc: _encrypted(request, ciphertext=b"d"), "altered on the way"),
    ("another plaintext", _other_plaintext, "gives back another key"),
]


@pytest.mark.parametrize(("name", "script", "words"), TROUBLES, ids=[name for name, _, _ in TROUBLES])
def test_no_key_is_made_that_the_kms_would_not_give_back(
    kms: CloudKms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: Callable[..., Any], words: str
) -> None:
    monkeypatch.setattr("audit.gcpkms.WHOLE", 0.5)
    keys = FileKeys(tmp_path, secrets.token_bytes, cover(kms))
    kms.script = script
    for _ in range(2):
        with pytest.raises(KeyFaultError, match=words):
            keys.current("acme")
    assert list(tmp_path.glob("*/*")) == []
    kms.script = None
    assert keys.wrap("acme", keys.current("acme"), b"k", b"")


def test_one_that_is_away_for_a_moment_is_asked_again_and_one_that_hangs_is_not_waited_for(
    kms: CloudKms, monkeypatch: pytest.MonkeyPatch
) -> None:
    wraps = cover(kms)
    left = iter([True, True])
    away = _refuse(grpc.StatusCode.UNAVAILABLE)
    kms.script = lambda *asked: away(*asked) if next(left, False) else None
    wrapped = wraps.close(b"key", {"a": "b"})
    assert wraps.open(wraps.name, wrapped, {"a": "b"}) == b"key"
    assert kms.asked == ["Encrypt", "Encrypt", "Encrypt", "Decrypt"]
    monkeypatch.setattr("audit.gcpkms.TIMEOUT", 0.3)
    free = threading.Event()
    kms.script = lambda *asked: free.wait(30) and None
    try:
        with pytest.raises(KeyFaultError, match="DEADLINE_EXCEEDED"):
            wraps.open(wraps.name, wrapped, {"a": "b"})
    finally:
        free.set()


def test_credentials_and_a_library_that_are_not_there_are_told(
    kms: CloudKms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "nowhere.json"))
    with pytest.raises(KeyFaultError, match=r"encrypt: .*nowhere\.json"):
        GcpKms(GcpKey(kms.key())).close(b"key", {})
    monkeypatch.setitem(sys.modules, "google.cloud", None)
    with pytest.raises(KeyFaultError, match=r"pip install 'triton-warden\[gcp\]'"):
        GcpKms(GcpKey(kms.key()))
