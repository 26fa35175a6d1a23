"""audit.merkle against Certificate Transparency's published vectors, RFC 6962's recursion and two packages."""

from __future__ import annotations

import hashlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.merkle import (
    EMPTY_ROOT,
    TILE,
    Frontier,
    TiledTree,
    Tree,
    grown,
    leaf_hash,
    node_hash,
    verify_consistency,
    verify_inclusion,
)

# The inputs and roots of certificate-transparency's merkletree tests (C++, Go and Java have the same).
INPUTS = [bytes.fromhex(text) for text in (
    "", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f",
)]  # fmt: skip
ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


def leaves(count: int) -> list[bytes]:
    return [leaf_hash(b"leaf %d" % n) for n in range(count)]


def mth(hashes: list[bytes]) -> bytes:
    """RFC 6962 §2.1, word for word."""
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = max(1 << n for n in range(len(hashes).bit_length()) if 1 << n < len(hashes))
    return node_hash(mth(hashes[:k]), mth(hashes[k:]))


def test_published_vectors() -> None:
    hashes = [leaf_hash(data) for data in INPUTS]
    for size, root in enumerate(ROOTS, 1):
        assert Frontier().extended(hashes[:size]).root.hex() == Tree(hashes).root(size).hex() == root
    assert EMPTY_ROOT.hex() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    path = [found.hex() for found in Tree(hashes).inclusion(5)]  # RFC 6962 §2.1.3's shape
    assert len(path) == 3
    assert path[0] == hashes[4].hex()


@given(st.integers(0, 130), st.integers(0, 130))
def test_a_frontier_is_the_tree_however_it_grew(first: int, more: int) -> None:
    """Adding leaves in two parts gives the root that the recursion gives over all of them."""
    hashes = leaves(first + more)
    grown = Frontier().extended(hashes[:first]).extended(hashes[first:])
    assert grown == Frontier.unpack(grown.size, grown.pack())
    assert grown.root == mth(hashes) == Tree(hashes).root()


def test_roots_are_those_of_pymerkle() -> None:
    pymerkle = pytest.importorskip("pymerkle")
    theirs = pymerkle.InmemoryTree(algorithm="sha256")
    for size in range(1, 100):
        theirs.append_entry(b"leaf %d" % (size - 1))
        assert theirs.get_root() == Frontier().extended(leaves(size)).root


@pytest.mark.parametrize("size", [*range(1, 35), 63, 64, 65])
def test_every_inclusion_proof_holds_and_no_altered_one(size: int) -> None:
    hashes = leaves(size)
    tree = Tree(hashes)
    for index in range(size):
        path = tree.inclusion(index)
        assert verify_inclusion(hashes[index], index, size, path, tree.root())
        assert not verify_inclusion(leaf_hash(b"other"), index, size, path, tree.root())
        assert not verify_inclusion(hashes[index], index + 1, size, path, tree.root())
        assert not verify_inclusion(hashes[index], index, size, [*path, tree.root()], tree.root())
        assert not path or not verify_inclusion(hashes[index], index, size, path[:-1], tree.root())
    assert not verify_inclusion(hashes[0], -1, size, [], tree.root())


@pytest.mark.parametrize("size", [*range(1, 20), 63, 64, 65])
def test_every_consistency_proof_holds_and_no_altered_one(size: int) -> None:
    tree = Tree(leaves(size))
    for first in range(size + 1):
        proof, old = tree.consistency(first), tree.root(first)
        assert verify_consistency(first, size, old, tree.root(), proof)
        assert not verify_consistency(first, size, leaf_hash(b"x"), tree.root(), proof)
        assert first == 0 or not verify_consistency(first, size, old, leaf_hash(b"x"), proof)  # all extend nothing
        assert not verify_consistency(first, size, old, tree.root(), [*proof, old])
        assert not proof or not verify_consistency(first, size, old, tree.root(), proof[:-1])
    assert not verify_consistency(size + 1, size, tree.root(), tree.root(), [])


def test_a_tree_gives_proofs_of_the_trees_before_it() -> None:
    hashes = leaves(70)
    tree = Tree(hashes)
    for first, second in itertools.combinations(range(1, 71), 2):
        assert verify_consistency(
            first, second, tree.root(first), mth(hashes[:second]), tree.consistency(first, second)
        )
    assert verify_inclusion(hashes[3], 3, 9, tree.inclusion(3, 9), mth(hashes[:9]))


