"""The real servers of the integration tests: one Triton with every model, one OTLP collector, each once a session."""

from __future__ import annotations

import queue
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
import tritonclient.grpc as kserve

from sidecar.cli.demo.otlp import OtlpReceiver, start_otlp
from sidecar.cli.demo.triton import Addresses, RunningTriton, start_triton
from sidecar.triton.methods import KSERVE
from tests.support.kserve import packed
from tests.support.kserve import request as kserve_request

ROOT = Path(__file__).parents[2]
REPOSITORIES = (ROOT / "examples" / "models", ROOT / "tests" / "support" / "models")
MODELS = tuple(sorted(path.parent.name for repository in REPOSITORIES for path in repository.glob("*/config.pbtxt")))
STREAM_DEADLINE_S = 90.0  # from one response to the next, on a machine that others use too
WELL_WITHIN_S = 30.0
_POLL_S = 0.02

T = TypeVar("T")


def eventually(look: Callable[[], T], *, what: str, within_s: float = WELL_WITHIN_S) -> T:
    """What ``look`` gives as soon as it is truthy; fails the test, naming ``what``, when it never is."""
    deadline = time.monotonic() + within_s
    while not (seen := look()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {within_s} s: {what}; last seen: {seen!r}")
        time.sleep(_POLL_S)
    return seen


@dataclass(slots=True)
class Triton:
    """The session's Triton, with all of MODELS ready. ``grpc``, ``http`` and ``metrics`` are ``host:port``."""

    running: RunningTriton
    report: Path
    otlp: OtlpReceiver

    @property
    def alive(self) -> bool:
        return self.running.process.poll() is None

    @property
    def well(self) -> bool:
        """Whether it answers a stream: a cancel may have left its one thread for streams in a deadlock."""
        if not self.alive:
            return False
        message = kserve_request(
            "slow", ("text_input", "BYTES", [1], packed(b"a")), ("count", "INT32", [1], b"\1\0\0\0")
        )
        with grpc.insecure_channel(self.grpc, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
            call = channel.stream_stream(f"{KSERVE}ModelStreamInfer")
            try:
                return bool(list(call(iter([message.SerializeToString()]), timeout=WELL_WITHIN_S)))
            except grpc.RpcError:
                return False

    def revive(self) -> None:
        """Start it again at the same addresses; what the dead one said is kept beside the new one's log."""
        self.running.process.kill()  # one that hangs is alive
        self.running.process.wait()
        log = self.running.log
        log.replace(log.with_suffix(f".{self.running.process.pid}.log"))
        self.running = _start(self.running.log.parent, self.report, self.otlp, self.running.addresses)
        for reaches in REACHES:
            with suppress(pytest.fail.Exception):  # then the test says so
                eventually(reaches, what="a sidecar to reach it again", within_s=30)

    @property
    def grpc(self) -> str:
        return self.running.addresses.grpc

    @property
    def http(self) -> str:
        return self.running.addresses.http

    @property
    def metrics(self) -> str:
        return self.running.addresses.metrics

    def log(self) -> str:
        return self.running.log.read_text(errors="replace")

    @property
    def last_words(self) -> str:
        """What it said before it died."""
        said = [line for line in self.log().splitlines() if line.strip()]
        return said[-1][:200] if said else ""

    def reports(self) -> list[str]:
        """How the requests of `slow` and `hold` ended, oldest first: ``cancelled ID after N``, ``completed ID …``."""
        return self.report.read_text().splitlines()

    def ended(self, request_id: str, *, within_s: float = WELL_WITHIN_S) -> str:
        """The report of one request, waited for. Behind a warden, the id is the one that Triton saw."""
        return eventually(
            lambda: next((line for line in self.reports() if line.split()[1] == request_id), ""),
            what=f"the end of request {request_id} at the model",
            within_s=within_s,
        )

    def metric(self, name: str, **labels: str) -> float:
        """One sample of Triton's own metrics now; KeyError where there is none."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=10) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(name + "{") and all(label in line for label in wanted):
                    return float(line.rsplit(" ", 1)[1])
        raise KeyError(f"{name} {labels}")


SESSION: list[Triton] = []  # the session's, once it is started
REACHES: list[Callable[[], bool]] = []  # whether each of the session's sidecars reaches it


@pytest.fixture(scope="session")
def otlp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OtlpReceiver]:
    """A collector; ``otlp.spans()`` is what has arrived."""
    receiver = start_otlp(tmp_path_factory.mktemp("otlp") / "spans.jsonl")
    yield receiver
    receiver.stop()


@pytest.fixture(scope="session")
def triton(tmp_path_factory: pytest.TempPathFactory, otlp: OtlpReceiver) -> Iterator[Triton]:
    """A Triton with the demo's models and the tests' own; StartError says what is missing."""
    directory = tmp_path_factory.mktemp("triton")
    report = directory / "report"
    report.touch()
    found = Triton(running=_start(directory, report, otlp, None), report=report, otlp=otlp)
    SESSION.append(found)
    yield found
    SESSION.clear()
    found.running.stop()


def _start(directory: Path, report: Path, otlp: OtlpReceiver, addresses: Addresses | None) -> RunningTriton:
    ports = [int(address.rpartition(":")[2]) for address in astuple(addresses)] if addresses else [None] * 3
    return start_triton(
        directory, REPOSITORIES, otlp_url=otlp.http_url, environment={"TEST_MODEL_REPORT": str(report)},
        grpc_port=ports[0], http_port=ports[1], metrics_port=ports[2],
    )  # fmt: skip


def tensor(name: str, datatype: str, *values: Any) -> kserve.InferInput:
    """An input of one dimension. Text may be str or bytes."""
    if datatype == "BYTES":
        array = np.array([v.encode() if isinstance(v, str) else v for v in values], dtype=np.object_)
    else:
        array = np.array(values, dtype=_NUMPY[datatype])
    return filled(name, datatype, array)


def filled(name: str, datatype: str, array: np.ndarray[Any, Any]) -> kserve.InferInput:
    """An input with the array's own shape."""
    made = kserve.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


_NUMPY = {"FP32": np.float32, "INT32": np.int32, "UINT64": np.uint64, "BOOL": np.bool_}


class StreamCall:
    """One request on a stream of its own, through the stock client; iterate for its responses, end included.

    The last response of a decoupled model is empty but for ``triton_final_response``. An in-band error is raised, as
    the client's InferenceServerException.
    """

    def __init__(
        self,
        address: str,
        model: str,
        inputs: list[kserve.InferInput],
        *,
        request_id: str = "",
        headers: dict[str, str] | None = None,
    ) -> None:
        self._arrived: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._client = kserve.InferenceServerClient(address)
        self._client.start_stream(lambda result, error: self._arrived.put((result, error)), headers=headers)
        self._client.async_stream_infer(model, inputs, request_id=request_id, enable_empty_final_response=True)

    def __enter__(self) -> StreamCall:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[kserve.InferResult]:
        final = False
        while not final:
            result, error = self._arrived.get(timeout=STREAM_DEADLINE_S)
            if error is not None:
                raise error
            yield result
            final = result.get_response().parameters["triton_final_response"].bool_param

    def text(self) -> str:
        """What the model said from here to the end."""
        parts = [result.as_numpy("text_output") for result in self]
        return b"".join(part[0] for part in parts if part is not None and len(part)).decode()

    def cancel(self) -> None:
        """Leave, in the middle or at the end."""
        self._client.stop_stream(cancel_requests=True)
        self._client.close()
