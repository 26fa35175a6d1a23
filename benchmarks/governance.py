"""What governing one unary call costs by itself, no wire around it: the real rooms, the real journal on disk."""

from __future__ import annotations

import gc
import json
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from audit import appending, writing
from audit.seal import create_key_file
from benchmarks.setup import UNARY, lifted_bundle, told_of_itself, unary_request, unary_response
from policies.guards import Guards
from sidecar.cli.demo.stack import AUDIENCE, ISSUER, JURISDICTION, REGION
from sidecar.core.governor import Governor, Ports, Recorded
from sidecar.core.model import Outcome, OutcomeKind
from sidecar.identity import mint
from sidecar.identity.denials import Age, DenyList
from sidecar.runtime import clock, compose, settings
from sidecar.transports.budget import Budget
from sidecar.transports.context import Bounds, Services, read
from sidecar.transports.waiting import WaitingRoom
from sidecar.triton import methods
from sidecar.triton.knowledge import Knowledge, read_model
from sidecar.triton.protos import message_class

WARM_UP: Final = 500
_OK: Final = Outcome(OutcomeKind.COMPLETED)
_PEER: Final = "127.0.0.1:50000"

# What each port does, in the order of the call, as the table names it. ``journal`` is inside admit and settle both.
STEPS: Final[tuple[tuple[str, str, str], ...]] = (
    ("identity", "identify", "identify (token cached)"),
    ("reader", "head", "head: model and version"),
    ("policy", "authorise", "authorise (verdict cached)"),
    ("reader", "facts", "facts: prompt, parameters"),
    ("guards", "prompt", "guards on the prompt"),
    ("reader", "isolate", "isolate"),
    ("reader", "demand", "demand"),
    ("quotas", "reserve", "reserve"),
    ("recorder", "admitted", "record ADMITTED: build, encode"),
    ("instruments", "admitted", "count admitted"),
    ("guards", "watch", "guards on the output: begin"),
    ("reader", "response", "read the response"),
    ("quotas", "grow", "tokens used so far"),
    ("quotas", "settle", "give back"),
    ("recorder", "settled", "record outcome: build, encode"),
    ("instruments", "settled", "count settled"),
    ("reader", "ended", "count for ModelStatistics"),
)
SEAL: Final = "seal a journal frame (2 a call)"
WRITE: Final = "write(2) a journal frame (2 a call)"
APPEND: Final = "journal bookkeeping (2 a call)"


class Rig:
    """The rooms of one sidecar, composed as ``warden serve`` composes them; no thread but the journal's own."""

    def __init__(self, directory: Path) -> None:
        loaded = settings.load(_configure(directory))
        self.rooms = compose.build(loaded)
        self.rooms.denied.install(DenyList(), Age(time.time()))  # as a database with nothing revoked would
        for source in self.rooms.jwks:
            source.refresh(time.time())
        assert self.rooms.recorder.recovered() is None
        self.governor = self.rooms.governor
        self.rooms.models.current = _known()
        self.request, self.response = unary_request(), unary_response()
        self.method = methods.lookup(UNARY)
        token = _token(directory)
        self.headers = [
            ("content-type", b"application/grpc"), ("te", b"trailers"), ("user-agent", b"grpc-python/1.80"),
            ("grpc-accept-encoding", b"identity, deflate, gzip"), ("authorization", b"Bearer " + token),
        ]  # fmt: skip
        self.services = Services(
            governor=self.governor,
            now=clock.now,
            ids=self.rooms.ids,
            bounds=Bounds(2**28, 2**26, 1024, 30.0, 600.0),
            budget=Budget(2**30),
            durable=self.rooms.recorder.durable,
            ready=lambda: True,
            crashed=lambda _call, fault: (_ for _ in ()).throw(fault),
            cut_off=lambda _why: None,
            waiting=WaitingRoom(),
        )
        self.context = read(self.services, self.method, self.headers, _PEER)

    def headers_read(self) -> None:
        """What the wire does before the governor: not governance, but told beside it."""
        self.context = read(self.services, self.method, self.headers, _PEER)

    def govern(self) -> None:
        """Admit, record, meter the one response, settle: all that governance does for a unary call."""
        now = clock.now
        call = self.context.call(self.request)
        recorded = self.governor.open(call, now())
        assert isinstance(recorded, Recorded), recorded
        self.governor.deliver(recorded, self.response, now())
        self.governor.settle(recorded, _OK, now())

    def close(self) -> None:
        self.rooms.journal.close()


