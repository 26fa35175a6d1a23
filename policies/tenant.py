"""What a bundle says of one tenant, compiled: whom it is, what it may call and when, under which limits and rules.

The values are unknown to the garbage collector (``gc=False``; none can be part of a cycle): a collection that walks ten
thousand tenants is a pause for every call.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

from msgspec import Struct, field, structs

from policies import demands, limits
from policies.document import (
    AuditClassDoc,
    GrantDoc,
    HoldBackDoc,
    KeyDoc,
    LimitsDoc,
    PlanDoc,
    ResidencyDoc,
    TenantDoc,
    TensorsDoc,
)
from policies.guards import Guards, compile_guards
from policies.residency import Residency, Rules
from policies.watching import Hold
from sidecar.core.model import AuditLevel, AuditRule, Durability, Limits, OnPressure, Redaction, TensorRule

__all__ = ["ALWAYS", "Grant", "KeyRule", "Period", "Tenant", "compile_tenant", "covering"]

_STRICTEST: Final = (Durability.STRICT, None, Durability.BATCH)  # None: the sidecar's own mode


class Period(Struct, frozen=True, gc=False):
    """From ``begins`` (included) until ``ends`` (not included), in seconds since the UNIX epoch."""

    begins: float = -math.inf
    ends: float = math.inf

    def covers(self, at: float) -> bool:
        return self.begins <= at < self.ends

    def edges(self) -> Iterator[float]:
        """The moments at which it begins and ends, where it does."""
        yield from (edge for edge in (self.begins, self.ends) if math.isfinite(edge))


ALWAYS = Period()


class Grant(Struct, frozen=True, gc=False):
    """A model, or the models of a glob (* and ?). ``shadow``: it holds, and records say that it is to end."""

    model: str
    period: Period = ALWAYS
    shadow: bool = False

    def names(self, model: str) -> bool:
        """At whatever time."""
        return self.model == model or fnmatchcase(model, self.model)


class From(Struct, frozen=True, gc=False):
    """Limits that hold from a moment on. No tuple: the collector forgets a tuple only if it holds no other."""

    begins: float
    limits: Limits


class KeyRule(Struct, frozen=True, gc=False):
    """What the bundle narrows one API key to. ``grants`` None: all of the tenant's; ``data_class`` "": as sent."""

    period: Period
    grants: tuple[Grant, ...] | None
    data_class: str
    limits: tuple[From, ...] = ()  # each from its moment on; none: the tenant's ``per_key``

    def limits_at(self, at: float) -> Limits | None:
        """Its own limits, the same object for the same; None: it has none."""
        return next((those.limits for those in reversed(self.limits) if those.begins <= at), None)


class Tenant(Struct, frozen=True, gc=False):
    """What a bundle says of one tenant; ``document`` is its file, for rules.

    ``limits`` are those before any date; from each moment of ``later`` on, its own.
    """

    name: str
    document: str
    plan: str
    active: bool
    grants: tuple[Grant, ...]
    limits: Limits
    residency: Residency
    audit: AuditRule
    period: Period = ALWAYS
    later: tuple[From, ...] = ()
    overrides: tuple[Period, ...] = ()  # when each entry of its own limits is in force
    loras: frozenset[str] = frozenset()  # adapters it may use, by name or id
    keys: Mapping[str, KeyRule] | None = None  # by the key's name; None: none is narrowed
    guards: Guards | None = None
    hold: Hold | None = None  # how far its outputs stay behind
    audit_classes: Mapping[str, AuditClassDoc] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)  # its plan's: the name asked for → the model that answers

    @property
    def models(self) -> tuple[str, ...]:
        """The globs of the grants, at whatever time."""
        return tuple(grant.model for grant in self.grants)

    def limits_at(self, at: float) -> Limits:
        """The same object for the same limits, so that quotas see no change where there is none."""
        found = self.limits
        for those in self.later:
            if at < those.begins:
                break
            found = those.limits
        return found

    def audit_of(self, classes: Iterable[str], model: str) -> AuditRule:
        """How a call of these data classes to this model is recorded: by the strictest word on each."""
        rule = self._of_classes(classes)
        if rule.tensors is None or any(fnmatchcase(model, pattern) for pattern in rule.tensors.models):
            return rule
        return structs.replace(rule, tensors=None)

    def _of_classes(self, classes: Iterable[str]) -> AuditRule:
        own = [self.audit_classes[each] for each in classes if each in self.audit_classes]
        if not own:
            return self.audit
        durabilities = {self.audit.durability if each.durability is None else each.durability for each in own}
        durability = next(each for each in _STRICTEST if each in durabilities)
        words = {each.on_pressure or self.audit.on_pressure for each in own}
        on_pressure = OnPressure.REFUSE if OnPressure.REFUSE in words else OnPressure.SHED
        asked = {self.audit.copies if each.copies is None else copies_of(each.copies) for each in own}
        named = tuple(sorted({name for each in asked for name in each or ()}))
        return structs.replace(
            self.audit, durability=None if durability is None else Durability(durability), on_pressure=on_pressure,
            copies=named or (None if None in asked else ()),
            tensors=_least(self.audit.tensors, [each.tensors for each in own if each.tensors is not None]),
        )  # fmt: skip

    def edges(self) -> Iterator[float]:
        """Every moment at which an answer about this tenant may change."""
        yield from self.turns()
        yield from (those.begins for those in self.later)

    def turns(self) -> Iterator[float]:
        """Those of them at which whether it may call may change, not only how much."""
        yield from self.period.edges()
        rules = (self.keys or {}).values()
        for grant in (*self.grants, *(grant for rule in rules for grant in rule.grants or ())):
            yield from grant.period.edges()
        for rule in rules:
            yield from rule.period.edges()
            yield from (those.begins for those in rule.limits if math.isfinite(those.begins))


