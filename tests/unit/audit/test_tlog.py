"""audit.tlog against a note that Go published and an independent package; every altered byte is refused."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.merkle import Tree, leaf_hash
from audit.tlog import (
    Checkpoint,
    NoteError,
    Proof,
    Signer,
    cosignature_time,
    parse_checkpoint,
    parse_note,
    parse_proof,
    parse_verifier,
)

# The example of golang.org/x/mod/sumdb/note's documentation.
GO_SECRET = "PRIVATE+KEY+PeterNeumann+c74f20a3+AYEKFALVFGyNhPJEMzD1QIDr+Y7hfZx09iUvxdXHKDFz"
GO_VERIFIER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_NOTE = (
    "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
SIGNER = Signer("warden/EU/pod-1", b"s" * 32)
HEAD = Checkpoint("warden/EU/pod-1", 7, leaf_hash(b"head"))


def test_go_made_this_note() -> None:
    verifier, note = parse_verifier(GO_VERIFIER), parse_note(GO_NOTE)
    assert verifier.text == GO_VERIFIER
    assert verifier.accepts(note)
    seed = base64.b64decode(GO_SECRET.split("+", 4)[4])[1:]
    assert Signer("PeterNeumann", seed).sign(note.text) == GO_NOTE


def test_what_was_signed_is_accepted_and_nothing_else() -> None:
    note = SIGNER.sign(HEAD.text)
    parsed = parse_note(note)
    assert SIGNER.verifier.accepts(parsed)
    assert parse_checkpoint(parsed.text) == HEAD
    assert not Signer("warden/EU/pod-1", b"t" * 32).verifier.accepts(parsed)
    assert not Signer("warden/EU/pod-2", b"s" * 32).verifier.accepts(parsed)


@given(st.data())
def test_no_altered_note_is_accepted(data: st.DataObject) -> None:
    """Whichever byte of a signed note is changed, it is refused or its signature is."""
    note = SIGNER.sign(HEAD.text)
    at = data.draw(st.integers(0, len(note) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda c: c != note[at]))
    try:
        parsed = parse_note(note[:at] + other + note[at + 1 :])
    except NoteError:
        return
    assert not SIGNER.verifier.accepts(parsed)


def test_a_witness_cosigns_with_its_time() -> None:
    witness = Signer("witness.example", b"w" * 32, witness=True)
    note = parse_note(SIGNER.sign(HEAD.text) + witness.line(HEAD.text, at=1_764_500_000))
    assert SIGNER.verifier.accepts(note)
    assert parse_verifier(witness.verifier.text) == witness.verifier
    assert cosignature_time(note, witness.verifier) == 1_764_500_000
    assert cosignature_time(note, SIGNER.verifier) is None
    assert cosignature_time(parse_note(SIGNER.sign(HEAD.text)), witness.verifier) is None


def test_formats_are_those_of_an_independent_implementation() -> None:
    aics = pytest.importorskip("aics_tlog", reason="needs Python 3.12")
    witness = Signer("witness.example", b"w" * 32, witness=True)
    text = SIGNER.sign(HEAD.text) + witness.line(HEAD.text, at=1_764_500_000)
    theirs = aics.parse_note(text)
    assert aics.verify_note(theirs, [aics.parse_vkey(SIGNER.verifier.text)])
    found = aics.parse_checkpoint(theirs.text)
    assert (found.origin, found.size) == (HEAD.origin, HEAD.size)
    assert witness.verifier.text == aics.format_vkey(aics.parse_vkey(witness.verifier.text))


def test_a_proof_travels_as_one_file() -> None:
    tree = Tree([leaf_hash(b"%d" % n) for n in range(9)])
    head = SIGNER.sign(Checkpoint(HEAD.origin, 9, tree.root()).text)
    proof = Proof(4, tuple(tree.inclusion(4)), head, b"call 7")
    assert proof.text.splitlines()[:3] == ["c2sp.org/tlog-proof@v1", "extra Y2FsbCA3", "index 4"]
    assert parse_proof(proof.text) == proof
    assert parse_proof(Proof(0, (), head).text) == Proof(0, (), head)
    assert SIGNER.verifier.accepts(parse_note(parse_proof(proof.text).checkpoint))


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", "a\n\n", "a\n\nnot a signature\n", "a\n\n— name !!!\n", "a\n\n— name AAAA\n", "a\n\n— n+m AAAAAAAA\n",
        "a\x01\n\n— name AAAAAAAA\n", "a\n\n— name AAAAAAAA", "a\n— name AAAAAAAA\n", "a\n\n— name AAAAAAAB=\n",
    ],
)  # fmt: skip
def test_no_note(text: str) -> None:
    with pytest.raises(NoteError):
        parse_note(text)


@pytest.mark.parametrize(
    "text",
    ["", "o\n1\n", "o\n1\nAAAA\n", "o\n-1\n" + "A" * 43 + "=\n", "o\n01\n" + "A" * 43 + "=\n",
     "o\n1\n" + "A" * 43 + "=\n\n", "o\n" + "9" * 20 + "\n" + "A" * 43 + "=\n", "o\n1\n" + "A" * 42 + "B=\n"],
)  # fmt: skip
def test_no_checkpoint(text: str) -> None:
    with pytest.raises(NoteError):
        parse_checkpoint(text)


@pytest.mark.parametrize("text", ["", "c2sp.org/tlog-proof@v1\n\n", "c2sp.org/tlog-proof@v2\nindex 1\n\nx", "a\n\nb",
                                  "c2sp.org/tlog-proof@v1\nindex x\n\nb",
                                  "c2sp.org/tlog-proof@v1\nindex 1\nAA==\n\nb"])  # fmt: skip
def test_no_proof(text: str) -> None:
    with pytest.raises(NoteError):
        parse_proof(text)


@pytest.mark.parametrize(
    "text", ["", "name", "name+00000000+AAAA", GO_VERIFIER.replace("c74f", "c74e"), "n+1+" + "A" * 44]
)
def test_no_verifier(text: str) -> None:
    with pytest.raises(NoteError):
        parse_verifier(text)


def test_names_and_texts_that_cannot_be_signed() -> None:
    for name in ("", "a b", "a+b", "a\n"):
        with pytest.raises(NoteError):
            Signer(name, b"s" * 32)
    with pytest.raises(NoteError, match="line end"):
        SIGNER.sign("no end")
    with pytest.raises(NoteError, match="time"):
        Signer("w", b"w" * 32, witness=True).line("a\n")
