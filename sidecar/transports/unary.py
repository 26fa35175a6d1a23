"""One unary RPC on either wire, from its message to its answer: open, forward, meter, settle."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from sidecar.core.model import Denial, Forward
from sidecar.core.reasons import Code, Reason
from sidecar.transports import render
from sidecar.transports.budget import Held
from sidecar.transports.context import EXPIRED, RpcContext, Services
from sidecar.transports.exchange import CRASHED, NO_BUFFER, Exchange, UpstreamEnd
from sidecar.transports.live import LiveRpc
from sidecar.transports.upstream import Upstream, UpstreamCall, durable, upstream_metadata

_NO_MESSAGE: Final = Denial(Reason.INTERNAL, internal="the upstream ended well without a response message")


@dataclass(frozen=True, slots=True)
class Answer:
    """What the client is sent: its response message, where there is one, and how its RPC ends."""

    message: bytes | None
    status: render.Status


def refuse(services: Services, context: RpcContext) -> render.Status | None:
    """Refuse before the message is read, where who calls (or that we drain) decides it already; else None."""
    return None if _account(services, context) is not None else _turned_away(services, context)


def received(services: Services, context: RpcContext) -> Held | render.Status:
    """Where what this RPC will take of the buffers is counted; or its end, as ``refuse`` has it."""
    tenant = _account(services, context)
    return _turned_away(services, context) if tenant is None else Held(services.budget, tenant)


def _account(services: Services, context: RpcContext) -> str | None:
    return services.governor.account(context.credential, services.now())


def _turned_away(services: Services, context: RpcContext) -> render.Status:
    exchange = Exchange(services, context.call(b""))
    opened = exchange.open()
    if isinstance(opened, Denial):
        return render.status(opened, context.id)
    # Between the two looks the answer changed (a key was just learnt): the call can't go on without its message.
    return render.status(exchange.failed(CRASHED), context.id)


def begins(services: Services, context: RpcContext) -> render.RateFields | None:
    """What a stream's beginning tells of what its tenant has left: its own end may be hours away."""
    return render.ok(services.governor.standing(context.credential, services.now())).limits


def reject(services: Services, context: RpcContext, denial: Denial) -> render.Status:
    """Refuse, and record the refusal of, an RPC whose message could not be read from the wire."""
    refused = services.governor.reject(context.call(b""), denial, services.now())
    return render.status(refused.denial, context.id)


def miscounted(count: int) -> Denial:
    """``count`` messages (no more than two need be read) where a unary RPC has one."""
    found = "no message" if count == 0 else "more than one message"
    return Denial(Reason.REQUEST_MALFORMED, f"{found} in a unary call; exactly one expected")


def undecodable(encoding: str) -> Denial:
    """A message compressed as nobody here reads it; UNIMPLEMENTED, as gRPC prescribes (``compression.md``)."""
    return Denial(Reason.METHOD_UNKNOWN, f"none takes grpc-encoding {encoding[:64]!r}", rule="grpc-encoding")


def hold(services: Services, context: RpcContext) -> Held:
    """What this RPC will take of the buffers counts as its tenant's."""
    return Held(services.budget, services.governor.tenant(context.credential, services.now()))


async def serve(
    services: Services, context: RpcContext, upstream: Upstream, held: Held, live: LiveRpc, message: bytes
) -> Answer:
    """The whole life of a unary call. Settled whichever way it ends; a cancellation is re-raised once it is."""
    exchange = Exchange(services, context.call(message))
    call: UpstreamCall | None = None
    try:
        async with asyncio.timeout(context.remaining(services.now())):
            opened = await exchange.opened(context)
            if isinstance(opened, Denial):
                return Answer(None, render.status(opened, context.id))
            denial = await durable(services, exchange)
            if denial is None and context.remaining(services.now()) == 0:  # Triton would be given what nobody waits for
                denial = EXPIRED
            if denial is not None:
                return _told(context, exchange.failed(denial))
            if opened.answer is not None:
                return await _answer(services, context, exchange, opened.answer)
            call = _forward(exchange, upstream, opened)
            return await _collect(services, context, exchange, call, held)
    except TimeoutError:
        return _told(context, _fail(exchange, EXPIRED))
    except asyncio.CancelledError:
        _fail(exchange, live.ending or context.gone(services.now()))
        raise
    except Exception as fault:  # noqa: BLE001 — the crash barrier of one call (DESIGN rule 7)
        services.crashed(context.id, fault)
        return _told(context, _fail(exchange, CRASHED))
    finally:
        if call is not None:
            await call.cancel()


def _forward(exchange: Exchange, upstream: Upstream, forward: Forward) -> UpstreamCall:
    assert exchange.recorded is not None
    metadata = upstream_metadata(exchange.recorded.admission)
    exchange.forwarded = True
    return upstream.unary(exchange.call.method, forward.message, forward.suffix, metadata)


async def _answer(services: Services, context: RpcContext, exchange: Exchange, answer: bytes) -> Answer:
    """The sidecar's own answer, metered and recorded like one of Triton's."""
    facts = exchange.deliver(answer)
    if isinstance(facts, Denial):
        return _told(context, exchange.failed(facts))
    denial = exchange.complete() or await durable(services, exchange)
    return Answer(facts.message, exchange.told_ok()) if denial is None else _told(context, denial)


async def _collect(
    services: Services, context: RpcContext, exchange: Exchange, call: UpstreamCall, held: Held
) -> Answer:
    message: bytes | None = None
    while True:
        item = await call.receive()
        if isinstance(item, UpstreamEnd):
            if item.client_gone:
                return _told(context, exchange.failed(context.gone(services.now())))
            if item.code == Code.OK and message is None:  # gRPC has no good end of a unary call without its message
                return _told(context, exchange.failed(_NO_MESSAGE))
            status = exchange.ended(item)
            unsafe = await durable(services, exchange)
            if status.code == 0 and unsafe is not None:
                return _told(context, unsafe)
            return Answer(message if status.code == 0 else None, status)
        if not held.take(len(item)):
            return _told(context, exchange.failed(NO_BUFFER))
        facts = exchange.deliver(item)
        if isinstance(facts, Denial):
            return _told(context, exchange.failed(facts))
        message = facts.message


def _told(context: RpcContext, denial: Denial) -> Answer:
    return Answer(None, render.status(denial, context.id))


def _fail(exchange: Exchange, denial: Denial) -> Denial:
    return exchange.failed(denial) if exchange.unsettled else denial
