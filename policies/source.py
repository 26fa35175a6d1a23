"""Where the current bundle is had: swapped whole when the directory holds a good new one, kept when it doesn't."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from policies.bundle import Bundle
from policies.compact import shared
from policies.files import Fingerprint, fingerprint
from policies.piecemeal import let_go
from policies.policy import LoadedPolicy
from policies.reading import Compiled, Compiler, Failed, Here, compile_directory
from policies.yamlfile import Problem

__all__ = ["BundleSource", "Loaded", "Pod", "Unchanged"]

# Nanoseconds. File systems tell time by the kernel's tick (4 ms, some 10): what was changed within one may have been
# changed again in it, unseen.
SETTLED: Final = 50_000_000


@dataclass(frozen=True, slots=True)
class Pod:
    """Where a sidecar is configured to be; its jurisdiction is the bundle's to say. ``doubt``: why that is doubted."""

    region: str
    storage_jurisdiction: str
    telemetry_jurisdiction: str | None
    doubt: str = ""
    further: tuple[str, ...] = ()  # jurisdictions that it has a database in besides


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

    def __init__(self, directory: Path, pod: Pod, policy: LoadedPolicy, seen: Fingerprint | None = None) -> None:
        self.compiler: Compiler = Here()  # of a reload
        self.pause: Callable[[], None] = lambda: None  # called between two pieces of a reload: let others go first
        self._directory = directory
        self._pod = pod
        self._policy = policy
        self._seen = seen
        self._problems: list[Problem] = []

    @classmethod
    def open(cls, directory: Path, pod: Pod, at: float = 0.0) -> BundleSource | list[Problem]:
        """The first load, here and now: without a good bundle there is nothing to start with.

        ``at``: the moment at which its cases are asked, in seconds since the UNIX epoch.
        """
        seen = fingerprint(directory)
        bundle = compile_directory(directory, None, at)
        policy = bundle if isinstance(bundle, list) else _placed(shared(bundle), pod)
        return policy if isinstance(policy, list) else cls(directory, pod, policy, seen)

    def current(self) -> LoadedPolicy:
        return self._policy

    def doubt(self, why: str) -> bool:
        """From now on it is doubted that the pod is where it says ("": no more); whether that is news."""
        if why == self._pod.doubt:
            return False
        self._pod = replace(self._pod, doubt=why)
        self._policy = LoadedPolicy(self._policy.bundle, replace(self._policy.place, doubt=why))
        return True

    def stirred(self) -> bool:
        """Whether anything in the directory is other than at the last reload: one ``stat`` a file."""
        return fingerprint(self._directory) != self._seen

    def reload(self, at: float = 0.0) -> Loaded | Unchanged | Failed | list[Problem]:
        """Look again. Cheap (one ``stat`` a file) while nothing changed; else as long as the compiler takes.

        While the directory stays bad, the very same list of problems is returned, so that it need be told only once.
        ``Failed``: it could not be judged, and stays stirred. ``at`` (seconds since the UNIX epoch) is also the moment
        of the look: a directory that was changed just before it stays stirred too, and is looked at once more.
        """
        seen = fingerprint(self._directory)
        if seen == self._seen:
            return self._problems or Unchanged()
        found = self.compiler.compile(self._directory, self._policy.bundle, at)
        if isinstance(found, Failed):
            return found
        policy = _placed(found.bundle, self._pod) if isinstance(found, Compiled) else found
        self._seen = None if abs(at * 1e9 - seen.newest) < SETTLED else seen
        if isinstance(policy, list):
            return self._bad(policy)
        self._problems = []
        if policy.digest == self._policy.digest:
            return Unchanged()
        assert isinstance(found, Compiled)
        return Loaded(policy, self._swap(policy), found.changes)

    def _bad(self, problems: list[Problem]) -> list[Problem]:
        if problems != self._problems:
            self._problems = problems
        return self._problems

    def _swap(self, policy: LoadedPolicy) -> str:
        """Let ``policy`` decide; the digest of the one before.

        That one is freed in pieces, so nobody may hold it as a whole, no frame either: its tenants would then be freed
        at once with the frame, a pause of 12 ms.
        """
        replaced, self._policy = self._policy, policy
        previous = replaced.digest
        tenants, hashes = dict(replaced.bundle.tenants), dict(replaced.bundle.hashes)  # which the collector forgets
        replaced.forget(self.pause)
        del replaced
        let_go(self.pause, tenants, hashes)
        return previous


def _placed(bundle: Bundle, pod: Pod) -> LoadedPolicy | list[Problem]:
    place = bundle.place(pod.region, pod.storage_jurisdiction, pod.telemetry_jurisdiction, pod.further)
    return place if isinstance(place, list) else LoadedPolicy(bundle, replace(place, doubt=pod.doubt))
