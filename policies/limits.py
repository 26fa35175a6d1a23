"""A tenant's quotas: its plan's, but where the tenant's own document says otherwise; and what they may not say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from policies.document import LimitsDoc, NarrowDoc, PlanDoc
from sidecar.core.model import Contract, Limits, ModelProfile, PoolSize, RequestRate, Share

__all__ = ["contradictions", "narrower", "of_key", "overcommitted", "resolve", "too_small", "wider"]

_WHOLE: Final = 1000  # thousandths


def resolve(plan: PlanDoc, overrides: Sequence[LimitsDoc]) -> Limits:
    """Each limit comes whole from the last override that writes it (``unlimited`` too), else from the plan."""
    written: dict[str, Any] = {name: getattr(plan, name) for name in PlanDoc.model_fields if name != "aliases"}
    for override in overrides:
        written |= {name: getattr(override, name) for name in written if name in override.model_fields_set}
    tokens, share, timeout = written["tokens"], written["share"], written["queue_timeout"]
    per_model: Mapping[str, NarrowDoc] = written["per_model"]
    per_key: NarrowDoc | None = written["per_key"]
    return _limits(
        written,
        priority=written["priority"],
        queue_timeout_us=None if timeout is None else max(1, round(timeout * 1e6)),
        expected=tokens is not None and tokens.reserve == "expected",
        queue_ns=round(written["on_limit"] * 1e9),
        share=Share(share.guaranteed, share.burst),
        models=tuple((pattern, _limits(dict(narrow))) for pattern, narrow in per_model.items()),
        per_key=None if per_key is None else _limits(dict(per_key)),
    )


def of_key(plan: PlanDoc, overrides: Sequence[LimitsDoc], own: NarrowDoc) -> Limits:
    """A key's limits: each comes whole from its own, where that writes it, else from ``per_key`` of tenant or plan."""
    per_key = plan.per_key
    for override in overrides:
        per_key = override.per_key if "per_key" in override.model_fields_set else per_key
    written = dict.fromkeys(NarrowDoc.model_fields) | {"shadow": ()} if per_key is None else dict(per_key)
    return _limits(written | {name: getattr(own, name) for name in own.model_fields_set})


def _limits(written: Mapping[str, Any], **more: Any) -> Limits:
    requests, tokens, compute = written["requests"], written["tokens"], written["compute"]
    return Limits(
        requests=None if requests is None else RequestRate(requests.rate, requests.burst),
        tokens_per_minute=None if tokens is None else tokens.per_minute,
        concurrency=written["concurrency"],
        kv_bytes=written["kv_memory"],
        tensor_bytes=written["tensor_memory"],
        compute_per_minute=None if compute is None else max(1, round(compute.seconds_per_minute * 1000)),
        shadow=frozenset(written["shadow"]),
        **more,
    )


def narrower(limits: Limits, model: str) -> Limits | None:
    """The tenant's further limits for ``model``: those of the first pattern that covers it."""
    return next((each for pattern, each in limits.models if fnmatchcase(model, pattern)), None)


# --- what a bundle may not say ------------------------------------------------------------------------------------


def contradictions(limits: Limits) -> Iterator[str]:
    """What a tenant's limits say that could never come to bear."""
    inner = [(f"per_model {pattern}", each) for pattern, each in limits.models]
    if limits.per_key is not None:
        inner.append(("per_key", limits.per_key))
    for where, each in inner:
        yield from (f"{where}: {name} {message}" for name, message in wider(limits, each))


def wider(limits: Limits, each: Limits) -> Iterator[tuple[str, str]]:
    """Which of the further limits ``each`` a tenant's own make meaningless, and why."""
    for name, wide, narrow in (
        ("tokens", limits.tokens_per_minute, each.tokens_per_minute),
        ("compute", limits.compute_per_minute, each.compute_per_minute),
        ("concurrency", limits.concurrency, each.concurrency),
        ("kv_memory", limits.kv_bytes, each.kv_bytes),
        ("tensor_memory", limits.tensor_bytes, each.tensor_bytes),
    ):
        if wide is not None and narrow is not None and narrow > wide:
            yield name, f"({narrow}) is more than the tenant's own ({wide}), so it limits nothing"


def too_small(limits: Limits, models: Iterable[ModelProfile], pattern: str) -> Iterator[str]:
    """Limits that would refuse every call of a model: too small for one block, or for one call's own tokens."""
    for model in models:
        if not fnmatchcase(model.name, pattern):
            continue
        block = 0 if model.kv is None else model.kv.bytes_per_token * model.kv.tokens_per_block
        inner = narrower(limits, model.name)
        for each in (limits, *([inner] if inner is not None else [])):
            if each.kv_bytes is not None and block > each.kv_bytes:
                yield f"kv_memory ({each.kv_bytes} bytes) is less than one block of {model.name} ({block})"
            tokens = each.tokens_per_minute
            if tokens is not None and model.contract is not Contract.GENERIC and tokens <= model.default_tokens:
                yield f"tokens.per_minute ({tokens}) never fits a call of {model.name} at its default_tokens"


def overcommitted(model: ModelProfile, guaranteed: Sequence[int]) -> str | None:
    """What is wrong with the guarantees (thousandths) given on a model's pool, where it has one."""
    total = sum(guaranteed)
    if model.pool == PoolSize() or total <= _WHOLE:
        return None
    return f"{total / 10:g}% of the pool is guaranteed, to {len(guaranteed)} tenants together"