def _known() -> Knowledge:
    """As learnt from Triton, so that calls are isolated as they are beside one."""
    told = told_of_itself()
    metadata: Any = message_class("ModelMetadataResponse").FromString(told["ModelMetadata"])
    config: Any = message_class("ModelConfigResponse").FromString(told["ModelConfig"])
    return Knowledge.of([read_model(metadata, config.config, ("1",))])


def _configure(directory: Path) -> Path:
    keys = directory / "keys"
    keys.mkdir(mode=0o700)
    create_key_file(keys / "journal.key", secrets.token_bytes)
    create_key_file(keys / "pepper.key", secrets.token_bytes)
    private = mint.generate_key()
    mint.write_private(keys / "signing.pem", private)
    key = mint.load_key(private)
    assert isinstance(key, mint.SigningKey)
    mint.write_public(keys / "jwks.json", mint.public_jwks(key))
    lifted_bundle(directory / "bundle")
    (directory / "node-labels").write_text(f'topology.kubernetes.io/region="{REGION}"\n')
    issuer = {
        "issuer": ISSUER, "audience": [AUDIENCE], "jwks": "keys/jwks.json", "algorithms": ["EdDSA"], "tenants": ["*"],
    }  # fmt: skip
    sections: dict[str, Any] = {
        "sidecar": {"name": "bench", "region": REGION, "evidence": {"node_labels_file": "node-labels"}},
        "policy": {"bundle": "bundle"},
        "identity": {"issuers": [issuer], "keys": {"environment": "bench", "pepper_file": "keys/pepper.key"}},
        "audit": {
            "journal": {"directory": "journal", "key_file": "keys/journal.key", "min_free": "64MiB"},
            "database": {"dsn": "postgresql://unused", "jurisdiction": JURISDICTION},
        },
    }
    config = directory / "warden.yaml"
    config.write_text(json.dumps(sections))
    return config


def _token(directory: Path) -> bytes:
    key = mint.load_key((directory / "keys" / "signing.pem").read_bytes())
    assert isinstance(key, mint.SigningKey)
    said = mint.Assertion(
        issuer=ISSUER, audience=AUDIENCE, tenant="acme", subject="alice@acme.example", lifetime=3600, operator="bench",
        roles=("tenant",),
    )  # fmt: skip
    return mint.mint(key, said, token_id="bench", at=time.time())[0].encode()


@contextmanager
def rig() -> Iterator[Rig]:
    """A rig in a directory of its own, which goes with it."""
    with tempfile.TemporaryDirectory(prefix="warden-bench-") as directory:
        made = Rig(Path(directory))
        try:
            yield made
        finally:
            made.close()


# --- the steps ----------------------------------------------------------------------------------------------------


class _Timed:
    """A room whose methods are timed; everything else is the room's own."""

    def __init__(self, room: object, label: str, spent: dict[tuple[str, str], list[int]]) -> None:
        self._room = room
        for of, name, _ in STEPS:
            if of == label:
                vars(self)[name] = _timed(getattr(room, name), spent.setdefault((label, name), []))

    def __getattr__(self, name: str) -> object:
        return getattr(self._room, name)


class _Policies:
    def __init__(self, policy: object) -> None:
        self._policy = policy

    def current(self) -> object:
        return self._policy


def _timed(step: Callable[..., Any], spent: list[int]) -> Callable[..., Any]:
    counter = time.perf_counter_ns

    def timed(*args: Any, **named: Any) -> Any:
        began = counter()
        result = step(*args, **named)
        spent.append(counter() - began)
        return result

    return timed


def breakdown(made: Rig, calls: int) -> dict[str, float]:
    """Median µs per step, timed inside whole calls; the recorder's own steps without the journal's, shown apart."""
    spent: dict[tuple[str, str], list[int]] = {}
    inner: dict[str, list[int]] = {SEAL: [], WRITE: [], APPEND: []}
    ports = made.governor._ports  # noqa: SLF001 — measured from inside, on purpose
    policy = _Timed(ports.policies.current(), "policy", spent)
    timed: Any = Ports(
        **{
            name: _Timed(getattr(ports, name), name, spent)
            for name in ("identity", "reader", "quotas", "recorder", "instruments")
        },
        policies=_Policies(policy),
    )
    plain, made.governor = made.governor, Governor(timed)
    restore = _time_guards(spent), _time_journal(inner)
    total: list[int] = []
    whole = _timed(made.govern, total)
    try:
        for call in range(calls):
            whole()
            for times in inner.values():  # a third entry: the machine stood still, and the output had to be journaled
                del times[2 * call + 2 :]
    finally:
        for each in restore:
            each()
        made.governor = plain
    return _told(spent, inner, total)


