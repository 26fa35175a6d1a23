"""What changes between two bundles: every question of a grid, and of their test cases, put to both."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from policies.bundle import Bundle, Case
from policies.cases import asked_of
from policies.differences import Difference, differences
from policies.explain import Asked, Explanation, question, with_content
from policies.grid import grid
from policies.policy import LoadedPolicy
from policies.residency import Place
from sidecar.core.model import Denial

__all__ = ["NO_REGION", "Answer", "Change", "Comparison", "compare"]

NO_REGION: Final = "REGION_UNKNOWN"  # beside the reasons: a sidecar there would not take the bundle


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict as its caller meets it: ``allow``, ``cut`` or a reason, with its ``rule`` and ``shadow`` (a reason).

    ``found``: of a case's content, what guards find in it and what it is stored without.
    """

    verdict: str
    rule: str = ""
    shadow: str = ""
    found: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One question that the two bundles answer differently. ``case``: the test case it is ("": of the grid)."""

    asked: Asked
    old: Answer
    new: Answer
    case: str = ""


@dataclass(slots=True)
class Comparison:
    """The changes are found as they are iterated over; ``asked`` counts the questions put so far."""

    old: Bundle
    new: Bundle
    at: float
    asked: int = 0

    def terms(self) -> Iterator[Difference]:
        """What isn't a verdict: limits, guards, audit, dates, models and their like."""
        return differences(self.old, self.new, self.at)

    def changes(self) -> Iterator[Change]:
        """Cases first, then the grid, each question once."""
        sides = _Side(self.old), _Side(self.new)
        cases = {asked_of(case.case, self.at): f"{case.file}:{case.line}" for case in self._cases()}
        of_grid = ((each, "") for each in grid(self.old, self.new, self.at) if each not in cases)
        for asked, case in itertools.chain(cases.items(), of_grid):
            self.asked += 1
            old, new = (side.answer(asked) for side in sides)
            if (old.verdict, old.found) != (new.verdict, new.found):
                yield Change(asked, old, new, case)

    def _cases(self) -> Iterator[Case]:
        yield from self.old.cases
        yield from self.new.cases


def compare(old: Bundle, new: Bundle, at: float) -> Comparison:
    """``at``: the moment the grid begins with, in seconds since the UNIX epoch."""
    return Comparison(old, new, at)


class _Side:
    """One of the two bundles, at every place it is asked about."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._policies: dict[Place, LoadedPolicy] = {}

    def answer(self, asked: Asked) -> Answer:
        own = self._bundle.regions.get(asked.region)
        known = set(self._bundle.regions.values())
        if own is None or not {asked.storage or own, asked.telemetry or own} <= known:
            return Answer(NO_REGION)
        place = Place(asked.region, own, asked.storage or own, asked.telemetry or own)
        policy = self._policies.get(place)
        if policy is None:
            policy = self._policies[place] = LoadedPolicy(self._bundle, place)
        found = policy.authorise(*question(asked), asked.at)
        if isinstance(found, Denial):
            return Answer(found.reason, found.rule)
        if asked.content is not None:
            return _of_content(with_content(Explanation(found, (), self._bundle.digest), asked.content))
        shadow = found.would_refuse
        return Answer("allow", found.rule, "" if shadow is None else shadow.reason)


def _of_content(explained: Explanation) -> Answer:
    judged = explained.judged
    assert judged is not None
    found = [f"guards.{each.guard} {each.verdict} ({each.enforced})" for each in judged.findings]
    found += (f"redacted {count} {kind}" for kind, count in judged.redacted.items())
    shadow = explained.shadow
    return Answer(
        explained.answer, explained.verdict.rule, "" if shadow is None else shadow.reason, tuple(sorted(found))
    )
