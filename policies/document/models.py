"""models.yaml as written: how each model is read, and what it takes."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, PlainValidator, RootModel, model_validator

from policies.document.fields import Count, Doc, ModelName, Name
from policies.units import Duration, Size, parse_size
from policies.versions import CanaryDoc, Digest, PrefixCacheDoc, Version
from sidecar.core.model import Contract

__all__ = ["KvDoc", "ModelDoc", "ModelsDoc", "OnCancelDoc", "PoolDoc"]

LONGEST_RUN: Final = 3600.0  # seconds


class KvDoc(Doc):
    """What a token takes in the KV cache: stated, or read from a TensorRT-LLM engine's or a checkpoint's config.json.

    A checkpoint doesn't know how its server runs it: ``dtype`` (its own), ``tensor_parallel`` (1) and
    ``tokens_per_block`` (vLLM's 16) say so where it is otherwise. ``batched_tokens`` (vLLM's max_num_batched_tokens):
    one whose layers all keep to a window is charged for no more than that keeps; unstated, for all.
    """

    engine_config: str | None = None  # engines/….json
    checkpoint: str | None = None  # engines/….json
    bytes_per_token: Count | None = None  # over all ranks
    tokens_per_block: Count | None = None
    dtype: Literal["float32", "float16", "bfloat16", "fp8", "int8", "nvfp4", "fp8_ds_mla"] | None = None
    tensor_parallel: Annotated[Count, Field(le=1024)] | None = None
    batched_tokens: Annotated[Count, Field(le=2**20)] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> KvDoc:
        ways = [self.engine_config is not None, self.checkpoint is not None, self.bytes_per_token is not None]
        if sum(ways) != 1 or (self.bytes_per_token is not None and self.tokens_per_block is None):
            raise ValueError("write one of engine_config, checkpoint, or bytes_per_token and tokens_per_block")
        if self.engine_config is not None and self.tokens_per_block is not None:
            raise ValueError("the engine states its tokens_per_block itself")
        how = (self.dtype, self.tensor_parallel, self.batched_tokens)
        if self.checkpoint is None and any(each is not None for each in how):
            raise ValueError("dtype, tensor_parallel and batched_tokens are for a checkpoint")
        return self

    @property
    def file(self) -> str | None:
        return self.engine_config or self.checkpoint


def _size_or_live(value: Any) -> int | Literal["live"]:
    if value == "live":
        return "live"
    size = parse_size(value)
    if size <= 0:
        raise ValueError("should be greater than 0")
    return size


KvMemory = Annotated[
    int | Literal["live"], PlainValidator(_size_or_live, json_schema_input_type=Size | Literal["live"])
]


class PoolDoc(Doc):
    """What the model has to share among its tenants, by each one's plan. Without it nothing is shared out.

    ``kv_memory: live``: as large as the engine says in Triton's metrics; ``kv_fallback`` while it doesn't, or says what
    can't be. ``engine``: the model whose engine it is, where this one stands in front of another (an ensemble): all
    models in front of one engine share its one pool.
    """

    kv_memory: KvMemory | None = None
    kv_fallback: Size | None = None
    concurrency: Count | None = None
    engine: ModelName | None = None

    @model_validator(mode="after")
    def _with_something_to_fall_back_on(self) -> Self:
        if self.kv_memory == "live" and self.kv_fallback is None:
            raise ValueError("kv_memory: live needs kv_fallback, the size that counts while the engine tells none")
        if self.kv_memory != "live" and self.kv_fallback is not None:
            raise ValueError("kv_fallback is for kv_memory: live")
        return self

    @property
    def kv_bytes(self) -> int | None:
        """What the bundle itself states."""
        return self.kv_fallback if self.kv_memory == "live" else self.kv_memory


class OnCancelDoc(Doc):
    """What the model does when a call is cancelled: it stops within a time, or goes on, at most for a time."""

    stops_within: Duration | None = None
    runs_on: Duration | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.stops_within is None) == (self.runs_on is None):
            raise ValueError("write either stops_within or runs_on")
        if max(self.stops_within or 0, self.runs_on or 0) > LONGEST_RUN:
            raise ValueError(f"a call holds what it held for at most {LONGEST_RUN:g}s after its cancel")
        return self


class ModelDoc(Doc):
    """How one model is to be read and what it takes. Models that the file doesn't name are ``generic``."""

    contract: Contract
    kv: KvDoc | None = None
    default_tokens: Count = 16  # vLLM's own default for an absent max_tokens
    max_tokens: Count = 4096
    groups: tuple[Name, ...] = Field(default=(), max_length=32)
    pool: PoolDoc = PoolDoc()
    on_cancel: OnCancelDoc = OnCancelDoc(stops_within="500ms")
    classification: Annotated[bool, Field(strict=True)] = False  # true only where every output is numeric
    canary: CanaryDoc | None = None
    # By version, of its directory: for records where the sidecar can't read triton.model_repository itself.
    digests: dict[Version, Digest] = Field(default={}, max_length=1000)
    prefix_cache: PrefixCacheDoc = PrefixCacheDoc()

    @model_validator(mode="after")
    def _consistent(self) -> ModelDoc:
        if self.default_tokens > self.max_tokens:
            raise ValueError("default_tokens is more than max_tokens")
        if self.contract is Contract.GENERIC and self.kv is not None:
            raise ValueError("a generic model has no tokens, so kv means nothing")
        if self.contract is Contract.GENERIC and "prefix_cache" in self.model_fields_set:
            raise ValueError("a generic model has no prefix cache, so prefix_cache means nothing")
        if self.kv is None and self.pool.kv_memory is not None:
            raise ValueError("pool.kv_memory can't be shared out without kv: nobody knows what a call takes")
        if self.contract is not Contract.GENERIC and self.classification:
            raise ValueError("a language model's output is text, and Triton dies when asked to classify text")
        return self


class ModelsDoc(RootModel[dict[ModelName, ModelDoc]]):
    """models.yaml."""

    model_config = ConfigDict(frozen=True)
