"""The conformance suite runs over both wires: one sidecar a wire for most tests, others for those that break it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from tests.support.bundle import write_bundle
from tests.support.postgres import Server
from tests.support.sidecar import WIRES, Bare, Launch, Sidecar, echo, launch
from tests.support.stack import REACHES, Triton


@pytest.fixture(scope="session", params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="session")
def sidecar(
    wire: str,
    bundle: Path,
    otlp: OtlpReceiver,
    triton: Triton,
    postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Sidecar]:
    """The session's sidecar on one wire. Tests leave it as they found it: idle."""
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    objects = {"directory": str(tmp_path_factory.mktemp(f"{wire}-objects")), "jurisdiction": "EU"}
    sidecar = launch(tmp_path_factory.mktemp(wire), wire, parts, bundle, overrides={"audit": {"objects": objects}})

    def reaches() -> bool:
        with sidecar.bare() as bare:
            return bare.unary(echo(), sidecar.headers()).code == "OK"

    REACHES.append(reaches)
    yield sidecar
    REACHES.remove(reaches)
    sidecar.close()


@pytest.fixture
def own(
    wire: str, bundle: Path, otlp: OtlpReceiver, triton: Triton, postgres: Server, tmp_path: Path
) -> Iterator[Launch]:
    """Starts a sidecar of the test's own: ``own(overrides={…})``. Ended with the test."""
    started: list[Sidecar] = []

    def start(*, name: str = "own", parts: Parts | None = None, **options: Any) -> Sidecar:
        parts = parts or Parts(otlp, triton.running.addresses, postgres.create_database())
        started.append(launch(tmp_path / name, wire, parts, bundle, **options))
        return started[-1]

    yield start
    for sidecar in started:
        sidecar.close()


@pytest.fixture
def bare(sidecar: Sidecar) -> Iterator[Bare]:
    with sidecar.bare() as bare:
        yield bare
