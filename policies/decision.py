"""The decision itself: whether a bundle, at one pod, lets a principal make a call, and by which rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Final, Literal

from msgspec import structs

from policies import residency
from policies.access import Answer, Question
from policies.bundle import Bundle
from policies.document import DATA_CLASS_LENGTH, MODEL_NAME_LENGTH
from policies.guards import Guards
from policies.limits import narrower
from policies.memory import address
from policies.moments import time_of_day
from policies.residency import Place
from policies.tenant import KeyRule, Tenant, covering
from sidecar.core.model import STAFF, Action, Call, Denial, Head, Method, ModelProfile, Principal, Verdict
from sidecar.core.reasons import Reason

__all__ = ["Decider", "Step", "classes_of"]

MAX_ELSEWHERE: Final = 64  # regions looked at to tell where a refused call may go

_Name = Literal[
    "tenant", "alias", "status", "model", "access", "residency", "content", "prompt", "output", "redaction"
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a decision, as ``policy explain`` tells it. ``shadow``: it would have refused, and did not."""

    step: _Name
    outcome: Literal["pass", "deny", "skip", "shadow"]
    rule: str = ""
    detail: str = ""
    rules: tuple[str, ...] = ()  # all that determined it, where several may


@dataclass(frozen=True, slots=True)
class _Shadow:
    """A check that passes, though a rule in shadow would have refused."""

    step: Step
    denial: Denial


@dataclass(frozen=True, slots=True)
class _Forbidden:
    """A refusal by policies: by all of these, of which it names the first."""

    denial: Denial
    rules: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    """One question to the bundle: everything that the answer may depend on."""

    principal: Principal
    tenant: Tenant
    key: KeyRule | None
    action: Action  # a model's health is its metadata
    method: str
    by_model: bool
    model: str  # that answers
    classes: tuple[str, ...]
    source: str
    at: float
    place: Place
    whole: bool  # the method shows the caller more than its tenant may use
    alias: str = ""  # what the caller calls it, where its plan gives it another model for that name


