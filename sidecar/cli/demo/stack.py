"""The demo's stack: real Postgres, Triton and collector, a configured sidecar in front, all in one directory."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import sqlalchemy as sa

from audit import roles
from audit import store as audit_store
from audit.seal import create_key_file
from sidecar.cli.demo.otlp import OtlpReceiver, start_otlp
from sidecar.cli.demo.ports import LOOPBACK, free_ports, pick
from sidecar.cli.demo.postgres import RunningPostgres, start_postgres
from sidecar.cli.demo.process import Progress, StartError, end, quiet, spawn, wait_ready
from sidecar.cli.demo.triton import RESTRICTED_KEY, Addresses, RunningTriton, start_triton
from sidecar.cli.desk import record_key_event
from sidecar.core.model import Secret
from sidecar.identity import mint, store
from sidecar.identity.keys import read_pepper
from sidecar.runtime import migrate

REGION: Final = "eu-west-1"
JURISDICTION: Final = "EU"
ISSUER: Final = "https://issuer.demo.triton-warden.example"
AUDIENCE: Final = "triton-warden"
ENVIRONMENT: Final = "demo"
TENANTS: Final[Mapping[str, str]] = MappingProxyType(
    {"acme": "alice@acme.example", "birch": "bob@birch.example", "cobalt": "carol@cobalt.example",
     "dormant": "dora@dormant.example"}
)  # fmt: skip
_ROOT: Final = Path(__file__).resolve().parents[3]
MODELS: Final = _ROOT / "examples" / "models"
BUNDLE: Final = _ROOT / "policies" / "library" / "demo"
_MARKER: Final = ".warden-demo"  # makes a directory ours to empty
_READY_DEADLINE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Parts:
    """The servers around the sidecar, running already: then ``Stack`` neither starts nor ends them."""

    otlp: OtlpReceiver
    triton: Addresses
    postgres_dsn: str
    triton_secret: str | None = None  # that Triton's restricted protocols were started with


@dataclass(frozen=True, slots=True)
class Options:
    """What tests vary; the demo takes it as it is."""

    parts: Parts | None = None

    wire: str = "envoy"
    models: Sequence[Path] = (MODELS,)
    model_environment: Mapping[str, str] = field(default_factory=dict)
    bundle: Path = BUNDLE
    postgres_settings: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)  # sections of warden.yaml, merged
    preferred_ports: bool = True


class Stack:
    """Everything running. ``info`` is demo.json (DESIGN §6). Ends with its process, however that ends."""

    def __init__(self, directory: Path, options: Options = Options(), *, progress: Progress = quiet) -> None:
        self.directory = directory.resolve()
        self.options = options
        self.progress = progress
        self.config = self.directory / "warden.yaml"
        self.bundle = self.directory / "bundle"
        self.log = self.directory / "warden.log"
        self._lock = _claim(self.directory)
        self.otlp: OtlpReceiver
        self.postgres: RunningPostgres
        self.triton: RunningTriton
        self.process: subprocess.Popen[bytes] | None = None
        self.info: dict[str, Any] = {}

    @property
    def admin(self) -> str:
        return str(self.info["admin"])

    def start(self) -> None:
        """Start all parts, slow ones side by side. Raises ``StartError``; then everything is ended again."""
        try:
            parts = self.options.parts or self._start_parts()
            self._configure(parts)
            self.start_warden()
        except BaseException:  # Ctrl-C too: whatever was started is ended, then it goes on
            self.stop()
            raise
        (self.directory / "demo.json").write_text(json.dumps(self.info, indent=2))

    def _start_parts(self) -> Parts:
        options, directory = self.options, self.directory
        self.otlp = start_otlp(directory / "spans.jsonl")
        with ThreadPoolExecutor(2) as pool:
            postgres = pool.submit(
                start_postgres, directory / "postgres", settings=options.postgres_settings, progress=self.progress
            )
            triton = pool.submit(
                start_triton, directory / "triton", tuple(options.models), otlp_url=self.otlp.http_url,
                environment=options.model_environment, progress=self.progress,
            )  # fmt: skip
            # Both are had before either is asked for its fault, so that ``stop`` knows what to end.
            faults = [future.exception() for future in (postgres, triton)]
            if faults[0] is None:
                self.postgres = postgres.result()
            if faults[1] is None:
                self.triton = triton.result()
        for fault in faults:
            if fault is not None:
                raise fault
        return Parts(self.otlp, self.triton.addresses, self.postgres.dsn)

    # --- configuration ---------------------------------------------------------------------------------------------

    def _configure(self, parts: Parts) -> None:
        self.progress("Warden: keys, tokens, policy bundle, database")
        keys = self.directory / "keys"
        keys.mkdir(mode=0o700)
        for name in ("journal.key", "pepper.key"):
            create_key_file(keys / name, secrets.token_bytes)
        signing = mint.generate_key()
        mint.write_private(keys / "signing.pem", signing)
        if parts.triton_secret is not None:
            (keys / "triton.secret").touch(mode=0o600)
            (keys / "triton.secret").write_text(parts.triton_secret)
        key = mint.load_key(signing)
        assert isinstance(key, mint.SigningKey)
        mint.write_public(keys / "jwks.json", mint.public_jwks(key))
        shutil.copytree(self.options.bundle, self.bundle)
        # As a node's labels reach a pod in Kubernetes; here there is no node to ask.
        (self.directory / "node-labels").write_text(f'topology.kubernetes.io/region="{REGION}"\n')
        grpc, admin = (pick(8011), pick(8012)) if self.options.preferred_ports else free_ports(2)
        settings = self._settings(parts, grpc, admin)
        self.config.write_text(json.dumps(settings, indent=2))  # YAML holds JSON
        self.info = {
            "grpc": f"{LOOPBACK}:{grpc}",
            "http": None,
            "admin": f"{LOOPBACK}:{admin}",
            "console": None,
            "triton_grpc": parts.triton.grpc,
            "triton_metrics": parts.triton.metrics,
            "postgres_dsn": parts.postgres_dsn,
            "otlp_spans": str(parts.otlp.path),
            "config": str(self.config),
            "bundle": str(self.bundle),
            "region": REGION,
            "tenants": self._issue_keys(parts.postgres_dsn, keys / "pepper.key", settings["sidecar"]["name"]),
        }

    def _settings(self, parts: Parts, grpc: int, admin: int) -> dict[str, Any]:
        sections: dict[str, Any] = {
            "sidecar": {
                "name": "demo-pod-1",
                "region": REGION,
                "evidence": {"node_labels_file": "node-labels"},
            },
            "mode": "enforce",
            "listen": {"grpc": f"{LOOPBACK}:{grpc}", "admin": f"{LOOPBACK}:{admin}"},
            "triton": {**_triton(parts), "model_repository": [str(path.resolve()) for path in self.options.models]},
            "policy": {"bundle": "bundle"},
            "identity": {
                "issuers": [
                    {
                        "issuer": ISSUER,
                        "audience": [AUDIENCE],
                        "jwks": "keys/jwks.json",
                        "algorithms": ["EdDSA"],
                        "tenants": ["*"],
                        "roles": ["tenant", "operator"],
                    }
                ],
                "keys": {"environment": ENVIRONMENT, "pepper_file": "keys/pepper.key"},
                "signing": {"issuer": ISSUER, "audience": AUDIENCE, "key_file": "keys/signing.pem"},
            },
            "audit": {
                "journal": {"directory": "journal", "key_file": "keys/journal.key", "min_free": "64MiB"},
                "database": {
                    "dsn": parts.postgres_dsn,
                    "sidecar_dsn_file": "keys/sidecar.dsn",
                    "jurisdiction": JURISDICTION,
                },
            },
            "telemetry": {"otlp": {"endpoint": f"http://{parts.otlp.grpc}", "jurisdiction": JURISDICTION}},
        }
        for name, changes in self.options.overrides.items():
            sections[name] = _merged(sections.get(name, {}), changes)
        return sections

    def _enroll(self, engine: sa.Engine, dsn: str, sidecar: str, now: datetime) -> None:
        """The sidecar's own login, as `warden db enroll` makes it."""
        secret = Secret(secrets.token_urlsafe(32).encode())
        with audit_store.transaction(engine) as connection:
            role = roles.enroll(connection, roles.RoleKind.SIDECAR, sidecar, secret, now, "demo")
        path = self.directory / "keys" / "sidecar.dsn"
        path.touch(mode=0o600)
        path.write_text(roles.dsn_for(dsn, role, secret) + "\n", encoding="utf-8")

    def _issue_keys(self, dsn: str, pepper_file: Path, sidecar: str) -> dict[str, dict[str, str]]:
        pepper = read_pepper(pepper_file.read_bytes())
        assert isinstance(pepper, Secret)
        office = store.Office(pepper, ENVIRONMENT, secrets.token_bytes, record_key_event, "demo")
        engine = audit_store.connect(dsn, application="warden-demo", pool=1)
        try:
            now = datetime.now(UTC)
            migrate.upgrade(engine, jurisdiction=JURISDICTION, today=now.date())
            self._enroll(engine, dsn, sidecar, now)
            tenants: dict[str, dict[str, str]] = {}
            with audit_store.transaction(engine) as connection:
                for tenant, subject in TENANTS.items():
                    issued = store.issue(connection, office, store.NewKey(tenant, "demo"), now)
                    assert isinstance(issued, store.Issued)
                    tenants[tenant] = {"api_key": issued.key.reveal().decode(), "subject": subject}
        finally:
            engine.dispose()
        return tenants

    # --- the sidecar -----------------------------------------------------------------------------------------------

    def start_warden(self, until: Callable[[], bool] | None = None) -> None:
        """Start `warden serve` and wait ``until`` something holds: that it is ready, its keys loaded."""
        command = [sys.executable, "-m", "sidecar.cli.main", "serve", "--config", str(self.config)]
        self.process = spawn(
            [*command, "--wire", self.options.wire],
            log=self.log,
            env=dict(os.environ),
            cwd=self.directory,
            on_parent_death=signal.SIGKILL,
        )
        seconds = wait_ready(
            self.process, until or self.is_ready, name="Warden", log=self.log, deadline_s=_READY_DEADLINE_S,
            tick=self.progress,
        )  # fmt: skip
        self.progress(f"Warden: ready after {seconds:.1f} s")

    def is_ready(self) -> bool:
        checks = self.readyz()
        return bool(checks.get("ready")) and "keys" in checks["checks"].get("keys", {}).get("detail", "0 keys")

    def readyz(self) -> dict[str, Any]:
        """The answer of /readyz; empty while nobody answers."""
        try:
            try:
                with urllib.request.urlopen(f"http://{self.admin}/readyz", timeout=2) as answer:
                    found: dict[str, Any] = json.load(answer)
            except urllib.error.HTTPError as fault:
                found = json.load(fault)
        except (OSError, ValueError):  # it may also end amid its answer
            return {}
        return found

    def metrics(self) -> str:
        with urllib.request.urlopen(f"http://{self.admin}/metrics", timeout=5) as answer:
            text: str = answer.read().decode()
        return text

    def stop_warden(self, first: signal.Signals = signal.SIGTERM, *, grace_s: float = 60) -> int:
        """End `warden serve`; its exit status."""
        assert self.process is not None
        return end(self.process, first=first, grace_s=grace_s)

    def mint(self, tenant: str, *, lifetime: int = 900, roles: tuple[str, ...] = ("tenant",)) -> str:
        """A token for ``tenant``'s demo subject, as `warden token mint` would sign it."""
        key = mint.load_key((self.directory / "keys" / "signing.pem").read_bytes())
        assert isinstance(key, mint.SigningKey)
        said = mint.Assertion(
            issuer=ISSUER, audience=AUDIENCE, tenant=tenant, subject=TENANTS[tenant], lifetime=lifetime,
            operator="demo", roles=roles,
        )  # fmt: skip
        return mint.mint(key, said, token_id=secrets.token_hex(8), at=time.time())[0]

    def stop(self) -> None:
        """End all parts, the sidecar first; what did not start is passed over."""
        if self.process is not None:
            self.stop_warden()
        for name in ("triton", "postgres", "otlp"):
            part = getattr(self, name, None)
            if part is not None:
                part.stop()
        self._lock.close()


def _claim(directory: Path) -> Any:
    """An empty directory for one demo at a time: one of ours is emptied, a stranger's is left alone."""
    directory.mkdir(parents=True, exist_ok=True)
    marker = directory / _MARKER
    if not marker.exists() and any(directory.iterdir()):
        raise StartError(f"{directory} is not empty and not a demo's: name another with --dir")
    lock = marker.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise StartError(f"{directory}: another demo is running there; stop it, or name another with --dir") from None
    for entry in directory.iterdir():
        if entry.name != _MARKER:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    return lock


def _triton(parts: Parts) -> dict[str, Any]:
    ports = [int(address.rpartition(":")[2]) for address in (parts.triton.http, parts.triton.metrics) if address]
    section: dict[str, Any] = {"grpc": parts.triton.grpc, "other_ports": ports}
    if parts.triton.metrics:
        section["metrics"] = parts.triton.metrics
    if parts.triton_secret is not None:
        section["restricted_secret"] = {"key": RESTRICTED_KEY, "file": "keys/triton.secret"}
    return section


def _merged(base: Any, changes: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(changes, Mapping):
        return {**base, **{name: _merged(base.get(name), value) for name, value in changes.items()}}
    return changes
