"""Encrypt and Decrypt of Google Cloud KMS on the wire, in Google's own messages: what its documentation says they do.

It encrypts with AES-GCM, checks and gives the sums, keeps a version for each rotation, and refuses in Google's codes
what is disabled, altered or bound to something else. It checks no credentials and no permission.
"""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import google_crc32c
import grpc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

LOCATION = "europe-west3"
_SERVICE = "google.cloud.kms.v1.KeyManagementService"
_numbers = itertools.count()

Script = Callable[[str, Any, Any], Any]  # (Encrypt or Decrypt, request, RPC) → an answer of its own, or None


class CloudKms:
    """``script`` is what it says by itself; ``asked`` what came; ``keys`` the material by version."""

    def __init__(self) -> None:
        self.keys: dict[str, bytes] = {}
        self.primary: dict[str, int] = {}
        self.disabled: set[str] = set()
        self.script: Script | None = None
        self.asked: list[str] = []
        self.messages: Any = importlib.import_module("google.cloud.kms_v1")  # of an extra: only who asks here needs it
        self._server = grpc.server(ThreadPoolExecutor(8))
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                self._answering(name, act), request_deserializer=asked.deserialize, response_serializer=told.serialize
            )
            for name, act, asked, told in (
                ("Encrypt", self._encrypt, self.messages.EncryptRequest, self.messages.EncryptResponse),
                ("Decrypt", self._decrypt, self.messages.DecryptRequest, self.messages.DecryptResponse),
            )
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self._server.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def key(self, location: str = LOCATION) -> str:
        """A new one's name."""
        name = f"projects/warden/locations/{location}/keyRings/ring/cryptoKeys/k{next(_numbers)}"
        self.rotate(name)
        return name

    def rotate(self, name: str) -> None:
        """A new primary version; those before still decrypt."""
        version = self.primary[name] = self.primary.get(name, 0) + 1
        self.keys[f"{name}/cryptoKeyVersions/{version}"] = os.urandom(32)

    def close(self) -> None:
        self._server.stop(None).wait(5)

    def _answering(self, name: str, act: Callable[[Any, grpc.ServicerContext], Any]) -> Callable[[Any, Any], Any]:
        def answer(request: Any, rpc: grpc.ServicerContext) -> Any:
            self.asked.append(name)
            own = self.script(name, request, rpc) if self.script else None
            return act(request, rpc) if own is None else own

        return answer

    def _encrypt(self, request: Any, rpc: grpc.ServicerContext) -> Any:
        if request.name not in self.primary:
            rpc.abort(grpc.StatusCode.NOT_FOUND, f"CryptoKey {request.name} not found.")
        self._check(rpc, request.plaintext, request.plaintext_crc32c)
        self._check(rpc, request.additional_authenticated_data, request.additional_authenticated_data_crc32c)
        version, nonce = self.primary[request.name], os.urandom(12)
        key = self._usable(f"{request.name}/cryptoKeyVersions/{version}", rpc)
        sealed = AESGCM(key).encrypt(nonce, request.plaintext, request.additional_authenticated_data)
        blob = version.to_bytes(4, "big") + nonce + sealed
        return self.messages.EncryptResponse(
            name=f"{request.name}/cryptoKeyVersions/{version}", ciphertext=blob,
            ciphertext_crc32c=google_crc32c.value(blob), verified_plaintext_crc32c=True,
            verified_additional_authenticated_data_crc32c=True,
        )  # fmt: skip

    def _decrypt(self, request: Any, rpc: grpc.ServicerContext) -> Any:
        self._check(rpc, request.ciphertext, request.ciphertext_crc32c)
        blob, plain = request.ciphertext, b""
        key = self._usable(f"{request.name}/cryptoKeyVersions/{int.from_bytes(blob[:4], 'big')}", rpc)
        try:
            plain = AESGCM(key).decrypt(blob[4:16], blob[16:], request.additional_authenticated_data)
        except InvalidTag:
            rpc.abort(grpc.StatusCode.INVALID_ARGUMENT, "Decryption failed: the ciphertext is invalid.")
        return self.messages.DecryptResponse(plaintext=plain, plaintext_crc32c=google_crc32c.value(plain))

    def _usable(self, version: str, rpc: grpc.ServicerContext) -> bytes:
        if version in self.disabled:
            rpc.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{version} is not enabled, current state is: DISABLED.")
        if version not in self.keys:
            rpc.abort(grpc.StatusCode.INVALID_ARGUMENT, "Decryption failed: 'name' is not the correct key.")
        return self.keys[version]

    @staticmethod
    def _check(rpc: grpc.ServicerContext, data: bytes, checksum: int) -> None:
        if google_crc32c.value(data) != checksum:
            rpc.abort(grpc.StatusCode.INVALID_ARGUMENT, "The checksum in the request did not match.")
