"""A running sidecar as the conformance suite drives it: stock clients, bare gRPC, its metrics, its records."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import grpc
import sqlalchemy as sa
import tritonclient.grpc as kserve
from google.rpc import error_details_pb2, status_pb2
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from audit import store as audit_store
from audit.opening import Opener
from audit.search import Asker, Filter
from audit.search import search as search_records
from sidecar.cli.demo.stack import AUDIENCE, ENVIRONMENT, ISSUER, JURISDICTION, Options, Parts, Stack
from sidecar.cli.desk import record_key_event
from sidecar.core.model import Secret
from sidecar.identity import mint, store
from sidecar.identity.keys import read_pepper
from sidecar.runtime.compose import id_key
from sidecar.runtime.ids import uuid7
from sidecar.runtime.masterkeys import key_store
from sidecar.runtime.settings import load
from sidecar.triton.isolation import Isolation
from sidecar.triton.knowledge import ModelBook
from sidecar.triton.methods import KSERVE
from sidecar.triton.protos import ModelStreamInferResponse
from sidecar.triton.sequences import SequenceTable
from tests.support.kserve import packed, request
from tests.support.stack import eventually

WIRES: Final = ("envoy", "grpc")
INFER: Final = KSERVE + "ModelInfer"
STREAM: Final = KSERVE + "ModelStreamInfer"
DEADLINE: Final = 60.0  # seconds: of what should be quick, on a machine that others use too
Metadata = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Told:
    """The parts of a google.rpc.Status. ``retry`` in seconds; ``quota`` the violations' subjects."""

    code: int
    text: str
    reason: str
    domain: str
    metadata: Mapping[str, str]
    retry: float | None
    quota: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """How one RPC ended, as its client saw it."""

    code: str
    text: str
    message: bytes | None
    initial: Mapping[str, Any]
    trailing: Mapping[str, Any]

    @property
    def call_id(self) -> str:
        return str(self.initial["x-warden-call-id"])

    def told(self) -> Told:
        """The details of a refusal."""
        return _told(status_pb2.Status.FromString(self.trailing["grpc-status-details-bin"]))


def _told(status: Any) -> Told:
    info, retry, quota = error_details_pb2.ErrorInfo(), None, ()
    for detail in status.details:
        if detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
        elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
            found = error_details_pb2.RetryInfo()
            detail.Unpack(found)
            retry = found.retry_delay.ToNanoseconds() / 1e9
        else:
            failure = error_details_pb2.QuotaFailure()
            detail.Unpack(failure)
            quota = tuple(violation.subject for violation in failure.violations)
    return Told(status.code, status.message, info.reason, info.domain, dict(info.metadata), retry, quota)


def answer_of(call: Any, message: bytes | None = None) -> Answer:
    """Of a finished grpc.Call."""
    return Answer(
        call.code().name,
        call.details() or "",
        message,
        dict(call.initial_metadata() or ()),
        dict(call.trailing_metadata() or ()),
    )


class Bare:
    """gRPC without KServe's stubs: any path, any bytes, any number of messages, a connection of its own."""

    def __init__(self, address: str) -> None:
        # Not shared: a client that misbehaves must not take along those that don't.
        options = (
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_metadata_size", 32 << 20),
        )
        self.channel = grpc.insecure_channel(address, options=options)

    def begin(self, message: bytes, headers: Metadata, *, path: str = INFER, **options: Any) -> Any:
        """A unary call under way: a grpc.Call and Future."""
        options = {"timeout": DEADLINE, **options}
        return self.channel.unary_unary(path).future(message, metadata=tuple(headers.items()), **options)

    def unary(self, message: bytes, headers: Metadata, *, path: str = INFER, **options: Any) -> Answer:
        return ended(self.begin(message, headers, path=path, **options))

    def several(self, messages: Iterable[bytes], headers: Metadata, *, path: str = INFER) -> Answer:
        """Any number of messages where one is expected."""
        call = self.channel.stream_unary(path)
        return ended(call.future(iter(messages), timeout=DEADLINE, metadata=tuple(headers.items())))

    def stream(self, messages: Iterable[bytes], headers: Metadata, *, timeout: float = DEADLINE) -> BareStream:
        call = self.channel.stream_stream(STREAM)
        return BareStream(call(iter(messages), timeout=timeout, metadata=tuple(headers.items())))

    def __enter__(self) -> Bare:
        return self

    def __exit__(self, *_: object) -> None:
        self.channel.close()


def ended(future: Any) -> Answer:
    """Wait for the end of a unary call."""
    try:
        error = future.exception()
    except grpc.FutureCancelledError as cancelled:
        error = cancelled
    return answer_of(future, None if error is not None else future.result())


