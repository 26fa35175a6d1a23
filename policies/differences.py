"""What two bundles grant and ask otherwise beside their verdicts: each term by its name, for whom and from when."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Final

from msgspec import Struct, structs
from pydantic import BaseModel

from policies import limits as limits_module
from policies.bundle import Bundle
from policies.document import PlansDoc
from policies.guards import Guard
from policies.looked import tree_of
from policies.residency import Rules
from policies.tenant import Grant, KeyRule, Period, Tenant
from policies.validating import validate
from policies.yamlfile import Document, parse
from sidecar.core.model import Limits, Redaction, RequestRate

__all__ = ["Difference", "differences"]

# Names as the documents have them, where a value calls it otherwise.
_NAMES: Final[Mapping[str, str]] = {
    "tokens_per_minute": "tokens.per_minute", "kv_bytes": "kv_memory", "tensor_bytes": "tensor_memory",
    "queue_timeout_us": "queue_timeout (µs)", "compute_per_minute": "compute (ms a minute)",
    "expected": "tokens.reserve expected", "queue_ns": "on_limit queue (ns)", "retention_days": "retention (days)",
    "stops_ns": "on_cancel.stops_within (ns)", "within_ns": "within (ns)", "nbytes": "bytes",
}  # fmt: skip
_QUANTITIES: Final = (
    "requests", "tokens.per_minute", "concurrency", "kv_memory", "tensor_memory", "compute (ms a minute)",
)  # fmt: skip
_Both = Callable[[float], tuple[Limits | None, Limits | None]]  # what is limited at a moment, before and after
_Leaves = dict[str, tuple[object, str]]  # by name: what is compared, and how it is told


@dataclass(frozen=True, slots=True)
class Difference:
    """One term that isn't the same. ``subject``: whose (``tenant acme``, ``tenant acme, key ci``, ``plan gold``, …).

    ``begins`` and ``ends`` (seconds since the UNIX epoch): where only for a time; None: from now, and for good.
    ``old`` and ``new`` are as told to people; "" is nothing at all.
    """

    subject: str
    name: str
    old: str
    new: str
    begins: float | None = None
    ends: float | None = None


def differences(old: Bundle, new: Bundle, at: float) -> Iterator[Difference]:
    """From ``at`` (seconds since the UNIX epoch) on; what was only before that isn't told."""
    yield from _between("bundle", _of_bundle(old), _of_bundle(new))
    plans = _plans(old), _plans(new)
    for name in sorted({*plans[0], *plans[1]}):
        yield from _either(f"plan {name}", *(each.get(name) for each in plans))
    for name in sorted({*old.models, *new.models}):
        yield from _either(f"model {name}", *(_of_model(each, name) for each in (old, new)))
    for name in sorted({*old.tenants, *new.tenants}):
        before, after = old.tenants.get(name), new.tenants.get(name)
        subject = f"tenant {name}"
        if before is None or after is None:
            yield from _either(subject, *(None if each is None else {} for each in (before, after)))
        elif before is not after:  # one that is taken over of an earlier compilation is the same
            yield from _between(subject, _of_tenant(before), _of_tenant(after))
            yield from _over_time(subject, before, after, at)
            yield from _of_keys(subject, before, after, at)


def _either(subject: str, old: _Leaves | None, new: _Leaves | None) -> Iterator[Difference]:
    """One that only one of them has is told as a whole."""
    if old is not None and new is not None:
        yield from _between(subject, old, new)
    elif old is not None or new is not None:
        yield Difference(subject, "", "" if old is None else "there", "" if new is None else "there")


def _between(subject: str, old: _Leaves, new: _Leaves) -> Iterator[Difference]:
    for name in dict.fromkeys((*old, *new)):
        before, after = (side.get(name) or _absent(name) for side in (old, new))
        if before[0] != after[0]:
            yield Difference(subject, name, before[1], after[1])


def _absent(name: str) -> tuple[None, str]:
    """What a term that isn't there is told as: no limit, or else nothing, or the default of such a term."""
    _, told = _DEFAULTS.get(name, (None, ""))
    return None, "unlimited" if name.endswith(_QUANTITIES) else told


# --- what there is of each ----------------------------------------------------------------------------------------


