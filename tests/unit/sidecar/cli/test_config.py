"""`warden config check`: says whether `warden serve` would start, and everything that stands against it."""

from __future__ import annotations

import json
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from audit.follow import write_shipped
from audit.rootkeys import NewRootKey, RootKeys, new_root_key
from sidecar.cli.config import app
from sidecar.runtime.rootkeys import root_keys
from sidecar.runtime.settings import load
from tests.support.config import DEMO_BUNDLE, document, write
from tests.support.journal import open_journal

NO_STORE = "audit.tensors: no audit.objects here, so of tensors only lengths and digests are kept"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["check", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_good_file_is_good(tmp_path: Path) -> None:
    path = str(write(tmp_path))
    assert run(path) == (0, f"{path}: good\n", "")
    code, out, _ = run(path, "--json")
    assert (code, json.loads(out)) == (0, {"ok": True, "problems": []})
    assert not (tmp_path / "journal").exists()


def test_a_tenant_whose_copies_no_store_here_takes_is_warned_of(tmp_path: Path) -> None:
    bundle = shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle")
    for name, word in (("a", "required"), ("b", "oslo"), ("c", "none"), ("d", "outside")):
        told = {"tenant": name, "plan": "gold", "status": "active", "models": ["*"]}
        audit = {"level": "metadata", "retention": "30d", "copy": word}
        residency = {"processing": ["EU"], "storage": ["EU"], "telemetry": "withheld"}
        (bundle / "tenants" / f"{name}.yaml").write_text(json.dumps(told | {"audit": audit, "residency": residency}))
    path = write(tmp_path, policy={"bundle": str(bundle)})
    code, out, told_of = run(str(path))
    assert (code, out) == (0, f"{path}: good\n"), told_of
    assert [line.partition(": no such")[0] for line in told_of.splitlines()] == [
        "warning: tenant a: audit.copy: required",
        "warning: tenant b: audit.copy: oslo",
        "warning: tenant d: audit.copy: outside",
    ]


def broken(directory: Path) -> Path:
    whole: dict[str, Any] = document(directory)
    whole["sidecar"]["region"] = "mars-1"
    whole["identity"]["keys"] = {"pepper_file": "absent"}
    whole["identity"]["issuers"][0]["jwks"] = "http://elsewhere.example/jwks"
    whole["audit"]["journal"]["key_file"] = "absent.key"
    return write(directory, **whole)


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    code, out, err = run(str(broken(tmp_path)))
    assert (code, out) == (1, "")
    assert err.startswith("warden: 4 problem(s)\n")
    for told in ("mars-1", "identity.keys.pepper_file", "jwks", "audit.journal.key_file"):
        assert told in err


def test_as_json_nothing_else_is_on_stdout(tmp_path: Path) -> None:
    code, out, _ = run(str(broken(tmp_path)), "--json")
    answer = json.loads(out)
    assert (code, answer["ok"], len(answer["problems"])) == (1, False, 4)


@pytest.mark.parametrize("text", ["sidecar: [", "surprise: 1"])
def test_what_cannot_be_read_is_told_with_its_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "warden.yaml"
    path.write_text(text)
    code, _, err = run(str(path))
    assert code == 1
    assert f"{path}:1:" in err


def test_a_key_beside_what_it_seals_is_refused_as_serve_refuses_it(tmp_path: Path) -> None:
    whole: dict[str, Any] = document(tmp_path)
    whole["audit"]["journal"]["directory"] = "keys"
    code, _, err = run(str(write(tmp_path, **whole)))
    assert code == 1
    assert "keep it on another volume" in err


def test_a_key_on_the_journals_volume_is_a_warning(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "journal").mkdir()
    code, out, err = run(str(path))
    assert (code, out) == (0, f"{path}: good\n")
    assert "on the journal's own volume" in err


def test_tensors_that_are_to_be_kept_and_have_no_store_are_a_warning(tmp_path: Path) -> None:
    bundle = shutil.copytree(DEMO_BUNDLE, tmp_path / "bundle")
    audit = {"level": "full", "retention": "30d", "tensors": {"keep": "1MiB"}}
    residency = {"processing": ["EU"], "storage": ["EU"], "telemetry": "withheld"}
    told = {"tenant": "a", "plan": "gold", "status": "active", "models": ["*"], "audit": audit, "residency": residency}
    (bundle / "tenants" / "a.yaml").write_text(json.dumps(told))
    path = write(tmp_path, policy={"bundle": "bundle"})
    code, out, err = run(str(path))
    assert (code, out) == (0, f"{path}: good\n")
    assert err == f"warning: tenant a: {NO_STORE}\n"
    objects = {"jurisdiction": "EU", "directory": str(tmp_path / "objects")}
    stored = {**document(tmp_path)["audit"], "objects": objects}
    assert run(str(write(tmp_path, policy={"bundle": "bundle"}, audit=stored))) == (0, f"{path}: good\n", "")


def test_a_root_key_that_was_removed_before_its_segments_were_stored_is_told(tmp_path: Path) -> None:
    whole: dict[str, Any] = document(tmp_path)
    whole["audit"]["journal"]["keys_directory"] = "roots"
    path = write(tmp_path, **whole)
    old = new_root_key(tmp_path / "roots", secrets.token_bytes)
    assert isinstance(old, NewRootKey)
    keys = root_keys(load(path).audit.journal)
    assert isinstance(keys, RootKeys)
    journal = open_journal(tmp_path / "journal", root=keys)
    journal.append(b"x")
    journal.close()
    assert run(str(path))[0] == 0
    assert isinstance(new_root_key(tmp_path / "roots", secrets.token_bytes), NewRootKey)
    old.path.unlink()
    code, _, err = run(str(path))
    assert (code, f"root key {old.identity.hex()} is missing: journal-0000000000000000.seg" in err) == (1, True)
    write_shipped(tmp_path / "journal", 0)
    again = open_journal(tmp_path / "other", root=keys)
    again.append(b"y")
    again.close()
    (tmp_path / "other" / "journal-0000000000000000.seg").rename(tmp_path / "journal" / "journal-0000000000000001.seg")
    assert run(str(path))[0] == 0


def test_a_file_that_is_not_there_has_no_line(tmp_path: Path) -> None:
    path = tmp_path / "absent.yaml"
    assert run(str(path)) == (1, "", f"warden: 1 problem(s)\n{path}: no such file\n")
    assert json.loads(run(str(path), "--json")[1])["problems"] == [f"{path}: no such file"]


def test_a_tokenizer_that_cannot_be_believed_is_told_as_serve_would_refuse_it(tmp_path: Path) -> None:
    one_word = '{"model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}}'
    (tmp_path / "lying.json").write_text(one_word)
    whole: dict[str, Any] = document(tmp_path)
    whole.setdefault("triton", {})["tokenizers"] = {"chat": "lying.json", "rag": "absent.json"}
    code, _, err = run(str(write(tmp_path, **whole)))
    assert (code, err.splitlines()[0]) == (1, "warden: 2 problem(s)")
    assert f"triton.tokenizers.chat: {tmp_path / 'lying.json'} counts 1 tokens for 2880 bytes" in err
    assert f"triton.tokenizers.rag: {tmp_path / 'absent.json'} cannot be read" in err
