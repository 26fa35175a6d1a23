"""A ModelStreamInfer on either wire: each message its own call with its own upstream stream (DESIGN §4, §6)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from sidecar.core.model import Denial, Forward, MalformedRequest, ResponseFacts
from sidecar.core.reasons import REASONS, Code, Reason
from sidecar.transports import kinds, render, unary
from sidecar.transports.budget import Held
from sidecar.transports.context import CANCELLED, EXPIRED, RpcContext, Services
from sidecar.transports.exchange import BEHIND, BLOCKED, CRASHED, NO_BUFFER, Exchange, UpstreamEnd
from sidecar.transports.grpc_frames import UnsupportedEncoding
from sidecar.transports.holding import Holding
from sidecar.transports.ordering import Place
from sidecar.transports.outbox import ClientGone, Outbox, Send
from sidecar.transports.promptly import ended
from sidecar.transports.sequences import Seat, Sequences
from sidecar.transports.upstream import Upstream, UpstreamCall, durable, upstream_metadata
from sidecar.triton.peek import EMPTY_FINAL_SUFFIX

_TURN: Final = 16  # responses of one call read before the others get their turn
_OTHERS_ERROR: Final = Denial(
    Reason.CLIENT_CANCELLED, "another request's error ended the stream, as triton_grpc_error asks"
)


@dataclass(frozen=True, slots=True)
class _Part:
    """One call's part in the stream: its place in the line of those that keep their order, its seat in its sequence."""

    place: Place | None
    seat: Seat | None
    decoupled: bool
    holding: Holding | None  # where its guards deny something of outputs

    def flush(self) -> Denial | None:
        """No output follows. A Denial ends the call instead of how it would have ended."""
        return None if self.holding is None else self.holding.flush()


