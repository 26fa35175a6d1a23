"""What changes between two bundles: every question of a grid, and of their test cases, put to both."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from policies.bundle import Bundle, Case
from policies.explain import Asked, asked_of, question
from policies.policy import LoadedPolicy
from policies.residency import Place
from policies.tenant import Tenant
from sidecar.core.model import Action, Denial

__all__ = ["Answer", "Change", "Comparison", "compare", "grid"]

MAX_MOMENTS: Final = 16  # dates after the first moment that are looked at
NO_REGION: Final = "REGION_UNKNOWN"  # beside the reasons: a sidecar there would not take the bundle
_DAY: Final = 86400.0
_LITERAL: Final = re.compile(r'\bip\("([0-9a-fA-F.:]+)(?:/[0-9]+)?"\)')
_NAMED: Final = re.compile(r'\bPrincipal::"([^"/]+)/([^"]+)"')
_OUTSIDE: Final = "192.0.2.1"  # TEST-NET-1 (RFC 5737): in no network of anybody's


@dataclass(frozen=True, slots=True)
class Answer:
    """A verdict as its caller meets it: ``allow`` or a reason; ``rule`` and ``shadow`` (a reason) come with it."""

    verdict: str
    rule: str = ""
    shadow: str = ""


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

    def changes(self) -> Iterator[Change]:
        """Cases first, then the grid, each question once."""
        sides = _Side(self.old), _Side(self.new)
        cases = {asked_of(case.case, self.at): f"{case.file}:{case.line}" for case in self._cases()}
        of_grid = ((each, "") for each in grid(self.old, self.new, self.at) if each not in cases)
        for asked, case in itertools.chain(cases.items(), of_grid):
            self.asked += 1
            old, new = (side.answer(asked) for side in sides)
            if old.verdict != new.verdict:
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
        shadow = found.would_refuse
        return Answer("allow", found.rule, "" if shadow is None else shadow.reason)


# --- the grid -----------------------------------------------------------------------------------------------------


def grid(old: Bundle, new: Bundle, at: float) -> Iterator[Asked]:
    """Principals × models × actions × regions × data classes, and × addresses, hours and dates where those decide.

    Tenants about which nothing can have changed are left out.
    """
    same = old.regions == new.regions and old.models == new.models and _texts(old) == _texts(new)
    for name in sorted({*old.tenants, *new.tenants}):
        before, after = old.tenants.get(name), new.tenants.get(name)
        if not (same and before == after):
            yield from _of_tenant(old, new, [each for each in (before, after) if each is not None], at)


def _texts(bundle: Bundle) -> list[tuple[str, str]]:
    return [(name, statement.text) for name, statement in bundle.access.statements.items()]


def _of_tenant(old: Bundle, new: Bundle, sides: list[Tenant], at: float) -> Iterator[Asked]:
    bundles = (old, new)
    mentions = old.access.mentions | new.access.mentions
    regions = sorted({*old.regions, *new.regions})
    classes = ["", *sorted({name for side in sides for name in side.residency.classes})]
    moments = _moments(sides, mentions, at)
    sources = _sources(bundles) if "source" in mentions else [""]
    whos = list(_whos(bundles, sides, mentions))
    # Moments go outermost: what a policy remembers holds for one at a time.
    for moment, who, (action, model), region, data_class, source in itertools.product(
        moments, whos, _asks(bundles, sides), regions, classes, sources
    ):
        if who.roles & _MAY[action]:  # else the method table refuses it before any bundle is asked
            yield replace(
                who, model=model, action=action, region=region, data_class=data_class, source=source, at=moment
            )


# Of the method table (sidecar.triton.methods): whose methods of each kind some are.
_MAY: Final = {
    Action.INFER: frozenset({"tenant"}),
    Action.METADATA: frozenset({"tenant", "operator", "admin"}),
    Action.MANAGE: frozenset({"operator", "admin"}),
}


def _whos(bundles: Iterable[Bundle], sides: list[Tenant], mentions: frozenset[str]) -> Iterator[Asked]:
    base = Asked(tenant=sides[0].name, model="", region="")
    keys = {key for side in sides for key in side.keys or ()}
    names = {
        name
        for bundle in bundles
        for statement in bundle.access.statements.values()
        for tenant, name in _NAMED.findall(statement.text)
        if tenant == base.tenant
    }
    roles = [{"tenant"}, {"operator"}, {"admin"}, {"tenant", "operator"}] if "roles" in mentions else [
        {"tenant"}, {"operator"},
    ]  # fmt: skip
    for role in roles:
        yield replace(base, roles=frozenset(role))
        yield from (replace(base, principal=name, roles=frozenset(role)) for name in sorted(names))
        # Another key than those named stands for all the rest, where the kind of a credential matters.
        for key in sorted(keys | ({"(another key)"} if keys or "kind" in mentions else set())):
            yield replace(base, key=key, roles=frozenset(role))


def _asks(bundles: Iterable[Bundle], sides: list[Tenant]) -> list[tuple[Action, str]]:
    models = {model for bundle in bundles for model in bundle.models}
    for side in sides:
        of_keys = [grant for rule in (side.keys or {}).values() for grant in rule.grants or ()]
        models |= {grant.model.replace("*", "x").replace("?", "x") for grant in (*side.grants, *of_keys)}
        models |= set(side.aliases)
    actions = (Action.INFER, Action.METADATA, Action.MANAGE)
    asks = [(action, model) for model in sorted(models | {"(another model)"}) for action in actions]
    return [*asks, (Action.METADATA, ""), (Action.MANAGE, "")]


def _moments(sides: list[Tenant], mentions: frozenset[str], at: float) -> list[float]:
    """``at``, each date still to come, and every hour of a day or day of a week that policies look at."""
    found = {at, *sorted(edge for side in sides for edge in side.edges() if edge > at)[:MAX_MOMENTS]}
    if mentions & {"hour", "minute"}:
        step = 60.0 if "minute" in mentions else 3600.0
        found |= {at // _DAY * _DAY + n * step for n in range(round(_DAY / step))}
    if "weekday" in mentions:
        found |= {moment + day * _DAY for moment in list(found) for day in range(7)}
    return sorted(found)


def _sources(bundles: Iterable[Bundle]) -> list[str]:
    literals = {
        address
        for bundle in bundles
        for statement in bundle.access.statements.values()
        for address in _LITERAL.findall(statement.text)
    }
    return ["", _OUTSIDE, *sorted(literals)]
