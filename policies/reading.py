"""From a directory to a bundle: read while it stands still, compiled, and put to its own test cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from policies.bundle import Before, Bundle, compile_bundle
from policies.cases import run_cases
from policies.files import fingerprint, read_files
from policies.tenant import Tenant
from policies.yamlfile import Problem

__all__ = ["Compiled", "Compiler", "Failed", "Here", "changed", "compile_directory"]

READ_ATTEMPTS: Final = 3
NAMED: Final = 20  # of each kind of change
_TIMES: Final = frozenset({"hour", "minute", "weekday"})


@dataclass(frozen=True, slots=True)
class Compiled:
    """A good bundle, and in words what differs from the one before."""

    bundle: Bundle
    changes: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The bundle could not be judged, good or bad: that passes, so it is tried again."""

    why: str


class Compiler(Protocol):
    """Makes the directory's bundle; ``before`` is the one in force. Real: ``Here`` and ``apart.ProcessCompiler``."""

    def compile(self, directory: Path, before: Bundle, at: float) -> Compiled | list[Problem] | Failed: ...


class Here:
    """In this very process. ``pause`` is called after each document, so that others may go first."""

    def __init__(self, pause: Callable[[], None] = lambda: None) -> None:
        self._pause = pause

    def compile(self, directory: Path, before: Bundle, at: float) -> Compiled | list[Problem] | Failed:
        found = compile_directory(directory, before, at, self._pause)
        return Compiled(found, changed(before, found)) if isinstance(found, Bundle) else found


def compile_directory(
    directory: Path, before: Before | None, at: float, pause: Callable[[], None] = lambda: None
) -> Bundle | list[Problem]:
    """Read until the directory was the same before and after, so that half an edit is never taken for a bundle.

    ``at``: the moment at which its test cases are asked, in seconds since the UNIX epoch.
    """
    for _ in range(READ_ATTEMPTS):
        seen = fingerprint(directory)
        files = read_files(directory)
        if seen == fingerprint(directory):
            break
    else:
        return [Problem(str(directory), 1, 1, "", "changes faster than it can be read")]
    bundle = files if isinstance(files, list) else compile_bundle(files, before, pause)
    return bundle if isinstance(bundle, list) else list(_failing(bundle, at)) or bundle


def _failing(bundle: Bundle, at: float) -> Iterator[Problem]:
    """A bundle that fails its own cases is a bad one.

    A case that names no moment doesn't count where dates or hours may decide it: else a bundle that was good when it
    was reviewed would turn bad as time passes, and keep a pod from starting again.
    """
    timed = bool(bundle.access.mentions & _TIMES)
    for result in run_cases(bundle, at):
        case = result.case.case
        tenant = bundle.tenants.get(case.tenant)
        turns = timed or (tenant is not None and any(True for _ in tenant.turns()))
        if result.failure and (case.at is not None or not turns):
            yield Problem(result.case.file, result.case.line, 1, "", f"this case fails: {result.failure}")


# --- what differs --------------------------------------------------------------------------------------------------


def changed(old: Before, new: Before) -> str:
    """``tenants: +birch ~acme -cobalt; files: ~plans.yaml``: added, changed, removed; at most 20 of each are named."""
    tenants = _differing(_documents(old.tenants), old, new) | _differing(_documents(new.tenants), old, new)
    documents = {*_documents(old.tenants), *_documents(new.tenants)}
    others = {name: name for name in {*old.hashes, *new.hashes} if name not in documents}
    parts = (("tenants", tenants), ("files", _differing(others, old, new)))
    return "; ".join(f"{what}: {_told(found)}" for what, found in parts if found)


def _documents(tenants: Mapping[str, Tenant]) -> dict[str, str]:
    return {each.document: each.name for each in tenants.values()}


def _differing(names: Mapping[str, str], old: Before, new: Before) -> dict[str, str]:
    """Name → ``+`` added, ``-`` removed, ``~`` changed; ``names`` are by file."""
    marks = {}
    for file, name in names.items():
        before, after = old.hashes.get(file), new.hashes.get(file)
        if before != after:
            marks[name] = "+" if before is None else "-" if after is None else "~"
    return marks


def _told(marks: Mapping[str, str]) -> str:
    names = [f"{mark}{name}" for name, mark in sorted(marks.items())]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return " ".join(names[:NAMED]) + more
