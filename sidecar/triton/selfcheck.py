"""What is amiss with the Triton behind us, from what was seen of it and what the bundle says; each with what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sidecar.core.routing import Canary
from sidecar.triton.knowledge import Knowledge

__all__ = ["SEVERITY", "Cache", "Finding", "FindingName", "Seen", "Severity", "Stated", "judge"]

# 26.06 is 2.70: what NVIDIA's bulletins ask for (facts/triton.md §8). Before 25.06 (2.59) a cancel that races a
# stream's end aborts the whole server (CVE-2025-23322).
MINIMUM: Final = (2, 70)
RACES_UNTIL: Final = (2, 59)
_NAMED: Final = 8  # models, ports or addresses named in one text
_VERSION: Final = re.compile(r"([0-9]+)\.([0-9]+)")
_ON: Final = frozenset({"", "true", "1"})


class Severity(StrEnum):
    """``critical``: one tenant can reach another, or anybody can go round the sidecar. ``info``: told, not amiss."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class FindingName(StrEnum):
    """Stable: alerts and silences name them."""

    REACHABLE = "reachable-from-outside"
    ELSEWHERE = "triton-elsewhere"
    REUSED_PORT = "grpc-port-reused"
    LOADS = "model-control-explicit"
    CACHE_SHARED = "response-cache-shared"
    HEADERS = "header-forwarding"
    FRONTENDS = "other-frontends"
    FLAGS_UNSEEN = "flags-unseen"
    VERSION = "version-old"
    CANCEL_RACE = "cancel-race"
    TRACING_OFF = "tracing-off"
    TRACE_TENSORS = "trace-tensors"
    LOG_VERBOSE = "log-verbose"
    NO_SECRET = "restricted-secret-none"  # noqa: S105 — a finding's name
    SECRET_UNASKED = "restricted-secret-unasked"  # noqa: S105 — the same
    PREFIX_SHARED = "prefix-cache-shared"
    PREFIX_ACCEPTED = "prefix-cache-accepted"
    PREFIX_CONTRADICTED = "prefix-cache-contradicted"
    CANARY_ABSENT = "canary-version-absent"
    ALIAS_ABSENT = "alias-target-absent"
    FILES_CHANGED = "model-files-changed"
    DIGEST_DIFFERS = "model-digest-differs"
    UNANSWERED = "unanswered"


_CRITICAL, _WARNING, _INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO
SEVERITY: Final[Mapping[FindingName, Severity]] = {
    FindingName.REACHABLE: _CRITICAL,
    FindingName.ELSEWHERE: _WARNING,
    FindingName.REUSED_PORT: _CRITICAL,
    FindingName.LOADS: _CRITICAL,
    FindingName.CACHE_SHARED: _CRITICAL,
    FindingName.HEADERS: _CRITICAL,
    FindingName.FRONTENDS: _WARNING,
    FindingName.FLAGS_UNSEEN: _INFO,
    FindingName.VERSION: _WARNING,
    FindingName.CANCEL_RACE: _CRITICAL,
    FindingName.TRACING_OFF: _WARNING,
    FindingName.TRACE_TENSORS: _CRITICAL,
    FindingName.LOG_VERBOSE: _WARNING,
    FindingName.NO_SECRET: _WARNING,
    FindingName.SECRET_UNASKED: _WARNING,
    FindingName.PREFIX_SHARED: _WARNING,
    FindingName.PREFIX_ACCEPTED: _INFO,
    FindingName.PREFIX_CONTRADICTED: _CRITICAL,
    FindingName.CANARY_ABSENT: _CRITICAL,
    FindingName.ALIAS_ABSENT: _WARNING,
    FindingName.FILES_CHANGED: _WARNING,
    FindingName.DIGEST_DIFFERS: _CRITICAL,
    FindingName.UNANSWERED: _WARNING,
}


@dataclass(frozen=True, slots=True)
class Finding:
    """``detail`` says what was found and what to do; it holds no secret."""

    name: FindingName
    detail: str

    @property
    def severity(self) -> Severity:
        return SEVERITY[self.name]


@dataclass(frozen=True, slots=True)
class Seen:
    """What was seen of Triton. None: could not be seen, or not asked.

    ``reachable``: address and port, of this host and not loopback, where something answers on Triton's ports.
    ``flags``: its command line, by flag. ``unanswered``: questions that it did not answer.
    """

    version: str | None = None
    reachable: Sequence[tuple[str, int]] = ()
    local: bool = True
    loads: bool | None = None
    trace: Mapping[str, Sequence[str]] | None = None
    log_verbose: int | None = None
    answers_bare: bool | None = None
    flags: Mapping[str, Sequence[str]] | None = None
    knowledge: Knowledge = field(default_factory=Knowledge)
    computed: Mapping[tuple[str, str], str] = field(default_factory=dict)
    changed: frozenset[tuple[str, str]] = frozenset()
    engines: Mapping[str, bool] = field(default_factory=dict)  # model → its engine's own word on prefix caching
    unanswered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Cache:
    """A model's prefix cache as the bundle states it, and whether its tenants trust each other by that."""

    enabled: bool
    trusted: bool
    accepted: str = ""


