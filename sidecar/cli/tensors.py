"""What `warden audit show` says of a call's tensors in the object store, and writes of them where it is asked to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from audit.content import ContentError
from audit.object_check import ObjectState, opened, state_of
from audit.payload import ObjectRef, refs_of
from audit.search import Found
from sidecar.cli.common import Exit, fail
from sidecar.runtime.settings import Settings
from sidecar.runtime.shipping import tensor_store

__all__ = ["FoundObject", "objects_of", "write_tensors"]

_NAMES: Final = ("response", "name", "datatype", "shape", "bytes", "digest", "kept")  # of a tensor in ``payloads``


@dataclass(frozen=True, slots=True)
class FoundObject:
    """One that a record names. ``state``: audit.object_check's, or why nobody can say."""

    ref: ObjectRef
    state: str
    data: bytes | None = None

    def shape(self) -> dict[str, Any]:
        """As JSON."""
        return {"side": self.ref.side, "object": self.ref.name, "bytes": self.ref.nbytes, "state": self.state}


def objects_of(found: Found, settings: Settings, at: datetime) -> list[FoundObject]:
    """What the store has of this record. A store that can't be asked ends nothing: its words are the state."""
    try:
        refs = refs_of(found.columns["payloads"])
    except ValueError as fault:
        fail(Exit.NO, f"the record was altered: it names {fault}")
    if not refs:
        return []
    place = tensor_store(settings)
    if place is None:
        return [FoundObject(ref, "not looked for: no audit.objects in this configuration") for ref in refs]
    objects: list[FoundObject] = []
    for ref in refs:
        try:
            data = place.at.open().get(ref.name)
            state = state_of(data, ref, found.columns["shipped_at"], at)
            objects.append(FoundObject(ref, str(state), data))
        except OSError as fault:
            objects.append(FoundObject(ref, f"not known: {fault}"))
    return objects


def write_tensors(found: Found, objects: Sequence[FoundObject], key: bytes | None, directory: Path) -> None:
    """Each kept tensor as raw bytes in a file of its own, and tensors.json that names them. Ends the command with 1
    where any of them can't be had as it was recorded, after the others were written.
    """
    if key is None:
        fail(Exit.NO, f"the tensors of {found.columns['call_id']}: {found.content}")
    told, lost = [], []
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for each in objects:
            if each.data is None or each.state != ObjectState.THERE:
                lost.append(f"{each.ref.side}: {each.state}")
                continue
            try:
                bodies = opened(each.data, each.ref, found.columns["payloads"], key)
            except ContentError as fault:
                lost.append(f"{each.ref.side}: {fault}")
                continue
            tensors = found.columns["payloads"][each.ref.side]["tensors"]
            for n, (tensor, body) in enumerate(zip(tensors, bodies, strict=True)):
                if body is None:
                    continue
                name = f"{each.ref.side}-{n:04d}.bin"
                (directory / name).write_bytes(body)
                told.append({"side": each.ref.side, "file": name, **dict(zip(_NAMES, tensor, strict=True))})
        (directory / "tensors.json").write_text(json.dumps(told, indent=2), encoding="utf-8")
    except OSError as fault:
        fail(Exit.USAGE, f"{fault.filename or directory}: {fault.strerror}")
    if lost:
        fail(Exit.NO, "not all of its tensors could be had: " + "; ".join(lost))
