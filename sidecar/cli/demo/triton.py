"""The real Triton server of the `nvidia-pytriton` wheel: on loopback, on CPU, with the Python backend."""

from __future__ import annotations

import http.client
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from sidecar.cli.demo.ports import LOOPBACK, free_ports
from sidecar.cli.demo.process import LOG_TAIL_LINES, Progress, StartError, end, quiet, spawn, tail, wait_ready
from sidecar.transports.upstream import RESTRICTED_PREFIX

READY_DEADLINE_S = 120.0  # with the demo's and the tests' models 3 to 5 s on two idle cores
EXIT_TIMEOUT_S = 5  # how long Triton waits for requests in flight when asked to end
STOP_GRACE_S = EXIT_TIMEOUT_S + 5.0
RESTRICTED_KEY = "warden"
# Every category there is (facts/triton.md §1), so that nobody without the secret gets anything but the metrics.
RESTRICTED = (
    "health", "metadata", "inference", "shared-memory", "model-config", "model-repository", "statistics", "trace",
    "logging",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where a Triton listens, each as ``host:port``."""

    grpc: str
    http: str
    metrics: str


@dataclass(frozen=True, slots=True)
class RunningTriton:
    """A ready server. It is our child: it and its models' processes end with us, however we end."""

    process: subprocess.Popen[bytes]
    addresses: Addresses
    log: Path
    started_in_s: float

    def stop(self) -> None:
        """End the server: what is in flight has EXIT_TIMEOUT_S to finish. Does nothing when it has ended."""
        end(self.process, grace_s=STOP_GRACE_S)


@dataclass(frozen=True, slots=True)
class _Wheel:
    """Where the pieces of Triton lie in the installed packages."""

    server: Path
    backend: Path
    stub: Path
    libraries: Path
    python_library: Path


def start_triton(
    directory: Path,
    repository: Path | Sequence[Path],
    *,
    grpc_port: int | None = None,
    http_port: int | None = None,
    metrics_port: int | None = None,
    otlp_url: str | None = None,
    secret: str | None = None,
    extra_flags: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
    progress: Progress = quiet,
    deadline_s: float = READY_DEADLINE_S,
) -> RunningTriton:
    """Start Triton with all models of ``repository`` and return when every one of them is ready.

    ``directory`` gets the log and the backends. Ports not named are free ones. ``otlp_url`` (such as
    ``http://127.0.0.1:4318/v1/traces``) receives the spans of those requests that carry a trace context. Whoever
    doesn't send ``secret`` (in the header of ``RESTRICTED_KEY``) is refused everything but the metrics. The models see
    ``environment`` and little else. StartError says what went wrong and quotes the log.
    """
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    wheel = _find_wheel()
    _lay_out_backends(wheel, directory / "backends")
    spare = free_ports(3)
    ports = (grpc_port or spare[0], http_port or spare[1], metrics_port or spare[2])
    addresses = Addresses(*(f"{LOOPBACK}:{port}" for port in ports))
    repositories = (repository,) if isinstance(repository, Path) else tuple(repository)
    log = directory / "triton.log"
    log.unlink(missing_ok=True)
    progress("Triton: loading the models")
    process = spawn(
        [
            wheel.server,
            *(f"--model-repository={path.resolve()}" for path in repositories),
            f"--backend-directory={directory / 'backends'}",
            *_flags(ports),
            *_trace_flags(otlp_url),
            *_restricted_flags(secret),
            *extra_flags,
        ],
        log=log,
        env=_environment(wheel, environment),
        cwd=directory,
        on_parent_death=signal.SIGTERM,  # by SIGKILL it would leave its shared memory behind
    )
    seconds = wait_ready(
        process,
        lambda: _ready(ports[1], secret),
        name="Triton",
        log=log,
        deadline_s=deadline_s,
        tick=progress,
        explain=_explain,
    )
    progress(f"Triton: ready after {seconds:.1f} s")
    return RunningTriton(process=process, addresses=addresses, log=log, started_in_s=seconds)


def _flags(ports: tuple[int, int, int]) -> list[str]:
    grpc_port, http_port, metrics_port = ports
    return [
        f"--grpc-address={LOOPBACK}",
        f"--grpc-port={grpc_port}",
        f"--http-address={LOOPBACK}",
        f"--http-port={http_port}",
        "--allow-metrics=true",
        f"--metrics-address={LOOPBACK}",
        f"--metrics-port={metrics_port}",
        "--metrics-interval-ms=500",
        "--allow-gpu-metrics=false",
        "--model-control-mode=none",
        "--allow-sagemaker=false",
        "--allow-vertex-ai=false",
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
    ]


def _trace_flags(otlp_url: str | None) -> list[str]:
    if otlp_url is None:
        return []
    settings = [
        "mode=opentelemetry",
        f"opentelemetry,url={otlp_url}",
        "opentelemetry,resource=service.name=triton",
        "opentelemetry,bsp_schedule_delay=200",  # ms; the default of 5,000 is long for someone who looks on
        "level=TIMESTAMPS",
        "rate=0",  # none of its own accord; a valid traceparent is always traced
    ]
    return [f"--trace-config={setting}" for setting in settings]


def _restricted_flags(secret: str | None) -> list[str]:
    if secret is None:
        return []
    everything = ",".join(RESTRICTED)
    return [
        f"--grpc-restricted-protocol={everything}:{RESTRICTED_KEY}={secret}",
        f"--http-restricted-api={everything}:{RESTRICTED_PREFIX}{RESTRICTED_KEY}={secret}",
    ]


def _environment(wheel: _Wheel, extra: Mapping[str, str]) -> dict[str, str]:
    """Few of our variables: an OTEL_* or PYTHON* set for us would change how Triton and its models behave."""
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "LANG") if name in os.environ}
    return {
        **kept,
        # The backend's stub asks the first python3 on PATH where its packages are, and ignores PYTHONPATH.
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "LD_LIBRARY_PATH": f"{wheel.libraries}:{wheel.python_library}",
        "PYTHONDONTWRITEBYTECODE": "1",  # the models lie in the user's own checkout
        **extra,
    }


