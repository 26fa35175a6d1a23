"""Where the current bundle is had: swapped whole when the directory holds a good new one, kept when it doesn't."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from policies.bundle import Bundle, compile_bundle
from policies.files import Fingerprint, fingerprint, read_files
from policies.policy import LoadedPolicy
from policies.yamlfile import Problem

__all__ = ["BundleSource", "Loaded", "Pod", "Unchanged"]

READ_ATTEMPTS: Final = 3
PIECE: Final = 50  # tenants that are freed at once
NAMED: Final = 20  # of each kind of change


@dataclass(frozen=True, slots=True)
class Pod:
    """Where a sidecar is configured to be; its jurisdiction is the bundle's to say. ``doubt``: why that is doubted."""

    region: str
    storage_jurisdiction: str
    telemetry_jurisdiction: str | None
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A new bundle is in force; ``previous`` is the digest of the one before ("" for the first).

    ``changes`` sums up what differs between the two.
    """

    policy: LoadedPolicy
    previous: str
    changes: str = ""


@dataclass(frozen=True, slots=True)
class Unchanged:
    """The directory holds what is in force already."""


class BundleSource:
    """``sidecar.core.ports.Policies`` over a directory. One task reloads; any thread may ask for ``current``."""

    def __init__(self, directory: Path, pod: Pod, policy: LoadedPolicy) -> None:
        self.pause: Callable[[], None] = lambda: None  # called between two pieces of a reload: let others go first
        self._directory = directory
        self._pod = pod
        self._policy = policy
        self._seen: Fingerprint | None = None
        self._problems: list[Problem] = []

    @classmethod
    def open(cls, directory: Path, pod: Pod) -> BundleSource | list[Problem]:
        """The first load: without a good bundle there is nothing to start with."""
        policy = _load(directory, pod, None)
        return policy if isinstance(policy, list) else cls(directory, pod, policy)

    def current(self) -> LoadedPolicy:
        return self._policy

    def doubt(self, why: str) -> bool:
        """From now on it is doubted that the pod is where it says ("": no more); whether that is news."""
        if why == self._pod.doubt:
            return False
        self._pod = replace(self._pod, doubt=why)
        self._policy = LoadedPolicy(self._policy.bundle, replace(self._policy.place, doubt=why))
        return True

    def reload(self) -> Loaded | Unchanged | list[Problem]:
        """Look again. Cheap (one ``stat`` a file) while nothing changed; else about 1 ms a document, without awaiting.

        While the directory stays bad, the very same list of problems is returned, so that it need be told only once.
        """
        seen = _fingerprint(self._directory)
        if seen is not None and seen == self._seen:
            return self._problems or Unchanged()
        found = _load(self._directory, self._pod, self._policy.bundle, self.pause)
        if isinstance(found, list):
            if found != self._problems:
                self._problems = found
            self._seen = seen
            return self._problems
        self._seen, self._problems = seen, []
        if found.digest == self._policy.digest:
            return Unchanged()
        replaced, self._policy = self._policy, found
        changes = changed(replaced.bundle, found.bundle)
        previous, tenants = replaced.digest, list(replaced.bundle.tenants.values())
        del replaced
        # Ten thousand at once take 20 ms to be freed, during which no call goes on: here they are freed one by one.
        while tenants:
            del tenants[-PIECE:]
            self.pause()
        return Loaded(found, previous, changes)


def changed(old: Bundle, new: Bundle) -> str:
    """``tenants: +birch ~acme -cobalt; files: ~plans.yaml``: added, changed, removed; at most 20 of each are named."""
    tenants = _differing({t.document: t.name for t in old.tenants.values()}, old, new)
    tenants |= _differing({t.document: t.name for t in new.tenants.values()}, old, new)
    documents = {each.document for bundle in (old, new) for each in bundle.tenants.values()}
    others = {name: name for name in {*old.files, *new.files} if name not in documents}
    parts = (("tenants", tenants), ("files", _differing(others, old, new)))
    return "; ".join(f"{what}: {_told(found)}" for what, found in parts if found)


def _differing(names: Mapping[str, str], old: Bundle, new: Bundle) -> dict[str, str]:
    """Name → ``+`` added, ``-`` removed, ``~`` changed; ``names`` are by file."""
    marks = {}
    for file, name in names.items():
        before, after = old.files.get(file), new.files.get(file)
        if before != after:
            marks[name] = "+" if before is None else "-" if after is None else "~"
    return marks


def _told(marks: Mapping[str, str]) -> str:
    names = [f"{mark}{name}" for name, mark in sorted(marks.items())]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return " ".join(names[:NAMED]) + more


def _load(
    directory: Path, pod: Pod, previous: Bundle | None, pause: Callable[[], None] = lambda: None
) -> LoadedPolicy | list[Problem]:
    """Read until the directory was the same before and after, so that half an edit is never taken for a bundle."""
    for _ in range(READ_ATTEMPTS):
        before = _fingerprint(directory)
        files = read_files(directory)
        if before == _fingerprint(directory):
            break
    else:
        return [Problem(str(directory), 1, 1, "", "changes faster than it can be read")]
    bundle = files if isinstance(files, list) else compile_bundle(files, previous, pause)
    if isinstance(bundle, list):
        return bundle
    place = bundle.place(pod.region, pod.storage_jurisdiction, pod.telemetry_jurisdiction)
    return place if isinstance(place, list) else LoadedPolicy(bundle, replace(place, doubt=pod.doubt))


def _fingerprint(directory: Path) -> Fingerprint | None:
    try:
        return fingerprint(directory)
    except OSError:
        return None
