"""It is HMAC-SHA-256, whatever the key's and the data's length."""

from __future__ import annotations

import hmac

import pytest

from sidecar.core.model import Secret
from sidecar.triton.mac import Mac


@pytest.mark.parametrize("key", [b"", b"k" * 32, b"k" * 64, b"k" * 65, bytes(range(200))])
def test_it_is_what_the_library_says(key: bytes) -> None:
    mac = Mac(Secret(key))
    for data in (b"", b"4:acme5:chatmine", bytes(1000)):
        assert mac.of(data) == hmac.digest(key, data, "sha256") == mac.of(data)
