"""The source of the current bundle: a bad one never replaces a good one."""

from __future__ import annotations

import shutil
from pathlib import Path
from weakref import ref

import pytest

from policies import reading
from policies.reading import Here
from policies.source import BundleSource, Loaded, Pod, Unchanged
from sidecar.core.ports import Policies
from tests.support.policy import DEMO_BUNDLE

POD = Pod("eu-west-1", "EU", "EU")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle"))


def opened(directory: Path, pod: Pod = POD) -> BundleSource:
    found = BundleSource.open(directory, pod)
    assert isinstance(found, BundleSource), found
    return found


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_it_is_the_port(directory: Path) -> None:
    policies: Policies = opened(directory)
    assert policies.current().digest.startswith("sha256:")


def test_nothing_starts_on_a_bad_bundle_or_in_an_unknown_place(directory: Path) -> None:
    found = BundleSource.open(directory, Pod("eu-west-2", "EU", None))
    assert isinstance(found, list)
    assert "eu-west-2 is not in the bundle" in str(found[0])
    (directory / "plans.yaml").unlink()
    assert isinstance(BundleSource.open(directory, POD), list)


def test_a_good_change_is_taken_whole(directory: Path) -> None:
    shutil.rmtree(directory / "tests")  # they are about what is changed here
    source = opened(directory)
    old = source.current()
    assert isinstance(source.reload(), Unchanged)
    edit(directory / "tenants" / "dormant.yaml", "suspended", "active")
    found = source.reload()
    assert isinstance(found, Loaded)
    assert found.previous == old.digest != found.policy.digest
    assert source.current() is found.policy
    assert source.current().bundle.tenants["dormant"].active
    assert not old.bundle.tenants["dormant"].active, "a call that is being decided keeps the bundle it began with"
    assert found.changes == "tenants: ~dormant"
    assert isinstance(source.reload(), Unchanged)


def test_changes_are_summed_up(directory: Path) -> None:
    shutil.rmtree(directory / "tests")  # they are about what is changed here
    source = opened(directory)
    tenants = directory / "tenants"
    text = (tenants / "birch.yaml").read_text()
    for n in range(25):
        (tenants / f"new-{n:02}.yaml").write_text(text.replace("tenant: birch", f"tenant: new-{n:02}"))
    (tenants / "cobalt.yaml").unlink()
    edit(directory / "plans.yaml", "burst: 400", "burst: 300")
    (directory / "access" / "more.cedar").write_text('@id("x") forbid(principal, action, resource) when { false };')
    found = source.reload()
    assert isinstance(found, Loaded)
    named, _, files = found.changes.partition("; ")
    assert named.endswith(" +new-18 and 6 more")
    assert files == "files: +access/more.cedar ~plans.yaml"


def test_a_reload_lets_others_go_between_documents(directory: Path) -> None:
    source = opened(directory)
    old = source.current()
    pauses: list[bool] = []
    source.compiler = Here(lambda: pauses.append(source.current() is old))
    source.pause = lambda: pauses.append(source.current() is old)
    edit(directory / "plans.yaml", "burst: 400", "burst: 300")
    assert isinstance(source.reload(), Loaded)
    assert pauses.count(True) >= 8, "each document is read while the old bundle decides"
    assert pauses.count(False) >= 1, "the old one is freed in pieces once the new one decides"


def test_nothing_holds_the_old_one_while_it_is_freed_in_pieces(directory: Path) -> None:
    """Else all of it is freed at once, whenever that lets go."""
    source = opened(directory)
    old = ref(source.current())
    held: list[bool] = []
    source.pause = lambda: held.append(old() is not None)
    edit(directory / "plans.yaml", "burst: 400", "burst: 300")
    assert isinstance(source.reload(), Loaded)
    assert held
    assert not held[-1]


def test_a_bad_change_is_told_once_and_changes_nothing(directory: Path) -> None:
    source = opened(directory)
    good = source.current()
    edit(directory / "tenants" / "acme.yaml", "plan: gold", "plan: glod")
    problems = source.reload()
    assert isinstance(problems, list)
    assert [str(problem) for problem in problems] == [
        'tenants/acme.yaml:2:7: plan: no such plan in plans.yaml; did you mean "gold"?'
    ]
    assert source.reload() is problems, "the same list while nothing changed"
    assert source.current() is good
    edit(directory / "tenants" / "acme.yaml", "plan: glod", "plan: gold")
    assert isinstance(source.reload(), Unchanged), "mended to what is in force"
    assert source.current() is good