class Decider:
    """One bundle at one place. Stateless; nothing is remembered here.

    The order: tenant known → active, and its dates → model granted to it (or by a Cedar permit) and to its key → no
    Cedar forbid → residency. Health of the server asks only for a known, active tenant: it carries nothing of
    anybody's. Whom a method shows the whole server is not narrowed by the tenant's model list, because it acts on the
    server; by their key's list, by Cedar and by residency they are.
    """

    def __init__(self, bundle: Bundle, place: Place) -> None:
        self._bundle = bundle
        self._place = place
        self._mentions = bundle.access.mentions

    def profile(self, model: str) -> ModelProfile:
        """What models.yaml says, or a generic profile."""
        return self._bundle.models.get(model) or ModelProfile(name=model, stated=False)

    def shows(self, principal: Principal, tenant: Tenant, model: str, at: float) -> bool:
        """Whether a model is there at all for a principal of ``tenant``; staff: all, within the key's list."""
        whole = not STAFF.isdisjoint(principal.roles)
        target, alias = _target(tenant, model, whole=whole)
        asked = _Asked(
            principal, tenant, _key_rule(tenant, principal), Action.METADATA, "ModelMetadata", by_model=True,
            model=target, classes=(), source="", at=at, place=self._place, whole=whole, alias=alias,
        )  # fmt: skip
        return not isinstance(self._model(asked), Denial)

    def decide(self, principal: Principal, call: Call, head: Head, at: float, steps: list[Step]) -> Verdict | Denial:
        tenant = self._bundle.tenants.get(principal.tenant)
        if tenant is None:
            return _denied(steps, "tenant", Denial(Reason.TENANT_UNKNOWN, rule="tenants"))
        steps.append(Step("tenant", "pass", f"{tenant.document}:tenant"))
        asked = self._asked(principal, tenant, call, head, at)
        if asked.alias:
            rule = f"plans.yaml:{tenant.plan}.aliases.{asked.alias}"
            steps.append(Step("alias", "pass", rule, f"answered by {asked.model}"))
        rule, shadow = "", None
        for name, check in self._checks():
            found = check(asked)
            by = found.rules if isinstance(found, _Forbidden) else ()
            found = found.denial if isinstance(found, _Forbidden) else found
            if isinstance(found, Denial):
                return _denied(steps, name, structs.replace(found, resident=self._resident(asked) is None), by)
            if isinstance(found, _Shadow):
                shadow = shadow or found.denial
                found = found.step
            steps.append(found)
            # The model's rule decides where there is one; else the tenant's being active is all there was to decide.
            rule = found.rule if name in ("status", "model") and found.rule else rule
        healthy = asked.action is not Action.HEALTH or self._resident(asked) is None
        limits = tenant.limits_at(at)
        return Verdict(
            rule=rule,
            bundle=self._bundle.digest,
            profile=self.profile(asked.model),
            limits=limits,
            model_limits=narrower(limits, asked.model),
            key_limits=None if asked.key is None else asked.key.limits_at(at),
            audit=tenant.audit_of(asked.classes, asked.model),
            data_class=residency.label(tenant.residency, asked.classes, self._bundle.regions),
            may_trace=healthy and residency.traced(tenant.residency, asked.classes, self._place),
            would_refuse=shadow,
            alias=asked.alias,
            guards=self._guards(asked) if asked.action is Action.INFER else None,
            loras=tenant.loras,
            store=residency.kept_in(tenant.residency, asked.classes, self._place),
        )

    def store(self, principal: Principal, call: Call) -> str:
        """The jurisdiction whose database keeps the record of a refusal; "" for a tenant that nobody knows."""
        tenant = self._bundle.tenants.get(principal.tenant)
        if tenant is None:
            return ""
        classes = _classes(principal, call, _key_rule(tenant, principal))
        return residency.kept_in(tenant.residency, classes, self._place)

    def _guards(self, asked: _Asked) -> Guards | None:
        tenant = asked.tenant
        if self._bundle.rules is None:
            return tenant.guards
        return self._bundle.rules.of(tenant, asked.model, self.profile(asked.model).groups, asked.classes)

    def _asked(self, principal: Principal, tenant: Tenant, call: Call, head: Head, at: float) -> _Asked:
        method = call.method
        key = _key_rule(tenant, principal)
        whole = method.shows_all(principal.roles)
        by_model = method.by_model and bool(head.model or not method.all_models)
        model, alias = _target(tenant, head.model if by_model else "", whole=whole)
        return _Asked(
            principal=principal,
            tenant=tenant,
            key=key,
            action=_action(method, whole=whole),
            method=method.name,
            by_model=by_model,
            model=model,
            classes=_classes(principal, call, key),
            source=address(call.peer) if "source" in self._mentions else "",
            at=at,
            place=self._place,
            whole=whole,
            alias=alias,
        )

    def _checks(self) -> tuple[tuple[_Name, Callable[[_Asked], Step | _Shadow | _Forbidden | Denial]], ...]:
        return (
            ("status", self._status),
            ("model", self._model),
            ("access", self._access),
            ("residency", self._residency),
        )

    def _status(self, asked: _Asked) -> Step | Denial:
        tenant, at = asked.tenant, asked.at
        rule = f"{tenant.document}:status"
        if not tenant.active:
            return Denial(Reason.TENANT_SUSPENDED, rule=rule)
        if not tenant.period.covers(at):
            end = "from" if at < tenant.period.begins else "until"
            told = "not in force yet" if end == "from" else "no longer in force"
            return Denial(Reason.TENANT_SUSPENDED, told, rule=f"{tenant.document}:{end}")
        if asked.key is not None and not asked.key.period.covers(at):
            of_key = f"{tenant.document}:keys.{asked.principal.name}"
            return Denial(Reason.POLICY_FORBIDS, "this API key's rule is not in force now", rule=of_key)
        return Step("status", "pass", rule)

    def _model(self, asked: _Asked) -> Step | _Shadow | Denial:
        """Foreign, absent and narrowed away alike are MODEL_NOT_FOUND, the same to the caller in every byte."""
        if not asked.by_model:
            return Step("model", "skip", detail="the method names no model")
        if len(asked.model) > MODEL_NAME_LENGTH:
            return self._not_found(asked, "no model has such a name")
        # A key may be narrowed by either name: what its holder calls the model, or what answers.
        names = (asked.model, asked.alias) if asked.alias else (asked.model,)
        narrowed = asked.principal.models
        if narrowed is not None and not any(_any_match(narrowed, name) for name in names):
            return self._not_found(asked, "not among the API key's models")
        rule, at = asked.key, asked.at
        if rule and rule.grants is not None and all(covering(rule.grants, name, at) is None for name in names):
            return self._not_found(asked, f"not among keys.{asked.principal.name}.models")
        if asked.whole:
            return Step("model", "skip", detail="whom the whole server is shown, its tenant's list does not narrow")
        return self._listed(asked)

    def _listed(self, asked: _Asked) -> Step | _Shadow | Denial:
        tenant = asked.tenant
        if not asked.model:
            return self._not_found(asked, "no model is named")
        place = covering(tenant.grants, asked.model, asked.at)
        if place is not None and not tenant.grants[place].shadow:
            return Step("model", "pass", f"{tenant.document}:models[{place}]")
        granted = self._granted(asked)
        if granted.applies:
            return Step("model", "pass", granted.rule, f"granted by {_listed(granted.rules)}", granted.rules)
        if place is not None:
            rule = f"{tenant.document}:models[{place}]"
            return _Shadow(
                Step("model", "shadow", rule, "granted in shadow: without it, MODEL_NOT_FOUND"),
                Denial(Reason.MODEL_NOT_FOUND, rule=rule),
            )
        return self._not_found(asked, granted.fault or "not among the tenant's models")

    def _not_found(self, asked: _Asked, internal: str) -> Denial:
        return Denial(Reason.MODEL_NOT_FOUND, rule=f"{asked.tenant.document}:models", internal=internal)

    def _access(self, asked: _Asked) -> Step | _Shadow | _Forbidden | Denial:
        if asked.action is Action.HEALTH:
            return Step("access", "skip", detail="health of the server")
        if any(len(name) > DATA_CLASS_LENGTH for name in asked.classes):
            return Step("access", "skip", detail="the data class is not one at all; residency refuses it")
        access = self._bundle.access
        answer = self._any(access.forbidden, asked)
        if answer.applies:
            return _Forbidden(_forbidden(answer), answer.rules)
        shadow = self._any(access.shadowed, asked)
        if shadow.applies:
            told = _forbidden(shadow)
            detail = f"in shadow: {told.internal or told.detail}"
            return _Shadow(Step("access", "shadow", told.rule, detail, shadow.rules), told)
        return Step("access", "pass", detail="no policy forbids it")

    def _residency(self, asked: _Asked) -> Step | Denial:
        if asked.action is Action.HEALTH:
            return Step("residency", "skip", detail="health of the server")
        place, denial = asked.place, self._resident(asked)
        if denial is not None:
            return residency.directed(denial, self._accepting(asked))
        telemetry = place.telemetry_jurisdiction or "nowhere"
        if not residency.traced(asked.tenant.residency, asked.classes, place):
            telemetry = "nowhere (withheld)"
        stored = residency.kept_in(asked.tenant.residency, asked.classes, place)
        where = f"processed in {place.region} ({place.jurisdiction}), stored in {stored}"
        return Step("residency", "pass", f"{asked.tenant.document}:residency", f"{where}, traced to {telemetry}")

    def _resident(self, asked: _Asked) -> Denial | None:
        return residency.decide(asked.tenant.residency, asked.classes, asked.place, asked.tenant.document)

    def _accepting(self, asked: _Asked) -> list[str]:
        """Regions whose pods, with database and collector of their own jurisdiction, would take this very call."""
        found = []
        candidates = residency.allowed_regions(asked.tenant.residency, asked.classes, self._bundle.regions)
        for region in candidates[:MAX_ELSEWHERE]:
            area = self._bundle.regions[region]
            there = replace(asked, place=Place(region, area, area, area))
            if not any(isinstance(check(there), Denial | _Forbidden) for check in (self._model, self._access)):
                found.append(region)
        return found

    # --- Cedar -------------------------------------------------------------------------------------------------------

    def _granted(self, asked: _Asked) -> Answer:
        """A permit must apply whichever of its classes the data is."""
        answers = [self._bundle.access.grants(self._question(asked, name)) for name in asked.classes or ("",)]
        return next((answer for answer in answers if not answer.applies), None) or _together(answers)

    def _any(self, ask: Callable[[Question], Answer], asked: _Asked) -> Answer:
        """A forbid applies that does so for one of the classes."""
        answers = [ask(self._question(asked, name)) for name in asked.classes or ("",)]
        return _together([answer for answer in answers if answer.applies] or answers[:1])

    def _question(self, asked: _Asked, data_class: str) -> Question:
        profile = self._bundle.models.get(asked.model)
        principal, mentions = asked.principal, self._mentions
        time = time_of_day(asked.at)
        return Question(
            tenant=asked.tenant.name,
            plan=asked.tenant.plan,
            # What isn't in the memory's key must not reach the policies: one odd name would decide for everybody.
            name=principal.name if "name" in mentions else "",
            kind=principal.kind if "kind" in mentions else "",
            issuer=principal.issuer if "issuer" in mentions else "",
            roles=principal.roles if "roles" in mentions else frozenset(),
            action=asked.action,
            model=asked.model,
            groups=profile.groups if profile is not None else (),
            region=asked.place.region,
            jurisdiction=asked.place.jurisdiction,
            data_class=data_class,
            method=asked.method if "method" in mentions else "",
            source=asked.source,
            hour=time.hour,
            minute=time.minute,
            weekday=time.weekday,
        )


