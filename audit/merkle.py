"""The Merkle tree of a transparency log (RFC 6962 §2.1): hashes, a frontier that grows, proofs and their checks."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

__all__ = [
    "EMPTY_ROOT",
    "HASH_BYTES",
    "TILE",
    "Frontier",
    "TiledTree",
    "Tree",
    "grown",
    "leaf_hash",
    "node_hash",
    "verify_consistency",
    "verify_inclusion",
]

HASH_BYTES: Final = 32
EMPTY_ROOT: Final = hashlib.sha256(b"").digest()
_LEAF: Final = b"\x00"
_NODE: Final = b"\x01"
_AT_ONCE: Final = 4096  # leaves in memory


def leaf_hash(data: bytes) -> bytes:
    """SHA-256(0x00 ‖ data)."""
    return hashlib.sha256(_LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """SHA-256(0x01 ‖ left ‖ right)."""
    return hashlib.sha256(_NODE + left + right).digest()


@dataclass(frozen=True, slots=True)
class Frontier:
    """A tree's right edge: ``hashes`` are its perfect subtrees' roots, largest first, one for each bit of ``size``.

    It is all that is needed to add leaves and to know the root; at most 63 hashes.
    """

    size: int = 0
    hashes: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        if self.size < 0 or len(self.hashes) != self.size.bit_count():
            raise ValueError(f"a frontier of {self.size} leaves has {self.size.bit_count()} hashes")
        if any(len(found) != HASH_BYTES for found in self.hashes):
            raise ValueError(f"a hash has {HASH_BYTES} bytes")

    @property
    def root(self) -> bytes:
        """The tree's head: RFC 6962's MTH."""
        if not self.hashes:
            return EMPTY_ROOT
        *rest, head = self.hashes
        for found in reversed(rest):
            head = node_hash(found, head)
        return head

    def extended(self, leaves: Iterable[bytes]) -> Frontier:
        """With further leaf hashes at the right."""
        size, stack = self.size, list(self.hashes)
        for leaf in leaves:
            stack.append(leaf)
            size += 1
            for _ in range((size & -size).bit_length() - 1):  # a carry for each zero at the end of the new size
                right = stack.pop()
                stack[-1] = node_hash(stack[-1], right)
        return Frontier(size, tuple(stack))

    def pack(self) -> bytes:
        """The hashes, joined; ``unpack`` takes the size beside it."""
        return b"".join(self.hashes)

    @staticmethod
    def unpack(size: int, packed: bytes) -> Frontier:
        """Raises ValueError where these bytes are no frontier of that size."""
        if len(packed) % HASH_BYTES:
            raise ValueError(f"{len(packed)} bytes are no whole hashes")
        return Frontier(size, tuple(packed[at : at + HASH_BYTES] for at in range(0, len(packed), HASH_BYTES)))


class Tree:
    """All hashes of one tree's perfect subtrees, for proofs: 64 bytes a leaf."""

    __slots__ = ("_levels",)

    def __init__(self, leaves: Sequence[bytes]) -> None:
        self._levels = [list(leaves)]
        while len(below := self._levels[-1]) > 1:
            self._levels.append([node_hash(below[n], below[n + 1]) for n in range(0, len(below) - 1, 2)])

    @property
    def size(self) -> int:
        return len(self._levels[0])

    def root(self, size: int | None = None) -> bytes:
        """Of the first ``size`` leaves."""
        whole = self.size if size is None else size
        if not 0 <= whole <= self.size:
            raise ValueError(f"this tree has {self.size} leaves, not {whole}")
        return self._range(0, whole) if whole else EMPTY_ROOT

    def inclusion(self, index: int, size: int | None = None) -> list[bytes]:
        """RFC 6962 §2.1.1: the audit path of leaf ``index`` in the tree of the first ``size`` leaves."""
        whole = self.size if size is None else size
        if not 0 <= index < whole <= self.size:
            raise ValueError(f"no leaf {index} among the first {whole} of {self.size}")
        path: list[bytes] = []
        start, end = 0, whole
        while end - start > 1:
            middle = start + _split(end - start)
            if index < middle:
                path.append(self._range(middle, end))
                end = middle
            else:
                path.append(self._range(start, middle))
                start = middle
        return path[::-1]

    def consistency(self, first: int, second: int | None = None) -> list[bytes]:
        """RFC 6962 §2.1.2: that the tree of ``first`` leaves is the beginning of that of ``second``."""
        whole = self.size if second is None else second
        if not 0 <= first <= whole <= self.size:
            raise ValueError(f"no proof from {first} to {whole} of {self.size}")
        return [self._range(start, end) for start, end in _consistency(first, whole)]

    def _node(self, level: int, index: int) -> bytes:
        """The root over 2**level leaves, the ``index``-th such run."""
        return self._levels[level][index]

    def _range(self, start: int, end: int) -> bytes:
        """The root over [start, end), where start is a multiple of the largest power of two that fits."""
        width = end - start
        if width & (width - 1) == 0:
            return self._node(width.bit_length() - 1, start // width)
        middle = start + _split(width)
        return node_hash(self._range(start, middle), self._range(middle, end))


TILE_LEVEL: Final = 12
TILE: Final = 1 << TILE_LEVEL  # leaves
TILES_KEPT: Final = 64  # 20 MB of hashes


class TiledTree(Tree):
    """A tree whose leaves are elsewhere: in memory are the roots of whole tiles of TILE leaves, and a few tiles."""

    __slots__ = ("_read", "_size", "_tiles")

    def __init__(self, size: int, roots: Sequence[bytes], read: Callable[[int], Sequence[bytes]]) -> None:
        """``roots``: of each whole tile; ``read``: the leaf hashes of the n-th tile, the last one's that there are."""
        if len(roots) != size >> TILE_LEVEL:
            raise ValueError(f"{size} leaves fill {size >> TILE_LEVEL} tiles, not {len(roots)}")
        super().__init__(roots)
        self._size, self._read = size, read
        self._tiles: dict[int, Tree] = {}

    @property
    def size(self) -> int:
        return self._size

    def _node(self, level: int, index: int) -> bytes:
        if level >= TILE_LEVEL:
            return super()._node(level - TILE_LEVEL, index)
        above = TILE_LEVEL - level
        number = index >> above
        tile = self._tiles.pop(number, None) or Tree(self._read(number))
        self._tiles[number] = tile  # the one that was used last is the last to go
        if len(self._tiles) > TILES_KEPT:
            del self._tiles[next(iter(self._tiles))]
        return tile._node(level, index - (number << above))  # noqa: SLF001 — a tile is a tree of our own


def grown(old: Frontier, leaves: Iterable[bytes], size: int) -> tuple[list[bytes], Frontier]:
    """RFC 6962 §2.1.2's proof that a tree of ``size`` leaves extends ``old``, and that tree, from the new leaves alone.

    Takes as many of ``leaves`` as there are new ones, and holds few of them at once; raises ValueError for too few.
    """
    if size < old.size:
        raise ValueError(f"{size} leaves are no growth of {old.size}")
    roots, end = {}, 0
    levels = [level for level in reversed(range(old.size.bit_length())) if old.size >> level & 1]
    for found, level in zip(old.hashes, levels, strict=True):
        roots[end, end + (1 << level)] = found
        end += 1 << level
    proof, tree, source = _consistency(old.size, size), old, iter(leaves)
    for start, end in sorted(each for each in proof if each not in roots) or [(old.size, size)]:
        part = Frontier()
        while part.size < end - start:
            some = list(itertools.islice(source, min(_AT_ONCE, end - start - part.size)))
            if not some:
                raise ValueError(f"there are {tree.size} leaves, not {size}")
            part, tree = part.extended(some), tree.extended(some)
        roots[start, end] = part.root
    return [roots[each] for each in proof], tree


def _consistency(first: int, whole: int) -> list[tuple[int, int]]:
    """The subtrees, as [start, end) of leaves, whose roots a consistency proof consists of, in its order."""
    if first in {0, whole}:
        return []
    proof: list[tuple[int, int]] = []
    start, end, known = 0, whole, True
    while first != end:
        middle = start + _split(end - start)
        if first <= middle:
            proof.append((middle, end))
            end = middle
        else:
            proof.append((start, middle))
            start, known = middle, False
    if not known:
        proof.append((start, end))
    return proof[::-1]


def verify_inclusion(leaf: bytes, index: int, size: int, path: Sequence[bytes], root: bytes) -> bool:
    """RFC 9162 §2.1.3.2: whether ``path`` proves ``leaf`` (a hash) at ``index`` of the tree with that root."""
    if not 0 <= index < size:
        return False
    fn, sn, found = index, size - 1, leaf
    for step in path:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            found = node_hash(step, found)
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        else:
            found = node_hash(found, step)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and found == root


def verify_consistency(first: int, second: int, first_root: bytes, second_root: bytes, proof: Sequence[bytes]) -> bool:
    """RFC 9162 §2.1.4.2: whether ``proof`` shows the tree of ``second`` leaves to extend that of ``first``."""
    if not 0 <= first <= second:
        return False
    if first == second:
        return not proof and first_root == second_root
    if first == 0:
        return not proof and first_root == EMPTY_ROOT
    steps = [first_root, *proof] if first & (first - 1) == 0 else list(proof)
    if not steps:
        return False
    fn, sn = first - 1, second - 1
    while fn & 1:
        fn, sn = fn >> 1, sn >> 1
    old = new = steps[0]
    for step in steps[1:]:
        if sn == 0:
            return False
        if fn & 1 or fn == sn:
            old, new = node_hash(step, old), node_hash(step, new)
            while fn and not fn & 1:
                fn, sn = fn >> 1, sn >> 1
        else:
            new = node_hash(new, step)
        fn, sn = fn >> 1, sn >> 1
    return sn == 0 and old == first_root and new == second_root


def _split(width: int) -> int:
    """The largest power of two below ``width``."""
    return 1 << (width - 1).bit_length() - 1
