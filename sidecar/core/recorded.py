"""A recorded call while it runs: what was delivered so far, how much of it is journaled, what it really used."""

from __future__ import annotations

import copy
import hashlib
import threading
from typing import Final

from msgspec import Struct

from sidecar.core.holdback import HoldBack
from sidecar.core.model import (
    NO_FACTS,
    TOKENS_MAX,
    Admission,
    Denial,
    Finding,
    Forward,
    Instant,
    ResponseFacts,
    Usage,
    replace,
)

__all__ = ["OUTPUT_LAG_BYTES", "OUTPUT_LAG_NS", "UNWRITTEN_BYTES", "Output", "Recorded"]

# How far the journal may be behind what a client was sent when it is sent more (DESIGN rule 6): 16 KiB, and half of the
# 100 ms, because what is sent last waits for the sweep, and that for its period and the machine.
OUTPUT_LAG_BYTES: Final = 16 * 1024
OUTPUT_LAG_NS: Final = 50_000_000
UNWRITTEN_BYTES: Final = 4 * OUTPUT_LAG_BYTES  # kept of a call whose output can't be journaled
_PACED: Final = 4  # tokens after which a stream has a pace
_BYTES_PER_TOKEN: Final = 4  # of English, as prompts are estimated (sidecar.triton.contracts)


class Output(Struct, frozen=True):
    """A run of output text; ``offset`` is its place in the call's whole output, in bytes.

    ``messages``: the responses it came with, where their tensors are kept: from the ``first`` on, of which ``before``
    bytes came before them.
    """

    offset: int
    texts: tuple[bytes, ...]
    messages: tuple[bytes, ...] = ()
    first: int = 0
    before: int = 0

    @property
    def fits(self) -> bool:
        """Whether its messages may wait until they can be journaled."""
        return sum(map(len, self.messages)) <= UNWRITTEN_BYTES


