"""What one admission has learnt so far, and how it ends in a refusal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.core.model import (
    NO_FACTS,
    NO_HEAD,
    AuditLevel,
    AuditRule,
    Call,
    Denial,
    Finding,
    Forward,
    Limits,
    MalformedRequest,
    Principal,
    Refused,
    Verdict,
    replace,
)
from sidecar.core.reasons import Reason
from sidecar.core.routing import NO_ROUTE, route

if TYPE_CHECKING:
    from sidecar.core.ports import Policy

__all__ = ["OBSERVED", "Decision", "Stop", "forbidden", "unenforced"]

OBSERVED: Final = Principal(tenant="(observed)", name="(no credential)", kind="observed")


class Stop(Exception):  # noqa: N818 — control flow inside one function, never seen outside
    """Carries a denial out of ``the one order of governance``."""

    def __init__(self, denial: Denial) -> None:
        self.denial = denial


class Decision:
    """What one admission has learnt so far; in ``observe`` the first refusal is kept instead of raised."""

    __slots__ = (
        "_verdict",
        "call",
        "denial",
        "facts",
        "findings",
        "head",
        "observe",
        "policy",
        "principal",
        "shadowed",
    )

    def __init__(self, call: Call, policy: Policy, *, observe: bool) -> None:
        self.call, self.policy, self.observe = call, policy, observe
        self.principal: Principal | None = None
        self.head = NO_HEAD
        self.facts = NO_FACTS
        self.denial: Denial | None = None
        self.shadowed: Denial | None = None
        self.findings: tuple[Finding, ...] = ()
        self._verdict: Verdict | None = None

    @property
    def who(self) -> Principal:
        assert self.principal is not None
        return self.principal

    @property
    def allowed(self) -> Verdict:
        assert self._verdict is not None
        return self._verdict

    def _refuse(self, denial: Denial) -> None:
        if not self.observe or denial.always:
            raise Stop(denial)
        self.denial = self.denial or denial

    def identified(self, found: Principal | Denial) -> None:
        if isinstance(found, Denial):
            self._refuse(found)
            found = OBSERVED
        self.principal = found

    def faulted(self, fault: Denial) -> None:
        self._refuse(fault)

    def authorised(self, verdict: Verdict | Denial) -> None:
        if isinstance(verdict, Denial):
            self._refuse(verdict)
            profile = self.policy.profile(self.head.model)
            store = self.policy.store(self.who, self.call)
            verdict = Verdict("observe", self.policy.digest, profile, Limits(), AuditRule(), store=store)
        if self.denial is not None:
            # Residency comes last: what was refused before it, or for headers that say too little, may be content that
            # must not be stored here, or that its tenant wants kept nowhere.
            verdict = replace(verdict, audit=replace(verdict.audit, level=AuditLevel.METADATA), may_trace=False)
        self._verdict = verdict

    def routed(self) -> None:
        """Pick the version, where the model has a canary."""
        verdict, who = self.allowed, self.who
        if verdict.profile.canary is not None:
            picked = route(
                verdict.profile.name, verdict.profile.canary, self.head.version, tenant=who.tenant, principal=who.name,
                call_id=self.call.id, sequence=bool(self.facts.parameters.get("sequence_id")),
            )  # fmt: skip
            self._verdict = replace(verdict, route=picked)

    def guarded(self) -> None:
        """What the tenant's guards find in the prompt; the first that denies it refuses the call."""
        if self.allowed.guards is None:
            return
        found = self.allowed.guards.prompt(self.facts)
        self.findings = tuple(map(unenforced, found)) if self.observe else found
        denying = [(forbidden(each, "the prompt"), each.enforced) for each in found if each.verdict == "deny"]
        self.shadowed = next((denial for denial, enforced in denying if enforced == "none"), None)
        for denial, enforced in denying:
            if enforced == "deny":
                self._refuse(denial)

    def isolated(self, forward: Forward | Denial) -> Forward:
        if isinstance(forward, Denial):
            self._refuse(forward)
            # Untouched, so the model and version that the client named are what answers.
            profile = self.policy.profile(self.head.model) if self.allowed.alias else self.allowed.profile
            self._verdict = replace(self.allowed, profile=profile, alias="", route=NO_ROUTE)
            return Forward(self.call.message)
        return forward

    def unreadable(self, fault: MalformedRequest, barred: Denial | None = None) -> None:
        """``barred``: refuses the call whatever its message says, so it comes before what is wrong with that."""
        self._refuse(barred or Denial(fault.reason, fault.detail, rule="message"))

    def refused(self, denial: Denial) -> Refused:
        return Refused(
            self.call, denial, self.policy.digest, self.principal, self.head, self._verdict, self.facts,
            self.findings, self._store(),
        )  # fmt: skip

    def _store(self) -> str:
        """Of a refusal's record: by its tenant's rules wherever the tenant is known, however early it came."""
        if self._verdict is not None:
            return self._verdict.store
        return "" if self.principal is None else self.policy.store(self.principal, self.call)


def forbidden(finding: Finding, what: str) -> Denial:
    return Denial(Reason.POLICY_FORBIDS, f"{what} holds what this tenant's guards deny", rule=f"guards.{finding.guard}")


def unenforced(finding: Finding) -> Finding:
    return replace(finding, enforced="none")
