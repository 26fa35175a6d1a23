"""Runs nghttp2's h2load, a load generator in C: what it did, and how long each request took."""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT_S = 60
_FINISHED = re.compile(r"finished in ([0-9.]+)(us|ms|s),")
_REQUESTS = re.compile(r"requests: .* (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout")
_TRAFFIC = re.compile(r"\((\d+)\) data")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}


class LoadFault(Exception):  # noqa: N818 — named as the other faults of this house
    """Not every request was answered as it should have been: such a run measures nothing."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How a load is applied: ``requests`` in all, over ``clients`` connections of ``streams`` streams each.

    ``rate``: requests a second over all clients, evenly spaced; None: as fast as answers come.
    """

    requests: int
    clients: int = 2
    streams: int = 8
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """``took`` in seconds; ``times`` holds each request's µs, from being sent to its last byte, in order of end."""

    requests: int
    took: float
    times: list[int] = field(repr=False)

    @property
    def rate(self) -> float:
        return self.requests / self.took

    def percentile(self, percent: float) -> float:
        """µs, nearest rank."""
        ordered = sorted(self.times)
        return float(ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))])


def run(address: str, path: str, body: bytes, shape: Shape, *, token: str, answer_bytes: int) -> Load:
    """POST ``body`` again and again.

    ``answer_bytes``: what each answer's DATA must come to, because a refusal is HTTP 200 too.
    """
    with tempfile.TemporaryDirectory(prefix="warden-h2load-") as directory:
        data, log = Path(directory, "body"), Path(directory, "log")
        data.write_bytes(body)
        headers = ("content-type: application/grpc", "te: trailers", f"authorization: Bearer {token}")
        command = ["h2load", f"-n{shape.requests}", f"-c{shape.clients}", f"-m{shape.streams}", "-d", str(data)]
        command += [f"--log-file={log}", *(part for header in headers for part in ("-H", header))]
        if shape.rate is not None:
            command.append(f"--rps={shape.rate / shape.clients:g}")
        done = subprocess.run(
            [*command, f"http://{address}{path}"], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise LoadFault(f"h2load: {done.stderr.strip() or done.stdout.strip()}")
        took = _checked(done.stdout, shape.requests, answer_bytes)
        times = [int(line.split("\t")[2]) for line in log.read_text().splitlines()]
    return Load(shape.requests, took, times)


def _checked(said: str, requests: int, answer_bytes: int) -> float:
    finished, counts, traffic = _FINISHED.search(said), _REQUESTS.search(said), _TRAFFIC.search(said)
    if finished is None or counts is None or traffic is None:
        raise LoadFault(f"h2load said something else than expected:\n{said}")
    succeeded, *bad = map(int, counts.groups())
    if succeeded != requests or any(bad):
        raise LoadFault(f"h2load: {counts[0]}")
    if int(traffic[1]) != requests * answer_bytes:
        raise LoadFault(
            f"h2load: {int(traffic[1])} bytes of answers, expected {requests * answer_bytes}: some were refused"
        )
    return float(finished[1]) * _UNITS[finished[2]]
