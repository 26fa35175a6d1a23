"""``make bench``: everything side by side in one run; prints a table and appends its numbers to the history."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any, Final

import psycopg

from benchmarks import (
    evidence,
    governance,
    history,
    hosted_app,
    identity,
    identity_snapshot,
    journal,
    neighbours,
    parts,
    policies,
    quotas,
    reading,
    refusals,
    report,
    search,
    streams,
    wires,
)
from benchmarks.routes import routes
from sidecar.cli.demo.otlp import start_otlp
from sidecar.cli.demo.postgres import start_postgres
from sidecar.cli.demo.process import end
from sidecar.cli.demo.stack import Parts
from sidecar.cli.demo.triton import Addresses, start_triton
from tests.support.debian import ensure

_ROOT: Final = Path(__file__).resolve().parents[1]
_TOOLS: Final = (("nghttp2-client", "h2load"), ("nghttp2-server", "nghttpd"))
ALONE: Final[dict[str, Callable[..., dict[str, Any]]]] = {  # by what each measures; no wire, no other process
    "reading": reading.measure, "quotas": quotas.measure, "policies": policies.measure, "journal": journal.measure,
}  # fmt: skip
CHAT_SLOTS: Final = ('string_value: "4" }', 'string_value: "8" }')  # as many as benchmarks.neighbours shares out
SECTIONS: Final = ("governance", *ALONE, "evidence", "search", "identity", "standin", "triton", "streams", "neighbours")
QUICK: Final = ("governance", *ALONE, "identity", "standin", "streams")


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    asked.add_argument(
        "--quick", action="store_true", help="fewer rounds, no real Triton: under 3 minutes, and coarser"
    )
    asked.add_argument("--only", choices=SECTIONS, action="append", help="these sections alone; then nothing is kept")
    asked.add_argument("--search-rows", type=int, help="calls that section search looks among (2 GB a million)")
    asked.add_argument("--evidence-calls", type=int, help="calls of each size that section evidence catches up on")
    asked.add_argument("--no-history", action="store_true", help="do not append to benchmarks/history.jsonl")
    given = asked.parse_args()
    wanted = tuple(given.only or (QUICK if given.quick else SECTIONS))
    began = time.monotonic()
    numbers: dict[str, Any] = {"quick": given.quick, **history.now()}
    if "governance" in wanted:
        _say("governance alone")
        numbers["governance"] = governance.measure(quick=given.quick)
        numbers["governance"]["app"] = hosted_app.measure(quick=given.quick)
    for name, measure in ALONE.items():
        if name in wanted:
            _say(name)
            numbers[name] = measure(quick=given.quick)
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"  # where Debian puts nghttpd
    lacking = [package for package, tool in _TOOLS if ensure(package, tool) is None]
    if lacking:
        _say(f"wires and streams are left out: install {' and '.join(lacking)}, or run as root")
    if set(wanted) & ({"neighbours"} if lacking else set(SECTIONS) - {"governance", *ALONE}):
        with tempfile.TemporaryDirectory(prefix="warden-bench-") as directory:
            sizes = given.search_rows, given.evidence_calls
            numbers |= _over_wires(Path(directory), wanted, quick=given.quick, sizes=sizes)
    numbers["seconds"] = round(time.monotonic() - began)
    numbers["load_average"] = [numbers["load_average"], history.load_average()]
    report.show(numbers)
    if wanted == SECTIONS and not given.no_history and not lacking:
        history.append(numbers)
    return 0


def _say(what: str) -> None:
    print(f"bench: {what}", file=sys.stderr, flush=True)


def _over_wires(
    directory: Path, wanted: tuple[str, ...], *, quick: bool, sizes: tuple[int | None, int | None]
) -> dict[str, Any]:
    """``sizes``: rows to search among, calls to ship."""
    rows, calls = sizes
    sections: dict[str, Callable[[Path, Parts, bool], dict[str, Any]]] = {
        "evidence": partial(_evidence, calls), "search": partial(_search, rows), "identity": _identity,
        "standin": _standin, "triton": _triton, "streams": _streams,
        "neighbours": _neighbours,
    }  # fmt: skip
    numbers: dict[str, Any] = {}
    with ExitStack() as kept:
        real = {"triton", "neighbours"} & set(wanted)
        _say("starting Postgres, a collector" + (", Triton" if real else ""))
        otlp = start_otlp(directory / "spans.jsonl")
        kept.callback(otlp.stop)
        postgres = start_postgres(directory / "postgres")
        kept.callback(postgres.stop)
        addresses = Addresses("", "", "")  # each way names its own upstream
        if real:
            triton = start_triton(directory / "triton", _models(directory / "models"), otlp_url=otlp.http_url)
            kept.callback(triton.stop)
            addresses = triton.addresses
        around = Parts(otlp, addresses, postgres.dsn)
        for name, section in sections.items():
            if name in wanted:
                _say(name)
                numbers[name] = section(directory, around, quick)
    return numbers


def _models(directory: Path) -> Path:
    copytree(_ROOT / "benchmarks" / "models", directory)
    copytree(_ROOT / "tests" / "support" / "models" / "slow", directory / "slow")
    copytree(_ROOT / "examples" / "models" / "chat", directory / "chat")
    config = directory / "chat" / "config.pbtxt"
    config.write_text(config.read_text().replace(*CHAT_SLOTS))
    return directory


def _evidence(calls: int | None, directory: Path, around: Parts, quick: bool) -> dict[str, Any]:
    return evidence.measure(around.postgres_dsn, directory / "evidence", quick=quick, calls=calls)


def _search(rows: int | None, directory: Path, around: Parts, quick: bool) -> dict[str, Any]:  # noqa: ARG001
    return search.measure(directory / "search", quick=quick, rows=rows)


def _identity(directory: Path, around: Parts, quick: bool) -> dict[str, Any]:
    found = identity.measure(quick=quick)
    with psycopg.connect(around.postgres_dsn, autocommit=True) as connection:
        connection.execute("CREATE DATABASE keys")
    dsn = psycopg.conninfo.make_conninfo(around.postgres_dsn, dbname="keys")
    found["snapshot"] = identity_snapshot.measure(dsn, directory)
    process, address = parts.start_standin(directory / "refusing")
    try:
        found["refusals"] = refusals.measure(directory / "siege", around, address, quick=quick)
    finally:
        end(process)
    return found


def _standin(directory: Path, around: Parts, quick: bool) -> dict[str, Any]:
    process, address = parts.start_standin(directory / "canned")
    try:
        with routes(directory / "unary", around, address, hosted=True) as ways:
            return wires.summary(wires.measure(ways, wires.standin_plan(quick=quick)))
    finally:
        end(process)


def _triton(directory: Path, around: Parts, quick: bool) -> dict[str, Any]:
    with routes(directory / "real", around, around.triton.grpc) as ways:
        plan = wires.triton_plan(wires.answer_size(around.triton.grpc), quick=quick)
        return wires.summary(wires.measure(ways, plan))


def _streams(directory: Path, around: Parts, quick: bool) -> dict[str, Any]:
    tokens, rounds = (3000, 1) if quick else (5000, 2)
    process, address = parts.start_paced(directory / "flood", tokens=tokens, every_ms=0)
    try:
        with routes(directory / "stream", around, address) as ways:
            flood = streams.flood(ways, tokens=tokens, rounds=rounds)
    finally:
        end(process)
    each, pace = (150, 1) if quick else (300, 2)
    process, address = parts.start_paced(directory / "paced", tokens=each, every_ms=10)
    try:
        with routes(directory / "steady", around, address) as ways:
            return {"flood": flood, "paced": streams.paced(ways, streams=10, tokens=each, rounds=pace)}
    finally:
        end(process)


def _neighbours(directory: Path, around: Parts, quick: bool) -> dict[str, Any]:
    return neighbours.measure(around, directory / "neighbours", quick=quick)


if __name__ == "__main__":
    sys.exit(main())
