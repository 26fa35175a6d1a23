"""The governor's ports as fakes that remember what they were asked, and in which order; a clock that tests move."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sidecar.core import ports as seams
from sidecar.core.governor import Governor, Mode, Output, Ports, Recorded, Refused
from sidecar.core.model import (
    Action,
    Admission,
    Allowance,
    AuditRule,
    Call,
    Contract,
    Credential,
    Demand,
    Denial,
    Disposition,
    Forward,
    Head,
    InferenceFacts,
    Instant,
    Limits,
    Method,
    ModelProfile,
    Outcome,
    ParameterValue,
    PoolSize,
    Principal,
    Reservation,
    ResponseFacts,
    Secret,
    Usage,
    Verdict,
)
from sidecar.core.routing import Canary

AT = Instant(1_700_000_000_000_000_000, 1_000_000_000)
TENANT = frozenset({"tenant"})
INFER = Method("/inference.GRPCInferenceService/ModelInfer", Action.INFER, Disposition.FORWARD, TENANT, by_model=True)
READY = Method(
    "/inference.GRPCInferenceService/ModelReady", Action.METADATA, Disposition.FORWARD, TENANT, by_model=True
)
LOAD = Method(
    "/inference.GRPCInferenceService/RepositoryModelLoad", Action.MANAGE, Disposition.FORWARD, frozenset({"admin"})
)
SHARED = Method(
    "/inference.GRPCInferenceService/SystemSharedMemoryStatus", Action.MANAGE, Disposition.REFUSE, frozenset()
)
UNKNOWN = Method("/no/such", Action.UNKNOWN, Disposition.REFUSE, frozenset())
KEY = Credential("api_key", Secret(b"key"))
ACME = Principal("acme", "laptop", "api_key", TENANT)
ORDER = ["identify", "head", "authorise", "facts", "isolate", "demand", "reserve"]  # as the fakes note it


def later(ms: float, start: Instant = AT) -> Instant:
    """``ms`` milliseconds after ``start``."""
    return Instant(start.wall_ns + round(ms * 1e6), start.mono_ns + round(ms * 1e6))


@dataclass
class Clock:
    """``now`` of the services; tests move it."""

    at: Instant = AT

    def __call__(self) -> Instant:
        return self.at

    def pass_ms(self, ms: float) -> None:
        self.at = later(ms, self.at)


def a_call(call_id: str = "c-1", method: Method = INFER, message: bytes = b"request", **changes: object) -> Call:
    fields: dict[str, object] = {"id": call_id, "method": method, "arrived": AT, "message": message, "credential": KEY}
    return Call(**{**fields, **changes})  # type: ignore[arg-type]  # the changes are a test's own


@dataclass
class FakePorts:
    """Five ports in one. ``steps``: in which order they were asked; a denial or a fault set for a step refuses it."""

    steps: list[str] = field(default_factory=list)
    allowances: tuple[Allowance, ...] = ()
    denials: dict[str, Denial] = field(default_factory=dict)
    faults: dict[str, BaseException] = field(default_factory=dict)
    who: Principal = ACME
    audit: AuditRule = field(default_factory=AuditRule)
    held: Mapping[int, Reservation] = field(default_factory=dict)  # by identity: reserved and not settled
    shadow: Denial | None = None  # what a policy in shadow would answer
    may_trace: bool = True
    over: Denial | None = None  # what an observed reservation would have met
    spent: Denial | None = None  # what a growing call is told
    entries: list[tuple[str, object]] = field(default_factory=list)  # the journal
    digest: str = "sha256:fake"
    unserved: frozenset[str] = frozenset()  # tenants that may do nothing
    aliases: Mapping[str, str] = field(default_factory=dict)  # the name asked for → the model that answers
    canary: Canary | None = None  # of every model
    version: str = "1"  # that every request names
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)  # of every request
    visible: frozenset[str] = frozenset({"chat"})  # models that whoever asks may know of
    answer: bytes | None = None  # the sidecar's own, where it has one
    seen: list[seams.Sees] = field(default_factory=list)  # what the reader was told of what may be known
    counted: list[str] = field(default_factory=list)  # as whom the quotas were told to count
    guards: seams.Guards | None = None  # of every tenant
    stores: Mapping[str, str] = field(default_factory=dict)  # the database of a tenant's records
    given_up: list[tuple[str, str, Forward]] = field(default_factory=list)  # what the reader was told isn't forwarded

    def _step(self, name: str) -> Denial | None:
        self.steps.append(name)
        if name in self.faults:
            raise self.faults[name]
        return self.denials.get(name)

    # --- Identity, Policies, Policy

    def identify(self, credential: Credential, at: float) -> Principal | Denial:
        return self._step("identify") or self.who

    def current(self) -> FakePorts:
        return self

    def sees(self, principal: Principal, model: str, version: str) -> bool:
        return model in self.visible

    def serves(self, tenant: str) -> bool:
        return tenant not in self.unserved

    def limits_of(self, tenant: str, at: float) -> Limits | None:
        return None if tenant in self.unserved else Limits()

    def store(self, principal: Principal, call: Call) -> str:
        return self.stores.get(principal.tenant, "")

    def authorise(self, principal: Principal, call: Call, head: Head, at: float) -> Verdict | Denial:
        denial = self._step("authorise")
        target = self.aliases.get(head.model, head.model)
        return denial or Verdict(
            "allow", self.digest, self.profile(target), Limits(), self.audit, would_refuse=self.shadow,
            alias=head.model if target != head.model else "", guards=self.guards, may_trace=self.may_trace,
            store=self.store(principal, call),
        )  # fmt: skip

    def profile(self, model: str) -> ModelProfile:
        return ModelProfile(model, Contract.VLLM, canary=self.canary)

    # --- Reader

    def head(self, method: Method, message: bytes) -> Head:
        self._step("head")
        return Head("chat", self.version)

    def facts(self, method: Method, message: bytes, profile: ModelProfile, head: Head) -> InferenceFacts:
        self._step("facts")
        return InferenceFacts(
            request_id="r-1", model="chat", version=self.version, prompts=(b"prompt",), prompt_tokens=3,
            parameters=self.parameters,
        )  # fmt: skip

    def isolate(
        self, call: Call, principal: Principal, facts: InferenceFacts, verdict: Verdict, at: Instant, sees: seams.Sees
    ) -> Forward | Denial:
        self.seen.append(sees)
        return self._step("isolate") or Forward(call.message, answer=self.answer)

    def forgone(self, tenant: str, model: str, forward: Forward, at: Instant) -> None:
        self.given_up.append((tenant, model, forward))

    def demand(self, facts: InferenceFacts, profile: ModelProfile) -> Demand:
        self._step("demand")
        return Demand(tokens=7)

    def ended(self, admission: Admission, outcome: Outcome, usage: Usage, at: Instant) -> None:
        self._step("ended")

    def response(self, admission: Admission, message: bytes, sees: seams.Sees) -> ResponseFacts:
        self.seen.append(sees)
        return ResponseFacts(texts=(message,), model_version="1", nbytes=len(message), message=message)

    # --- Quotas

    def reserve(
        self, tenant: str, model: str, limits: Limits, demand: Demand, at: Instant, *, enforce: bool, key: str = "",
        model_limits: Limits | None = None, pool: PoolSize | None = None, key_limits: Limits | None = None,
    ) -> Reservation | Denial:  # fmt: skip
        denial = self._step("reserve")
        self.counted.append(key)
        if denial is not None and enforce:
            return denial
        reservation = Reservation(tenant, model, demand, at, self.over or denial)
        self.held = {**self.held, id(reservation): reservation}
        return reservation

    def grow(self, reservation: Reservation, tokens: int, at: Instant, *, exact: bool, least: int = 0) -> Denial | None:
        return self.spent

    def left(self, reservation: Reservation, at: Instant) -> tuple[Allowance, ...]:
        return self.allowances

    def left_of(self, tenant: str, limits: Limits, at: Instant) -> tuple[Allowance, ...]:
        return self.allowances

    def settle(self, reservation: Reservation, usage: Usage, at: Instant, *, running: bool = False) -> int:
        if running:
            self._step("settle, running")
            return 0
        self._step("give back")
        self._drop(reservation)
        return 0

    def release(self, reservation: Reservation, at: Instant) -> None:
        self._step("give back")
        self._drop(reservation)

    def _drop(self, reservation: Reservation) -> None:
        held = dict(self.held)
        del held[id(reservation)]  # KeyError: given back twice, or never reserved
        self.held = held


@dataclass
class FakeJournal:
    """``ports.Recorder``: keeps its entries in ``ports.entries``, and refuses as ``ports.denials`` says."""

    ports: FakePorts

    def _write(self, kind: str, entry: object) -> Denial | None:
        denial = self.ports._step(f"journal {kind}")
        if denial is None:
            self.ports.entries.append((kind, entry))
        return denial

    def admitted(self, admission: Admission, at: Instant) -> Denial | None:
        return self._write("admitted", admission)

    def refused(self, refused: Refused, at: Instant) -> Denial | None:
        return self._write("refused", refused)

    def output(self, recorded: Recorded, output: Output, at: Instant) -> Denial | None:
        return self._write("output", (recorded.admission.call.id, output))

    def settled(self, recorded: Recorded, output: Output, outcome: Outcome, usage: Usage, at: Instant) -> Denial | None:
        return self._write("settled", (recorded.admission.call.id, output, outcome, usage))


@dataclass
class FakeInstruments:
    """``ports.Instruments``: what was counted, in order."""

    counted: list[tuple[str, object]] = field(default_factory=list)

    def admitted(self, admission: Admission) -> None:
        self.counted.append(("admitted", admission.call.id))

    def refused(self, refused: Refused, *, enforced: bool) -> None:
        self.counted.append(("refused" if enforced else "would refuse", refused.denial.reason))

    def settled(self, recorded: Recorded, outcome: Outcome, usage: Usage) -> None:
        self.counted.append(("settled", outcome.kind))

    def unrecorded(self, denial: Denial) -> None:
        self.counted.append(("unrecorded", denial.reason))


@dataclass
class Stage:
    """A governor between fakes."""

    ports: FakePorts = field(default_factory=FakePorts)
    instruments: FakeInstruments = field(default_factory=FakeInstruments)
    mode: Mode = Mode.ENFORCE
    reader: seams.Reader | None = None  # the real one, where messages are real

    def __post_init__(self) -> None:
        fakes = self.ports
        self.governor = Governor(
            Ports(fakes, fakes, self.reader or fakes, fakes, FakeJournal(fakes), self.instruments), mode=self.mode
        )

    @property
    def kinds(self) -> list[str]:
        """The journal's entries, by kind."""
        return [kind for kind, _ in self.ports.entries]

    def open(self, call_id: str = "c-1") -> Recorded:
        recorded = self.governor.open(a_call(call_id), AT)
        assert isinstance(recorded, Recorded)
        return recorded


def observing(**ports: object) -> Stage:
    """A stage whose governor enforces nothing."""
    return Stage(FakePorts(**ports), mode=Mode.OBSERVE)  # type: ignore[arg-type]  # the fields of the fake


def _are_ports(
    fakes: FakePorts, journal: FakeJournal, instruments: FakeInstruments
) -> tuple[seams.Identity, seams.Policies, seams.Policy, seams.Reader, seams.Quotas, seams.Recorder, seams.Instruments]:
    return fakes, fakes, fakes, fakes, fakes, journal, instruments
