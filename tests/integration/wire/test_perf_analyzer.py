"""NVIDIA's perf_analyzer, as it is, through a listener bound to one principal, on both wires."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.ports import free_ports
from sidecar.cli.demo.stack import Parts
from tests.support import perf
from tests.support.postgres import Server
from tests.support.sidecar import Sidecar, launch
from tests.support.stack import Triton

pytestmark = pytest.mark.integration

# As few and short windows as it takes: what it measures is of no interest here.
BRIEF = ("--measurement-interval", "300", "--max-trials", "6", "--stability-percentage", "999")
MODES = {
    "sync": ("-m", "simple", "--sync", "--concurrency-range", "4"),
    "async": ("-m", "simple", "--async", "--concurrency-range", "16"),
    "streaming": ("-m", "simple", "--async", "--streaming", "--concurrency-range", "16"),
    "rate": ("-m", "simple", "--request-rate-range", "50"),
    "sequence": ("-m", "counter", "--async", "--streaming", "--num-of-sequences", "4", "--concurrency-range", "4"),
    "decoupled": ("-m", "repeat_int32", "--async", "--streaming", "--concurrency-range", "4", "--input-data", "DATA"),
}


@pytest.fixture(scope="module")
def bound(
    wire: str,
    bundle: Path,
    otlp: OtlpReceiver,
    triton: Triton,
    postgres: Server,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Sidecar, str]]:
    perf.require()
    address = f"127.0.0.1:{free_ports(1)[0]}"
    principal = {"tenant": "acme", "name": "perf"}
    parts = Parts(otlp, triton.running.addresses, postgres.create_database())
    overrides = {"listeners": [{"address": address, "principal": principal}]}
    sidecar = launch(tmp_path_factory.mktemp(f"perf-{wire}"), wire, parts, bundle, overrides=overrides)
    yield sidecar, address
    sidecar.close()


def arguments(mode: str, address: str, directory: Path) -> list[str]:
    data = directory / "data.json"
    three = {name: {"content": [1, 1, 1], "shape": [3]} for name in ("IN", "DELAY")}
    data.write_text(json.dumps({"data": [three | {"WAIT": [0]}]}))
    given = [str(data) if each == "DATA" else each for each in MODES[mode]]
    return [*given, "-i", "grpc", "-u", address, *BRIEF, "-f", str(directory / "report.csv")]


@pytest.mark.parametrize("mode", MODES)
def test_it_measures_the_sidecar_as_it_measures_triton(
    bound: tuple[Sidecar, str], triton: Triton, mode: str, tmp_path: Path
) -> None:
    sidecar, address = bound
    program = perf.require()
    before = sidecar.metric("warden_calls_total", outcome="completed", action="infer", tenant="acme")
    counted = {}
    for name, where in (("triton", triton.grpc), ("sidecar", address)):
        directory = tmp_path / name
        directory.mkdir()
        done = program.run(*arguments(mode, where, directory))
        assert done.returncode == 0, f"{name}: {done.stdout}\n{done.stderr}"
        counted[name] = perf.measured(directory / "report.csv")
    assert counted["sidecar"].keys() == counted["triton"].keys()  # server's own times too: its statistics are read
    assert all(each["Inferences/Second"] > 0 for each in counted.values())
    completed = sidecar.metric("warden_calls_total", outcome="completed", action="infer", tenant="acme") - before
    assert completed > 10
    sidecar.settles()
    assert sidecar.metric("warden_internal_errors_total") == 0