def _of_bundle(bundle: Bundle) -> _Leaves:
    found: _Leaves = {f"regions.{name}": (area, area) for name, area in bundle.regions.items()}
    found |= {f"classes.{name}": (name, "there") for name in bundle.classes or ()}
    for id_, statement in bundle.access.statements.items():
        found[f"access {id_}"] = (tree_of(statement.text), _flat(statement.text))
    for id_, rule in (bundle.rules.rules if bundle.rules is not None else {}).items():
        found[f"guards {id_}"] = (tree_of(rule.statement.text), _flat(rule.statement.text))
    return found


def _flat(text: str) -> str:
    return " ".join(text.split())


def _plans(bundle: Bundle) -> dict[str, _Leaves]:
    document = parse(bundle.files["plans.yaml"], "plans.yaml")
    assert isinstance(document, Document), "the bundle was compiled of it"
    found = validate(PlansDoc, document)
    assert isinstance(found, PlansDoc)
    return {
        name: {**_limits(limits_module.resolve(plan, [])), **dict(_leaves("aliases", plan.aliases))}
        for name, plan in found.root.items()
    }


def _of_model(bundle: Bundle, name: str) -> _Leaves | None:
    profile = bundle.models.get(name)
    if profile is None:
        return None
    return dict(_leaves("", profile)) | dict(_leaves("prefix_cache", bundle.prefix_caches.get(name)))


def _of_tenant(tenant: Tenant) -> _Leaves:
    found: _Leaves = {"plan": (tenant.plan, tenant.plan)}
    found["status"] = (tenant.active, "active" if tenant.active else "suspended")
    found |= _period(tenant.period)
    found |= _grants(tenant.grants)
    found |= dict(_leaves("loras", tenant.loras))
    found |= _rules("residency", tenant.residency.own)
    for name, rules in tenant.residency.classes.items():
        found[f"residency.classes.{name}"] = (name, "there")
        found |= _rules(f"residency.classes.{name}", rules)
    found |= dict(_leaves("audit", tenant.audit))
    found |= dict(_leaves("audit.classes", tenant.audit_classes))
    found |= dict(_leaves("aliases", tenant.aliases))
    for guard in tenant.guards.guards if tenant.guards is not None else ():
        found[f"guards.{guard.name}"] = (guard, _guard(guard))
    return found | dict(_leaves("hold_back", tenant.hold))


def _rules(name: str, rules: Rules) -> _Leaves:
    found = {field: frozenset(getattr(rules, field) or ()) for field in ("processing", "storage", "telemetry")}
    leaves: _Leaves = {f"{name}.{field}": (each, _told(each) or "nowhere") for field, each in found.items()}
    if rules.telemetry is None:
        leaves[f"{name}.telemetry"] = ("withheld", "withheld")
    if rules.records is not None:  # in order: the first that a pod has a database in keeps them
        leaves[f"{name}.records"] = (rules.records, ", ".join(rules.records))
    return leaves


def _guard(guard: Guard) -> str:
    told = [f"{name} {text}" for name, (_, text) in _leaves("", guard) if name not in ("name", "on", "deny", "shadow")]
    does = ("deny" if guard.deny else "flag") + (" in shadow" if guard.shadow else "")
    return f"on {guard.on}: {'; '.join(told)}: {does}"


def _period(period: Period) -> _Leaves:
    edges = {"from": period.begins, "until": period.ends}
    return {name: (edge, _moment(edge)) for name, edge in edges.items() if math.isfinite(edge)}


def _grants(grants: tuple[Grant, ...]) -> _Leaves:
    """By the models' names or globs; in what order they stand makes no difference."""
    by_model: dict[str, list[Grant]] = {}
    for grant in grants:
        by_model.setdefault(grant.model, []).append(grant)
    return {f"models.{model}": (frozenset(map(_grant, each)), "; ".join(sorted(set(map(_grant, each)))))
            for model, each in by_model.items()}  # fmt: skip


def _grant(grant: Grant) -> str:
    dates = [f"{name} {told}" for name, (_, told) in _period(grant.period).items()]
    return " ".join(dates or ["for good"]) + (" in shadow" if grant.shadow else "")


def _limits(limits: Limits) -> _Leaves:
    """What is limited, or said beside; of the defaults nothing."""
    found = dict(_leaves("", structs.replace(limits, models=(), per_key=None)))
    found = {name: leaf for name, leaf in found.items() if leaf != _DEFAULTS.get(name)}
    inner = {f"per_model.{pattern}": each for pattern, each in limits.models}
    if limits.per_key is not None:
        inner["per_key"] = limits.per_key
    for place, each in inner.items():
        found[place] = (True, "there")
        found |= {f"{place}.{name}": leaf for name, leaf in _limits(each).items()}
    return found


