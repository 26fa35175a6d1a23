"""Looks at the Triton behind us, at start and every minute, and tells what is amiss; it never stops a start."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final

from policies.bundle import Bundle
from sidecar.core.reasons import Code
from sidecar.runtime.ask import TritonDesk, Unanswered
from sidecar.runtime.digests import ModelDigests
from sidecar.runtime.learn import Learner
from sidecar.runtime.settings import Settings
from sidecar.telemetry import logs
from sidecar.triton.knowledge import Knowledge, ModelBook
from sidecar.triton.selfcheck import SEVERITY, Cache, Finding, FindingName, Seen, Severity, Stated, judge

__all__ = ["EVERY", "SelfCheck", "flags_of", "local_addresses", "look", "once", "stated"]

_LOG: Final = logging.getLogger("warden.selfcheck")
EVERY: Final = 60.0  # seconds
SOON: Final = 2.0  # seconds between two tries while Triton does not answer
_CONNECT: Final = 0.5  # seconds
_ADDRESSES_MAX: Final = 16
_ENGINE_BYTES: Final = 2**20
_PROBE: Final = "warden-self-check.no-such-model"  # no repository has it: to unload it changes nothing
_LEVELS: Final = {Severity.CRITICAL: logging.ERROR, Severity.WARNING: logging.WARNING, Severity.INFO: logging.INFO}


class SelfCheck:
    """One look after the other, from a thread of its own. ``findings`` None: no look was whole yet."""

    def __init__(self, gather: Callable[[], Seen | None], bundle: Callable[[], Stated]) -> None:
        self._gather, self._bundle = gather, bundle
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warden-selfcheck", daemon=True)
        self._told: dict[FindingName, str] = {}
        self.findings: tuple[Finding, ...] | None = None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(10)

    def _run(self) -> None:
        answered = False
        while not self._stopping.wait(EVERY if answered else SOON):
            try:
                answered = self.look()
            except Exception as fault:  # noqa: BLE001 — a check that died would leave its last answer standing for good
                _LOG.error("selfcheck.crashed", exc_info=fault)
                answered = True

    def look(self) -> bool:
        """Whether Triton answered."""
        seen = self._gather()
        if seen is None:
            return False
        self.findings = judge(seen, self._bundle())
        self._tell(self.findings)
        return True

    def _tell(self, findings: tuple[Finding, ...]) -> None:
        """A line for each finding that is new or says something else, and for each that is gone."""
        now = {finding.name: finding.detail for finding in findings}
        for finding in findings:
            if self._told.get(finding.name) != finding.detail:
                level = _LEVELS[finding.severity]
                logs.event(
                    _LOG, level, "selfcheck.finding", reason=finding.name, kind=finding.severity, detail=finding.detail
                )
        for name in self._told.keys() - now.keys():
            logs.event(_LOG, logging.INFO, "selfcheck.mended", reason=name)
        self._told = now

    @property
    def summary(self) -> str:
        """For /readyz, before each finding."""
        if self.findings is None:
            return "Triton was not looked at yet"
        counts = [(severity, sum(each.severity is severity for each in self.findings)) for severity in Severity]
        return ", ".join(f"{count} {severity}" for severity, count in counts if count) or "nothing amiss"

    def reading(self) -> Mapping[tuple[str, ...], float] | None:
        """By finding and severity, 1 where it stands; None before the first look."""
        if self.findings is None:
            return None
        standing = {finding.name for finding in self.findings}
        return {(name.value, severity.value): float(name in standing) for name, severity in SEVERITY.items()}


def once(settings: Settings, bundle: Bundle, desk: TritonDesk) -> tuple[Finding, ...] | None:
    """One look without a sidecar, for the command line; None where Triton does not answer.

    The models' files are hashed only where the bundle states a digest: it takes minutes for large weights.
    """
    book, digests, said = ModelBook(), ModelDigests(settings.triton.model_repository), stated(bundle, settings)
    Learner(desk, book).once()
    if said.digests:
        digests.look()
    seen = look(desk, settings, book.current, digests, bundle.prefix_caches)
    return None if seen is None else judge(seen, said)


# --- what the bundle says -----------------------------------------------------------------------------------------


def stated(bundle: Bundle, settings: Settings) -> Stated:
    """By tenants' lists, whatever the dates; a Cedar permit alone makes nobody share."""
    callers = {
        model: sorted(
            name
            for name, tenant in bundle.tenants.items()
            if tenant.active and any(fnmatchcase(model, pattern) for pattern in tenant.models)
        )
        for model in bundle.models
    }
    return Stated(
        callers=callers,
        canaries={name: model.canary for name, model in bundle.models.items() if model.canary is not None},
        targets=frozenset(target for tenant in bundle.tenants.values() for target in tenant.aliases.values()),
        digests={
            (name, version): digest
            for name, model in bundle.models.items()
            for version, digest in model.digests.items()
        },
        caches={
            name: Cache(cache.enabled, cache.trusts(callers[name]), cache.accepted)
            for name, cache in bundle.prefix_caches.items()
        },
        secret=settings.triton.restricted_secret is not None,
        traced=settings.telemetry.otlp is not None,
    )


# --- what is to be seen -------------------------------------------------------------------------------------------


