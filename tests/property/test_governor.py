"""Any interleaving of calls keeps the governor's books: reservations, calls in flight, and every delivered byte."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sidecar.core.governor import Output, Recorded, Refused
from sidecar.core.model import Denial, Outcome, OutcomeKind
from sidecar.core.reasons import Code, Reason
from sidecar.core.recorded import OUTPUT_LAG_BYTES
from tests.support.core import AT, Stage, a_call, later

TEXTS = st.one_of(st.binary(max_size=20), st.just(b"x" * (OUTPUT_LAG_BYTES // 2)))
OUTCOMES = st.sampled_from(
    [
        Outcome(OutcomeKind.COMPLETED),
        Outcome(OutcomeKind.FAILED, Code.INTERNAL, Reason.INTERNAL),
        Outcome(OutcomeKind.CANCELLED, Code.CANCELLED, Reason.CLIENT_CANCELLED),
    ]
)


class Calls(RuleBasedStateMachine):
    """Invariant: what is held is what is in flight, and a call's journal is its deliveries, in order, once."""

    live = Bundle("live")

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.ms = 0.0
        self.opened = 0
        self.delivered: dict[str, bytes] = {}
        self.settled: set[str] = set()

    @rule(target=live)
    def open(self) -> Recorded:
        self.opened += 1
        recorded = self.stage.open(f"c-{self.opened}")
        self.delivered[f"c-{self.opened}"] = b""
        return recorded

    @rule(step=st.sampled_from(["identify", "authorise", "isolate", "reserve", "journal admitted"]))
    def refuse(self, step: str) -> None:
        self.stage.ports.denials[step] = Denial(Reason.POLICY_FORBIDS)
        assert isinstance(self.stage.governor.open(a_call("refused"), AT), Refused)
        self.stage.ports.denials.clear()

    @rule(recorded=live, text=TEXTS)
    def deliver(self, recorded: Recorded, text: bytes) -> None:
        self.stage.governor.deliver(recorded, text, later(self.ms))
        self.delivered[recorded.admission.call.id] += text

    @rule(ms=st.sampled_from([0.0, 10.0, 49.0, 50.0, 1000.0]))
    def sweep(self, ms: float) -> None:
        self.ms += ms
        self.stage.governor.sweep(later(self.ms))

    @rule(recorded=consumes(live), outcome=OUTCOMES)
    def settle(self, recorded: Recorded, outcome: Outcome) -> None:
        assert self.stage.governor.settle(recorded, outcome, later(self.ms)) is None
        self.settled.add(recorded.admission.call.id)

    @invariant()
    def what_is_held_is_what_is_in_flight(self) -> None:
        assert len(self.stage.ports.held) == self.stage.governor.in_flight == self.opened - len(self.settled)

    @invariant()
    def the_journal_holds_what_was_delivered(self) -> None:
        journaled = dict.fromkeys(self.delivered, b"")
        ended: list[str] = []
        for kind, entry in self.stage.ports.entries:
            if kind in ("output", "settled"):
                call_id, output = entry[0], entry[1]  # type: ignore[index]
                assert isinstance(output, Output)
                assert call_id not in ended, "output behind its outcome"
                assert output.offset == len(journaled[call_id])
                journaled[call_id] += b"".join(output.texts)
                ended += [call_id] if kind == "settled" else []
        assert set(ended) == self.settled
        for call_id, text in self.delivered.items():
            behind = text[len(journaled[call_id]) :]
            assert text.startswith(journaled[call_id])
            assert len(behind) < OUTPUT_LAG_BYTES
            assert not behind or call_id not in self.settled


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
