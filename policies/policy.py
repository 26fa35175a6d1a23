"""A bundle at one pod: decides whether a principal may make a call, and remembers its answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from policies import memory as memory_module
from policies.bundle import Bundle
from policies.decision import Decider, Step, classes_of
from policies.limits import narrower
from policies.memory import Key, Memory, further
from policies.moments import Interval, interval
from policies.piecemeal import let_go
from policies.residency import Place
from sidecar.core.model import Call, Denial, Head, Limits, Method, ModelProfile, Principal, Verdict
from sidecar.core.reasons import Reason

__all__ = ["LoadedPolicy"]

PRINCIPAL_NAME_LENGTH: Final = 256
MAX_SHAPES: Final = 256  # methods whose shape is kept; the method table has some forty


class LoadedPolicy:
    """``sidecar.core.ports.Policy`` over one bundle; safe across threads: immutable, but for its memory of verdicts."""

    def __init__(self, bundle: Bundle, place: Place) -> None:
        self._bundle = bundle
        self._place = place
        self._decider = Decider(bundle, place)
        self._mentions = bundle.access.mentions
        self._more = further(bundle)
        self._shapes: dict[str, object] = {}
        self._memory = Memory(Interval(0.0, 0.0), 0.0)  # of no moment

    @property
    def bundle(self) -> Bundle:
        return self._bundle

    @property
    def place(self) -> Place:
        return self._place

    @property
    def digest(self) -> str:
        return self._bundle.digest

    def profile(self, model: str) -> ModelProfile:
        """What models.yaml says, or a generic profile."""
        return self._decider.profile(model)

    def limits(
        self, tenant: str, model: str, key_name: str, at: float
    ) -> tuple[Limits, Limits | None, Limits | None] | None:
        """The tenant's own, those of it and the model together, and the API key's of that name.

        None: the bundle has no such tenant.
        """
        found = self._bundle.tenants.get(tenant)
        if found is None:
            return None
        limits = found.limits_at(at)
        key = found.keys.get(key_name) if found.keys else None
        return limits, narrower(limits, model), None if key is None else key.limits_at(at)

    def limits_of(self, tenant: str, at: float) -> Limits | None:
        """The tenant's own; None: the bundle has no such tenant, or it may do nothing."""
        found = self._bundle.tenants.get(tenant)
        return None if found is None or not found.active else found.limits_at(at)

    def serves(self, tenant: str) -> bool:
        """By its status; its dates are looked at with each call."""
        found = self._bundle.tenants.get(tenant)
        return found is not None and found.active

    def sees(self, principal: Principal, model: str, version: str) -> bool:  # noqa: ARG002 — no rule is by version
        """By the tenant's list or a Cedar permit, within the key's list; staff: all, within the key's list.

        As of the last call that was authorised.
        """
        tenant = self._bundle.tenants.get(principal.tenant)
        if tenant is None or not tenant.active:
            return False
        memory = self._memory
        key: Key = (principal.tenant, principal.models, model, principal.roles)
        key += (principal.name, principal.kind, principal.issuer)
        known = memory.seen.get(key)
        if known is None:  # a permit that is evaluated for each of hundreds of models would hold everybody up
            known = self._decider.shows(principal, tenant, model, memory.at)
            if len(memory.seen) >= memory_module.MAX_VERDICTS:
                memory.seen.clear()
            memory.seen[key] = known
        return known

    def authorise(self, principal: Principal, call: Call, head: Head, at: float) -> Verdict | Denial:
        """In memory: 0.4 µs where the question was asked before, else some 0.15 ms where policies are evaluated."""
        memory = self._memory
        if not memory.interval.begins <= at < memory.interval.ends:
            memory = self._memory = Memory(interval(at, self._bundle.edges, self._mentions), at)
        method = call.method
        shape = self._shapes.get(method.path)
        if shape is None:
            shape = self._shape(method)
        key: Key = (principal.tenant, principal.models, head.model, call.data_class, principal.data_classes, shape)
        if method.whole:
            key += (method.shows_all(principal.roles),)
        if self._more:
            key += tuple([get(principal, call) for get in self._more])
        known = memory.verdicts.get(key)
        return known if known is not None else self._remember(memory, key, principal, call, head)

    def store(self, principal: Principal, call: Call) -> str:
        """The jurisdiction whose database keeps the record of a refusal; "" for a tenant that nobody knows."""
        return self._decider.store(principal, call)

    def forget(self, pause: Callable[[], None]) -> None:
        """Free the answers a few at a time; for one that no new call is put to any more."""
        let_go(pause, self._memory.verdicts)

    def trace(self, principal: Principal, call: Call, head: Head, at: float) -> tuple[Verdict | Denial, list[Step]]:
        """The same decision, made anew, with every step that led to it."""
        steps: list[Step] = []
        return self._decider.decide(principal, call, head, at, steps), steps

    # --- the memory --------------------------------------------------------------------------------------------------

    def _shape(self, method: Method) -> object:
        """What of a method an answer depends on."""
        shape: object = (method.action.value, method.by_model, method.all_models)
        if "method" in self._mentions:
            shape = method.path
        if len(self._shapes) < MAX_SHAPES:
            self._shapes[method.path] = shape
        return shape

    def _remember(self, memory: Memory, key: Key, principal: Principal, call: Call, head: Head) -> Verdict | Denial:
        found = self._decider.decide(principal, call, head, memory.at, [])
        if not self._made_up(found, principal, call):
            if len(memory.verdicts) >= memory_module.MAX_VERDICTS:
                # Whole rather than one by one: it costs a few thousand evaluations, and no lock on the way there.
                self._memory = memory = Memory(memory.interval, memory.at)
            memory.verdicts[key] = found
        return found

    def _made_up(self, found: Verdict | Denial, principal: Principal, call: Call) -> bool:
        """Whether a caller may have invented what was asked about: such answers would only push out the others."""
        if isinstance(found, Denial) and found.reason in (Reason.TENANT_UNKNOWN, Reason.MODEL_NOT_FOUND):
            return True
        declared = self._bundle.tenants[principal.tenant].residency.classes
        undeclared = any(name not in declared for name in classes_of(call.data_class))
        return undeclared or ("name" in self._mentions and len(principal.name) > PRINCIPAL_NAME_LENGTH)
