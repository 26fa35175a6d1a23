"""A transit engine that lies: whatever it says, it is a fault that can be waited out, and nothing crashes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from audit.keys import KeyFaultError
from audit.transit import Transit, TransitKeys

GOOD = {"latest_version": 2, "keys": {"1": 1, "2": 2}, "min_decryption_version": 2, "min_available_version": 1}


class Told(TransitKeys):
    """Its answers are the test's own, as bytes."""

    def __init__(self, status: int, data: bytes) -> None:
        super().__init__(Transit("http://127.0.0.1:1", Path("token")), Path("nowhere"))
        self.answer = status, data

    def _send(self, _method: str, _path: str, _body: dict[str, Any] | None) -> tuple[int, bytes]:
        return self.answer


def key(**changes: Any) -> bytes:
    return json.dumps({"data": GOOD | changes}).encode()


def test_what_a_key_is() -> None:
    keys = Told(200, key())
    assert (keys.current("acme"), keys.versions("acme")) == (2, [2])
    assert not keys.destroyed("acme", 1)
    assert Told(200, key(min_available_version=2)).destroyed("acme", 1)


@pytest.mark.parametrize(
    "data",
    [
        key(keys=None), key(keys=7), key(keys={"one": 1}), key(latest_version=0), key(latest_version="two"),
        key(min_decryption_version=[]), key(min_available_version="x"), key(latest_version=float("inf")),
        b'{"data": 1}', b'{"data": [1]}', b"[1]", b"[" * 200_000, b"\xff", b"<html>",
    ],
)  # fmt: skip
def test_a_key_that_is_none_is_a_fault(data: bytes) -> None:
    keys = Told(200, data)
    for ask in (keys.current, keys.versions, lambda tenant: keys.destroyed(tenant, 1)):
        with pytest.raises(KeyFaultError):
            ask("acme")


@pytest.mark.parametrize("errors", [None, 7, "too old", {"a": 1}, [None], [["too"]]])
def test_errors_that_are_none_are_a_fault(errors: Any) -> None:
    with pytest.raises(KeyFaultError):
        Told(400, json.dumps({"errors": errors}).encode()).current("acme")


@pytest.mark.parametrize("mac", ["vault:v1:", "vault:v1:%%", "vault:v1:AAAA", "vault:v2:" + "A" * 44, "A" * 44])
def test_a_mac_that_is_none_is_a_fault(mac: str) -> None:
    with pytest.raises(KeyFaultError):
        Told(200, json.dumps({"data": {"hmac": mac}}).encode()).mac("acme", 1, b"alice")
