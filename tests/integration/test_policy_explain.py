"""What `policy explain` tells is what running sidecars do: one grid of questions, put to both."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from audit.follow import Follower
from audit.record import Admitted, CallFacts, Event, Refused, decode
from audit.seal import load_root_key
from policies.bundle import Bundle, load
from policies.document import DECIDABLE
from policies.explain import Asked, Explanation, explain
from sidecar.cli.demo.ports import free_ports, is_free
from sidecar.core.model import Action, Secret
from sidecar.triton.methods import KSERVE
from tests.support.config import document
from tests.support.identity import AUDIENCE, ISSUER, claims, generate, jwk, jwks, sign
from tests.support.kserve import packed, request
from tests.support.policy import DEMO_BUNDLE
from tests.support.postgres import Server, prepare
from tests.support.sidecar import WIRES, Bare
from tests.support.stack import eventually

pytestmark = pytest.mark.integration

REGIONS: Final = {"eu-west-1": "EU", "us-east-1": "US"}
TENANTS: Final = ("acme", "birch", "cobalt", "dormant", "nobody")
MODELS: Final = ("chat", "rag", "vision", "counter", "absent", "Chat", "chat2")
CLASSES: Final = ("", "phi", "public", "made-up", "public,phi", "phi, public", "PHI", "x" * 64)
# Method → what it does, the role that may call it, and the field of its message that names the model (0: none does).
METHODS: Final = {
    "ModelInfer": (Action.INFER, "tenant", 1),
    "ModelReady": (Action.METADATA, "tenant", 1),
    "ModelMetadata": (Action.METADATA, "tenant", 1),
    "ServerMetadata": (Action.METADATA, "tenant", 0),
    "ModelConfig": (Action.MANAGE, "admin", 1),
    "ModelStatistics": (Action.MANAGE, "admin", 1),
    "RepositoryIndex": (Action.MANAGE, "admin", 0),
    "RepositoryModelLoad": (Action.MANAGE, "admin", 2),
    "RepositoryModelUnload": (Action.MANAGE, "admin", 2),
}
KEY: Final = generate("EdDSA")


@dataclass(frozen=True)
class Point:
    """One question of the grid."""

    region: str
    tenant: str
    model: str
    data_class: str
    method: str

    @property
    def asked(self) -> Asked:
        action, role, field = METHODS[self.method]
        return Asked(
            self.tenant, self.model if field else "", self.region, data_class=self.data_class, action=action,
            roles=frozenset({role}), principal=f"{self.tenant}-user", method=self.method, at=time.time(),
        )  # fmt: skip

    @property
    def message(self) -> bytes:
        field = METHODS[self.method][2]
        if self.method == "ModelInfer":
            tensors = [("text_input", "BYTES", [1], packed(b"hi")), ("max_tokens", "INT32", [1], b"\x01\0\0\0")]
            return bytes(request(self.model, *tensors[: 2 if self.model == "rag" else 1]).SerializeToString())
        name = self.model.encode()
        return bytes([field << 3 | 2, len(name)]) + name if field else b""


GRID: Final = [Point(*values) for values in itertools.product(REGIONS, TENANTS, MODELS, CLASSES, METHODS)]


def token(tenant: str, role: str) -> bytes:
    at = time.time()
    said = claims(tenant=tenant, roles=[role], sub=f"{tenant}-user", iat=int(at), nbf=int(at), exp=int(at) + 900)
    return sign(KEY, "EdDSA", {"alg": "EdDSA", "kid": "k1", "typ": "at+jwt"}, said)


@dataclass
class Pod:
    """One `warden serve`, whose Triton is nowhere: what is allowed ends UPSTREAM_UNAVAILABLE."""

    directory: Path
    address: str
    process: subprocess.Popen[bytes]

    def ended(self) -> dict[str, tuple[CallFacts, str]]:
        """Stop it, and read its journal: each call's facts and the reason it was refused for ("": it was not)."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        root = load_root_key(self.directory / "keys" / "journal.key")
        assert isinstance(root, Secret)
        follower = Follower(self.directory / "journal", root, sequence=0)
        found: dict[str, tuple[CallFacts, str]] = {}
        for _, data, _ in follower:
            match decode(data):
                case Admitted(call=facts):
                    found[facts.call_id] = (facts, "")
                case Refused(call=facts, reason=reason):
                    found[facts.call_id] = (facts, reason)
                case Event() | _:
                    pass
        follower.close()
        return found


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """The demo's, without quotas: a refusal for those is not the bundle's verdict."""
    directory = Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle"))
    limits = ("requests", "tokens", "concurrency", "kv_memory", "tensor_memory")
    unlimited = "\n".join(f"  {limit}: unlimited" for limit in limits)
    (directory / "plans.yaml").write_text("".join(f"{plan}:\n{unlimited}\n" for plan in ("gold", "bronze")))
    return directory


@pytest.fixture
def pods(tmp_path: Path, postgres: Server, bundle: Path, wire: str) -> Iterator[dict[str, Pod]]:
    started: dict[str, Pod] = {}
    try:
        _start(started, tmp_path, postgres, bundle, wire)
        yield started
    finally:
        for pod in started.values():
            if pod.process.poll() is None:
                pod.process.kill()
                pod.process.wait()