@dataclass(frozen=True, slots=True)
class Stated:
    """What bundle and configuration say. ``callers``: by model, the tenants whose lists name it."""

    callers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    canaries: Mapping[str, Canary] = field(default_factory=dict)
    targets: frozenset[str] = frozenset()  # of aliases
    digests: Mapping[tuple[str, str], str] = field(default_factory=dict)
    caches: Mapping[str, Cache] = field(default_factory=dict)
    secret: bool = False
    traced: bool = False


def judge(seen: Seen, stated: Stated) -> tuple[Finding, ...]:
    """Everything that is amiss, the worst first; at most one finding of a name."""
    checks = (_network, _flags, _server, _secret, _caches, _versions)
    found = [finding for check in checks for finding in check(seen, stated)]
    order = list(Severity)
    return tuple(sorted(found, key=lambda finding: order.index(finding.severity)))


def _network(seen: Seen, _: Stated) -> Iterator[Finding]:
    if seen.reachable:
        places = _listed(f"{address}:{port}" for address, port in seen.reachable)
        yield Finding(
            FindingName.REACHABLE,
            f"Triton's ports answer on {places}: whoever reaches them goes round the sidecar. Start it with "
            "--grpc-address, --http-address and --metrics-address=127.0.0.1",
        )
    if not seen.local:
        yield Finding(
            FindingName.ELSEWHERE,
            "triton.grpc is not on loopback: calls cross a network in clear, and others may reach it there too. Run "
            "the sidecar beside Triton",
        )


def _flags(seen: Seen, _: Stated) -> Iterator[Finding]:
    flags = seen.flags
    if flags is None:
        yield Finding(
            FindingName.FLAGS_UNSEEN,
            "Triton's command line cannot be seen from here (another PID namespace, as is usual): see for yourself "
            "that --grpc-header-forward-pattern, --http-header-forward-pattern and --reuse-grpc-port are not in it",
        )
        return
    patterns = [
        name for name in ("grpc-header-forward-pattern", "http-header-forward-pattern") if any(flags.get(name, ()))
    ]
    if patterns:
        yield Finding(
            FindingName.HEADERS,
            f"--{patterns[0]} hands request headers, the sidecar's secret among them, to models. Leave it out",
        )
    if _on(flags, "reuse-grpc-port"):
        yield Finding(
            FindingName.REUSED_PORT,
            "--reuse-grpc-port lets another process of this host take part of Triton's connections. Leave it out",
        )
    others = [name for name in ("allow-sagemaker", "allow-vertex-ai") if _on(flags, name)]
    if others:
        yield Finding(
            FindingName.FRONTENDS,
            f"--{others[0]}: that server has gone round restricted protocols (CVE-2026-24206). Set it to false",
        )


def _on(flags: Mapping[str, Sequence[str]], name: str) -> bool:
    return name in flags and flags[name][-1].lower() in _ON


def _server(seen: Seen, stated: Stated) -> Iterator[Finding]:
    yield from _version(seen.version)
    if seen.loads:
        yield Finding(
            FindingName.LOADS,
            "--model-control-mode=explicit: whoever may load a model may run code in Triton. Start it with none",
        )
    trace = seen.trace
    if trace is not None:
        levels = trace.get("trace_level", ())
        if "TENSORS" in levels:
            yield Finding(
                FindingName.TRACE_TENSORS,
                "the trace level TENSORS writes every tenant's inputs and outputs to a file. Set level=TIMESTAMPS",
            )
        off = not levels or "OFF" in levels or "opentelemetry" not in trace.get("trace_mode", ())
        if stated.traced and off:
            yield Finding(
                FindingName.TRACING_OFF,
                "Triton makes no spans, so traces end at the sidecar. Start it with --trace-config mode=opentelemetry, "
                "--trace-config level=TIMESTAMPS and --trace-config rate=0",
            )
    if seen.log_verbose:
        yield Finding(
            FindingName.LOG_VERBOSE,
            f"log-verbose={seen.log_verbose} writes requests, with their ids, to Triton's log. Set it to 0",
        )
    if seen.unanswered:
        asked, words = next(iter(seen.unanswered.items()))
        more = f", and {len(seen.unanswered) - 1} more" if len(seen.unanswered) > 1 else ""
        yield Finding(FindingName.UNANSWERED, f"Triton did not answer {asked} ({words}){more}; the check is not whole")


