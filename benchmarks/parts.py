"""What stands beside the sidecar in a comparison: a plain Envoy, a bare hosted app, stand-ins for Triton."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.setup import UNARY, framed, told_of_itself, unary_response
from sidecar.cli.demo.ports import LOOPBACK, free_port, is_free
from sidecar.cli.demo.process import spawn, wait_ready
from sidecar.runtime import envoy
from sidecar.runtime.settings import Settings

_SERVICE: Final = "/inference.GRPCInferenceService/"
_READY: Final = f"{_SERVICE}ServerReady"
_DEADLINE_S: Final = 20.0
_ROUTER: Final = {
    "name": "envoy.filters.http.router",
    "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
}
BARE: Final = "benchmarks.bare:app"

Process = subprocess.Popen[bytes]


def start_envoy(settings: Settings, directory: Path, *, hosted: bool) -> tuple[Process, str]:
    """The sidecar's own Envoy with the sidecar's own listener and cluster, and in its middle only a router, or, where
    ``hosted``, an app that passes on what it is given: what hosting Python costs before anything is governed."""
    address = f"{LOOPBACK}:{free_port()}"
    directory.mkdir()
    listen = settings.listen.model_copy(update={"grpc": address})
    config = envoy.configuration(settings.model_copy(update={"listen": listen}), directory)
    (listener,) = config["static_resources"]["listeners"]
    manager = listener["filter_chains"][0]["filters"][-1]["typed_config"]
    environment: Mapping[str, str] = os.environ
    if hosted:
        _host_bare(manager)
        environment = envoy.environment(directory / "unused", directory)
        root = str(Path(__file__).resolve().parents[1])
        environment = {**environment, "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], root])}
    else:
        manager["http_filters"] = [_ROUTER]
        route = {"match": {"prefix": "/"}, "route": {"cluster": envoy.CLUSTER, "timeout": "0s"}}
        manager["route_config"] = {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]}
    file = directory / "envoy.json"
    file.write_text(json.dumps(config))
    return _started(envoy.command(settings, file), directory, environment, address), address


def _host_bare(manager: dict[str, Any]) -> None:
    hosting = manager["http_filters"][-1]
    told = hosting["typed_config"]["filter_config"]
    told["value"] = json.dumps({**json.loads(told["value"]), "app": BARE})


def start_standin(directory: Path) -> tuple[Process, str]:
    """A stand-in for Triton, in C (nghttp2's nghttpd): the same canned answer to every call, 13 µs CPU each."""
    directory.mkdir()
    answers = {_READY: framed(b"\x08\x01"), UNARY: framed(unary_response())}
    answers |= {f"{_SERVICE}{name}": framed(answer) for name, answer in told_of_itself().items()}
    for path, answer in answers.items():
        file = directory / path[1:]
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(answer)
    mime = directory / "mime.types"
    mime.write_text("application/grpc " + " ".join(path.rpartition(".")[2] for path in answers) + "\n")
    port = free_port()
    command = ["nghttpd", f"--address={LOOPBACK}", "--no-tls", f"--htdocs={directory}", "--trailer=grpc-status: 0"]
    command += ["--no-content-length", f"--mime-types-file={mime}", str(port)]
    address = f"{LOOPBACK}:{port}"
    return _started(command, directory, os.environ, address), address


def start_paced(directory: Path, *, tokens: int, every_ms: int) -> tuple[Process, str]:
    """A stand-in that sends a token every ``every_ms`` (0: as fast as it can), each with the moment it was sent."""
    directory.mkdir()
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.paced", str(port), str(tokens), str(every_ms)]
    root = str(Path(__file__).resolve().parents[1])
    address = f"{LOOPBACK}:{port}"
    return _started(command, directory, {**os.environ, "PYTHONPATH": root}, address), address


def _started(command: list[str], directory: Path, environment: Mapping[str, str], address: str) -> Process:
    log = directory / "log"
    found = shutil.which(command[0]) or command[0]
    process = spawn([found, *command[1:]], log=log, env=environment, cwd=directory, on_parent_death=signal.SIGKILL)
    port = int(address.rpartition(":")[2])
    wait_ready(process, lambda: not is_free(port), name=Path(found).name, log=log, deadline_s=_DEADLINE_S)
    return process
