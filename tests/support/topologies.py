"""Topologies at random: pods of several jurisdictions, tenants with rules of residency, calls with marked content."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from hypothesis import strategies as st

from audit.assemble import CallRecord, Joiner
from audit.assemble import Place as WrittenAt
from audit.journal import Journal as RealJournal
from audit.pressure import Pressure
from audit.record import Refused as RefusedEntry
from audit.record import decode, store_of
from audit.recorder import JournalRecorder
from policies.bundle import Bundle, compile_bundle
from policies.policy import LoadedPolicy
from policies.residency import Place, Rules
from sidecar.core.governor import Governor, Ports, Recorded, Refused
from sidecar.core.model import (
    Call,
    Credential,
    Denial,
    Durability,
    Head,
    InferenceFacts,
    Instant,
    Method,
    ModelProfile,
    Outcome,
    OutcomeKind,
    Principal,
    Secret,
    TraceContext,
)
from sidecar.core.reasons import Reason
from sidecar.telemetry.spans import resource_of, span_of, to_be_exported
from tests.support.core import AT, INFER, FakeInstruments, FakePorts, a_call, later

MARK: Final = "<<content>>"  # in all that is content: prompt, output, parameter, subject, conversation
UNLIMITED: Final = dict.fromkeys(("requests", "tokens", "concurrency", "kv_memory", "tensor_memory"), "unlimited")
AREAS: Final = ("EU", "US", "CH")
CLASSES: Final = ("phi", "public")
MODELS: Final = ("chat", "rag", "absent")
NOT_RESIDENT: Final = frozenset({Reason.RESIDENCY_PROCESSING, Reason.RESIDENCY_STORAGE, Reason.RESIDENCY_TELEMETRY})


@dataclass(frozen=True)
class Pod:
    """Where a sidecar is; its own database is its jurisdiction's (the start is refused otherwise)."""

    region: str
    collector: str | None
    doubt: str
    further: tuple[str, ...]  # jurisdictions of the databases that it has besides, its own perhaps among them


@dataclass(frozen=True)
class Asked:
    """One call: by whom (None: nobody known), to which pod, for what."""

    pod: int
    tenant: str | None
    model: str
    header: str
    claim: tuple[str, ...]


@dataclass(frozen=True)
class Topology:
    """A bundle, the pods that have it, and what they are asked."""

    bundle: Bundle
    pods: tuple[Pod, ...]
    calls: tuple[Asked, ...]


def some(names: tuple[str, ...], least: int = 0) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True, min_size=least, max_size=len(names))


def some_of(names: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(names), unique=True, min_size=1)


@st.composite
def residencies(draw: st.DrawFn, regions: dict[str, str], least: int = 0) -> dict[str, Any]:
    """As documents say it, of ``least`` places each; what the loader would refuse (a class too wide) is left out."""
    areas = tuple(sorted(set(regions.values())))
    own = {
        "processing": draw(some((*areas, *regions), least)),
        "storage": draw(some(areas, least)),
        "telemetry": draw(st.one_of(some(areas, least), st.just("withheld"))),
    }
    if own["storage"] and draw(st.booleans()):
        own["records"] = draw(some_of(own["storage"]))
    inside = tuple(region for region, area in regions.items() if {region, area} & set(own["processing"]))
    classes: dict[str, Any] = {}
    for name in draw(some(CLASSES)):
        narrowed: dict[str, Any] = {"processing": draw(some(inside)) if inside else []}
        if draw(st.booleans()):
            narrowed["storage"] = draw(some(tuple(own["storage"]))) if own["storage"] else []
        records = [each for each in narrowed.get("storage", own["storage"]) if each in own.get("records", AREAS)]
        if records and draw(st.booleans()):
            narrowed["records"] = draw(some_of(records))
        if draw(st.booleans()) and own["telemetry"] != "withheld":
            narrowed["telemetry"] = (
                draw(st.one_of(some(tuple(own["telemetry"])), st.just("withheld"))) if own["telemetry"] else "withheld"
            )
        classes[name] = narrowed
    return {**own, "classes": classes}


