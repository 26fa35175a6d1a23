"""What a verification found, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from audit.evidence import Fault
from audit.object_check import Objects

__all__ = ["Report"]

LISTED: Final = 10_000  # faults told


@dataclass(slots=True)
class Report:
    """What was found. ``unsigned``: records that no signed head accounts for yet."""

    records: int = 0
    checkpoints: int = 0
    unsigned: int = 0
    anchored: bool = False
    anchored_size: int = 0  # entries of the fleet's log that the largest head read in an anchor is of
    objects: Objects | None = None  # None: the object store was not asked
    witnessed: datetime | None = None  # when a witness cosigned the fleet's log last
    faults: list[Fault] = field(default_factory=list)
    logs: dict[str, dict[str, int]] = field(default_factory=dict)
    tensors_lost: int = 0  # of an export: inputs or outputs whose tensors were not to be had when it was written
    resumed: int = 0
    oldest_read: datetime | None = None  # when the oldest of what this says was read from the database
    # Logs at work whose sidecars copy nothing outside their node: what they have not shipped is lost with a disk.
    uncopied: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.faults

    def shape(self) -> dict[str, Any]:
        """The JSON of DESIGN §6."""
        return {
            "ok": self.ok,
            "records": self.records,
            "checkpoints": self.checkpoints,
            "faults": [fault.shape() for fault in self.faults[:LISTED]],
            "faults_total": len(self.faults),
            "anchored": self.anchored,
            "anchored_size": self.anchored_size,
            "objects": None
            if self.objects is None
            else {
                "checked": self.objects.checked,
                "late": self.objects.late,
                "erased": self.objects.erased,
            },
            "witnessed": self.witnessed.isoformat() if self.witnessed else None,
            "unsigned": self.unsigned,
            "uncopied": self.uncopied,
            "tensors_lost": self.tensors_lost,
            "resumed": self.resumed,
            "oldest_read": self.oldest_read.isoformat() if self.oldest_read else None,
            "logs": self.logs,
        }
