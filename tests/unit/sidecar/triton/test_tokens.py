"""Prompts by the model's own tokenizer: what counts, what is estimated, and tokenizers that lie."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from sidecar.core.model import Contract, KvProfile, ModelProfile
from sidecar.triton.methods import KSERVE, lookup
from sidecar.triton.reader import TritonReader
from sidecar.triton.tokens import COUNTED_BYTES, load_counter
from tests.support.kserve import chat
from tests.support.reading import isolation

CHAT = ModelProfile("chat", Contract.VLLM, KvProfile(10, 16))


def byte_level(vocabulary: int = 300) -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["hello hello hello world"] * 20, trainer)
    return tokenizer


def written(tmp_path: Path, tokenizer: Any) -> Path:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_a_prompt_is_counted_and_not_estimated(tmp_path: Path) -> None:
    counter = load_counter(written(tmp_path, byte_level()))
    assert not isinstance(counter, str), counter
    prompt = b"hello world \xc3\xa9"
    expected = len(byte_level().encode(prompt.decode()).ids)
    assert counter(prompt) == expected
    reader = TritonReader(isolation(), {"chat": counter})
    facts = reader.facts(lookup(KSERVE + "ModelInfer"), chat(prompt).SerializeToString(), CHAT)
    assert (facts.prompt_tokens, facts.prompt_tokens_exact) == (expected, True)


@pytest.mark.parametrize("prompt", [b"\xff\xfe", b"x" * (COUNTED_BYTES + 1)])
def test_what_it_cannot_count_stays_an_estimate(tmp_path: Path, prompt: bytes) -> None:
    counter = load_counter(written(tmp_path, byte_level()))
    assert not isinstance(counter, str)
    assert counter(prompt) is None
    facts = TritonReader(isolation(), {"chat": counter}).facts(
        lookup(KSERVE + "ModelInfer"), chat(prompt).SerializeToString(), CHAT
    )
    assert (facts.prompt_tokens, facts.prompt_tokens_exact) == (max(1, -(-len(prompt) // 4)), False)


def test_truncation_and_padding_do_not_count(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=8)
    counter = load_counter(written(tmp_path, tokenizer))
    assert not isinstance(counter, str)
    assert counter(b"q" * 100) == 100
    assert counter(b"q") == 1


def blind() -> Any:
    """Leaves out nearly everything."""
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace(" ", "")
    document = json.loads(tokenizer.to_str())
    document["normalizer"] = {"type": "Replace", "pattern": {"Regex": "[^q]"}, "content": ""}
    return Tokenizer.from_str(json.dumps(document))


def one_word() -> Any:
    """Everything that it doesn't know, and it knows nothing, is one token."""
    return Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))


@pytest.mark.parametrize("make", [blind, one_word])
def test_a_tokenizer_that_lies_is_caught(tmp_path: Path, make: Any) -> None:
    found = load_counter(written(tmp_path, make()))
    assert isinstance(found, str)
    assert "tokens for" in found


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"model": {"type": "Nothing"}}'])
def test_what_is_no_tokenizer_says_so(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(content)
    assert "is no tokenizer.json" in str(load_counter(path))
    assert "cannot be read" in str(load_counter(tmp_path / "absent"))
