"""What the governor asks of the rooms around it; each has one real implementation and one fake (tests/support)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sidecar.core.model import (
        Admission,
        Allowance,
        Call,
        Credential,
        Demand,
        Denial,
        Forward,
        Head,
        InferenceFacts,
        Instant,
        Limits,
        Method,
        ModelProfile,
        Outcome,
        PoolSize,
        Principal,
        Refused,
        Reservation,
        ResponseFacts,
        Usage,
        Verdict,
    )
    from sidecar.core.recorded import Output, Recorded


Sees = Callable[[str, str], bool]  # model, version ("": any) → whether the caller may know that it exists


def everything(model: str, version: str) -> bool:  # noqa: ARG001 — a ``Sees``
    """Mode observe's: nothing is kept from anybody."""
    return True


class Identity(Protocol):
    """Turns a credential into a principal (``sidecar.identity``)."""

    def identify(self, credential: Credential, at: float) -> Principal | Denial:
        """``at`` is in seconds since the UNIX epoch. No I/O: reads the key snapshot, the JWKS and the token memory."""
        ...


class Policy(Protocol):
    """One loaded bundle at this pod's place (``policies``); immutable, so a verdict never mixes two bundles."""

    @property
    def digest(self) -> str: ...

    def sees(self, principal: Principal, model: str, version: str) -> bool:
        """Whether this principal may know that the model exists, in this version ("": in any)."""
        ...

    def serves(self, tenant: str) -> bool:
        """Whether the tenant is known and active: any call of another is refused whatever its message says."""
        ...

    def limits_of(self, tenant: str, at: float) -> Limits | None:
        """The tenant's own at that moment (seconds since the epoch); None: it may do nothing, or isn't known."""
        ...

    def authorise(self, principal: Principal, call: Call, head: Head, at: float) -> Verdict | Denial:
        """Tenant status → model allow-list → Cedar → residency, in that order."""
        ...

    def store(self, principal: Principal, call: Call) -> str:
        """The jurisdiction whose database keeps the record of a refused call; "": nobody's rules say, so the pod's."""
        ...

    def profile(self, model: str) -> ModelProfile:
        """The model's profile, or a generic one for a model the bundle doesn't name."""
        ...


class Policies(Protocol):
    """Where the current bundle is had; swapped whole."""

    def current(self) -> Policy: ...


class Reader(Protocol):
    """Reads Triton's messages (``sidecar.triton``). Raises ``MalformedRequest`` for what hasn't just one reading."""

    def head(self, method: Method, message: bytes) -> Head:
        """Model and version only."""
        ...

    def facts(self, method: Method, message: bytes, profile: ModelProfile, head: Head) -> InferenceFacts:
        """Everything, for authorised calls. ``head``: what ``head`` made of this message."""
        ...

    def isolate(
        self, call: Call, principal: Principal, facts: InferenceFacts, verdict: Verdict, at: Instant, sees: Sees
    ) -> Forward | Denial:
        """What may go to Triton, or the sidecar's own answer. ``sees``: which models this principal may know of."""
        ...

    def forgone(self, tenant: str, model: str, forward: Forward, at: Instant) -> None:
        """What ``isolate`` made will not be forwarded: whatever it set up for it is forgotten."""
        ...

    def demand(self, facts: InferenceFacts, profile: ModelProfile) -> Demand:
        """Worst-case tokens, KV-cache bytes and tensor bytes."""
        ...

    def ended(self, admission: Admission, outcome: Outcome, usage: Usage, at: Instant) -> None:
        """A call has ended: what a tenant is told of its own use of a model counts it."""
        ...

    def response(self, admission: Admission, message: bytes, sees: Sees) -> ResponseFacts:
        """One response message; ``nbytes`` is its length, as Triton sent it. Never raises: Triton is not the caller."""
        ...


class Quotas(Protocol):
    """Reserve before, settle after (``sidecar.quotas``). Called under the governor's lock."""

    def reserve(
        self, tenant: str, model: str, limits: Limits, demand: Demand, at: Instant, *, enforce: bool, key: str = "",
        model_limits: Limits | None = None, pool: PoolSize | None = None, key_limits: Limits | None = None,
    ) -> Reservation | Denial:  # fmt: skip
        """All or none. With ``enforce=False`` always a Reservation, whose ``over`` says what would be refused.

        ``key``: whom ``key_limits``, or else ``limits.per_key``, counts apart. ``pool``: what the bundle states of the
        model's pool.
        """
        ...

    def grow(self, reservation: Reservation, tokens: int, at: Instant, *, exact: bool, least: int = 0) -> Denial | None:
        """A running call has used ``tokens`` by now, prompt and output. A Denial ends it: its budget is spent.

        Not ``exact``, they are estimated, and ``least`` is what it has used at the very least.
        """
        ...

    def left(self, reservation: Reservation, at: Instant) -> tuple[Allowance, ...]:
        """What its tenant has left of its own limits of time, for whoever tells the caller."""
        ...

    def left_of(self, tenant: str, limits: Limits, at: Instant) -> tuple[Allowance, ...]:
        """As ``left``, of a tenant that may hold nothing yet."""
        ...

    def settle(self, reservation: Reservation, usage: Usage, at: Instant, *, running: bool = False) -> int:
        """Give back what was reserved and not used; exactly once per reservation. Returns KV-cache byte-milliseconds.

        ``running``: Triton hasn't ended the call yet, so its slot and memory stay held until ``release``.
        """
        ...

    def release(self, reservation: Reservation, at: Instant) -> None:
        """Triton has ended a call that was settled ``running``; exactly once."""
        ...


class Recorder(Protocol):
    """Writes the journal (``audit.recorder``). A Denial is AUDIT_UNAVAILABLE: nothing was written."""

    def admitted(self, admission: Admission, at: Instant) -> Denial | None: ...

    def refused(self, refused: Refused, at: Instant) -> Denial | None: ...

    def output(self, recorded: Recorded, output: Output, at: Instant) -> Denial | None: ...

    def settled(
        self, recorded: Recorded, output: Output, outcome: Outcome, usage: Usage, at: Instant
    ) -> Denial | None: ...


class Instruments(Protocol):
    """Counts (``sidecar.telemetry``). Never fails, never blocks."""

    def admitted(self, admission: Admission) -> None: ...

    def refused(self, refused: Refused, *, enforced: bool) -> None: ...

    def settled(self, recorded: Recorded, outcome: Outcome, usage: Usage) -> None: ...

    def unrecorded(self, denial: Denial) -> None:
        """An entry that could not be journaled."""
        ...