def _key_rule(tenant: Tenant, principal: Principal) -> KeyRule | None:
    return tenant.keys.get(principal.name) if tenant.keys and principal.kind == "api_key" else None


def _classes(principal: Principal, call: Call, key: KeyRule | None) -> tuple[str, ...]:
    of_key = (key.data_class,) if key is not None and key.data_class else ()
    return tuple(dict.fromkeys((*classes_of(call.data_class), *principal.data_classes, *of_key)))


def classes_of(written: str) -> tuple[str, ...]:
    """``x-data-class`` may name several classes, between commas."""
    return tuple(filter(None, (name.strip() for name in written.split(",")))) if written else ()


def _together(answers: list[Answer]) -> Answer:
    """One answer of several that agree, by the rules of all."""
    first, *others = answers
    if not others:
        return first
    rules = tuple(dict.fromkeys(rule for answer in answers for rule in answer.rules))
    return replace(first, rules=rules, fault=next((each.fault for each in answers if each.fault), ""))


def _forbidden(answer: Answer) -> Denial:
    told = f"rule {_listed(answer.rules)}" if answer.rules else "a policy could not be evaluated"
    return Denial(Reason.POLICY_FORBIDS, told, rule=answer.rule or "access", internal=answer.fault)


def _listed(rules: tuple[str, ...]) -> str:
    more = f" and {len(rules) - 8} more" if len(rules) > 8 else ""
    return ", ".join(rules[:8]) + more


def _action(method: Method, *, whole: bool) -> Action:
    """What a manager's method shows a tenant of its own models is their metadata, and is asked about as that."""
    of_a_model = method.action is Action.HEALTH and method.by_model
    of_its_own = method.action is Action.MANAGE and not whole
    return Action.METADATA if of_a_model or of_its_own else method.action


def _target(tenant: Tenant, model: str, *, whole: bool) -> tuple[str, str]:
    """The model that answers for what ``tenant`` calls ``model``, and that name where it is an alias.

    Whom the whole server is shown sees its own names.
    """
    found = model if whole else tenant.aliases.get(model, model)
    return found, model if found != model else ""


def _denied(steps: list[Step], name: _Name, denial: Denial, rules: tuple[str, ...] = ()) -> Denial:
    steps.append(Step(name, "deny", denial.rule, denial.internal or denial.public, rules))
    return denial


def _any_match(patterns: tuple[str, ...], model: str) -> bool:
    return any(pattern == model or fnmatchcase(model, pattern) for pattern in patterns)
