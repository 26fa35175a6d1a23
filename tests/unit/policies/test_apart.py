"""The compiling process: the same bundle as here, and whatever becomes of the process, the old bundle stays."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from pathlib import Path

import pytest

from policies.apart import _NEEDED, MODULE, ProcessCompiler
from policies.bundle import Bundle, compile_bundle
from policies.reading import Compiled, Failed, Here
from policies.source import BundleSource, Loaded, Pod, Unchanged
from policies.spawning import Child
from tests.support.own import children, descriptors
from tests.support.policy import DEMO_BUNDLE

POD = Pod("eu-west-1", "EU", "EU")
GUARDED = """
guards:
  - {id: secrets, on: output, patterns: ['sk-[a-z0-9]{8}'], then: deny}
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle"))


@pytest.fixture
def source(directory: Path) -> BundleSource:
    found = BundleSource.open(directory, POD)
    assert isinstance(found, BundleSource)
    found.compiler = compiler()
    return found


def compiler(*command: str, deadline: float = 60.0) -> ProcessCompiler:
    found = command or (sys.executable, "-m", MODULE)
    return ProcessCompiler(found, dict(os.environ), deadline=deadline)


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def alike(one: Bundle, other: Bundle) -> bool:
    """In all that calls are decided from: compiled guards and policies have no equality, what they were made of has."""

    def told(bundle: Bundle) -> object:
        tenants = {
            name: tuple(getattr(tenant, field) for field in tenant.__struct_fields__ if field != "guards")
            for name, tenant in bundle.tenants.items()
        }
        smaller = (bundle.regions, bundle.classes, bundle.change, bundle.prefix_caches, bundle.edges)
        policies = ([*bundle.access.statements.items()], bundle.access.mentions)
        return bundle.digest, dict(bundle.hashes), bundle.archive, tenants, bundle.models, smaller, policies

    return told(one) == told(other)


def test_it_is_the_same_bundle_as_compiled_here(source: BundleSource, directory: Path) -> None:
    before = source.current().bundle
    acme = directory / "tenants" / "acme.yaml"
    acme.write_text(acme.read_text() + ("" if "guards:" in acme.read_text() else GUARDED))
    edit(directory / "tenants" / "birch.yaml", "concurrency: 8", "concurrency: 9")
    (directory / "tenants" / "cobalt.yaml").unlink()
    (directory / "access" / "more.cedar").write_text(
        '@id("late") forbid(principal, action, resource) when { context.hour > 22 };'
    )
    shutil.rmtree(directory / "tests")
    found = source.reload()
    here = Here().compile(directory, before, 0.0)
    assert isinstance(found, Loaded)
    assert isinstance(here, Compiled)
    assert alike(source.current().bundle, here.bundle)
    assert found.changes == here.changes
    tenants = source.current().bundle.tenants
    assert tenants["acme"].guards is not None, "compiled anew, of what was written"
    assert tenants["dormant"] is before.tenants["dormant"], "what has not changed is the very same"
    again = compile_bundle(source.current().bundle.files)
    assert isinstance(again, Bundle)
    assert again.digest == here.bundle.digest


def test_equal_parts_are_one_object(source: BundleSource, directory: Path) -> None:
    birch = (directory / "tenants" / "birch.yaml").read_text()
    for n in range(60):  # over more than one message
        (directory / "tenants" / f"t{n}.yaml").write_text(birch.replace("tenant: birch", f"tenant: t{n}"))
    assert isinstance(source.reload(), Loaded)
    tenants = source.current().bundle.tenants
    for name in (f"t{n}" for n in range(60)):
        for field in ("limits", "later", "residency", "audit", "grants"):
            assert getattr(tenants[name], field) is getattr(tenants["birch"], field), (name, field)


def test_problems_come_back_as_they_are(source: BundleSource, directory: Path) -> None:
    edit(directory / "tenants" / "acme.yaml", "plan: gold", "plan: glod")
    found = source.reload()
    assert isinstance(found, list)
    assert [str(problem) for problem in found] == [
        'tenants/acme.yaml:2:7: plan: no such plan in plans.yaml; did you mean "gold"?'
    ]
    edit(directory / "tenants" / "acme.yaml", "plan: glod", "plan: gold")
    assert isinstance(source.reload(), Unchanged)


