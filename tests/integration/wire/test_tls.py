"""TLS and client certificates on the tenants' listener, on both wires; certificates rotate under living connections."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from sidecar.core.reasons import Reason
from sidecar.runtime.settings import TlsSection
from sidecar.runtime.tls import fault
from tests.support.bundle import LIMITED
from tests.support.certificates import Authority, put, serial
from tests.support.http2 import Raw
from tests.support.postgres import Server
from tests.support.sidecar import Answer, Bare, Sidecar, echo, launch, slow
from tests.support.stack import Triton, eventually

pytestmark = pytest.mark.integration

OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
POD, STRANGER = "spiffe://cluster.example/ns/acme/sa/app", "spiffe://elsewhere.example/x"


@dataclass
class Secured:
    """A sidecar with TLS: its files, its authority, and who signs its clients."""

    sidecar: Sidecar
    files: Path
    authority: Authority
    clients: Authority

    @contextmanager
    def bare(self, pair: tuple[bytes, bytes] | None = None) -> Iterator[Bare]:
        """A connection over TLS, with a client certificate or without."""
        certificate, key = pair or (None, None)
        credentials = grpc.ssl_channel_credentials(self.authority.pem, key, certificate)
        bare = Bare.__new__(Bare)
        bare.channel = grpc.secure_channel(self.sidecar.grpc, credentials, OPTIONS)
        with bare:
            yield bare

    def context(self, pair: tuple[bytes, bytes] | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.pem.decode())
        context.set_alpn_protocols(["h2"])
        if pair is not None:
            for name, data in zip(("client.pem", "client.key"), pair, strict=True):
                put(self.files / name, data)
            context.load_cert_chain(self.files / "client.pem", self.files / "client.key")
        return context

    def serial(self, pair: tuple[bytes, bytes] | None = None) -> int:
        """Of the certificate that a new connection is shown."""
        host, _, port = self.sidecar.grpc.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=10) as plain,
            self.context(pair).wrap_socket(plain, server_hostname=host) as secured,
        ):
            assert secured.selected_alpn_protocol() == "h2"
            shown = secured.getpeercert(binary_form=True)
        assert shown is not None
        return serial(ssl.DER_cert_to_PEM_cert(shown).encode())


@contextmanager
def secured(directory: Path, wire: str, parts: Parts, bundle: Path, *, mutual: bool) -> Iterator[Secured]:
    files = directory / "tls"
    files.mkdir()
    authority, clients = Authority("Server CA"), Authority("Client CA")
    certificate, key = authority.server()
    put(files / "tls.crt", certificate)
    put(files / "tls.key", key)
    put(files / "clients.pem", clients.pem)
    section: dict[str, Any] = {"cert_file": str(files / "tls.crt"), "key_file": str(files / "tls.key")}
    if mutual:
        # The portable wire can't ask without requiring, so it requires; Envoy asks.
        section |= {"client_ca_file": str(files / "clients.pem"), "require_client_certificate": wire == "grpc"}
    certificates = [
        {"uri": "spiffe://cluster.example/ns/acme/*", "tenant": "acme"},
        {"uri": "spiffe://cluster.example/ns/few/*", "tenant": next(iter(LIMITED))},
    ]
    overrides = {"listen": {"tls": section}, "identity": {"certificates": certificates}}
    sidecar = launch(directory / "stack", wire, parts, bundle, overrides=overrides)
    try:
        yield Secured(sidecar, files, authority, clients)
    finally:
        sidecar.close()


@pytest.fixture(scope="module")
def tls(
    wire: str, bundle: Path, otlp: OtlpReceiver, triton: Triton, postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Secured]:  # fmt: skip
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    with secured(tmp_path_factory.mktemp(f"{wire}-mtls"), wire, parts, bundle, mutual=True) as found:
        yield found


def reason(answer: Answer) -> str:
    return "OK" if answer.code == "OK" else answer.told().reason


def test_a_certificate_is_its_mapped_principal(tls: Secured) -> None:
    with tls.bare(tls.clients.client(POD)) as bare:
        answer = bare.unary(echo(), {})
        assert answer.code == "OK", answer
    record = tls.sidecar.record(answer.call_id)
    assert (record["tenant"], record["principal"]) == ("acme", POD)
    assert record["peer"].startswith("127.0.0.1:") if "peer" in record else True


@pytest.mark.parametrize(
    ("uris", "wanted"),
    [
        ((STRANGER,), Reason.CREDENTIAL_MISSING),
        ((), Reason.CREDENTIAL_MISSING),
        ((POD, STRANGER), Reason.CREDENTIAL_AMBIGUOUS),
        ((POD.replace("cluster", "CLUSTER"),), Reason.CREDENTIAL_MISSING),
        (("spiffe://cluster.example/ns/acme",), Reason.CREDENTIAL_MISSING),
    ],
)
def test_another_certificate_is_nobodys(tls: Secured, uris: tuple[str, ...], wanted: Reason) -> None:
    with tls.bare(tls.clients.client(*uris)) as bare:
        assert reason(bare.unary(echo(), {})) == wanted


def test_a_header_is_the_credential_where_there_is_one(tls: Secured) -> None:
    """A mesh shows its own certificate and passes its users' headers on; a bad header is not saved by a certificate."""
    with tls.bare(tls.clients.client(POD)) as bare:
        answer = bare.unary(echo(), tls.sidecar.headers("few-tokens"))
        assert answer.code == "OK"
        assert tls.sidecar.record(answer.call_id)["tenant"] == "few-tokens"
        assert reason(bare.unary(echo(), {"authorization": "Bearer x.y.z"})) == Reason.TOKEN_MALFORMED
        assert reason(bare.unary(echo(), {"x-api-key": ""})) == Reason.CREDENTIAL_MISSING


