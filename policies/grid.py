"""Every question whose answer may differ between two bundles: one for all that neither of them can tell apart.

Principals × models × actions or methods × regions × data classes, and × issuers, addresses, hours and dates where those
decide.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from policies.bundle import Bundle
from policies.explain import Asked, Kind
from policies.looked import Looked, looked_at
from policies.moments import time_of_day
from policies.names import apart, glob, literal
from policies.tenant import Tenant
from sidecar.core.model import Action

__all__ = ["METHODS", "OTHER", "grid"]

OTHER: Final = "(another)"  # whatever neither bundle names
_DAY: Final = 86400.0
_TENANT: Final = frozenset({"tenant"})
_STAFF: Final = frozenset({"operator", "admin"})
_EVERYONE: Final = _TENANT | _STAFF
_ADMIN: Final = frozenset({"admin"})


@dataclass(frozen=True, slots=True)
class _Row:
    """What of the method table (sidecar.triton.methods) a question needs; a test holds the two together."""

    name: str
    action: Action
    roles: frozenset[str]
    by_model: bool = False
    by_server: bool = False  # its message may name no model


METHODS: Final = (
    _Row("ModelInfer", Action.INFER, _TENANT, by_model=True),
    _Row("ModelStreamInfer", Action.INFER, _TENANT, by_model=True),
    _Row("ModelReady", Action.METADATA, _EVERYONE, by_model=True),
    _Row("ModelMetadata", Action.METADATA, _EVERYONE, by_model=True),
    _Row("ServerMetadata", Action.METADATA, _EVERYONE, by_server=True),
    _Row("ModelConfig", Action.MANAGE, _EVERYONE, by_model=True),
    _Row("ModelStatistics", Action.MANAGE, _EVERYONE, by_model=True, by_server=True),
    _Row("RepositoryIndex", Action.MANAGE, _EVERYONE, by_server=True),
    _Row("RepositoryModelLoad", Action.MANAGE, _ADMIN, by_model=True),
    _Row("RepositoryModelUnload", Action.MANAGE, _ADMIN, by_model=True),
    _Row("TraceSetting", Action.MANAGE, _ADMIN, by_model=True, by_server=True),
    _Row("LogSettings", Action.MANAGE, _ADMIN, by_server=True),
    _Row("ServerLive", Action.HEALTH, _EVERYONE, by_server=True),
)
# Where no policy looks at the method itself, one stands for all that are judged alike. What a manager's method shows a
# tenant of its own models is judged as their metadata.
_ALIKE: Final = (
    _Row("", Action.INFER, _TENANT, by_model=True),
    _Row("", Action.METADATA, _EVERYONE, by_model=True, by_server=True),
    _Row("", Action.MANAGE, _STAFF, by_model=True, by_server=True),
    _Row("", Action.HEALTH, _EVERYONE, by_server=True),
)


def grid(old: Bundle, new: Bundle, at: float) -> Iterator[Asked]:
    """Tenant by tenant, from ``at`` on; tenants about which nothing can have changed are left out.

    What is told from all else by being equal to another attribute of the same call is not found.
    """
    same = old.regions == new.regions and old.models == new.models and _texts(old) == _texts(new)
    looked = looked_at((old, new))
    for name in sorted({*old.tenants, *new.tenants}):
        before, after = old.tenants.get(name), new.tenants.get(name)
        if not (same and before == after):
            sides = [each for each in (before, after) if each is not None]
            yield from _OfTenant(old, new, sides, looked).questions(at)


def _texts(bundle: Bundle) -> list[tuple[str, str]]:
    return [(name, statement.text) for name, statement in bundle.access.statements.items()]


class _OfTenant:
    """One tenant's questions; ``sides``: what the bundles that have it say of it."""

    def __init__(self, old: Bundle, new: Bundle, sides: list[Tenant], looked: Looked) -> None:
        self._old, self._new, self._sides, self._looked = old, new, sides, looked

    def questions(self, at: float) -> Iterator[Asked]:
        places, classes, asks = list(self._places()), self._classes(), list(self._asks())
        whos = list(self._whos())
        # Moments go outermost: what a policy remembers holds for one at a time.
        for moment, who, (row, model), place, data_class, source in itertools.product(
            self._moments(at), whos, asks, places, classes, self._looked.addresses or ("",)
        ):
            if who.roles & row.roles:  # else the method table refuses it before any bundle is asked
                region, storage, telemetry = place
                yield replace(
                    who, model=model, action=row.action, method=row.name, region=region, storage=storage,
                    telemetry=telemetry, data_class=data_class, source=source, at=moment,
                )  # fmt: skip

    # --- who ----------------------------------------------------------------------------------------------------------

    def _whos(self) -> Iterator[Asked]:
        mentions = self._looked.mentions
        base = Asked(tenant=self._sides[0].name, model="", region="")
        keys = {key for side in self._sides for key in side.keys or ()}
        names = self._names() if "name" in mentions else [base.principal]
        issuers = apart(self._looked.texts["issuer"], OTHER) if "issuer" in mentions else [""]
        kinds: tuple[Kind, ...] = ("jwt", "certificate", "listener") if "kind" in mentions else ("jwt",)
        for roles in self._roles():
            for name, kind in itertools.product(names, kinds):
                for issuer in issuers if kind == "jwt" else [""]:
                    yield replace(base, principal=name, kind=kind, issuer=issuer, roles=roles)
            # Another key than those that are named stands for all the rest, where the kind of a credential matters.
            others = {OTHER} if keys or mentions & {"kind", "issuer"} else set()
            named = set(names) if others and "name" in mentions else set()
            for key in sorted((keys | others | named) - {base.principal}):
                yield replace(base, key=key, roles=roles)

    def _names(self) -> list[str]:
        own = self._sides[0].name + "/"
        named = [literal(each.removeprefix(own)) for each in self._looked.named("Principal") if each.startswith(own)]
        return apart([*self._looked.texts["name"], *named], "explain")

    def _roles(self) -> Iterator[frozenset[str]]:
        if "roles" not in self._looked.mentions:
            yield _TENANT
            yield frozenset({"operator"})  # judged as an admin is
            return
        for count in (1, 2, 3):
            yield from map(frozenset, itertools.combinations(sorted(_EVERYONE), count))

    # --- what ---------------------------------------------------------------------------------------------------------

    def _asks(self) -> Iterator[tuple[_Row, str]]:
        models = self._models()
        for row in METHODS if "method" in self._looked.mentions else _ALIKE:
            if row.by_server:
                yield row, ""
            if row.by_model:
                yield from ((row, model) for model in models)

    def _models(self) -> list[str]:
        """One of all that neither the tenant's list nor a key's, neither bundle's models nor a policy tells apart."""
        bundles = (self._old, self._new)
        exact = {model for bundle in bundles for model in bundle.models} | set(self._looked.named("Model"))
        grants = [grant for side in self._sides for grant in side.grants]
        for side in self._sides:
            exact |= set(side.aliases) | set(side.aliases.values())
            grants += (grant for rule in (side.keys or {}).values() for grant in rule.grants or ())
        patterns = {literal(model) for model in exact} | {glob(grant.model) for grant in grants}
        return apart(patterns, "(another_model)")

    def _classes(self) -> list[str]:
        declared: dict[str, list[bool]] = {}  # whether telemetry is withheld for it
        for side in self._sides:
            for name, rules in side.residency.classes.items():
                declared.setdefault(name, []).append(rules.telemetry is None)
        patterns = {literal(name) for name in declared} | self._looked.texts["data_class"]
        found = ["", *(name for name in apart(patterns, OTHER) if name)]
        # One class for which telemetry is withheld lifts what another says of where it may go.
        silent = [name for name, withheld in declared.items() if any(withheld)]
        pairs = {tuple(sorted((name, other))) for name in silent for other in declared if other != name}
        return found + [",".join(pair) for pair in sorted(pairs)]

    # --- where and when -----------------------------------------------------------------------------------------------

    def _places(self) -> Iterator[tuple[str, str | None, str | None]]:
        """Each region; where residency is another, also pods there whose database or collector is elsewhere."""
        old, new = self._old.regions, self._new.regions
        moved = len(self._sides) == 1 or self._sides[0].residency != self._sides[1].residency or old != new
        elsewhere = sorted(set(old.values()) & set(new.values())) if moved else []
        for region in sorted({*old, *new}):
            yield region, None, None
            for area in elsewhere:
                if area not in (old.get(region), new.get(region)):
                    yield region, area, None
                    yield region, None, area

    def _moments(self, at: float) -> list[float]:
        """In every stretch between two dates each time of day and day of a week that policies tell apart."""
        edges = [at, *sorted({edge for side in self._sides for edge in side.turns() if edge > at})]
        found: list[float] = []
        for begins, ends in zip(edges, [*edges[1:], float("inf")], strict=True):
            found.append(begins)
            found += (moment for moment in self._times(begins) if begins < moment < ends)
        return sorted(set(found))

    def _times(self, begins: float) -> Iterable[float]:
        """The first moment from ``begins`` on of each such time."""
        times = self._looked.times
        day = begins // _DAY * _DAY
        hours, minutes, weekdays = times["hour"], times["minute"], times["weekday"]
        if not (hours or minutes or weekdays):
            return
        # All of a week where the day of it counts; else today's times, and tomorrow's for those that are over.
        days = range(8) if weekdays else range(2)
        for number, hour, minute in itertools.product(days, hours or range(24 if minutes else 1), minutes or (0,)):
            moment = day + number * _DAY + hour * 3600 + minute * 60
            if weekdays and time_of_day(moment).weekday not in weekdays:
                continue
            if begins <= moment < begins + (7 if weekdays else 1) * _DAY:
                yield moment
