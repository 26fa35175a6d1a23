"""A recorder in memory: what it was told, in order; refuses once ``denial`` is set."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sidecar.core.model import Denial

if TYPE_CHECKING:
    from sidecar.core.governor import Output, Recorded, Refused
    from sidecar.core.model import Admission, Instant, Outcome, Usage
    from sidecar.core.ports import Recorder


@dataclass
class ListRecorder:
    """``ports.Recorder``. Each entry is (kind, what was passed); ``denial`` is answered, and then nothing is kept."""

    entries: list[tuple[str, Any]] = field(default_factory=list)
    denial: Denial | None = None

    def _keep(self, kind: str, *what: Any) -> Denial | None:
        if self.denial is None:
            self.entries.append((kind, what))
        return self.denial

    def admitted(self, admission: Admission, at: Instant) -> Denial | None:
        return self._keep("admitted", admission)

    def refused(self, refused: Refused, at: Instant) -> Denial | None:
        return self._keep("refused", refused)

    def output(self, recorded: Recorded, output: Output, at: Instant) -> Denial | None:
        return self._keep("output", recorded, output)

    def settled(self, recorded: Recorded, output: Output, outcome: Outcome, usage: Usage, at: Instant) -> Denial | None:
        return self._keep("settled", recorded, output, outcome, usage)

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.entries]


def _is_a_recorder(fake: ListRecorder) -> Recorder:
    return fake