def test_a_bundle_that_forgets_the_pod_s_region_is_bad(directory: Path) -> None:
    source = opened(directory, Pod("us-east-1", "US", None))
    edit(directory / "bundle.yaml", "us-east-1", "us-east-2")
    edit(directory / "tests" / "demo.yaml", "us-east-1", "us-east-2")
    problems = source.reload()
    assert isinstance(problems, list)
    assert "region us-east-1 is not in the bundle" in str(problems[0])


def test_a_directory_that_vanishes_keeps_the_bundle(directory: Path) -> None:
    source = opened(directory)
    good = source.current()
    shutil.rmtree(directory)
    assert isinstance(source.reload(), list)
    assert source.current() is good


def test_a_touched_but_equal_directory_is_unchanged(directory: Path) -> None:
    source = opened(directory)
    good = source.current()
    path = directory / "plans.yaml"
    path.write_bytes(path.read_bytes())
    assert isinstance(source.reload(), Unchanged)
    assert source.current() is good


def test_what_was_changed_a_moment_ago_is_looked_at_once_more(directory: Path) -> None:
    """Files tell time by ticks: an edit in the tick of the last look changes nothing that can be looked at."""
    source = opened(directory)
    edit(directory / "plans.yaml", "burst: 400", "burst: 300")
    changed = max(path.stat().st_ctime_ns for path in directory.rglob("*") if path.is_file()) / 1e9
    assert isinstance(source.reload(changed + 0.01), Loaded)
    assert source.stirred(), "it may have been changed since, within the tick"
    assert isinstance(source.reload(changed + 1.0), Unchanged)
    assert not source.stirred()


def test_a_directory_that_is_gone_is_judged_once(directory: Path) -> None:
    """Not by a new process each second."""
    source = opened(directory)
    shutil.rmtree(directory)
    assert isinstance(source.reload(1e9), list)
    assert not source.stirred()


def test_a_directory_that_is_being_written_is_not_half_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, edits = reading.read_files, iter(range(2))

    def while_edited(path: Path) -> object:
        found = read(path)
        if next(edits, None) is not None:
            edit(directory / "plans.yaml", "gold:", "# more\ngold:")
        return found

    source = opened(directory)
    edit(directory / "plans.yaml", "gold:", "# first\ngold:")
    monkeypatch.setattr(reading, "read_files", while_edited)
    assert isinstance(source.reload(), Loaded)
    assert source.current().bundle.files["plans.yaml"].count(b"# more") == 2, "the last edit is in it"


def test_a_bundle_that_fails_its_own_cases_is_refused(directory: Path) -> None:
    source = opened(directory)
    good = source.current()
    edit(directory / "tenants" / "dormant.yaml", "suspended", "active")
    problems = source.reload()
    assert isinstance(problems, list)
    cases = (directory / "tests" / "demo.yaml").read_text().splitlines()
    for problem in problems:
        assert problem.message.startswith("this case fails: expected TENANT_SUSPENDED, got ")
        assert "tenant: dormant" in cases[problem.line - 1]
    assert problems
    assert source.current() is good
    assert isinstance(BundleSource.open(directory, POD), list), "nor is it what one starts with"


def test_a_case_of_no_moment_does_not_count_where_time_decides(directory: Path) -> None:
    """Else a bundle that was good when it was reviewed would keep a pod from starting some day."""
    (directory / "tests" / "demo.yaml").write_text(
        "- {tenant: acme, model: chat, region: eu-west-1, expect: POLICY_FORBIDS, rule: night}\n"
        "- {tenant: acme, model: chat, region: eu-west-1, at: 2026-11-30T12:00Z, expect: allow}\n"
    )
    (directory / "access" / "night.cedar").write_text(
        '@id("night") forbid(principal, action, resource) when { context.hour < 5 };'
    )
    assert isinstance(BundleSource.open(directory, POD, 12 * 3600.0), BundleSource)
    edit(directory / "tests" / "demo.yaml", "T12:00Z", "T04:00Z")
    found = BundleSource.open(directory, POD, 12 * 3600.0)
    assert isinstance(found, list)
    assert [problem.line for problem in found] == [2]