class BareStream:
    """A ModelStreamInfer; iterate for its responses; ``answer`` is how it ended, waited for."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __iter__(self) -> Iterator[Any]:
        """Decoded responses; the RPC's bad end is not raised but told by ``answer``."""
        try:
            for message in self.call:
                yield ModelStreamInferResponse.FromString(message)
        except grpc.RpcError:
            return

    def next(self) -> Any:
        return ModelStreamInferResponse.FromString(next(self.call))

    def answer(self) -> Answer:
        for _ in self:
            pass
        return answer_of(self.call)


# --- requests -----------------------------------------------------------------------------------------------------


def echo(text: bytes = b"hello", **fields: Any) -> bytes:
    return bytes(request("echo", ("text", "BYTES", [1], packed(text)), **fields).SerializeToString())


def hold(ms: int, *, model: str = "hold", **fields: Any) -> bytes:
    shape = [1, 1] if model == "narrow" else [1]
    return bytes(request(model, ("ms", "INT32", shape, struct.pack("<i", ms)), **fields).SerializeToString())


def slow(count: int, delay_ms: int = 1, *, prompt: bytes = b"a b c", size: int = 0, **fields: Any) -> bytes:
    """``count`` responses of `slow`, a token each (``size`` bytes at least), and the end as one more, empty."""
    message = request(
        "slow",
        ("text_input", "BYTES", [1], packed(prompt)),
        ("count", "INT32", [1], struct.pack("<i", count)),
        ("delay_ms", "INT32", [1], struct.pack("<i", delay_ms)),
        ("response_bytes", "INT32", [1], struct.pack("<i", size)),
        **fields,
    )
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    return bytes(message.SerializeToString())


def deaf(count: int, delay_ms: int, **fields: Any) -> bytes:
    """``count`` responses of `deaf`, whoever listens."""
    numbers = [(name, "INT32", [1], struct.pack("<i", n)) for name, n in (("count", count), ("delay_ms", delay_ms))]
    return bytes(
        request("deaf", ("text_input", "BYTES", [1], packed(b"a b c")), *numbers, **fields).SerializeToString()
    )


def failing(code: str, text: str, *, stream: bool = False, after: int = 0, **fields: Any) -> bytes:
    """Triton's answer shall be this error; on a stream after so many good responses."""
    tensors = [("code", "BYTES", [1], packed(code.encode())), ("message", "BYTES", [1], packed(text.encode()))]
    if stream:
        tensors.append(("after", "INT32", [1], struct.pack("<i", after)))
    return bytes(request("failing_stream" if stream else "failing", *tensors, **fields).SerializeToString())


def final(response: Any) -> bool:
    return bool(response.infer_response.parameters["triton_final_response"].bool_param)


def said(response: Any) -> str:
    """The text of one response of a model with the vLLM contract."""
    raw = response.infer_response.raw_output_contents
    return raw[0][4:].decode() if raw else ""


def withheld(call_id: str) -> str:
    """What is told instead of a model's own words, which may quote the others of its batch."""
    return f"the model failed; its own words are in the record of call {call_id}"


# --- the sidecar --------------------------------------------------------------------------------------------------


