"""The bundle of 10,000 tenants: load, reload and its pauses, memory, verdicts."""

from __future__ import annotations

import gc
import os
import resource
import shutil
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.identity_snapshot import rss
from policies.apart import MODULE, ProcessCompiler
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
    """Times in ms or µs as named; ``pause``: how long a thread waited for the interpreter during a reload."""
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
    """A thread that wants the interpreter every half millisecond, as a call does; notes how late it gets it (ms).

    What the machine makes late is left out. Both this thread and the one that reloads, and may hold the interpreter, go
    before all others where that is permitted (root); what they wait for a core all the same is taken off, by the
    kernel's own count (/proc/…/schedstat). And a wait for the interpreter looks up once an interval of ``SWITCH``, so
    it can't be longer than the times that this thread ran: a timer that rings late (a virtual machine is itself put
    aside) is one.
    """

    def __init__(self) -> None:
        self.late: list[float] = []
        self._others = [_Counts(threading.get_native_id())]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Witness:
        _go_first()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        _go_as_others()

    def _run(self) -> None:
        own = _Counts(threading.get_native_id())
        _go_first()
        counts = [*self._others, own]
        for each in counts:
            each.since()
        while not self._done.is_set():
            began = time.perf_counter_ns()
            time.sleep(NAP)
            late = time.perf_counter_ns() - began - NAP * 1e9
            found = [each.since() for each in counts]
            late = min(late - sum(waited for waited, _ in found), found[-1][1] * SWITCH * 1e9)
            self.late.append(max(0.0, late) / 1e6)

    def told(self, name: str) -> dict[str, float]:
        seen = sorted(self.late)
        return {
            f"{name}_pause_p99_9_ms": seen[int(len(seen) * 0.999)],
            f"{name}_pause_max_ms": seen[-1],
            f"{name}_over_5_ms": sum(late > 5 for late in seen),
        }


def _go_first() -> None:
    """This thread, not the processes that it starts. Where it may not, the measure is coarser on a busy machine."""
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))


def _go_as_others() -> None:
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


class _Counts:
    """Of a thread of ours, as the kernel keeps them."""

    def __init__(self, thread: int) -> None:
        # Read every millisecond.
        self._file = open(f"/proc/self/task/{thread}/schedstat", "rb", buffering=0)  # noqa: SIM115, PTH123
        self._waited, self._ran = 0, 0

    def since(self) -> tuple[int, int]:
        """Since it was asked last: ns for which it was ready and not running, and how often it ran."""
        self._file.seek(0)
        _, waited, ran = (int(each) for each in self._file.read(64).split())
        found = waited - self._waited, ran - self._ran
        self._waited, self._ran = waited, ran
        return found


def _loads(directory: Path, tenants: int) -> dict[str, Any]:
    """Each tenant has limits of its own, equal to nobody else's."""
    shutil.copytree(DEMO_BUNDLE, directory)
    text = (directory / "tenants" / "birch.yaml").read_text()
    for n in range(tenants):
        own = text.replace("tenant: birch", f"tenant: t{n}").replace("concurrency: 8", f"concurrency: {n + 1}")
        (directory / "tenants" / f"t{n}.yaml").write_text(own)
    load(directory)  # so that what any load takes for good is not counted as this one's
    gc.collect()
    before, began = rss(), time.process_time()
    source = BundleSource.open(directory, Pod("eu-west-1", "EU", "EU"))
    assert isinstance(source, BundleSource)
    first = time.process_time() - began
    gc.collect()
    held = rss() - before
    found: dict[str, Any] = {"load_cpu_ms": first * 1e3, "bytes_a_tenant": held / tenants}
    sys.setswitchinterval(SWITCH)  # as `warden serve` has it
    gc.freeze()
    source.pause = lambda: time.sleep(PAUSE)
    source.compiler = ProcessCompiler((sys.executable, "-m", MODULE), dict(os.environ), pause=source.pause)
    one, plans = directory / "tenants" / "t1.yaml", directory / "plans.yaml"
    for name, path in (("one", one), ("all", plans)):
        path.write_text(path.read_text().replace("burst: 5}", "burst: 6}") + "# changed\n")
        found |= _reload(source, name)
    return found


def _reload(source: BundleSource, name: str) -> dict[str, float]:
    """``cpu``: of this process, which the calls share; ``child_cpu``: of the one that compiles."""
    began_wall, began, childs = time.perf_counter(), time.process_time(), _children()
    with _Witness() as witness:
        assert isinstance(source.reload(), Loaded)
    wall = time.perf_counter() - began_wall
    found = {
        f"reload_{name}_cpu_ms": (time.process_time() - began) * 1e3,
        f"reload_{name}_child_cpu_ms": (_children() - childs) * 1e3,
        f"reload_{name}_wall_ms": wall * 1e3,
        **witness.told(f"reload_{name}"),
    }
    with _Witness() as witness:  # the same, with nothing beside it: what the measure itself sees
        time.sleep(min(wall, 5.0))
    return found | witness.told(f"idle_{name}")


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