# What the process does, and what is told of it.
FAULTY = {
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended early (signal 9)"),
    "crashed": ("raise SystemExit(3)", "ended early (exit code 3)"),
    "hung": ("import time; time.sleep(600)", "it took too long"),
    "talking nonsense": (
        "import os, struct; os.write(1, struct.pack('>I', 3) + b'abc'); os.read(0, 2**20)",
        "did not answer: a message that is none",
    ),
}


@pytest.mark.parametrize("fault", FAULTY)
def test_whatever_becomes_of_the_process_the_old_bundle_stays(
    source: BundleSource, directory: Path, fault: str
) -> None:
    program, told = FAULTY[fault]
    good = source.current()
    edit(directory / "tenants" / "dormant.yaml", "suspended", "active")
    shutil.rmtree(directory / "tests")
    source.compiler = compiler(sys.executable, "-c", program, deadline=1.0 if told == "it took too long" else 60.0)
    found = source.reload()
    assert isinstance(found, Failed)
    assert told in found.why
    assert source.current() is good
    assert source.stirred(), "it was not the directory's fault: the next look tries again"
    source.compiler = compiler()
    assert isinstance(source.reload(), Loaded)


def test_it_is_told_no_secret(source: BundleSource, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What reads a bundle needs neither the database's password nor a pepper."""
    monkeypatch.setenv("PGPASSWORD", "hush")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    edit(directory / "plans.yaml", "burst: 400", "burst: 300")
    seen = directory.parent / "environment"
    source.compiler = compiler(
        "sh", "-c", f"tr '\\0' '\\n' < /proc/self/environ > {seen}; exec {sys.executable} -m {MODULE}"
    )
    assert isinstance(source.reload(), Loaded)
    told = dict(line.split("=", 1) for line in seen.read_text().splitlines())
    assert told["LC_ALL"] == "C.UTF-8"
    assert "hush" not in seen.read_text()
    assert not [name for name in told if not name.startswith(("LC_", "PYTHON")) and name not in _NEEDED]


def test_it_goes_with_whoever_asked(directory: Path, tmp_path: Path) -> None:
    """Killed itself, that can't end it."""
    program = f"""
import os, signal, sys
from policies.spawning import Child
child = Child((sys.executable, "-m", "{MODULE}"), dict(os.environ))
print(child.pid, flush=True)
while open(f"/proc/{{child.pid}}/oom_score_adj").read() != "1000\\n":
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    asking = Child((sys.executable, "-c", program), dict(os.environ))
    child = int(os.read(asking.stdout, 100))
    assert asking.ended(60.0) == -signal.SIGKILL
    asking.end()
    while Path(f"/proc/{child}").exists():  # until the kernel, or whoever adopts it, is done
        os.sched_yield()


def test_nothing_piles_up(source: BundleSource, directory: Path) -> None:
    edit(directory / "plans.yaml", "burst: 400", "burst: 300")
    before, others = descriptors(), children()
    for command in (("false",), ("/nonexistent",), ("sh", "-c", "exec cat"), (sys.executable, "-m", MODULE)):
        source.compiler = compiler(*command)
        source.reload()
        assert descriptors() <= before
        assert children() <= others
    assert b"burst: 300" in source.current().bundle.files["plans.yaml"]


def test_no_process_to_be_had(source: BundleSource, directory: Path) -> None:
    source.compiler = compiler("/nonexistent/python")
    edit(directory / "plans.yaml", "burst: 400", "burst: 300")
    found = source.reload()
    assert isinstance(found, Failed)
    assert "No such file" in found.why


def test_killed_in_the_middle(source: BundleSource, directory: Path) -> None:
    """By the kernel, for memory, say: at whatever message."""
    good = source.current()
    edit(directory / "plans.yaml", "burst: 400", "burst: 300")
    others, killed = children(), set[int]()

    def kill() -> None:
        for child in children() - others - killed:
            killed.add(child)
            os.kill(child, signal.SIGKILL)

    source.compiler = ProcessCompiler((sys.executable, "-m", MODULE), dict(os.environ), pause=kill)
    found = source.reload()
    assert isinstance(found, Failed)
    assert "ended early" in found.why
    assert source.current() is good
    assert killed


def test_nobody_waits_for_it_at_the_end(source: BundleSource, directory: Path) -> None:
    ending = threading.Event()
    ending.set()
    edit(directory / "plans.yaml", "burst: 400", "burst: 300")
    command = (sys.executable, "-c", "import time; time.sleep(600)")
    source.compiler = ProcessCompiler(command, dict(os.environ), ending=ending.is_set)
    assert isinstance(source.reload(), Failed)