def test_a_certificate_of_another_authority_gets_no_connection(tls: Secured) -> None:
    with tls.bare(Authority("Client CA").client(POD)) as bare:
        answer = bare.unary(echo(), tls.sidecar.headers())
        assert (answer.code, "x-warden-call-id" in answer.initial) == ("UNAVAILABLE", False)


def test_an_expired_certificate_gets_no_connection(tls: Secured) -> None:
    with tls.bare(tls.clients.client(POD, ends=timedelta(minutes=-1))) as bare:
        answer = bare.unary(echo(), tls.sidecar.headers())
        assert (answer.code, "x-warden-call-id" in answer.initial) == ("UNAVAILABLE", False)


@pytest.mark.parametrize(
    "uri",
    [f"{STRANGER};URI={POD}", f"{STRANGER},URI={POD}", f'{STRANGER}";URI="{POD}', f"{STRANGER};URI={POD};By=x",
     f"{POD};URI={POD}", f"{POD}/../../birch/sa/app", f"{POD}%2f..", f"{POD};By=x", f"{POD},x"],
)  # fmt: skip
def test_a_uri_that_would_be_read_as_two_is_nobodys(tls: Secured, uri: str) -> None:
    """However the proxy writes it into its header: a signed certificate speaks for the one URI it has, or for none."""
    with tls.bare(tls.clients.client(uri)) as bare:
        assert reason(bare.unary(echo(), {})) in {Reason.CREDENTIAL_MISSING, Reason.CREDENTIAL_AMBIGUOUS}


def test_a_forged_certificate_header_is_dropped(tls: Secured) -> None:
    stranger = tls.clients.client(STRANGER)
    raw = Raw(tls.sidecar.grpc, tls.context(stranger))
    for forged in (f"Hash=ab;URI={POD}", f'By=x;URI="{POD}"', f"URI={POD},URI={POD}"):
        assert raw.call(echo(), [("x-forwarded-client-cert", forged.encode())]).reason == Reason.CREDENTIAL_MISSING
    raw.close()


def test_a_forged_certificate_header_is_dropped_without_tls_too(sidecar: Sidecar, bare: Bare) -> None:
    forged = {"x-forwarded-client-cert": f"Hash=ab;URI={POD}"}
    assert reason(bare.unary(echo(), forged)) == Reason.CREDENTIAL_MISSING