class StreamRelay:
    """One client stream. ``run`` returns how the RPC ends; every call it opened is settled by then.

    ``messages`` given to ``run`` are taken from ``held`` already. ``framed``: ``send`` wants gRPC frames, not messages.
    """

    def __init__(
        self, services: Services, context: RpcContext, upstream: Upstream, send: Send, held: Held, *, framed: bool
    ) -> None:
        self._services = services
        self._context = context
        self._upstream = upstream
        self._held = held
        bounds = services.bounds
        self._outbox = Outbox(send, held, limit=bounds.stream_bytes, blocked_write=bounds.blocked_write, framed=framed)
        self._slots = asyncio.Semaphore(services.bounds.calls_per_stream)
        self._sequences = Sequences(upstream)
        # By an error, where the client asked for that.
        self._stopped: asyncio.Future[render.Status] = asyncio.get_running_loop().create_future()
        self._calls: dict[asyncio.Task[None], Exchange] = {}
        self._finishing = False
        self._ending = CANCELLED  # what a call is told when its task is cancelled

    async def run(self, messages: AsyncIterator[bytes]) -> render.Status:
        """Serve the stream until the client half-closes and all is answered, or until it must be cut."""
        pump = asyncio.create_task(self._outbox.pump(), name=f"{self._context.id} pump")
        reader = asyncio.create_task(self._read(messages), name=f"{self._context.id} read")
        try:
            async with asyncio.timeout(self._context.remaining(self._services.now())):
                return await self._serve(reader, pump)
        except TimeoutError:
            return self._cut(EXPIRED)
        except ClientGone:
            return self._cut(self._context.gone(self._services.now()))
        except asyncio.CancelledError:
            if self._ending is CANCELLED:
                self._ending = self._context.gone(self._services.now())
            raise
        except Exception:  # told to the calls under way, and raised again for the wire's crash barrier
            self._ending = CRASHED
            raise
        finally:
            # Also the way out when this task itself is cancelled: nothing may outlive the RPC.
            await self._end(reader, pump)

    async def _serve(
        self, reader: asyncio.Task[render.Status | None], pump: asyncio.Task[Denial | None]
    ) -> render.Status:
        status: render.Status | None = None
        ends: set[asyncio.Future[Any]] = {pump, self._stopped}
        await asyncio.wait({reader, *ends}, return_when=asyncio.FIRST_COMPLETED)
        if reader.done():  # the client sends no more, or what it sent ends the stream
            self._finishing = True
            status = reader.result()
            while status is None and self._calls and not pump.done() and not self._stopped.done():
                await asyncio.wait({*ends, *self._calls}, return_when=asyncio.FIRST_COMPLETED)
        elif pump.done():
            return self._cut(pump.result() or CRASHED)
        if self._stopped.done():
            status = status or self._stopped.result()
        if status is not None:
            self._outbox.scatter()
            await self._end(reader)
        self._outbox.close()
        denial = await pump
        if denial is not None:
            return self._cut(denial)
        return status or render.OK

    def _cut(self, denial: Denial) -> render.Status:
        """On the way out every call ends with ``denial``, and the RPC with its status."""
        self._ending = denial
        if denial is BLOCKED or denial is BEHIND:
            self._services.cut_off(str(denial.reason))
        return render.status(denial, self._context.id)

    async def _end(self, *others: asyncio.Task[Any]) -> None:
        """Cancel all calls under way, and ``others``, and wait until every one of them has ended."""
        calls = dict(self._calls)
        try:
            await ended(*others, *calls)
        finally:
            for exchange in calls.values():
                if exchange.unsettled:  # its task was cancelled before its first step, so no code of it ever ran
                    exchange.failed(self._ending)
                elif exchange.waits:
                    exchange.abandon(self._ending)

    def idle(self) -> bool:
        """Whether no call is under way, all that was answered is written, and yet the client may say more."""
        return not self._finishing and not self._calls and self._outbox.idle

    def end_with(self, denial: Denial) -> None:
        """We end the RPC (a drain, a revocation): what is cancelled from now on failed with ``denial``."""
        self._ending = denial

    # --- messages in -----------------------------------------------------------------------------------------------

    async def _read(self, messages: AsyncIterator[bytes]) -> render.Status | None:
        """Open a call for each message. None: the client half-closed. Raises ``ClientGone``."""
        n = 0
        try:
            async for message in messages:
                n += 1
                await self._slots.acquire()
                status = await self._accept(n, message)
                if status is not None:
                    return status
        except MalformedRequest as fault:
            return self._reject(Denial(fault.reason, fault.detail))
        except BufferError:
            return self._reject(NO_BUFFER)
        except UnsupportedEncoding as fault:
            status = self._reject(unary.undecodable(str(fault)))
            self._ending = Denial(Reason.REQUEST_MALFORMED, "a later message of the stream cannot be decompressed")
            return status
        return None

    def _reject(self, denial: Denial) -> render.Status:
        self._ending = denial  # of the calls under way too: it was not the client that ended them
        return unary.reject(self._services, self._context, denial)

    async def _accept(self, n: int, message: bytes) -> render.Status | None:
        """Open call ``n``; a status where its refusal ends the whole RPC (a credential's failure, DESIGN §6)."""
        services = self._services
        exchange = Exchange(services, self._context.streamed(n, message, services.now(), services.ids.span()))
        opened = exchange.tried()
        if opened is None and not exchange.sequence:  # the others of the stream go on; its place in line is kept
            orderless = kinds.keeps_no_order(services.models, exchange.call.message)
            self._start(exchange, self._queued(exchange, None if orderless else self._outbox.join()))
            return None
        if opened is None:
            try:
                opened = await exchange.waited(self._context)
            except BaseException:  # cancelled while it waited for room
                self._release(exchange)
                raise
        if isinstance(opened, Denial):
            self._release(exchange)
            if REASONS[opened.reason].code is Code.UNAUTHENTICATED:
                self._ending = opened
                return render.status(opened, exchange.call.id)
            return self._refuse(exchange, opened)
        opened = kinds.told(self._services.models, exchange, opened)
        # Both in the order of arrival, before anything is waited for.
        place = self._outbox.join() if opened.ordered else None
        seat = self._sequences.join(opened) if opened.sequence is not None else None
        part = _Part(place, seat, opened.decoupled, self._holding(exchange, place))
        self._start(exchange, self._call(exchange, opened, part))
        return None

    def _start(self, exchange: Exchange, life: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(life, name=exchange.call.id)
        self._calls[task] = exchange
        task.add_done_callback(self._over)

    async def _queued(self, exchange: Exchange, place: Place | None) -> None:
        """A message that waits for room beside the stream's others; what follows its place waits for its answer."""
        try:
            opened = await exchange.waited(self._context)
        except BaseException:  # cancelled while it waited
            if place is not None:
                self._outbox.leave(place)
            self._release(exchange)
            raise
        if isinstance(opened, Denial):
            self._release(exchange)
            self._turned_away(exchange, opened, place or self._outbox.join())
            return
        opened = kinds.told(self._services.models, exchange, opened)
        if opened.ordered:
            place = place or self._outbox.join()
        elif place is not None:
            self._outbox.leave(place)
            place = None
        seat = self._sequences.join(opened) if opened.sequence is not None else None
        part = _Part(place, seat, opened.decoupled, self._holding(exchange, place))
        await self._call(exchange, opened, part)

    def _turned_away(self, exchange: Exchange, denial: Denial, place: Place) -> None:
        """It waited in vain."""
        if REASONS[denial.reason].code is Code.UNAUTHENTICATED:
            self._stop(render.status(denial, exchange.call.id), denial)
        else:
            self._outbox_put(render.in_band(denial, exchange.request_id), place)
        self._outbox.leave(place)

    def _holding(self, exchange: Exchange, place: Place | None) -> Holding | None:
        if exchange.holdback is None:
            return None

        def cut(denial: Denial) -> None:
            self._outbox_put(render.in_band(exchange.failed(denial), exchange.request_id), place)
            next(task for task, each in self._calls.items() if each is exchange).cancel()

        return Holding(
            self._services, exchange, exchange.holdback, self._held,
            put=lambda message: self._outbox_put(message, place), cut=cut,
        )  # fmt: skip

    def _over(self, task: asyncio.Task[None]) -> None:
        exchange = self._calls.pop(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:  # from the way out of its own crash barrier
            self._services.crashed(exchange.call.id, fault)

    def _refuse(self, exchange: Exchange, denial: Denial) -> render.Status | None:
        """Told in its turn, as Triton tells what it can't take; that turn never waits for a decoupled model."""
        place = self._outbox.join()
        full = self._outbox.put(render.in_band(denial, exchange.request_id), place)
        self._outbox.leave(place)
        if full is None:
            return None
        self._ending = full
        return render.status(full, self._context.id)

    def _release(self, exchange: Exchange) -> None:
        self._held.give(len(exchange.call.message))
        self._slots.release()

    # --- one call --------------------------------------------------------------------------------------------------

    async def _call(self, exchange: Exchange, forward: Forward, part: _Part) -> None:
        """One message's call, from its forwarding to its settlement. Raises nothing but CancelledError."""
        call: UpstreamCall | None = part.seat
        try:
            unsafe = await durable(self._services, exchange)
            if unsafe is not None:
                self._tell(exchange, exchange.failed(unsafe), part)
                return
            call = await self._forward(exchange, forward, part)
            await self._responses(exchange, call, part)
        except asyncio.CancelledError:
            if exchange.unsettled:
                exchange.failed(self._ending)
            raise
        except Exception as fault:  # noqa: BLE001 — the crash barrier of one call: its neighbours live on
            self._services.crashed(exchange.call.id, fault)
            if exchange.unsettled:
                self._tell(exchange, exchange.failed(CRASHED), part)
        finally:
            if part.holding is not None:
                part.holding.close()
            if part.place is not None:
                self._outbox.leave(part.place)
            if call is not None:
                await call.cancel()
            self._release(exchange)

    async def _forward(self, exchange: Exchange, forward: Forward, part: _Part) -> UpstreamCall:
        """Send the request on an upstream stream of its own, or on that of its sequence."""
        assert exchange.recorded is not None
        # Triton says when a decoupled request has ended only if asked to (facts/triton.md §6); the client is shown the
        # empty final response only if it asked too. Where it said no, the entry that is appended is what counts.
        suffix = forward.suffix if exchange.wants_empty_final else forward.suffix + EMPTY_FINAL_SUFFIX
        metadata = upstream_metadata(exchange.recorded.admission)
        exchange.forwarded = True
        if part.seat is None:
            return self._upstream.stream(exchange.call.method, forward.message, suffix, metadata)
        await part.seat.begin(exchange.call.method, forward.message, suffix, metadata)
        return part.seat

    async def _responses(self, exchange: Exchange, call: UpstreamCall, part: _Part) -> None:
        for n in count(1):
            item = await call.receive()
            if n % _TURN == 0:
                await asyncio.sleep(0)  # a receive that finds its data waiting never lets anybody else run
            if isinstance(item, UpstreamEnd):
                if exchange.unsettled and item.client_gone:
                    exchange.failed(self._context.gone(self._services.now()))
                elif exchange.unsettled:
                    await self._upstream_ended(exchange, item, part)
                return
            # After its final response a call is only drained.
            if exchange.unsettled and not await self._response(exchange, call, item, part, first=n == 1):
                return

    async def _response(self, exchange: Exchange, call: UpstreamCall, item: bytes, part: _Part, *, first: bool) -> bool:
        """Meter one response and queue it for the client; False: read no further of this call.

        ``first``: a final one is then the whole answer of a model that isn't decoupled, also one without outputs.
        """
        facts = exchange.deliver(item)
        if isinstance(facts, Denial):
            if facts.reason is Reason.RATE_TOKENS:  # what came before was paid for
                part.flush()
            self._tell(exchange, exchange.failed(facts), part)
            return False
        denial = part.flush() if facts.final or facts.error is not None else None
        if denial is not None:
            self._tell(exchange, exchange.failed(denial), part)
            return False
        if facts.error is not None and facts.model and self._context.ends_on_error:  # without a model: never issued
            self._stop(exchange.erred(facts.error))
            return False
        if facts.final:
            denial = exchange.complete() if exchange.error is None else exchange.errored(exchange.error)
            call.half_close()
            denial = denial or await durable(self._services, exchange)
            if denial is not None:
                self._tell(exchange, denial, part)
                return True
            unasked = facts.empty and facts.error is None and not exchange.wants_empty_final
            if unasked and part.place is None and (part.decoupled or not first):
                return True
        full = self._pass(exchange, facts, part)
        if facts.final and part.place is not None:
            self._outbox.leave(part.place)  # those behind it need not wait until its stream is drained
        return full is None  # there is no backpressure: what Triton still sends would pile up

    def _pass(self, exchange: Exchange, facts: ResponseFacts, part: _Part) -> Denial | None:
        """On to the client, or to where it waits for its guards' word. A Denial has ended the call and the stream."""
        shown = exchange.shown(facts)
        full = self._put(shown, part) if facts.final or part.holding is None else part.holding.take(shown)
        if full is not None:
            self._outbox.fail(full)
            if exchange.unsettled:
                exchange.failed(full)
        return full

    async def _upstream_ended(self, exchange: Exchange, end: UpstreamEnd, part: _Part) -> None:
        """The upstream stream ended without a final response: well (nothing to say) or not (told in-band)."""
        denied = part.flush()
        if denied is not None:
            self._tell(exchange, exchange.failed(denied), part)
            return
        status = exchange.ended(end)
        unsafe = await durable(self._services, exchange)
        if unsafe is not None:
            self._tell(exchange, unsafe, part)
        elif status.code != Code.OK and self._context.ends_on_error:
            self._stop(status)
        elif status.code != Code.OK:
            self._put(render.in_band_status(status, exchange.request_id), part)

    def _stop(self, status: render.Status, ending: Denial = _OTHERS_ERROR) -> None:
        """The RPC ends with one call's: a model's error, where the client asked for that, or its lost credential."""
        if not self._stopped.done():
            self._ending = ending
            self._stopped.set_result(status)

    def _tell(self, exchange: Exchange, denial: Denial, part: _Part) -> None:
        self._put(render.in_band(denial, exchange.request_id), part)

    def _put(self, data: bytes, part: _Part) -> Denial | None:
        return self._outbox_put(data, part.place)

    def _outbox_put(self, data: bytes, place: Place | None) -> Denial | None:
        full = self._outbox.put(data, place)
        if full is not None:
            self._outbox.fail(full)
        return full
