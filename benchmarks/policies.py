"""The bundle of 10,000 tenants: load, reload and its pauses, memory, verdicts."""

from __future__ import annotations

import gc
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.identity_snapshot import rss
from policies.bundle import load
from policies.explain import Asked, question
from policies.policy import LoadedPolicy
from policies.residency import Place
from policies.source import BundleSource, Loaded, Pod
from sidecar.runtime.lifecycle import SWITCH
from sidecar.runtime.watch import PAUSE
from tests.support.policy import DEMO_BUNDLE, demo_bundle

TENANTS: Final = 10_000
QUICK: Final = 1_000
NAP: Final = 0.0005  # seconds


def measure(*, quick: bool) -> dict[str, Any]:
    """Times in ms or µs as named; ``late``: how long a thread waited for the interpreter while the bundle was taken."""
    tenants = QUICK if quick else TENANTS
    with tempfile.TemporaryDirectory(prefix="warden-bundle-") as directory:
        interval = sys.getswitchinterval()
        try:
            return {"tenants": tenants, **_verdicts(), **_loads(Path(directory) / "bundle", tenants)}
        finally:  # what is measured after this is to find the interpreter as it was
            sys.setswitchinterval(interval)
            gc.enable()
            gc.unfreeze()


def _verdicts() -> dict[str, Any]:
    policy = LoadedPolicy(demo_bundle(), Place("eu-west-1", "EU", "EU", "EU"))
    asked = question(Asked("acme", "chat", "eu-west-1", data_class="phi"))
    policy.authorise(*asked, 0.0)
    began, times = time.process_time_ns(), 100_000
    for _ in range(times):
        policy.authorise(*asked, 0.0)
    cached = (time.process_time_ns() - began) / times
    began, times = time.process_time_ns(), 1_000
    for _ in range(times):
        policy.trace(*asked, 0.0)
    return {"cached_us": cached / 1e3, "uncached_us": (time.process_time_ns() - began) / times / 1e3}


class _Witness:
    """A thread that wants the interpreter every half millisecond, as a call does; notes how late it gets it (ms)."""

    def __init__(self) -> None:
        self.late: list[float] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Witness:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._done.is_set():
            began = time.perf_counter()
            time.sleep(NAP)
            self.late.append((time.perf_counter() - began - NAP) * 1e3)

    def told(self, name: str) -> dict[str, float]:
        seen = sorted(self.late)
        return {f"{name}_late_p99_ms": seen[int(len(seen) * 0.99)], f"{name}_late_longest_ms": seen[-1]}


def _loads(directory: Path, tenants: int) -> dict[str, Any]:
    shutil.copytree(DEMO_BUNDLE, directory)
    text = (directory / "tenants" / "birch.yaml").read_text()
    for n in range(tenants):
        (directory / "tenants" / f"t{n}.yaml").write_text(text.replace("tenant: birch", f"tenant: t{n}"))
    load(directory)  # so that what any load takes for good is not counted as this one's
    gc.collect()
    before, began = rss(), time.process_time()
    source = BundleSource.open(directory, Pod("eu-west-1", "EU", "EU"))
    assert isinstance(source, BundleSource)
    first = time.process_time() - began
    held = rss() - before
    found: dict[str, Any] = {"load_cpu_ms": first * 1e3, "bytes_a_tenant": held / tenants}
    sys.setswitchinterval(SWITCH)
    gc.collect()
    gc.freeze()
    one, plans = directory / "tenants" / "t1.yaml", directory / "plans.yaml"
    for name, path in (("one", one), ("all", plans)):
        path.write_text(path.read_text().replace("burst: 5}", "burst: 6}") + "# changed\n")
        source.pause = lambda: time.sleep(PAUSE)
        began_wall, began = time.perf_counter(), time.process_time()
        with _Witness() as witness:
            gc.disable()
            assert isinstance(source.reload(), Loaded)
            gc.freeze()
            gc.enable()
        wall = time.perf_counter() - began_wall
        found |= {
            f"reload_{name}_cpu_ms": (time.process_time() - began) * 1e3,
            f"reload_{name}_wall_ms": wall * 1e3,
            **witness.told(f"reload_{name}"),
        }
        with _Witness() as witness:  # the same, with nothing beside it: what the machine itself makes late
            time.sleep(wall)
        found |= witness.told(f"idle_{name}")
    return found