@dataclass
class Sidecar:
    """A stack's `warden serve`, its callers' credentials, and everything that can be seen of it from outside."""

    stack: Stack
    wire: str
    parts: Parts
    _closing: list[Callable[[], None]] = field(default_factory=list)

    @property
    def grpc(self) -> str:
        return str(self.stack.info["grpc"])

    @property
    def pid(self) -> int:
        assert self.stack.process is not None
        return self.stack.process.pid

    # --- callers ---------------------------------------------------------------------------------------------------

    def headers(self, tenant: str = "acme", **more: str) -> dict[str, str]:
        """``tenant``'s credential (the demo's API key where it has one, else a token), and ``more``."""
        known = self.stack.info["tenants"].get(tenant)
        credential = known["api_key"] if known else self.token(tenant)
        return {"authorization": f"Bearer {credential}", **more}

    def token(
        self,
        tenant: str,
        *,
        key: bytes | None = None,
        audience: str = AUDIENCE,
        issuer: str = ISSUER,
        lifetime: int = 900,
        ago: float = 0,
        roles: tuple[str, ...] = ("tenant",),
        subject: str | None = None,
    ) -> str:
        """A token as its issuer signed it ``ago`` seconds back; ``key`` in PEM, the issuer's unless given."""
        signing = mint.load_key(key or (self.stack.directory / "keys" / "signing.pem").read_bytes())
        assert isinstance(signing, mint.SigningKey)
        assertion = mint.Assertion(
            issuer, audience, tenant, subject or f"someone@{tenant}.example", lifetime, "test", roles
        )
        return mint.mint(signing, assertion, token_id=secrets.token_hex(8), at=time.time() - ago)[0]

    def issue(
        self,
        tenant: str,
        *,
        expires: datetime | None = None,
        revoked: bool = False,
        roles: tuple[str, ...] = ("tenant",),
    ) -> str:
        """A new API key in the database; the sidecar learns of it within its refresh."""
        pepper = read_pepper((self.stack.directory / "keys" / "pepper.key").read_bytes())
        assert isinstance(pepper, Secret)
        office = store.Office(pepper, ENVIRONMENT, secrets.token_bytes, record_key_event, "test")
        now = datetime.now(UTC)
        with audit_store.transaction(self._engine) as connection:
            issued = store.issue(connection, office, store.NewKey(tenant, "test", expires, roles=roles), now)
            assert isinstance(issued, store.Issued)
            if revoked:
                store.revoke(connection, office, issued.info.id, now)
        return issued.key.reveal().decode()

    @contextmanager
    def bare(self) -> Iterator[Bare]:
        with Bare(self.grpc) as bare:
            yield bare

    @contextmanager
    def client(self) -> Iterator[kserve.InferenceServerClient]:
        with kserve.InferenceServerClient(self.grpc) as client:
            yield client

    def sent(self, request_id: str, *, model: str, tenant: str = "acme") -> str:
        """What Triton is given for a client's request id."""
        key = id_key(load(self.stack.config))
        return Isolation(ModelBook(), key, SequenceTable(key)).request_id(tenant, model, request_id)

    # --- what it shows ---------------------------------------------------------------------------------------------

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples with ``labels``; 0 where there are none."""
        total = 0.0
        for line in self.open_metrics().splitlines():
            named = line.startswith((f"{name} ", f"{name}{{"))
            if named and all(f'{label}="{value}"' in line for label, value in labels.items()):
                total += float(line.rpartition(" ")[2])
        return total

    def families(self) -> dict[str, Any]:
        """/metrics as an OpenMetrics parser reads it, by family."""
        return {family.name: family for family in text_string_to_metric_families(self.open_metrics())}

    def open_metrics(self) -> str:
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        with urlopen(Request(f"http://{self.stack.admin}/metrics", headers=accept), timeout=10) as answer:
            text: str = answer.read().decode()
        return text

    def ready(self) -> dict[str, dict[str, Any]]:
        """/readyz's checks by name, whatever it answers."""
        try:
            with urlopen(f"http://{self.stack.admin}/readyz", timeout=10) as answer:
                told: dict[str, Any] = json.loads(answer.read())
        except HTTPError as unready:
            told = json.loads(unready.read())
        return dict(told["checks"])

    def held(self) -> dict[str, float]:
        """What calls in flight hold now: slots, quota, buffers."""
        names = ("warden_in_flight_calls", "warden_quota_held_bytes", "warden_buffer_bytes")
        return {name: self.metric(name) for name in names}

    def settles(self) -> None:
        """Wait until what was reserved has been given back."""
        deadline = time.monotonic() + DEADLINE
        while any((held := self.held()).values()):
            assert time.monotonic() < deadline, f"still held after {DEADLINE} s: {held}"
            time.sleep(0.02)

    def rss(self) -> int:
        """Bytes of memory of the process that serves."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("no VmRSS")

    # --- what it recorded ------------------------------------------------------------------------------------------

    @cached_property
    def _engine(self) -> sa.Engine:
        engine = audit_store.connect(self.parts.postgres_dsn, application="warden-test", pool=1)
        engine.pool._pre_ping = True  # tests of an outage leave pooled connections dead behind them
        self._closing.append(engine.dispose)
        return engine

    @cached_property
    def _opener(self) -> Opener:
        return Opener(key_store(load(self.stack.config)))

    def search(self, *, reveal: bool = True, **asked: Any) -> list[dict[str, Any]]:
        """`warden audit search`, newest first."""
        ids = (uuid7(time.time_ns(), os.urandom(10)) for _ in itertools.count())
        asker = Asker("test", datetime.now(UTC), ids, "test", reveal)
        page = search_records(self._engine, Filter(**asked), asker, self._opener, JURISDICTION)
        return [found.shape() for found in page.found]

    def record(self, call_id: str) -> dict[str, Any]:
        """The one record of a call, once it is shipped."""
        found = eventually(lambda: self.search(call=call_id), what=f"the record of call {call_id}", within_s=DEADLINE)
        (record,) = found
        return record

    def close(self) -> None:
        for close in self._closing:
            close()
        self.stack.stop()


Launch = Callable[..., Sidecar]


def launch(directory: Path, wire: str, parts: Parts, bundle: Path, **options: Any) -> Sidecar:
    """Start a sidecar of its own among running ``parts``; ``options`` are ``Stack``'s.

    Those that store in one database share its tenants' master keys, as they must.
    """
    shared = directory.parent / f"master-keys-{zlib.crc32(parts.postgres_dsn.encode()):08x}"
    overrides = dict(options.pop("overrides", {}))
    overrides["audit"] = {"keys": {"directory": str(shared)}, **overrides.get("audit", {})}
    options["overrides"] = overrides
    stack = Stack(directory, Options(parts=parts, wire=wire, bundle=bundle, preferred_ports=False, **options))
    stack.start()
    return Sidecar(stack, wire, parts)