def _start(started: dict[str, Pod], tmp_path: Path, postgres: Server, bundle: Path, wire: str) -> None:
    for region, area in REGIONS.items():
        directory = tmp_path / region
        directory.mkdir()
        grpc, admin, triton = free_ports(3)
        whole = document(
            directory,
            listen={"grpc": f"127.0.0.1:{grpc}", "admin": f"127.0.0.1:{admin}"},
            triton={"grpc": f"127.0.0.1:{triton}"},
            policy={"bundle": str(bundle)},
            sidecar={"name": region, "region": region, "evidence": {"node_labels_file": "node-labels"}},
        )
        (directory / "node-labels").write_text(f'topology.kubernetes.io/region="{region}"\n')
        (directory / "keys" / "jwks.json").write_bytes(jwks(jwk(KEY, "k1")))
        dsn = postgres.create_database()  # the list of revoked tokens is in it: without, no token is believed
        prepare(dsn, jurisdiction=area)
        whole["audit"]["database"] = {"dsn": dsn, "jurisdiction": area}
        issuer: dict[str, Any] = {"issuer": ISSUER, "audience": [AUDIENCE], "jwks": "keys/jwks.json"}
        whole["identity"]["issuers"] = [
            {**issuer, "algorithms": ["EdDSA"], "tenants": ["*"], "roles": ["tenant", "admin"]}
        ]
        config = directory / "warden.yaml"
        config.write_text(json.dumps(whole))
        with (directory / "log").open("wb") as log:
            process = subprocess.Popen(
            [sys.executable, "-m", "sidecar.cli.main", "serve", "--wire", wire, "--config", str(config)],
            stdout=log, stderr=log, env=dict(os.environ),
        )  # fmt: skip
        started[region] = Pod(directory, f"127.0.0.1:{grpc}", process)
        eventually(partial(_up, process, grpc), what=f"{region} to listen", within_s=60)
        assert process.poll() is None, (directory / "log").read_text()


def _up(process: subprocess.Popen[bytes], port: int) -> bool:
    return process.poll() is not None or not is_free(port)


def _believed(channel: Bare, bearer: str) -> bool:
    answer = channel.unary(b"", {"authorization": f"Bearer {bearer}"}, path=f"{KSERVE}ServerMetadata")
    return "KEYS_UNAVAILABLE" not in answer.text


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("wire", "part"), [("grpc", 1), ("envoy", 7)])
def test_explain_and_the_running_sidecars_agree_over_the_grid(
    pods: dict[str, Pod], bundle: Path, wire: str, part: int
) -> None:
    """All of it on the portable wire, one point in ``part`` on the other (tests/long has all of it there too)."""
    assert len(GRID) >= 5000
    assert wire in WIRES
    check_grid(pods, bundle, GRID[::part])


def check_grid(pods: dict[str, Pod], bundle: Path, grid: list[Point]) -> None:
    """Put every point to the sidecars and to ``explain``; verdict, rule and bundle must be the same."""
    loaded = load(bundle)
    assert isinstance(loaded, Bundle)
    tokens = {(tenant, role): token(tenant, role).decode() for tenant in TENANTS for role in ("tenant", "admin")}
    calls: dict[str, Point] = {}
    with ThreadPoolExecutor(8) as pool:
        channels = {region: Bare(pod.address) for region, pod in pods.items()}

        def ask(point: Point) -> None:
            role = METHODS[point.method][1]
            headers = {"authorization": f"Bearer {tokens[point.tenant, role]}"}
            if point.data_class:
                headers["x-data-class"] = point.data_class
            answer = channels[point.region].unary(point.message, headers, path=KSERVE + point.method)
            calls[answer.call_id] = point

        for region in REGIONS:  # until it has the list of revoked tokens and the issuer's keys
            first = next(point for point in GRID if point.region == region and point.method == "ServerMetadata")
            eventually(
                partial(_believed, channels[region], tokens[first.tenant, "tenant"]), what="tokens to be believed"
            )
        list(pool.map(ask, grid))
        for channel in channels.values():
            channel.channel.close()
    assert len(calls) == len(grid)
    told = {call_id: found for pod in pods.values() for call_id, found in pod.ended().items()}
    different = []
    allowed = 0
    for call_id, point in calls.items():
        facts, reason = told[call_id]
        explained = explain(loaded, point.asked)
        assert isinstance(explained, Explanation)
        verdict = reason if reason in DECIDABLE else "allow"
        allowed += verdict == "allow"
        got = str(explained.reason or "allow")
        if (got, explained.verdict.rule) != (verdict, facts.rule) or facts.bundle != loaded.digest:
            different.append((point, (got, explained.verdict.rule), (verdict, reason, facts.rule)))
    assert not different, f"{len(different)} of {len(calls)}: {different[:5]}"
    assert len(calls) // 20 < allowed < len(calls) * 19 // 20, "the grid holds enough of both"