def _time_guards(spent: dict[tuple[str, str], list[int]]) -> Callable[[], None]:
    """They are a verdict's own, so all of them are timed."""
    prompt, watch, timed = Guards.prompt, Guards.watch, ("prompt", "watch")
    guards: Any = Guards
    for name in timed:
        setattr(guards, name, _timed(getattr(guards, name), spent.setdefault(("guards", name), [])))

    def restore() -> None:
        guards.prompt, guards.watch = prompt, watch

    return restore


def _time_journal(inner: dict[str, list[int]]) -> Callable[[], None]:
    encode, write, append = appending.encode_frame, writing.LiveSegment.write, appending.Appending.append
    patched: Any = appending
    patched.encode_frame = _timed(encode, inner[SEAL])
    segment: Any = writing.LiveSegment
    segment.write = _timed(write, inner[WRITE])  # a function, so bound as the method it stands in for
    journal: Any = appending.Appending
    journal.append = _timed(append, inner[APPEND])

    def restore() -> None:
        patched.encode_frame, segment.write, journal.append = encode, write, append

    return restore


def _told(spent: dict[tuple[str, str], list[int]], inner: dict[str, list[int]], total: list[int]) -> dict[str, float]:
    """The steps less what a clock's own reading costs; the governor's own part is what is left of the whole."""
    empty: list[int] = []
    nothing = _timed(lambda: None, empty)
    for _ in range(2000):
        nothing()
    reading = statistics.median(empty)
    median = {key: max(0.0, statistics.median(times) - reading) for key, times in spent.items()}
    # Two entries a call differ in size: a median over both would be one of them, so each pair is added first.
    pairs = {
        name: statistics.median(map(sum, zip(times[::2], times[1::2], strict=True))) for name, times in inner.items()
    }
    seal, write = pairs[SEAL] - 2 * reading, pairs[WRITE] - 2 * reading
    append = pairs[APPEND] - 2 * reading
    recorded = median["recorder", "admitted"] + median["recorder", "settled"]
    # Inside the recorder's two steps there are 2 appends, 2 seals and 2 writes with their clocks.
    build = max(0.0, recorded - append - 8 * reading)
    share = median["recorder", "admitted"] / recorded
    median["recorder", "admitted"], median["recorder", "settled"] = build * share, build * (1 - share)
    told = {label: median[room, name] / 1000 for room, name, label in STEPS}
    told[SEAL], told[WRITE] = seal / 1000, write / 1000
    told[APPEND] = max(0.0, append - seal - write - 4 * reading) / 1000
    clocks = (len(STEPS) + 6) * reading * 2
    told["the governor itself, 3 clock readings"] = max(
        0.0, (statistics.median(total) - clocks) / 1000 - sum(told.values())
    )
    return told


# --- the whole ----------------------------------------------------------------------------------------------------


def cpu_us(step: Callable[[], object], *, rounds: int, calls: int) -> list[float]:
    """CPU µs of this process per ``step``, once a round: with the journal's threads, without others' load."""
    found: list[float] = []
    for _ in range(rounds):
        gc.collect()
        began = time.process_time_ns()
        for _ in range(calls):
            step()
        found.append((time.process_time_ns() - began) / calls / 1000)
    return found


def measure(*, quick: bool) -> dict[str, Any]:
    """Governance alone: µs CPU of a whole call (least and median of the rounds), and where they go."""
    rounds, calls = (5, 1000) if quick else (9, 3000)
    with rig() as made:
        for _ in range(WARM_UP):
            made.govern()
        whole = cpu_us(made.govern, rounds=rounds, calls=calls)
        context = cpu_us(made.headers_read, rounds=rounds, calls=calls)
        steps = breakdown(made, calls)
    return {
        "cpu_us_min": round(min(whole), 2),
        "cpu_us_median": round(statistics.median(whole), 2),
        "headers_us_min": round(min(context), 2),
        "steps_us": {name: round(value, 2) for name, value in steps.items()},
    }


def main() -> None:
    print(json.dumps(measure(quick=False), indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
