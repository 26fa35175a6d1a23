"""Each thing that may be amiss with Triton: found where it is, not where it isn't, and with what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sidecar.core.routing import Canary
from sidecar.triton.knowledge import Knowledge, ModelFacts
from sidecar.triton.selfcheck import SEVERITY, Cache, Finding, FindingName, Seen, Severity, Stated, judge

TRACED = {"trace_level": ("TIMESTAMPS",), "trace_mode": ("opentelemetry",)}
CHAT = ModelFacts("chat", ("1", "2"))
KNOWN = Knowledge.of([CHAT])
GOOD = Seen(
    version="2.70.0", loads=False, trace=TRACED, log_verbose=0, answers_bare=False,
    flags={"allow-sagemaker": ("false",), "allow-vertex-ai": ("false",)}, knowledge=KNOWN,
)  # fmt: skip
SAID = Stated(
    callers={"chat": ("acme", "birch")}, caches={"chat": Cache(enabled=False, trusted=False)}, secret=True, traced=True
)


def found(seen: Seen = GOOD, stated: Stated = SAID) -> dict[FindingName, str]:
    return {finding.name: finding.detail for finding in judge(seen, stated)}


def test_a_triton_as_it_should_be_has_no_finding() -> None:
    assert judge(GOOD, SAID) == ()


def test_every_finding_has_its_severity() -> None:
    assert SEVERITY.keys() == set(FindingName)


CASES: list[tuple[FindingName, Seen, Stated, str]] = [
    (
        FindingName.REACHABLE,
        replace(GOOD, reachable=(("10.0.0.5", 8001), ("10.0.0.5", 8000))),
        SAID,
        "10.0.0.5:8001, 10.0.0.5:8000",
    ),
    (FindingName.ELSEWHERE, replace(GOOD, local=False), SAID, "not on loopback"),
    (FindingName.LOADS, replace(GOOD, loads=True), SAID, "--model-control-mode=explicit"),
    (FindingName.FLAGS_UNSEEN, replace(GOOD, flags=None), SAID, "cannot be seen"),
    (FindingName.HEADERS, replace(GOOD, flags={"grpc-header-forward-pattern": (".*",)}), SAID, "--grpc-header-forward"),
    (
        FindingName.HEADERS,
        replace(GOOD, flags={"http-header-forward-pattern": ("x-.*",)}),
        SAID,
        "--http-header-forward",
    ),
    (FindingName.REUSED_PORT, replace(GOOD, flags={"reuse-grpc-port": ("",)}), SAID, "--reuse-grpc-port"),
    (FindingName.FRONTENDS, replace(GOOD, flags={"allow-vertex-ai": ("true",)}), SAID, "--allow-vertex-ai"),
    (FindingName.VERSION, replace(GOOD, version="2.69.1"), SAID, "Triton 2.69 is older than 2.70 (26.06)"),
    (FindingName.CANCEL_RACE, replace(GOOD, version="2.58.0"), SAID, "CVE-2025-23322"),
    (FindingName.VERSION, replace(GOOD, version="main"), SAID, "cannot be read"),
    (FindingName.TRACING_OFF, replace(GOOD, trace={**TRACED, "trace_level": ("OFF",)}), SAID, "--trace-config"),
    (FindingName.TRACING_OFF, replace(GOOD, trace={**TRACED, "trace_mode": ("triton",)}), SAID, "--trace-config"),
    (
        FindingName.TRACE_TENSORS,
        replace(GOOD, trace={**TRACED, "trace_level": ("TIMESTAMPS", "TENSORS")}),
        SAID,
        "TENSORS",
    ),
    (FindingName.LOG_VERBOSE, replace(GOOD, log_verbose=2), SAID, "log-verbose=2"),
    (FindingName.UNANSWERED, replace(GOOD, trace=None, unanswered={"TraceSetting": "no"}), SAID, "TraceSetting (no)"),
    (
        FindingName.NO_SECRET,
        replace(GOOD, answers_bare=True),
        replace(SAID, secret=False),
        "--grpc-restricted-protocol",
    ),
    (FindingName.SECRET_UNASKED, replace(GOOD, answers_bare=True), SAID, "answers without it"),
    (
        FindingName.CACHE_SHARED,
        replace(GOOD, knowledge=Knowledge.of([replace(CHAT, response_cache=True)])),
        SAID,
        "chat (acme, birch)",
    ),
    (FindingName.PREFIX_SHARED, GOOD, replace(SAID, caches={"chat": Cache(True, False)}), "chat (acme, birch)"),
    (
        FindingName.PREFIX_ACCEPTED,
        GOOD,
        replace(SAID, caches={"chat": Cache(True, False, "dpo: ok")}),
        "chat by dpo: ok",
    ),
    (FindingName.PREFIX_CONTRADICTED, replace(GOOD, engines={"chat": True}), SAID, "model.json has it on"),
    (FindingName.CANARY_ABSENT, GOOD, replace(SAID, canaries={"chat": Canary("3", "2", 100)}), "chat:3"),
    (FindingName.CANARY_ABSENT, GOOD, replace(SAID, canaries={"chat": Canary("2", "7", 0)}), "chat:7"),
    (FindingName.CANARY_ABSENT, GOOD, replace(SAID, canaries={"gone": Canary("2", "1", 1)}), "gone:1, gone:2"),
    (FindingName.ALIAS_ABSENT, GOOD, replace(SAID, targets=frozenset({"chat", "small"})), "lead to small"),
    (FindingName.FILES_CHANGED, replace(GOOD, changed=frozenset({("chat", "1")})), SAID, "chat:1"),
    (
        FindingName.DIGEST_DIFFERS,
        replace(GOOD, computed={("chat", "1"): "sha256:a"}),
        replace(SAID, digests={("chat", "1"): "sha256:b"}),
        "chat:1",
    ),
]


@pytest.mark.parametrize(("name", "seen", "stated", "words"), CASES)
def test_it_is_found_alone_and_named(name: FindingName, seen: Seen, stated: Stated, words: str) -> None:
    findings = found(seen, stated)
    assert list(findings) == [name]
    assert words in findings[name]


def test_every_finding_is_tested() -> None:
    assert {name for name, *_ in CASES} == set(FindingName)


@pytest.mark.parametrize(
    ("seen", "stated"),
    [
        (
            replace(GOOD, knowledge=Knowledge.of([replace(CHAT, response_cache=True)])),
            replace(SAID, callers={"chat": ("acme",)}),
        ),
        (GOOD, replace(SAID, caches={"chat": Cache(enabled=True, trusted=True)})),
        (replace(GOOD, engines={"chat": False}), replace(SAID, caches={"chat": Cache(enabled=True, trusted=False)})),
        (GOOD, replace(SAID, canaries={"chat": Canary("3", "2", 0)})),  # nothing is sent there
        (
            replace(GOOD, knowledge=Knowledge()),
            replace(SAID, canaries={"chat": Canary("3", "2", 9)}),
        ),  # nothing is known
        (replace(GOOD, trace={**TRACED, "trace_level": ("OFF",)}), replace(SAID, traced=False)),
        (GOOD, replace(SAID, digests={("chat", "1"): "sha256:b"})),  # it could not be computed
        (replace(GOOD, flags={"reuse-grpc-port": ("false",), "grpc-header-forward-pattern": ("",)}), SAID),
    ],
)
def test_what_harms_nobody_is_not_found(seen: Seen, stated: Stated) -> None:
    assert judge(seen, stated) == ()


def test_the_worst_comes_first_and_long_lists_are_cut() -> None:
    seen = replace(GOOD, flags=None, version="2.60", reachable=tuple(("10.0.0.1", n) for n in range(20)))
    findings = judge(seen, SAID)
    assert [each.severity for each in findings] == [Severity.CRITICAL, Severity.WARNING, Severity.INFO]
    assert "and 12 more" in findings[0].detail
    assert Finding(FindingName.REACHABLE, "x").severity is Severity.CRITICAL