def _lay_out_backends(wheel: _Wheel, backends: Path) -> None:
    """The Python backend with the stub of *this* Python beside it: the backend looks for it nowhere else."""
    target = backends / "python"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(wheel.backend, target, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(wheel.stub, target / wheel.stub.name)


def _find_wheel() -> _Wheel:
    # Found, not imported: importing pytriton brings half a second of web server and message queue along.
    package = importlib.util.find_spec("pytriton")
    if package is None or package.origin is None:
        raise StartError("Triton: its wheel isn't installed: pip install 'triton-warden[demo]'")
    root = Path(package.origin).parent / "tritonserver"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    wheel = _Wheel(
        server=root / "bin" / "tritonserver",
        backend=root / "backends" / "python",
        stub=root / "python_backend_stubs" / version / "triton_python_backend_stub",
        libraries=root.parent.parent / "nvidia_pytriton.libs",
        python_library=_python_library(),
    )
    for part in (wheel.server, wheel.backend, wheel.libraries):
        if not part.exists():
            raise StartError(f"Triton: nvidia-pytriton is installed without {part}: this platform has no server")
    if not wheel.stub.exists():
        has = ", ".join(sorted(path.parent.name for path in wheel.stub.parent.parent.glob("*/*")))
        raise StartError(f"Triton: nvidia-pytriton has no stub for Python {version}, only for {has}")
    return wheel


def _python_library() -> Path:
    """The directory of this Python's shared library, which the backend's stub is linked against."""
    name = f"libpython{sys.version_info.major}.{sys.version_info.minor}.so.1.0"
    places = [sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL"), f"{sys.base_prefix}/lib"]
    multiarch = sysconfig.get_config_var("MULTIARCH")
    places += [f"/usr/lib/{multiarch}", "/usr/lib64", "/usr/lib"]
    for place in places:
        if place and (Path(place) / name).exists():
            return Path(place)
    raise StartError(f"Triton: {name} wasn't found, which Debian has in the package {name.split('.so', maxsplit=1)[0]}")


def _ready(http_port: int, secret: str | None) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, http_port, timeout=2)
    headers = {} if secret is None else {RESTRICTED_PREFIX + RESTRICTED_KEY: secret}
    try:
        connection.request("GET", "/v2/health/ready", headers=headers)
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def _explain(log: Path) -> str:
    """Triton's error lines with what follows each: its log ends with pages of settings instead."""
    kept: list[str] = []
    inside = False
    for line in log.read_text(errors="replace").splitlines():
        if line.startswith(("|", "+")):  # the tables of models and settings
            continue
        if re.match(r"[IWEF]\d{4} |error: ", line):
            # Every machine without a GPU has the CUDA line.
            inside = line.startswith(("E", "F", "error: ")) and "CudaDriverHelper" not in line
        if inside and line.strip():
            kept.append(f"  {line}")
    return "\n".join(kept[-LOG_TAIL_LINES:]) or tail(log)
