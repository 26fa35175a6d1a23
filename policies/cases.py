"""A bundle's own test cases: each a question, and whether the answer is the one that it must get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from policies.bundle import Bundle, Case
from policies.content import Content
from policies.document import CaseDoc
from policies.explain import Asked, Explanation, explain
from policies.policy import LoadedPolicy
from policies.residency import Place
from sidecar.core.model import Action, Finding

__all__ = ["CaseResult", "asked_of", "run_cases"]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case of ``tests/*.yaml`` and what came of it; ``failure`` "" where it holds."""

    case: Case
    explanation: Explanation
    failure: str

    @property
    def name(self) -> str:
        """``tests/demo.yaml:12 acme chat eu-west-1``, or the case's own name after its place."""
        case = self.case.case
        told = case.name or " ".join(filter(None, (case.tenant, case.model, case.region, case.data_class)))
        return f"{self.case.file}:{self.case.line} {told}"


def run_cases(bundle: Bundle, at: float = 0.0) -> Iterator[CaseResult]:
    """Every case of the bundle, in file order; those that name no moment are asked ``at``."""
    policies: dict[Place, LoadedPolicy] = {}
    for case in bundle.cases:
        asked = asked_of(case.case, at)
        found = explain(bundle, asked, policies)
        assert isinstance(found, Explanation), "compiling a bundle checks the places of its cases"
        yield CaseResult(case, found, _failure(case, found))


def asked_of(doc: CaseDoc, at: float) -> Asked:
    """A case's question; ``at`` where it names no moment."""
    return Asked(
        tenant=doc.tenant,
        model=doc.model,
        region=doc.region,
        data_class=doc.data_class,
        action=Action(doc.action),
        roles=frozenset(doc.roles),
        principal=doc.principal or "explain",
        key=doc.key,
        method=doc.method,
        source=doc.source,
        issuer=doc.issuer,
        at=at if doc.at is None else doc.at,
        storage=doc.storage,
        telemetry=doc.telemetry,
        content=_content(doc),
    )


def _content(doc: CaseDoc) -> Content | None:
    if doc.prompt is None and doc.output is None:
        return None
    return Content(
        doc.prompt, doc.output, doc.prompt_tokens, doc.max_tokens, doc.sequences, doc.streaming, doc.temperature,
        doc.top_p,
    )  # fmt: skip


def _failure(case: Case, found: Explanation) -> str:
    expected, got = case.case.expect, found.answer
    if got != expected:
        return f"expected {expected}, got {got} by {found.verdict.rule}"
    rule = case.case.rule
    if rule is not None and rule != found.verdict.rule:
        return f"expected rule {rule}, got {found.verdict.rule}"
    shadow = found.shadow.rule if found.shadow is not None else None
    if case.case.shadow is not None and case.case.shadow != shadow:
        return f"expected {case.case.shadow} in shadow, got {shadow or 'nothing'}"
    return _content_failure(case.case, found)


def _content_failure(case: CaseDoc, found: Explanation) -> str:
    judged = found.judged
    if case.finds is not None:
        expected = {guard: str(does) for guard, does in case.finds.items()}
        got = {each.guard: _does(each) for each in (judged.findings if judged is not None else ())}
        if got != expected:
            return f"expected {_listed(expected)} to find something, got {_listed(got)}"
    if case.redacts is not None:
        taken = dict(judged.redacted) if judged is not None else {}
        if Counter(taken) != Counter(case.redacts):
            return f"expected {_listed(case.redacts)} to be redacted, got {_listed(taken)}"
    return ""


def _does(finding: Finding) -> str:
    """As a case says it."""
    if finding.enforced == "none":
        return "shadow"
    return "cut" if (finding.on, finding.enforced) == ("output", "deny") else finding.enforced


def _listed(found: Mapping[str, object]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in sorted(found.items())) or "nothing"