@settings(max_examples=60)
@given(st.integers(1, 300), st.data())
def test_proofs_are_those_of_an_independent_implementation(size: int, data: st.DataObject) -> None:
    """Each proof, byte for byte, is the one that the package aics-tlog gives."""
    aics = pytest.importorskip("aics_tlog", reason="needs Python 3.12")
    theirs, ours = aics.MerkleTree([b"leaf %d" % n for n in range(size)]), Tree(leaves(size))
    index, first = data.draw(st.integers(0, size - 1)), data.draw(st.integers(1, size))
    assert theirs.root() == ours.root()
    assert theirs.inclusion_proof(index) == ours.inclusion(index)
    assert theirs.consistency_proof(first) == ours.consistency(first)


@pytest.mark.parametrize(("size", "hashes"), [(3, 1), (0, 1), (-1, 0)])
def test_a_frontier_has_a_hash_for_each_bit(size: int, hashes: int) -> None:
    with pytest.raises(ValueError, match="frontier"):
        Frontier(size, (b"h" * 32,) * hashes)


def test_frontiers_of_other_bytes_are_refused() -> None:
    with pytest.raises(ValueError, match="whole hashes"):
        Frontier.unpack(1, b"x" * 33)
    with pytest.raises(ValueError, match="32 bytes"):
        Frontier(1, (b"short",))


@pytest.mark.parametrize("size", [1, TILE - 1, TILE, TILE + 1, 3 * TILE + 77])
def test_a_tree_in_tiles_is_the_same_tree(size: int) -> None:
    hashes = leaves(size)
    whole = Tree(hashes)
    roots = [Tree(hashes[at : at + TILE]).root() for at in range(0, size - TILE + 1, TILE)]
    read: list[int] = []

    def tile(number: int) -> list[bytes]:
        read.append(number)
        return hashes[number * TILE : (number + 1) * TILE]

    tiled = TiledTree(size, roots, tile)
    assert (tiled.size, tiled.root()) == (size, whole.root())
    for before in {size, max(size - 5, 1), size // 2 + 1}:
        assert tiled.root(before) == whole.root(before)
        for index in {0, before // 2, before - 1}:
            assert tiled.inclusion(index, before) == whole.inclusion(index, before)
        assert tiled.consistency(before // 2) == whole.consistency(before // 2)
    assert len(read) <= size // TILE + 1, "each tile is read once"


def test_proofs_out_of_the_tree_are_refused() -> None:
    tree = Tree(leaves(3))
    for ask in (
        lambda: tree.inclusion(3),
        lambda: tree.inclusion(0, 4),
        lambda: tree.consistency(4),
        lambda: tree.root(4),
    ):
        with pytest.raises(ValueError, match=r"leaves|leaf|proof"):
            ask()


@settings(max_examples=200)
@given(st.integers(0, 300), st.integers(0, 300))
def test_growth_is_proved_from_the_old_edge_and_the_new_leaves_as_from_the_whole_tree(old: int, more: int) -> None:
    """For every old and new size: the proof is the whole tree's, and the edge is that of all leaves."""
    hashes, size = leaves(old + more), old + more
    source = iter([*hashes[old:], b"not taken" * 4])
    proof, tree = grown(Frontier().extended(hashes[:old]), source, size)
    assert proof == Tree(hashes).consistency(old, size)
    assert tree == Frontier().extended(hashes)
    assert next(source) == b"not taken" * 4


def test_growth_by_more_leaves_than_are_held_at_once() -> None:
    hashes = leaves(10_000)
    proof, tree = grown(Frontier().extended(hashes[:1001]), iter(hashes[1001:]), 10_000)
    assert proof == Tree(hashes).consistency(1001, 10_000)
    assert tree == Frontier().extended(hashes)


@pytest.mark.parametrize(("there", "size"), [(3, 8), (3, 2)])
def test_growth_that_there_are_no_leaves_for(there: int, size: int) -> None:
    with pytest.raises(ValueError, match=str(size)):
        grown(Frontier().extended(leaves(there)), leaves(2), size)