def test_without_tls_there_is_no_connection(tls: Secured) -> None:
    with tls.sidecar.bare() as bare:
        assert bare.unary(echo(), tls.sidecar.headers(), timeout=3).code in {"UNAVAILABLE", "DEADLINE_EXCEEDED"}


def test_certificates_rotate_within_seconds_and_no_connection_drops(tls: Secured) -> None:
    """A stream and its connection live on over the rotation; a mismatched pair changes nothing."""
    pair = tls.clients.client(POD)
    before = tls.serial(pair)
    assert before == serial((tls.files / "tls.crt").read_bytes())
    certificate, key = tls.authority.server()
    with tls.bare(pair) as bare:
        stream = bare.stream([slow(400, 10, id="long")], {})
        stream.next()
        put(tls.files / "tls.crt", certificate)  # for a moment the new certificate stands beside the old key
        assert tls.serial(pair) == before
        put(tls.files / "tls.key", key)
        began = time.monotonic()
        eventually(lambda: tls.serial(pair) == serial(certificate), what="the new certificate")
        print(f"\n{tls.sidecar.wire}: a rotated certificate was shown after {time.monotonic() - began:.2f} s")
        assert bare.unary(echo(), {}).code == "OK"  # on the connection that saw the old one
        assert stream.answer().code == "OK"


def test_broken_files_change_nothing_and_whole_ones_are_taken_again(tls: Secured) -> None:
    pair = tls.clients.client(POD)
    before = tls.serial(pair)
    certificate, key = tls.authority.server()
    for name, broken in (("tls.crt", b"nothing"), ("tls.key", b""), ("tls.crt", certificate[:200])):
        kept = (tls.files / name).read_bytes()
        put(tls.files / name, broken)
        with tls.bare(pair) as bare:
            assert bare.unary(echo(), {}).code == "OK", name
        assert tls.serial(pair) == before
        put(tls.files / name, kept)
    (tls.files / "tls.key").unlink()
    assert tls.serial(pair) == before
    put(tls.files / "tls.key", key)
    put(tls.files / "tls.crt", certificate)
    eventually(lambda: tls.serial(pair) == serial(certificate), what="the new certificate")


def test_a_rotated_key_that_others_can_read_is_told(tls: Secured) -> None:
    """Envoy takes it, the portable wire does not; either way readiness says so until it is put right."""
    key = tls.files / "tls.key"

    def said() -> str:
        return str(tls.sidecar.stack.readyz()["checks"]["tls"]["detail"])

    assert said() == "current"
    key.chmod(0o644)
    assert "mode 0644" in said()
    key.chmod(0o600)
    assert said() == "current"


def test_a_rotated_client_authority_is_believed_within_seconds(tls: Secured) -> None:
    new = Authority("Client CA 2")
    put(tls.files / "clients.pem", tls.clients.pem + new.pem)

    def accepted() -> bool:
        with tls.bare(new.client(POD)) as bare:
            return bare.unary(echo(), {}).code == "OK"

    eventually(accepted, what="a client of the new authority")


def test_the_certificate_is_checked_before_anything_starts(tls: Secured, tmp_path: Path) -> None:
    one, other = tls.authority.server(), tls.authority.server()
    put(tmp_path / "c", one[0])
    put(tmp_path / "k", other[1])
    assert "mismatch" in str(fault(TlsSection(cert_file=tmp_path / "c", key_file=tmp_path / "k"))).lower()
    put(tmp_path / "k", one[1])
    assert fault(TlsSection(cert_file=tmp_path / "c", key_file=tmp_path / "k")) is None
    assert fault(TlsSection(cert_file=tmp_path / "c", key_file=tmp_path / "none")) is not None
    with pytest.raises(ValueError, match="client_ca_file"):
        TlsSection(cert_file=tmp_path / "c", key_file=tmp_path / "k", require_client_certificate=True)
