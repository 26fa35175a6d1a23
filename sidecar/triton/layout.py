"""Where a message's parts are, when it is laid out as every serialiser lays it out; others are read field by field.

ModelInferRequest and ModelInferResponse begin alike: model_name 1, model_version 2, id 3; then only repeated fields,
the raw payloads last; all have lengths. So one glance at the tags finds the parts, and what stands around the id,
before the payloads, is the same from one message to the next: whoever reads it can remember what it said.
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["Layout", "layout"]

PARTS_MAX: Final = 64  # fields at the top; a message with more is read field by field
_ID: Final = 0x1A  # tags are field number << 3 | wire type 2; up to the id's each may occur once


class Layout(NamedTuple):
    """Offsets. The id's field begins at ``id_at``, its value is ``data[id_start:id_end]``; without one all are equal.

    ``named``: where the model's name and version end, which come first.
    ``raws_at``: where the payloads' fields begin, or the message ends; ``raws``: start and end of each payload.
    """

    named: int
    id_at: int
    id_start: int
    id_end: int
    raws_at: int
    raws: list[tuple[int, int]]

    def header(self, data: bytes, start: int = 0) -> bytes:
        """All that stands before the payloads but the id."""
        return data[start : self.id_at] + data[self.id_end : self.raws_at]


def layout(  # noqa: C901 — one loop on every message's path: a call for each field would double its cost
    data: bytes, start: int, end: int, raw: int
) -> Layout | None:
    """Of the message ``data[start:end]``, whose payloads have the tag ``raw``; None: it is laid out in another way.

    A singular field that occurs twice, one that isn't in its place, an unknown one, one that runs past the end: all are
    another way, and whoever reads field by field says what is wrong with them. Lengths may be written too long, as any
    parser reads them.
    """
    pos, before, raws_at, most = start, 0, -1, PARTS_MAX
    named = id_at = id_start = id_end = start
    raws: list[tuple[int, int]] = []
    try:
        while pos < end and most:
            tag, size, begin = data[pos], data[pos + 1], pos + 2
            if size >= 0x80:
                more = data[begin]
                size, begin = size & 0x7F | (more & 0x7F) << 7, begin + 1
                if more >= 0x80:
                    more = data[begin]
                    size, begin = size | more << 14, begin + 1
                    if more >= 0x80:  # 2 MiB and more: nothing here is worth a glance then
                        return None
            if tag == raw:
                if raws_at < 0:
                    raws_at = pos
                raws.append((begin, begin + size))
            elif (tag <= before and tag <= _ID) or tag < before or tag > raw or tag & 7 != 2:
                return None
            elif tag == _ID:
                id_at, id_start, id_end = pos, begin, begin + size
            elif tag < _ID:
                named = begin + size
            before, pos, most = tag, begin + size, most - 1
    except IndexError:
        return None
    if pos != end or data[start : start + 1] < b"\x0a":
        return None
    return Layout(named, id_at, id_start, id_end, raws_at if raws else end, raws)