@st.composite
def topologies(draw: st.DrawFn, *, homes: bool = False) -> Topology:
    """``homes``: beside the pods at random, one of every region, with its database's and collector's jurisdiction.

    Since those cost what they cost, each gets more calls, of which more go through.
    """
    least = 1 if homes else 0
    regions = {
        f"r{n}": area
        for n, area in enumerate(
            draw(st.lists(st.sampled_from(AREAS), min_size=2 if homes else 1, max_size=4 if homes else 5))
        )
    }
    tenants = {f"t{n}": draw(residencies(regions, least)) for n in range(draw(st.integers(1, 3)))}
    level = st.sampled_from(["full", "prompt", "metadata"])
    documents: dict[str, Any] = {
        "bundle.yaml": {"regions": {name: {"jurisdiction": area} for name, area in regions.items()}},
        "models.yaml": {name: {"contract": "vllm"} for name in MODELS[:2]},
        "plans.yaml": {"all": UNLIMITED},
    }
    for name, residency in tenants.items():
        documents[f"tenants/{name}.yaml"] = {
            "tenant": name,
            "plan": "all",
            "status": draw(st.sampled_from(["active", "active", "active", "suspended"])),
            "models": draw(some(MODELS[:2], least)),
            "residency": residency,
            "audit": {"level": draw(level), "retention": "1d"},
        }
    files = {name: json.dumps(document).encode() for name, document in documents.items()}
    forbidden = draw(st.sampled_from(sorted(regions)))
    files["access/a.cedar"] = (
        f'@id("a") forbid(principal, action, resource == Model::"rag") when {{ context.region == "{forbidden}" }};'
    ).encode()
    bundle = compile_bundle(files)
    assert isinstance(bundle, Bundle), [str(problem) for problem in bundle]
    collector = st.sampled_from([None, *sorted(set(regions.values()))])
    further = st.just(()) if homes else some(tuple(sorted(set(regions.values())))).map(tuple)
    doubt = st.sampled_from(["", "", "", "", "in doubt"])
    pod = st.builds(Pod, st.sampled_from(sorted(regions)), collector, doubt, further)
    plain = [Pod(region, area, "", ()) for region, area in regions.items()] if homes else []
    pods = [*plain, *draw(st.lists(pod, min_size=1, max_size=3 if not homes else 2))]
    call = st.builds(
        Asked,
        st.integers(0, len(pods) - 1),
        st.sampled_from([None, "stranger", *tenants]),
        st.sampled_from(MODELS),
        st.sampled_from(["", "phi", "public", "made-up", "public,phi"]),
        st.sampled_from([(), ("phi",)]),
    )
    return Topology(
        bundle, tuple(pods), tuple(draw(st.lists(call, min_size=12 if homes else 1, max_size=24 if homes else 8)))
    )


@dataclass
class Journal:
    """What ``JournalRecorder`` needs of a journal, in memory."""

    written: list[bytes] = field(default_factory=list)
    pressure: Pressure = Pressure.NONE

    def append(self, data: bytes, **_: object) -> int:
        self.written.append(data)
        return len(self.written)

    def over(self, tenant: str) -> bool:
        """Memory has room for everybody."""
        return False


@dataclass
class Around(FakePorts):
    """The governor's rooms, with a real policy; every message holds content."""

    policy: LoadedPolicy | None = None

    def identify(self, credential: Credential, at: float) -> Principal | Denial:
        tenant, _, claim = credential.secret.reveal().decode().partition("|")
        if not tenant:
            return Denial(Reason.TOKEN_SIGNATURE)
        return Principal(tenant, "alice", "jwt", data_classes=tuple(filter(None, claim.split(","))))

    def current(self) -> LoadedPolicy:  # type: ignore[override]  # the real thing in place of the fake
        assert self.policy is not None
        return self.policy

    def head(self, method: Method, message: bytes) -> Head:
        return Head(message.decode())

    def facts(self, method: Method, message: bytes, profile: ModelProfile, head: Head) -> InferenceFacts:
        return InferenceFacts(
            request_id=MARK,
            model=message.decode(),
            prompts=(MARK.encode(),),
            parameters={"user": MARK},
            prompt_tokens=3,
        )