# --- limits, which have their dates -------------------------------------------------------------------------------


def _over_time(subject: str, old: Tenant, new: Tenant, at: float) -> Iterator[Difference]:
    dates = {those.begins for tenant in (old, new) for those in tenant.later}
    yield from _timeline(subject, dates, at, lambda when: (old.limits_at(when), new.limits_at(when)))


def _of_keys(subject: str, old: Tenant, new: Tenant, at: float) -> Iterator[Difference]:
    before, after = old.keys or {}, new.keys or {}
    for name in sorted({*before, *after}):
        keys = before.get(name), after.get(name)
        whose = f"{subject}, key {name}"
        yield from _either(whose, *(None if key is None else _of_key(key) for key in keys))
        one, other = keys
        if one is not None and other is not None:
            dates = {those.begins for key in (one, other) for those in key.limits}
            yield from _timeline(whose, dates, at, _both(one, other))


def _both(old: KeyRule, new: KeyRule) -> _Both:
    return lambda when: (old.limits_at(when), new.limits_at(when))


def _of_key(key: KeyRule) -> _Leaves:
    found = _period(key.period)
    if key.grants is not None:
        found["models"] = (True, "narrowed")
        found |= _grants(key.grants)
    return found | dict(_leaves("data_class", key.data_class or None))


def _timeline(subject: str, dates: set[float], at: float, both: _Both) -> Iterator[Difference]:
    """What is limited otherwise, for as long as it is."""
    open_: dict[str, Difference] = {}
    for moment in (at, *sorted(date for date in dates if date > at)):
        old, new = ({} if each is None else _limits(each) for each in both(moment))
        now = {each.name: each for each in _between(subject, old, new)}
        for name, told in list(open_.items()):
            found = now.get(name)
            if found is None or (found.old, found.new) != (told.old, told.new):
                yield _until(open_.pop(name), moment)
        for name, found in now.items():
            open_.setdefault(name, _from(found, moment, at))
    yield from open_.values()


def _until(told: Difference, moment: float) -> Difference:
    return Difference(told.subject, told.name, told.old, told.new, told.begins, moment)


def _from(told: Difference, moment: float, at: float) -> Difference:
    return Difference(told.subject, told.name, told.old, told.new, None if moment == at else moment)


# --- any value, leaf by leaf --------------------------------------------------------------------------------------


def _leaves(name: str, value: object) -> Iterator[tuple[str, tuple[object, str]]]:
    """Whatever a value has, so that a field that is new to it is told as well."""
    parts = _parts(value)
    if parts is not None:
        for part, each in parts.items():
            yield from _leaves(_under(name, part), each)
    elif value is not None and value not in ((), frozenset()):
        yield name, (value, _told(value))


def _parts(value: object) -> Mapping[str, object] | None:
    """What a value is made of, by name; None: it is told as a whole."""
    names: Iterable[str] = ()
    match value:
        case RequestRate() | Redaction():
            pass
        case Mapping():
            return value
        case tuple() if value and all(isinstance(each, Redaction) for each in value):
            return {each.kind: each for each in value}
        case Struct():
            names = value.__struct_fields__
        case BaseModel():
            names = type(value).model_fields
        case _ if is_dataclass(value):
            names = [each.name for each in fields(value)]
    return {name: getattr(value, name) for name in names} if names else None


def _under(name: str, field: str) -> str:
    field = _NAMES.get(field, field)
    return f"{name}.{field}" if name else field


def _told(value: object) -> str:
    match value:
        case bool():
            told = "yes" if value else "no"
        case Enum():
            told = str(value.value)
        case RequestRate():
            told = f"{value.rate:g}/s, burst {value.burst}"
        case Redaction():
            more = [f"pattern {value.pattern}"] if value.pattern else []
            more += [f"regions {', '.join(value.regions)}"] if value.regions else []
            told = "; ".join([value.by, *more])
        case frozenset():
            told = ", ".join(sorted(map(_told, value)))
        case tuple():
            told = ", ".join(map(_told, value))
        case float():
            told = f"{value:g}"
        case _:
            told = str(value)
    return told


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


_DEFAULTS: Final = dict(_leaves("", Limits()))
