"""TLS on the tenants' listener: what Envoy is told, and credentials of the portable wire; both follow the files."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from audit.secretfile import exposed
from sidecar.runtime.settings import TlsSection

if TYPE_CHECKING:
    import grpc

_TYPE: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"
_CERTIFICATE, _AUTHORITIES = "tenants", "clients"  # names of the two secrets


def faults(section: TlsSection) -> list[str]:
    """Everything wrong with these files. Envoy reads them by itself: after the start these can be told, not refused."""
    found = exposed(section.key_file)
    return [f"listen.tls.key_file: {found.detail}"] if found is not None else list(filter(None, [fault(section)]))


def fault(section: TlsSection) -> str | None:
    """Why these files can't serve TLS; None where they can."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(section.cert_file, section.key_file, password=_no_password)
        if section.client_ca_file is not None:
            context.load_verify_locations(section.client_ca_file)
    except (OSError, ValueError) as found:  # ssl.SSLError is an OSError
        return f"listen.tls: {section.cert_file}, {section.key_file}: {found}"
    return None


def _no_password() -> str:
    raise ValueError("the private key must not need a password")


# --- Envoy --------------------------------------------------------------------------------------------------------


def transport_socket(section: TlsSection, run: Path) -> dict[str, Any]:
    """The listener's TLS; writes what it points to into ``run``.

    The files come by SDS from the file system: Envoy reads them anew when something is renamed into their directory
    (as Kubernetes, cert-manager and `mv` do it), keeps what it has while they don't fit together, and drops no
    connection (facts: Envoy's "SDS", `watched_directory`).
    """
    common: dict[str, Any] = {
        "alpn_protocols": ["h2"],
        "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
        "tls_certificate_sds_secret_configs": [_secret(_CERTIFICATE, run, _certificate(section))],
    }
    if section.client_ca_file is not None:
        common["validation_context_sds_secret_config"] = _secret(
            _AUTHORITIES, run, _authorities(section.client_ca_file)
        )
    context = {
        "@type": f"{_TYPE}.DownstreamTlsContext",
        "common_tls_context": common,
        "require_client_certificate": section.require_client_certificate,
    }
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _certificate(section: TlsSection) -> dict[str, Any]:
    return {
        "tls_certificate": {
            "certificate_chain": {"filename": str(section.cert_file)},
            "private_key": {"filename": str(section.key_file)},
            "watched_directory": {"path": str(section.cert_file.parent)},
        }
    }


def _authorities(file: Path) -> dict[str, Any]:
    return {
        "validation_context": {
            "trusted_ca": {"filename": str(file)},
            "watched_directory": {"path": str(file.parent)},
        }
    }


def _secret(name: str, run: Path, secret: dict[str, Any]) -> dict[str, Any]:
    path = run / f"sds-{name}.json"
    path.write_text(json.dumps({"resources": [{"@type": f"{_TYPE}.Secret", "name": name, **secret}]}))
    source = {"path": str(path), "watched_directory": {"path": str(run)}}
    return {"name": name, "sds_config": {"path_config_source": source, "resource_api_version": "V3"}}


# --- the portable wire --------------------------------------------------------------------------------------------


def server_credentials(section: TlsSection, refused: Callable[[str], None]) -> grpc.ServerCredentials:
    """Credentials that look at the files at each handshake; ``refused`` is told why changed files are not taken."""
    import grpc  # noqa: PLC0415 — not on the production wire

    files = _Files(section, refused)
    first = files.changed()
    assert first is not None

    def configuration(read: tuple[bytes, bytes, bytes | None]) -> Any:
        certificate, key, authorities = read
        return grpc.ssl_server_certificate_configuration([(key, certificate)], root_certificates=authorities)

    def fetch() -> Any:
        read = files.changed()
        return None if read is None else configuration(read)

    return grpc.dynamic_ssl_server_credentials(
        configuration(first), fetch, require_client_authentication=section.require_client_certificate
    )


class _Files:
    """The certificate, key and authorities; read again when one of them changed, taken only if they fit together."""

    def __init__(self, section: TlsSection, refused: Callable[[str], None]) -> None:
        self._section = section
        self._refused = refused
        self._seen: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()  # handshakes come on several threads

    def changed(self) -> tuple[bytes, bytes, bytes | None] | None:
        """What to use from now on; None: what there was."""
        section = self._section
        paths = [path for path in (section.cert_file, section.key_file, section.client_ca_file) if path is not None]
        with self._lock:
            try:
                stats = [path.stat() for path in paths]
                seen = [(stat.st_mtime_ns, stat.st_size, stat.st_ino) for stat in stats]
                if seen == self._seen:
                    return None
                wrong = next(iter(faults(section)), None)
                read = [path.read_bytes() for path in paths]
            except OSError as found:
                wrong, seen = f"listen.tls: {found}", []
            if wrong is not None:
                if seen != self._seen:
                    self._refused(wrong)
                return None
            self._seen = seen
            return read[0], read[1], read[2] if len(read) > 2 else None