def look(
    desk: TritonDesk, settings: Settings, knowledge: Knowledge, digests: ModelDigests, models: Iterable[str]
) -> Seen | None:
    """Ask and look around; None where Triton does not answer. Nothing is loaded, unloaded or changed for it."""
    answers: dict[str, Any] = {}
    unanswered: dict[str, str] = {}
    for name in ("ServerMetadata", "TraceSetting", "LogSettings"):
        answer = desk.ask(name)
        if isinstance(answer, Unanswered):
            if answer.code is None:
                return None
            unanswered[name] = answer.detail[:200]
        else:
            answers[name] = answer
    host, _, port = settings.triton.grpc.rpartition(":")
    ports = (int(port), *settings.triton.other_ports)
    local = _is_loopback(host.strip("[]"))
    trace, log = answers.get("TraceSetting"), answers.get("LogSettings")
    bare = desk.ask("ServerLive", bare=True)
    return Seen(
        version=answers["ServerMetadata"].version if "ServerMetadata" in answers else None,
        reachable=_reachable(ports) if local else (),
        local=local,
        loads=_loads(desk),
        trace=None if trace is None else {name: tuple(each.value) for name, each in trace.settings.items()},
        log_verbose=None if log is None else log.settings["log_verbose_level"].uint32_param,
        answers_bare=not isinstance(bare, Unanswered),
        flags=_flags(int(port)) if local else None,
        knowledge=knowledge,
        computed=digests.digests,
        changed=digests.changed,
        engines=_engines(settings.triton.model_repository, models),
        unanswered=unanswered,
    )


def _loads(desk: TritonDesk) -> bool | None:
    """Whether models may be loaded by RPC: asked by unloading one that nobody has."""
    answer = desk.ask("RepositoryModelUnload", model_name=_PROBE)
    if not isinstance(answer, Unanswered):
        return True
    if answer.code is Code.UNAVAILABLE and "not allowed" in answer.detail:
        return False
    return None if answer.code is None or answer.restricted else True


def _is_loopback(host: str) -> bool:
    try:
        return all(
            ipaddress.ip_address(found[4][0]).is_loopback
            for found in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        )
    except (OSError, ValueError):
        return False


def _reachable(ports: Iterable[int]) -> tuple[tuple[str, int], ...]:
    found = []
    for address in local_addresses(_read("/proc/net/fib_trie"), _read("/proc/net/if_inet6")):
        for port in ports:
            with suppress(OSError), socket.create_connection((address, port), _CONNECT):
                found.append((address, port))
    return tuple(found)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def local_addresses(fib_trie: str, if_inet6: str) -> list[str]:
    """This host's own addresses but loopback and link-local ones, of /proc/net/fib_trie and /proc/net/if_inet6."""
    found: dict[str, None] = {}
    address = ""
    for line in fib_trie.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            address = words[1]
        elif words[:3] == ["/32", "host", "LOCAL"]:
            found[address] = None
    for line in if_inet6.splitlines():
        found[str(ipaddress.IPv6Address(int(line.split()[0], 16)))] = None
    parsed = (ipaddress.ip_address(each) for each in found)
    kept = [str(each) for each in parsed if not each.is_loopback and not each.is_link_local]
    return kept[:_ADDRESSES_MAX]


def _flags(port: int) -> Mapping[str, tuple[str, ...]] | None:
    """The command line of the tritonserver that listens on ``port``, where this host shows it."""
    try:
        processes = [entry for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208
    except OSError:
        return None
    for process in processes:
        with suppress(OSError):
            found = flags_of(Path(f"/proc/{process}/cmdline").read_bytes())
            if found is not None and found.get("grpc-port", ("8001",))[-1] == str(port):
                return found
    return None


def flags_of(cmdline: bytes) -> Mapping[str, tuple[str, ...]] | None:
    """``--name=value`` and ``--name value``, by name, repeated ones in order; None where it is no tritonserver."""
    program, *words = cmdline.decode("utf-8", "replace").rstrip("\0").split("\0")
    if program.rpartition("/")[2] != "tritonserver":
        return None
    flags: dict[str, tuple[str, ...]] = {}
    for place, word in enumerate(words):
        match = re.fullmatch(r"--([a-z0-9-]+)(?:=(.*))?", word, re.DOTALL)
        if match is not None:
            follows = words[place + 1] if place + 1 < len(words) and not words[place + 1].startswith("-") else ""
            value = match[2] if match[2] is not None else follows
            flags[match[1]] = (*flags.get(match[1], ()), value)
    return flags


def _engines(repositories: Iterable[Path], models: Iterable[str]) -> dict[str, bool]:
    """What vLLM's engines say of prefix caching in model.json; where it says nothing, nothing is known."""
    found: dict[str, bool] = {}
    for repository in repositories:
        for model in models:
            for path in sorted((repository / model).glob("[1-9]*/model.json")):
                with suppress(OSError, ValueError):
                    with path.open("rb") as file:
                        document = json.loads(file.read(_ENGINE_BYTES))
                    if isinstance(document, dict) and isinstance(document.get("enable_prefix_caching"), bool):
                        found[model] = found.get(model, False) or document["enable_prefix_caching"]
    return found
