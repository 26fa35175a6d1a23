"""What models.yaml says of a model's versions and cache: its canary, its digests, and who may share a prefix cache."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from policies.yamlfile import Document, KeyPath, Problem, suggest
from sidecar.core.routing import WHOLE, Canary, Sticky

__all__ = [
    "CanaryDoc",
    "Digest",
    "PrefixCache",
    "PrefixCacheDoc",
    "Version",
    "alias_problems",
    "canary",
    "prefix_cache",
    "version_problems",
]

CANARIES_MAX: Final = 16  # in a bundle: each makes eight series of metrics
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")  # as Triton names a version's directory


def _version(value: Any) -> Any:
    """``2`` and ``"2"`` are the same version."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or _VERSION.fullmatch(text) is None:
        raise ValueError("is not a version; write the name of its directory, such as 2")
    return text


def _percent(value: Any) -> int:
    """Percent as a share of ``WHOLE``: two decimals, so that 0.01 is the least."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("is not a number")  # noqa: TRY004 — pydantic tells ValueErrors
    share = value * WHOLE / 100
    if not 0 <= share <= WHOLE:
        raise ValueError("should be from 0 to 100")
    if abs(share - round(share)) > 1e-6:
        raise ValueError("has more than two decimals")
    return round(share)


def _date(value: Any) -> Any:
    try:
        return dt.date.fromisoformat(value)
    except (TypeError, ValueError):
        raise ValueError("is not a date; write it as 2026-11-30") from None


Version = Annotated[
    str,
    BeforeValidator(_version),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": f"^{_VERSION.pattern}$"}]}
    ),
]
Percent = Annotated[int, BeforeValidator(_percent), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 100})]
Date = Annotated[dt.date, BeforeValidator(_date), WithJsonSchema({"type": "string", "format": "date"})]
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
_Tenant = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
_Tenants = Annotated[str, Field(pattern=r"^[a-z0-9*?][a-z0-9*?-]{0,62}$")]  # * and ? stand for any text, any character


class _Doc(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class CanaryDoc(_Doc):
    """A new version tried on some of the calls that name none; the others go to ``stable``.

    ``stable`` absent: the version numbered one less. ``tenants`` absent: all take part.
    """

    version: Version
    percent: Percent  # kept in hundredths of a percent
    stable: Version | None = None
    sticky: Literal["principal", "request"] = "principal"
    tenants: tuple[_Tenants, ...] | None = Field(default=None, min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _another_one(self) -> CanaryDoc:
        if self.stable is None and self.version == "1":
            raise ValueError("version 1 has none before it; write stable: the version of the other calls")
        if self.stable == self.version:
            raise ValueError("stable and version are the same, so this is no canary")
        return self


class AcceptanceDoc(_Doc):
    """Who has accepted, for the operator, that a cache is shared beyond the trust groups."""

    by: str = Field(min_length=1, max_length=200)
    on: Date
    reason: str = Field(min_length=1, max_length=1000)


class PrefixCacheDoc(_Doc):
    """Whether the engine reuses the cache of a prompt's beginning, and whose calls may meet in it.

    Who shares one can time whether another has asked with the same beginning (CVE-2025-46570). ``trust_groups``: each
    a list of tenants that accept this of each other. ``accepted``: it is known that others meet there too.
    """

    enabled: Annotated[bool, Field(strict=True)] = True
    trust_groups: tuple[Annotated[tuple[_Tenant, ...], Field(min_length=1)], ...] = Field(default=(), max_length=100)
    accepted: AcceptanceDoc | None = None

    @model_validator(mode="after")
    def _meant(self) -> PrefixCacheDoc:
        if not self.enabled and (self.trust_groups or self.accepted is not None):
            raise ValueError("a cache that isn't enabled is shared by nobody; leave trust_groups and accepted out")
        return self


@dataclass(frozen=True, slots=True)
class PrefixCache:
    """A model's prefix cache as the bundle states it; ``accepted`` is who, when and why, in one line ("": nobody)."""

    enabled: bool = True
    trust_groups: tuple[frozenset[str], ...] = ()
    accepted: str = ""

    def trusts(self, tenants: Iterable[str]) -> bool:
        """Whether one trust group holds them all, or they are no more than one."""
        them = set(tenants)
        return len(them) < 2 or any(them <= group for group in self.trust_groups)


def canary(doc: CanaryDoc | None) -> Canary | None:
    """As the governor picks by it."""
    if doc is None:
        return None
    stable = doc.stable if doc.stable is not None else str(int(doc.version) - 1)
    return Canary(doc.version, stable, doc.percent, Sticky(doc.sticky), doc.tenants)


def prefix_cache(doc: PrefixCacheDoc) -> PrefixCache:
    accepted = "" if doc.accepted is None else f"{doc.accepted.by} on {doc.accepted.on}: {doc.accepted.reason}"
    return PrefixCache(doc.enabled, tuple(map(frozenset, doc.trust_groups)), accepted)


# --- what is wrong with them --------------------------------------------------------------------------------------


def version_problems(
    document: Document,
    canaries: Mapping[str, CanaryDoc],
    caches: Mapping[str, PrefixCacheDoc],
    tenants: set[str],
) -> list[Problem]:
    """Of models.yaml: tenants that are not there, and more canaries than can be counted."""
    too_many = f"more than {CANARIES_MAX} canaries at once"
    problems = [document.problem((model, "canary"), too_many, at_key=True) for model in list(canaries)[CANARIES_MAX:]]
    for model, doc in canaries.items():
        for index, pattern in enumerate(doc.tenants or ()):
            if not any(fnmatchcase(tenant, pattern) for tenant in tenants):
                path: KeyPath = (model, "canary", "tenants", index)
                problems.append(document.problem(path, f"no such tenant{suggest(pattern, tenants)}"))
    for model, cache in caches.items():
        for place, group in enumerate(cache.trust_groups):
            for index, tenant in enumerate(group):
                if tenant not in tenants:
                    path = (model, "prefix_cache", "trust_groups", place, index)
                    problems.append(document.problem(path, f"no such tenant{suggest(tenant, tenants)}"))
    return problems


def alias_problems(
    document: Document, plans: Mapping[str, Mapping[str, str]], models: Iterable[str] | None
) -> list[Problem]:
    """Of plans.yaml: an alias leads to one model in one step, and models.yaml must know that model (None: unread)."""
    known = None if models is None else set(models)
    problems = []
    for plan, aliases in plans.items():
        for alias, target in aliases.items():
            path: KeyPath = (plan, "aliases", alias)
            if target in aliases:
                chain = _chain(alias, aliases)
                what = "goes round in a circle" if chain[-1] in chain[:-1] else "leads to another alias"
                problems.append(document.problem(path, f"{what}: {' → '.join(chain)}; name the model itself"))
            elif known is not None and target not in known:
                problems.append(document.problem(path, f"no such model in models.yaml{suggest(target, known)}"))
    return problems


def _chain(alias: str, aliases: Mapping[str, str]) -> list[str]:
    """The names that ``alias`` leads through, up to the first that comes a second time."""
    chain = [alias]
    while chain[-1] in aliases:
        chain.append(aliases[chain[-1]])
        if chain[-1] in chain[:-1]:
            break
    return chain