class Recorded:
    """An admission whose journal entry is written: what the forwarder takes. Counts what is delivered until settled."""

    __slots__ = (
        "_counted",
        "_digest",
        "_exact_in",
        "_exact_out",
        "_first_ns",
        "_flushed_ns",
        "_input_tokens",
        "_message_bytes",
        "_messages",
        "_pending",
        "_pending_bytes",
        "_response_bytes",
        "_responses",
        "_taken",
        "_texts",
        "_version",
        "admission",
        "delivered_bytes",
        "findings",
        "holdback",
        "holds_ns",
        "in_journal",
        "in_order",
        "lost",
        "settled",
        "watch",
    )

    def __init__(self, admission: Admission, at: Instant, *, enforce: bool = True) -> None:
        self.admission = admission
        self.settled = False
        self.in_journal = True  # its admission; mode observe forwards a call without
        self.delivered_bytes = 0  # of output text
        self.holds_ns = 0  # how long after its end here Triton may be working on it
        # Held over taking output and journaling it: the sweep's thread must not be overtaken by the call's own, or
        # what it took would stand behind what came after it (or behind the outcome), where nobody joins it any more.
        self.in_order = threading.Lock()
        guards = admission.verdict.guards
        self.watch = None if guards is None else guards.watch(admission.facts, enforce=enforce)
        # Messages that wait for the guards' word, where any may have to.
        self.holdback = None if self.watch is None or not self.watch.holds else HoldBack(self.watch)
        self.findings: tuple[Finding, ...] = ()  # of the guards on outputs
        self.lost: Denial | None = None  # why output could not be journaled in time
        self._digest = hashlib.sha256()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        tensors = admission.verdict.audit.tensors
        self._messages: list[bytes] | None = [] if tensors is not None and tensors.outputs else None
        self._message_bytes = 0  # of those that were not taken yet
        self._taken = (0, 0)  # messages, and their bytes
        self._flushed_ns = at.mono_ns
        self._first_ns: int | None = None
        self._responses = 0
        self._response_bytes = 0
        self._input_tokens = admission.facts.prompt_tokens
        self._exact_in = admission.facts.prompt_tokens_exact
        self._counted = 0  # output tokens, by the backend
        self._texts = 0  # that are not empty; a stream's are a token each, but one may hold the whole answer
        self._exact_out = False
        self._version = ""

    def count(self, facts: ResponseFacts, at: Instant) -> None:
        """Add one response message, with the backend's count where it sends one."""
        self._responses += 1
        self._response_bytes += facts.nbytes
        if self._first_ns is None:
            self._first_ns = at.mono_ns - self.admission.call.arrived.mono_ns
        if facts.model_version:
            self._version = facts.model_version
        if facts.input_tokens is not None:
            self._input_tokens, self._exact_in = facts.input_tokens, True
        if facts.output_tokens is not None:
            # Counts are sent with every response or with none.
            self._counted, self._exact_out = min(self._counted + facts.output_tokens, TOKENS_MAX), True
        if self._messages is not None and not facts.empty:
            self._messages.append(facts.message)
            self._message_bytes += len(facts.message)
        for text in facts.texts:
            if text:
                self._texts += 1
                self._pending.append(text)
                self._digest.update(text)
                self._pending_bytes += len(text)
                self.delivered_bytes += len(text)

    @property
    def output_sha256(self) -> bytes:
        """Of all the output text metered so far."""
        return self._digest.digest()

    def lag(self, at: Instant) -> bool:
        """Whether the journal would fall too far behind if nothing were written now."""
        if not self._pending and not self._messages:
            return False
        nbytes = self._pending_bytes + self._message_bytes
        return nbytes >= OUTPUT_LAG_BYTES or at.mono_ns - self._flushed_ns >= OUTPUT_LAG_NS

    def take(self, at: Instant) -> Output:
        """The output not journaled yet; it counts as journaled from now on."""
        output = Output(self.delivered_bytes - self._pending_bytes, tuple(self._pending))
        self._pending, self._pending_bytes, self._flushed_ns = [], 0, at.mono_ns
        if self._messages:
            first, before = self._taken
            output = replace(output, messages=tuple(self._messages), first=first, before=before)
            self._taken = first + len(self._messages), before + self._message_bytes
            self._messages, self._message_bytes = [], 0
        return output

    def put_back(self, output: Output) -> None:
        """``output``, the last taken, could not be journaled: within a bound it goes with what is taken next."""
        nbytes = sum(map(len, output.texts))
        if self._pending_bytes + nbytes <= UNWRITTEN_BYTES:
            self._pending[:0] = output.texts
            self._pending_bytes += nbytes
        if self._messages is not None and output.fits:
            self._messages[:0] = output.messages
            self._message_bytes += sum(map(len, output.messages))
            self._taken = output.first, output.before

    def without_content(self) -> Recorded:
        """A copy for the ending's entry alone: it holds neither the request nor anything read from it."""
        kept, admission = copy.copy(self), self.admission
        kept.watch = kept.holdback = None  # they hold the end of the output
        call = replace(admission.call, message=b"")
        kept.admission = replace(admission, call=call, facts=NO_FACTS, forward=Forward(b""))
        return kept

    def _estimated(self) -> int:
        """Output tokens where the backend counts none: one a text, or more where their length makes more likely."""
        return max(self._texts, -(-self.delivered_bytes // _BYTES_PER_TOKEN))

    @property
    def tokens(self) -> tuple[int, bool, int]:
        """Prompt and output so far; whether the backend counted the output; and the least there can have been.

        The least is each text counted as one token.
        """
        if self._exact_out:
            counted = self._input_tokens + self._counted
            return counted, True, counted
        return self._input_tokens + self._estimated(), False, self._input_tokens + self._texts

    def remaining_ns(self, at: Instant) -> int | None:
        """How long it would go on at its own pace to all that was asked of it; None: it has no pace yet.

        Uncounted, each text is one token: to take more for said than was would end it here while it still runs.
        """
        facts, told = self.admission.facts, self._counted if self._exact_out else self._texts
        if self._first_ns is None or told < _PACED:
            return None
        took = at.mono_ns - self.admission.call.arrived.mono_ns - self._first_ns
        return max(0, facts.requested_tokens * facts.sequences - told) * took // (told - 1)

    def usage(self, at: Instant) -> Usage:
        return Usage(
            input_tokens=self._input_tokens,
            output_tokens=self._counted if self._exact_out else self._estimated(),
            input_exact=self._exact_in,
            output_exact=self._exact_out,
            responses=self._responses,
            request_bytes=len(self.admission.call.message),
            response_bytes=self._response_bytes,
            first_response_ns=self._first_ns,
            duration_ns=at.mono_ns - self.admission.call.arrived.mono_ns,
            model_version=self._version,
        )