def _version(version: str | None) -> Iterator[Finding]:
    found = None if version is None else _VERSION.match(version)
    if version is None:
        return
    if found is None:
        yield Finding(FindingName.VERSION, f"Triton's version {version[:32]!a} cannot be read; 2.70 (26.06) is needed")
        return
    number = (int(found[1]), int(found[2]))
    if number < RACES_UNTIL:
        yield Finding(
            FindingName.CANCEL_RACE,
            f"Triton {found[0]} dies, or hangs, of a cancel that meets a response of the same stream (CVE-2025-23322, "
            "fixed in 25.06): a client that leaves can end it for everybody. "
            "Upgrade to 26.06 (2.70)",
        )
    elif number < MINIMUM:
        yield Finding(
            FindingName.VERSION,
            f"Triton {found[0]} is older than 2.70 (26.06), and lacks fixes of known vulnerabilities. Upgrade",
        )


def _secret(seen: Seen, stated: Stated) -> Iterator[Finding]:
    if seen.answers_bare and stated.secret:
        yield Finding(
            FindingName.SECRET_UNASKED,
            "triton.restricted_secret is set, but Triton answers without it. Start it with --grpc-restricted-protocol",
        )
    elif seen.answers_bare:
        yield Finding(
            FindingName.NO_SECRET,
            "whatever shares this network namespace may speak to Triton, past the sidecar. Start it with "
            "--grpc-restricted-protocol and set triton.restricted_secret",
        )


def _caches(seen: Seen, stated: Stated) -> Iterator[Finding]:
    shared = {
        name: stated.callers[name]
        for name, model in seen.knowledge.models.items()
        if model.response_cache and len(stated.callers.get(name, ())) > 1
    }
    if shared:
        yield Finding(
            FindingName.CACHE_SHARED,
            f"response_cache is on for {_models(shared)}: its key is the inputs' bytes alone, so one tenant is given "
            "what another's call made. Set response_cache { enable: false } in config.pbtxt",
        )
    lying = [name for name, cache in stated.caches.items() if not cache.enabled and seen.engines.get(name)]
    if lying:
        yield Finding(
            FindingName.PREFIX_CONTRADICTED,
            f"the bundle says prefix_cache is off for {_listed(lying)}, but the engine's model.json has it on. Set "
            '"enable_prefix_caching": false there',
        )
    # An engine that has it off shares nothing, whatever the bundle says.
    met = {
        name: callers
        for name, callers in stated.callers.items()
        if (cache := stated.caches.get(name)) is not None
        and cache.enabled
        and not cache.trusted
        and seen.engines.get(name) is not False
    }
    unaccepted = {name: callers for name, callers in met.items() if not stated.caches[name].accepted}
    if unaccepted:
        yield Finding(
            FindingName.PREFIX_SHARED,
            f"tenants share the prefix cache of {_models(unaccepted)}, and can time what others have asked "
            "(CVE-2025-46570). Turn it off in the engine (prefix_cache: {enabled: false} says so in models.yaml), or "
            "name them in one of its trust_groups, or accept it there",
        )
    accepted = [f"{name} by {stated.caches[name].accepted}" for name in met if stated.caches[name].accepted]
    if accepted:
        yield Finding(FindingName.PREFIX_ACCEPTED, f"a shared prefix cache was accepted: {_listed(accepted)}")


def _versions(seen: Seen, stated: Stated) -> Iterator[Finding]:
    known = seen.knowledge
    if known.complete:
        absent = [
            f"{model}:{version}"
            for model, canary in stated.canaries.items()
            for version in (canary.stable, canary.version)
            if model not in known.unlearnt
            and (model not in known.models or version not in known.models[model].versions)
            and (version == canary.stable or canary.share)
        ]
        if absent:
            yield Finding(
                FindingName.CANARY_ABSENT,
                f"a canary sends calls to {_listed(absent)}, which Triton has not ready. Set percent: 0, or load it "
                "(version_policy in config.pbtxt decides which versions are)",
            )
        gone = sorted(stated.targets - known.models.keys() - known.unlearnt)
        if gone:
            yield Finding(FindingName.ALIAS_ABSENT, f"aliases lead to {_listed(gone)}, which Triton has not ready")
    changed = sorted(f"{model}:{version}" for model, version in seen.changed)
    if changed:
        yield Finding(
            FindingName.FILES_CHANGED,
            f"the files of {_listed(changed)} changed while Triton may still hold the old ones: what answers is not "
            "what records say. Restart Triton, then the sidecar",
        )
    differing = sorted(
        f"{model}:{version}"
        for (model, version), digest in stated.digests.items()
        if seen.computed.get((model, version), digest) != digest
    )
    if differing:
        yield Finding(
            FindingName.DIGEST_DIFFERS,
            f"the files of {_listed(differing)} are not those that models.yaml states the digest of. Records have the "
            "digest of the files",
        )


def _models(callers: Mapping[str, Sequence[str]]) -> str:
    return _listed(f"{model} ({_listed(tenants)})" for model, tenants in callers.items())


def _listed(names: Iterator[str] | Sequence[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return ", ".join(every[:_NAMED]) + more
