"""YAML with places: what is read, what is refused and where, and where pydantic's errors are told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, field_validator, model_validator

from policies.validating import validate
from policies.yamlfile import (
    MAX_BYTES,
    MAX_PROBLEMS,
    Document,
    Position,
    Problem,
    dotted,
    parse,
    read,
    suggest,
)


def document(text: str) -> Document:
    found = parse(text.encode(), "f.yaml")
    assert isinstance(found, Document), found
    return found


def told(text: str | bytes) -> list[str]:
    found = parse(text if isinstance(text, bytes) else text.encode(), "f.yaml")
    assert isinstance(found, list), found
    return [str(problem) for problem in found]


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", {}),
        ("# nothing\n", {}),
        ("\ufeffa: 1\n", {"a": 1}),
        ("a: [1, -2, 0, +3]\n", {"a": [1, -2, 0, 3]}),
        ("a: [1.5, .5, 1e3, 2.]\n", {"a": [1.5, 0.5, 1000.0, 2.0]}),
        ("a: [true, False, null, ~, ]\n", {"a": [True, False, None, None]}),
        ("a:\nb: ''\n", {"a": None, "b": ""}),
        ("a: [yes, on, 010, 0x1f, 2020-01-01, 12:30, .inf, 1_000]\n",
         {"a": ["yes", "on", "010", "0x1f", "2020-01-01", "12:30", ".inf", "1_000"]}),
        ("a: ['1', \"true\"]\n", {"a": ["1", "true"]}),
        ("1: x\nno: y\n", {"1": "x", "no": "y"}),
        ("a: |\n  x\n  y\n", {"a": "x\ny\n"}),
        ("a: " + "9" * 30 + "\n", {"a": "9" * 30}),
        ("- 1\n- {b: c}\n", [1, {"b": "c"}]),
    ],
)  # fmt: skip
def test_reads_plain_data(text: str, data: object) -> None:
    assert document(text).data == data


def test_knows_where_everything_stands() -> None:
    found = document("a: 1\nmodels:\n  chat: {kv: [7, 8]}\n  vision:\n    - x\n")
    assert found.at(()) == Position(1, 1)
    assert found.at(("a",)) == Position(1, 4)
    assert found.key(("models", "chat")) == Position(3, 3)
    assert found.at(("models", "chat")) == Position(3, 9)
    assert found.at(("models", "chat", "kv", 1)) == Position(3, 18)
    assert found.at(("models", "vision", 0)) == Position(5, 7)
    assert found.at(("models", "chat", "absent")) == Position(3, 3), "what isn't there is told at its parent's key"
    assert found.key(("models", "vision", 0)) == Position(5, 7)
    assert document("a:\n  b:\n\nc: 1\n").at(("a", "b")) == Position(2, 3), "nothing is written: its key"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("a: 1\nb: 2\na: 3\n", ["f.yaml:3:1: a: duplicate key, first on line 1"]),
        ("t:\n  x: 1\n  x: 2\n", ["f.yaml:3:3: t.x: duplicate key, first on line 2"]),
        ("a: 1\n\tb: 2\n", ["f.yaml:2:1: a tab; indent with spaces"]),
        ("a:\n\t- b\n", ["f.yaml:2:1: a tab; indent with spaces"]),
        ("a: &x 1\nb: *x\n",
         ["f.yaml:1:4: a: anchor &x: anchors and aliases are not allowed",
          "f.yaml:2:4: b: alias *x: anchors and aliases are not allowed"]),
        ("a: &x [1]\n", ["f.yaml:1:4: a: anchor &x: anchors and aliases are not allowed"]),
        ("a: !!python/object:os.system x\n",
         ["f.yaml:1:4: a: tag tag:yaml.org,2002:python/object:os.system: tags are not allowed"]),
        ("%YAML 1.1\n---\na: 1\n", ["f.yaml:2:1: directives are not allowed"]),
        ("a: 1\n---\nb: 2\n", ["f.yaml:2:1: a second document; write one a file"]),
        ("? [a]\n: b\n", ["f.yaml:1:3: a key must be plain text"]),
        ("&k a: 1\n", ["f.yaml:1:1: a: a key with an anchor or a tag is not allowed"]),
        ("a: b: c\n", ["f.yaml:1:5: not YAML: mapping values are not allowed here"]),
        ("a: [1\n",
         ["f.yaml:2:1: not YAML: while parsing a flow sequence: expected ',' or ']', but got '<stream end>'"]),
        (b"a: 1\nb: \xff\n", ["f.yaml:2:4: not UTF-8"]),
        ("a: 1\nb: x\x07\n", ["f.yaml:2:5: character U+0007 is not allowed in YAML"]),
        (b"a" * (MAX_BYTES + 1), [f"f.yaml:1:1: larger than {MAX_BYTES} bytes"]),
        ("{a: " * 30, ["f.yaml:1:85: " + ".".join("a" * 21) + ": nested deeper than 20 levels"]),
    ],
)  # fmt: skip
def test_refuses_with_line_and_column(text: str | bytes, problems: list[str]) -> None:
    assert told(text) == problems


def test_a_mistake_does_not_hide_the_others_before_a_syntax_error() -> None:
    assert told("a: 1\na: 2\nb: *x\nc: [\n")[:2] == [
        "f.yaml:2:1: a: duplicate key, first on line 1",
        "f.yaml:3:4: b: alias *x: anchors and aliases are not allowed",
    ]


def test_a_bomb_costs_no_more_than_its_text() -> None:
    bomb = "a: &a [x, x]\n" + "".join(f"b{n}: &b{n} [*a, *a, *a]\n" for n in range(500))
    problems = told(bomb)
    assert len(problems) == MAX_PROBLEMS
    assert problems[-1].endswith("too many problems; the rest is not told")


def test_reads_a_file_under_the_name_it_is_given(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_text("a: 1\na: 2\n")
    assert [str(problem) for problem in read(path, "x.yaml")] == ["x.yaml:2:1: a: duplicate key, first on line 1"]  # type: ignore[union-attr] # a list here
    assert read(tmp_path / "y.yaml", "y.yaml") == [Problem("y.yaml", 1, 1, "", "no such file")]
    assert read(tmp_path, "d") == [Problem("d", 1, 1, "", "no such file")]


def test_dotted_quotes_what_could_be_misread() -> None:
    assert dotted(("models", "a/b", 0, "kv")) == 'models["a/b"][0].kv'
    assert dotted(()) == ""


def test_suggest_names_a_near_word_or_nothing() -> None:
    assert suggest("plna", ["plan", "status"]) == '; did you mean "plan"?'
    assert suggest("zzz", ["plan", "status"]) == ""


# --- validation ---------------------------------------------------------------------------------------------------


class Base(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Kv(Base):
    bytes_per_token: int = Field(gt=0)
    tokens: int = 1


class Entry(Base):
    plan: Literal["gold", "bronze"]
    kv: Kv | None = None
    models: tuple[str, ...] = ()
    limits: dict[str, Kv] = {}
    parts: list[Kv] = []

    @field_validator("models")
    @classmethod
    def _short(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(value) > 2:
            raise ValueError("at most two")
        return value

    @model_validator(mode="after")
    def _whole(self) -> Entry:
        if self.plan == "bronze" and self.kv is not None:
            raise ValueError("bronze has no kv")
        return self


class Entries(RootModel[dict[Annotated[str, Field(pattern="^[a-z]+$")], Entry]]):
    model_config = ConfigDict(frozen=True)


def invalid(model: type[BaseModel], text: str) -> list[str]:
    found = validate(model, document(text))
    assert isinstance(found, list), found
    return [str(problem) for problem in found]


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("", ["f.yaml:1:1: plan: required, and missing"]),
        ("# hello\nkv: {bytes_per_token: 1}\n", ["f.yaml:2:1: plan: required, and missing"]),
        ("plan: gold\nmodles: [a]\n", ['f.yaml:2:1: modles: unknown key; did you mean "models"?']),
        ("plan: gold\nzebra: [a]\n", ["f.yaml:2:1: zebra: unknown key"]),
        ("plan: glod\n", ["f.yaml:1:7: plan: should be 'gold' or 'bronze'; did you mean \"gold\"?"]),
        ("plan: gold\nkv:\n  bytes_per_tokn: 1\n",
         ["f.yaml:2:1: kv.bytes_per_token: required, and missing",
          'f.yaml:3:3: kv.bytes_per_tokn: unknown key; did you mean "bytes_per_token"?']),
        ("plan: gold\nkv:\n  bytes_per_token: 0\n", ["f.yaml:3:20: kv.bytes_per_token: should be greater than 0"]),
        ("plan: gold\nkv: 7\n", ["f.yaml:2:5: kv: should be a mapping of keys to values"]),
        ("plan: gold\nmodels: chat\n", ["f.yaml:2:9: models: should be a list"]),
        ("plan: gold\nmodels: [chat, 7]\n", ["f.yaml:2:16: models[1]: should be a valid string"]),
        ("plan: gold\nmodels: [a, b, c]\n", ["f.yaml:2:1: models: at most two"]),
        ("plan: bronze\nkv: {bytes_per_token: 1}\n", ["f.yaml:1:1: bronze has no kv"]),
        ("plan: gold\nlimits:\n  x: {tokns: 1, bytes_per_token: 2}\n",
         ['f.yaml:3:7: limits.x.tokns: unknown key; did you mean "tokens"?']),
        ("plan: gold\nparts:\n  - {bytes_per_token: 2}\n  - {tokns: 1}\n",
         ["f.yaml:4:5: parts[1].bytes_per_token: required, and missing",
          'f.yaml:4:6: parts[1].tokns: unknown key; did you mean "tokens"?']),
        ("- a\n", ["f.yaml:1:1: should be a mapping of keys to values"]),
        ("plan: x\nmodels: 1\nzz: 2\n",
         ["f.yaml:1:7: plan: should be 'gold' or 'bronze'", "f.yaml:2:9: models: should be a list",
          "f.yaml:3:1: zz: unknown key"]),
    ],
)  # fmt: skip
def test_pydantic_errors_stand_where_they_belong(text: str, problems: list[str]) -> None:
    assert invalid(Entry, text) == problems


def test_root_models_and_keys_too() -> None:
    assert invalid(Entries, "a: {plan: gold}\nB: {plan: gold}\nc: {plna: gold}\n") == [
        "f.yaml:2:1: B: should match pattern '^[a-z]+$'",
        "f.yaml:3:1: c.plan: required, and missing",
        'f.yaml:3:5: c.plna: unknown key; did you mean "plan"?',
    ]


def test_a_valid_document_is_the_model() -> None:
    found = validate(Entry, document("plan: gold\nmodels: [a]\n"))
    assert found == Entry(plan="gold", models=("a",))


def test_a_value_is_never_repeated_in_a_problem() -> None:
    text = "plan: s3cr3t\nkv: {bytes_per_token: s3cr3t, tokens: [s3cr3t]}\nmodels: s3cr3t\n"
    assert all("s3cr3t" not in problem for problem in invalid(Entry, text))
