"""`warden models inspect`: the arithmetic line by line, and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from typer.testing import CliRunner

from sidecar.cli.main import build
from sidecar.runtime.digests import ModelDigests
from tests.unit.sidecar.core.test_geometry import LLAMA_70B, checkpoint, engine


def run(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(build("models"), ["models", "inspect", *arguments])
    return found.exit_code, found.stdout, found.stderr


def test_the_arithmetic_is_printed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(engine(LLAMA_70B, tp=16))
    code, out, _ = run(str(tmp_path))
    assert code == 0
    assert "80 layers x 1 KV heads x 2 (keys and values) x 128 values x 2 bytes = 40,960 bytes" in out
    assert "16 ranks for 8 KV heads: each is held more than once" in out
    assert "a token on 16 ranks: 655,360 bytes" in out
    assert "8,192 tokens: 128 blocks = 5,368,709,120 bytes" in out
    assert "kv: {bytes_per_token: 655360, tokens_per_block: 64}" in out


def test_json(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_bytes(checkpoint(LLAMA_70B))
    code, out, _ = run(str(file), "--json", "--dtype", "fp8", "--tokens-per-block", "32")
    told = json.loads(out)
    assert code == 0
    assert (told["bytes_per_token"], told["tokens_per_block"], told["bytes_per_block"]) == (163_840, 32, 5_242_880)
    assert {"what": "bytes an element", "value": "1", "source": "as stated: fp8"} in told["steps"]


def test_a_directory_is_read_with_the_quantisation_beside_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(checkpoint(LLAMA_70B, sliding_window=4096))
    (tmp_path / "hf_quant_config.json").write_text('{"quantization": {"kv_cache_quant_algo": "FP8"}}')
    code, out, _ = run(str(tmp_path))
    assert code == 0
    assert "kv: {bytes_per_token: 163840, tokens_per_block: 16}" in out
    assert "so all is charged" in out
    code, out, _ = run(str(tmp_path), "--batched-tokens", "2048")
    assert "at most 6,143 tokens are kept, and a block more" in out
    assert "kv: {checkpoint: engines/NAME.json, with the options as given here}" in out
    (tmp_path / "hf_quant_config.json").write_bytes(b" " * (4 * 2**20 + 1))
    assert run(str(tmp_path))[0] == 2


def test_what_cannot_be_read_is_wrong_use(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    code, _, said = run(str(file))
    assert (code, "No such file" in said) == (2, True)
    file.write_text("{}")
    code, out, said = run(str(file), "--json")
    assert (code, out) == (2, "")
    assert "is no model's config.json" in said


def digest(*arguments: str) -> tuple[int, str, str]:
    found = CliRunner().invoke(build("models"), ["models", "digest", *arguments])
    return found.exit_code, found.stdout, found.stderr


def versions(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / "chat" / name).mkdir(parents=True)
        (directory / "chat" / name / "model.py").write_text(name)
    return directory / "chat"


def test_digests_are_printed_as_models_yaml_takes_them_and_as_the_sidecar_works_them_out(tmp_path: Path) -> None:
    model = versions(tmp_path, "2", "10", "1", "01", "docs")
    known = ModelDigests([tmp_path])
    known.look()
    expected = {version: known.of("chat", version) for version in ("1", "2", "10")}
    code, out, _ = digest(str(model))
    assert code == 0
    assert yaml.safe_load(out) == {"digests": expected}
    assert list(yaml.safe_load(out)["digests"]) == ["1", "2", "10"]
    code, out, _ = digest(str(model / "2"), "--json")
    assert (code, json.loads(out)) == (0, {"model": "chat", "digests": {"2": expected["2"]}})


def test_a_directory_without_versions_or_that_is_none_is_wrong_use(tmp_path: Path) -> None:
    code, out, err = digest(str(versions(tmp_path, "docs")))
    assert (code, out, "holds no version" in err) == (2, "", True)
    code, out, err = digest(str(tmp_path / "nowhere"))
    assert (code, out, "is no directory" in err) == (2, "", True)
    circle = versions(tmp_path / "other", "1") / "1"
    (circle / "again").symlink_to(circle)
    code, out, err = digest(str(circle))
    assert (code, out, "circle" in err) == (2, "", True)
