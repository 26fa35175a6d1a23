"""`warden models`: what a model takes of the KV cache, line by line, and the digests of its weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sidecar.cli.common import Exit, emit, fail
from sidecar.core.geometry import HF_QUANT, Found, inspect
from sidecar.runtime.digests import VERSION, Unreadable, digest_directory

app = typer.Typer(no_args_is_help=True, help="What models take of the GPU, and which weights they are.")

MAX_BYTES: Final = 4 * 2**20
_SHOWN: Final = (1, 1_000, 8_192)  # tokens


@app.command("inspect")
def inspect_command(
    path: Annotated[Path, typer.Argument(help="A config.json, or the directory of an engine or a checkpoint.")],
    dtype: Annotated[str | None, typer.Option(help="The KV cache's type, where the server is told another.")] = None,
    tokens_per_block: Annotated[int | None, typer.Option(min=1, max=4096, help="Of a checkpoint; vLLM: 16.")] = None,
    tensor_parallel: Annotated[int | None, typer.Option(min=1, max=1024, help="Of a checkpoint: its GPUs.")] = None,
    batched_tokens: Annotated[
        int | None, typer.Option(min=1, max=2**20, help="Of a checkpoint with a window: vLLM's max_num_batched_tokens.")
    ] = None,
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Read a TensorRT-LLM engine's or a Hugging Face config.json and print its KV bytes per token."""
    file = path / "config.json" if path.is_dir() else path
    quantised = file.with_name(HF_QUANT)
    found = inspect(
        _read(file), dtype=dtype, tokens_per_block=tokens_per_block, tensor_parallel=tensor_parallel,
        batched_tokens=batched_tokens, quantised=_read(quantised) if path.is_dir() and quantised.exists() else None,
    )  # fmt: skip
    if isinstance(found, str):
        fail(Exit.USAGE, f"{file}: {found}")
    if as_json:
        emit(_json(found))
    else:
        sys.stdout.write("\n".join(_lines(found)) + "\n")


def _read(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except OSError as fault:
        fail(Exit.USAGE, f"{file}: {fault.strerror}")
    if len(data) > MAX_BYTES:
        fail(Exit.USAGE, f"{file}: is larger than {MAX_BYTES} bytes, so no config.json")
    return data


@app.command("digest")
def digest_command(
    directory: Annotated[Path, typer.Argument(help="A model's directory in the repository, or one version's in it.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output on stdout.")] = False,
) -> None:
    """Work out the SHA-256 of each version's files, as `digests` in models.yaml states it and as records name it."""
    if not directory.is_dir():
        fail(Exit.USAGE, f"{directory}: is no directory")
    directory = directory.resolve()
    one = VERSION.fullmatch(directory.name) is not None
    try:
        versions = [directory] if one else [path for path in directory.iterdir() if VERSION.fullmatch(path.name)]
        found = {path.name: digest_directory(path) for path in sorted(versions, key=lambda path: int(path.name))}
    except (OSError, Unreadable) as fault:
        fail(Exit.USAGE, f"{directory}: {fault}")
    if not found:
        fail(Exit.USAGE, f"{directory}: holds no version (a directory named by a number, without leading zeros)")
    if as_json:
        emit({"model": (directory.parent if one else directory).name, "digests": found})
    else:
        lines = (f"  {json.dumps(version)}: {json.dumps(digest)}" for version, digest in found.items())
        sys.stdout.write("\n".join(["digests:", *lines]) + "\n")


def _json(found: Found) -> dict[str, Any]:
    geometry = found.geometry
    return {
        "kind": found.kind,
        "bytes_per_token": found.bytes_per_token,
        "bytes_per_token_per_rank": geometry.bytes_per_token_per_rank,
        "tokens_per_block": found.tokens_per_block,
        "bytes_per_block": found.bytes_per_block,
        "window": found.window,
        "max_sequence": found.max_sequence,
        "steps": [{"what": step.what, "value": step.value, "source": step.source} for step in found.steps],
    }


def _lines(found: Found) -> list[str]:
    geometry = found.geometry
    lines = [found.kind, *(f"  {step.what:18} {step.value!s:>10}   {step.source}" for step in found.steps)]
    layers = -(-geometry.layers // geometry.pipeline_parallel)
    heads = max(1, -(-geometry.kv_heads // geometry.tensor_parallel))
    factor = 1 if geometry.latent else 2
    ranks = geometry.tensor_parallel * geometry.pipeline_parallel
    what = "one latent vector" if geometry.latent else "keys and values"
    lines.append(
        f"a token on one rank: {layers} layers x {heads} KV heads x {factor} ({what}) x {geometry.head_dim} values"
        f" x {geometry.dtype.value} bytes = {geometry.bytes_per_token_per_rank:,} bytes"
    )
    if geometry.tensor_parallel > geometry.kv_heads:
        lines.append(
            f"  ({geometry.tensor_parallel} ranks for {geometry.kv_heads} KV heads: each is held more than once)"
        )
    lines.append(f"a token on {ranks} ranks: {found.bytes_per_token:,} bytes")
    lines.append(f"a block: {found.tokens_per_block} tokens = {found.bytes_per_block:,} bytes")
    for tokens in _SHOWN:
        blocks = -(-tokens // found.tokens_per_block)
        lines.append(f"{tokens:,} tokens: {blocks:,} blocks = {blocks * found.bytes_per_block:,} bytes")
    stated = f"bytes_per_token: {found.bytes_per_token}, tokens_per_block: {found.tokens_per_block}"
    if found.window is not None:
        lines.append(f"of one sequence at most {found.window:,} tokens are kept, and a block more")
        stated = "checkpoint: engines/NAME.json, with the options as given here"  # numbers alone would keep no window
    return [*lines, f"in models.yaml: kv: {{{stated}}}"]