def copies_of(word: str) -> tuple[str, ...]:
    """What ``audit.copy`` asks for, as ``AuditRule.copies``."""
    match word:
        case "none":
            return ()
        case "required":
            return ("",)
        case _:
            return (word,)


def _least(tensors: TensorRule | None, told: Sequence[Literal["none"] | int]) -> TensorRule | None:
    """What classes leave of it; none can add to what the tenant keeps."""
    if tensors is None or "none" in told:
        return None
    return structs.replace(tensors, nbytes=min([tensors.nbytes, *(each for each in told if each != "none")]))


def covering(grants: Iterable[Grant], model: str, at: float) -> int | None:
    """The first grant in force that covers a model, by its index; one in shadow only where no other does."""
    shadow: int | None = None
    for index, grant in enumerate(grants):
        if grant.names(model) and grant.period.covers(at):
            if not grant.shadow:
                return index
            shadow = index if shadow is None else shadow
    return shadow


# --- compiling ----------------------------------------------------------------------------------------------------


def compile_tenant(name: str, doc: TenantDoc, plan: PlanDoc | None) -> Tenant:
    """``name`` is the document's; without a ``plan`` nothing is limited (its bundle is refused for that anyway)."""
    audit, hold = doc.audit, _hold(demands.hold_of(doc, plan))
    first, later = _timeline(doc, plan)
    return Tenant(
        name=doc.tenant,
        document=name,
        plan=doc.plan,
        active=doc.status == "active",
        grants=_grants(doc.models),
        limits=first,
        residency=_residency(doc.residency),
        audit=AuditRule(
            level=AuditLevel(audit.level),
            durability=None if audit.durability is None else Durability(audit.durability),
            retention_days=audit.retention,
            redact=tuple(
                Redaction(each.kind, each.by, each.pattern, each.regions) for each in demands.redactions_of(doc, plan)
            ),
            searchable=audit.searchable,
            two_people=audit.two_people,
            on_pressure=OnPressure(audit.on_pressure),
            copies=None if audit.copies is None else copies_of(audit.copies),
            tensors=_tensors(audit.tensors),
        ),
        audit_classes=audit.classes,
        period=_period(doc.begins, doc.ends),
        later=later,
        overrides=tuple(_period(written.begins, written.ends) for written in doc.limits),
        loras=frozenset(doc.loras),
        keys={key: _key(doc, rule, plan) for key, rule in doc.keys.items()} or None,
        aliases={} if plan is None else plan.aliases,
        guards=compile_guards(demands.guards_of(doc, plan), hold),
        hold=hold,
    )


def _tensors(doc: TensorsDoc | None) -> TensorRule | None:
    return None if doc is None else TensorRule(doc.keep, "inputs" in doc.of, "outputs" in doc.of, doc.models)


def _hold(doc: HoldBackDoc | None) -> Hold | None:
    return None if doc is None else Hold(doc.nbytes, round(doc.within * 1e9))


def _period(begins: float | None, ends: float | None) -> Period:
    if begins is None and ends is None:
        return ALWAYS
    return Period(-math.inf if begins is None else begins, math.inf if ends is None else ends)


def _grants(docs: Sequence[GrantDoc]) -> tuple[Grant, ...]:
    return tuple(Grant(doc.model, _period(doc.begins, doc.ends), doc.shadow) for doc in docs)


def _key(tenant: TenantDoc, doc: KeyDoc, plan: PlanDoc | None) -> KeyRule:
    grants = None if doc.models is None else _grants(doc.models)
    own, found = doc.limits, list[tuple[float, Limits]]()
    for start, in_force in _moments(tenant) if own is not None and plan is not None else ():
        assert plan is not None
        assert own is not None
        resolved = limits.of_key(plan, in_force, own)
        if not found or resolved != found[-1][1]:
            found.append((start, resolved))
    return KeyRule(_period(doc.begins, doc.ends), grants, doc.data_class or "", tuple(From(*each) for each in found))


def _moments(doc: TenantDoc) -> Iterator[tuple[float, list[LimitsDoc]]]:
    """From when on which of the tenant's exceptions are in force; the first is before any date."""
    periods = [_period(written.begins, written.ends) for written in doc.limits]
    for start in (-math.inf, *sorted({edge for period in periods for edge in period.edges()})):
        yield start, [written for written, period in zip(doc.limits, periods, strict=True) if period.covers(start)]


def _timeline(doc: TenantDoc, plan: PlanDoc | None) -> tuple[Limits, tuple[From, ...]]:
    """The limits before any date, and from which moment on others are. Of several in force the last wins."""
    if plan is None:
        return Limits(), ()
    resolved: list[tuple[float, Limits]] = []
    for start, in_force in _moments(doc):
        found = limits.resolve(plan, in_force)
        if not resolved or found != resolved[-1][1]:
            resolved.append((start, found))
    return resolved[0][1], tuple(From(*each) for each in resolved[1:])


def _residency(doc: ResidencyDoc) -> Residency:
    own = Rules(doc.processing, doc.storage, doc.telemetry, doc.records)
    classes = {}
    for name, narrowed in doc.classes.items():
        telemetry = narrowed.telemetry if "telemetry" in narrowed.model_fields_set else own.telemetry
        classes[name] = Rules(
            own.processing if narrowed.processing is None else narrowed.processing,
            own.storage if narrowed.storage is None else narrowed.storage,
            telemetry,
            narrowed.records,
        )
    return Residency(own, classes)
