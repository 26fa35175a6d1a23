"""A certificate authority for tests: servers' and clients' certificates, written as PEM files by renaming."""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

DAY = timedelta(days=1)


class Authority:
    """Signs certificates for a day."""

    def __init__(self, name: str = "Test CA") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._certificate = self._sign(self._name, self._key.public_key(), None, authority=True)

    @property
    def pem(self) -> bytes:
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def server(self) -> tuple[bytes, bytes]:
        """Certificate and key (PEM) for this host."""
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        return self._issue("localhost", names)

    def client(self, *uris: str, ends: timedelta = DAY) -> tuple[bytes, bytes]:
        """Certificate and key (PEM) of a client with these URIs; it ends after ``ends``, which may be past."""
        return self._issue("client", [x509.UniformResourceIdentifier(uri) for uri in uris], ends)

    def _issue(self, common: str, names: list[Any], ends: timedelta = DAY) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
        alternative = x509.SubjectAlternativeName(names) if names else None
        certificate = self._sign(subject, key.public_key(), alternative, ends=ends)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM), private

    def _sign(
        self, subject: x509.Name, public: Any, names: Any, *, authority: bool = False, ends: timedelta = DAY
    ) -> x509.Certificate:
        at = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(at + min(ends, timedelta()) - timedelta(hours=1))
            .not_valid_after(at + ends)
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
        )
        if names is not None:
            builder = builder.add_extension(names, critical=False)
        return builder.sign(self._key, SHA256())


def put(path: Path, data: bytes) -> None:
    """Write beside and rename into place, as a rotation does."""
    beside = path.with_name(path.name + ".new")
    with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    beside.replace(path)


def serial(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number