@dataclass
class Sidecar:
    """One pod's governor and what it wrote down, in memory unless a real journal is given."""

    topology: Topology
    pod: Pod
    written_to: RealJournal | None = None
    at: Instant = AT

    def __post_init__(self) -> None:
        regions = self.topology.bundle.regions
        area = regions[self.pod.region]
        further = tuple(each for each in self.pod.further if each != area)
        self.place = Place(self.pod.region, area, area, self.pod.collector, self.pod.doubt, further)
        self.policy = LoadedPolicy(self.topology.bundle, self.place)
        self.journals = {store: Journal() for store in self.place.stores}
        (_, own), *others = self.journals.items()
        recorder = JournalRecorder(
            self.written_to or own,  # type: ignore[arg-type]  # all of it that is used here
            content_bytes=2**20, durability=Durability.BATCH, new_id=lambda: "e", now=lambda: self.at,
            further=dict(others),  # type: ignore[arg-type]  # as above
        )  # fmt: skip
        around = Around(policy=self.policy)
        self.governor = Governor(Ports(around, around, around, around, recorder, FakeInstruments()))

    def ask(self, call: Call) -> Recorded | Refused:
        """From its arrival to its end; Triton says back what is marked."""
        opened = self.governor.open(call, self.at)
        if isinstance(opened, Recorded):
            self.governor.deliver(opened, MARK.encode(), later(1, self.at))
            self.governor.settle(opened, Outcome(OutcomeKind.COMPLETED), later(2, self.at))
        return opened

    def records(self, written: Iterable[bytes] | None = None) -> list[tuple[str, CallRecord]]:
        """The calls that are ``written``, by default in memory, with the jurisdiction of the database that each is
        stored in: joined there of what is in its journal.
        """
        found = []
        own = self.place.jurisdiction
        journals = {store: each.written for store, each in self.journals.items()} if written is None else {own: written}
        at = WrittenAt("pod", "journal", self.place.region, own)
        for store, data in journals.items():
            joiner = Joiner()
            for sequence, entry in enumerate(map(decode, data)):
                assert (store_of(entry) or own) == store, "in the journal of another database"
                record = joiner.add(at, sequence, entry)
                assert record is None or isinstance(record, CallRecord), "an end without its beginning"
                found += [(store, record)] if record is not None else []
        return found


def call_of(asked: Asked, number: int, name: str = "c") -> Call:
    """As a client would send it; all that is content is marked."""
    secret = f"{asked.tenant or ''}|{','.join(asked.claim)}".encode()
    return a_call(
        f"{name}-{number}", INFER, asked.model.encode(), credential=Credential("jwt", Secret(secret)),
        data_class=asked.header, subject=MARK, conversation=MARK, trace=TraceContext("a" * 32, "b" * 16, None, True),
    )  # fmt: skip


def rules(topology: Topology, asked: Asked) -> list[Rules]:
    """The tenant's own, and those of each class that the call is of."""
    residency = topology.bundle.tenants[asked.tenant or ""].residency
    names = {*filter(None, asked.header.split(",")), *asked.claim}
    return [residency.own, *(residency.classes[name] for name in names if name in residency.classes)]


def check(topology: Topology, asked: Asked, place: Place, store: str, record: CallRecord) -> None:
    """What may be recorded of a call in a place and its ``store``, and what of it may leave as a span."""
    known = asked.tenant in topology.bundle.tenants
    allowed = known and all(
        place.jurisdiction in each.storage and store in each.databases for each in rules(topology, asked)
    )
    if not known:
        assert store == place.jurisdiction
    elif any(all(other in each.databases for each in rules(topology, asked)) for other in place.stores):
        assert all(store in each.databases for each in rules(topology, asked)), "refused or not"
    if not allowed or place.doubt:
        assert isinstance(record.end, RefusedEntry), "the declared exception is of refusals alone"
        assert MARK not in repr((record.facts, record.end, record.output))
    if not isinstance(record.end, RefusedEntry):
        for each in rules(topology, asked):
            assert {place.region, place.jurisdiction} & set(each.processing)
    if to_be_exported(record.facts):
        if record.facts.tenant:
            for each in rules(topology, asked):
                assert each.telemetry is not None
                assert place.telemetry_jurisdiction is None or place.telemetry_jurisdiction in each.telemetry
        span = span_of(record.facts, record.end, resource_of("pod", place.region, place.jurisdiction))
        assert MARK not in span.to_json()


def listening() -> tuple[list[str], logging.Handler]:
    """Every log line from now on, with all that it holds; the handler is the root logger's, to be removed there."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda line: lines.append(line.getMessage() + str(vars(line)))  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    return lines, handler
