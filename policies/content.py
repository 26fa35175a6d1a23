"""What a bundle says of a prompt or an output that is put to it: which guards find something, and what is taken out."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from policies.decision import Step
from sidecar.core.decision import forbidden
from sidecar.core.model import AuditLevel, AuditRule, Contract, Denial, Finding, InferenceFacts, Verdict

__all__ = ["Content", "Judged", "facts_of", "judge", "unread"]

_BYTES_PER_TOKEN: Final = 4  # sidecar.triton.contracts; a test holds the two together
_HASH_KEY: Final = b"\x00" * 32  # of what is only counted here


@dataclass(frozen=True, slots=True)
class Content:
    """What a question says of the content. ``prompt`` or ``output`` None: it isn't asked about.

    ``prompt_tokens`` None: estimated as a sidecar does; ``max_tokens`` None: the model's default.
    """

    prompt: str | None = None
    output: str | None = None
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    sequences: int = 1
    streaming: bool = False
    temperature: float | None = None
    top_p: float | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """What was found. ``denial`` refuses the call, or, where ``cut``, ends its output."""

    findings: tuple[Finding, ...] = ()
    denial: Denial | None = None
    cut: bool = False
    shadow: Denial | None = None
    redacted: Mapping[str, int] = field(default_factory=dict)  # identifiers by class, that no record keeps
    steps: tuple[Step, ...] = ()


def facts_of(content: Content, verdict: Verdict) -> InferenceFacts:
    """As a sidecar would read them from the request."""
    profile = verdict.profile
    prompts = () if content.prompt is None else (content.prompt.encode("utf-8", "surrogateescape"),)
    estimated = sum(max(1, -(-len(prompt) // _BYTES_PER_TOKEN)) for prompt in prompts)
    given = {"temperature": content.temperature, "top_p": content.top_p}
    default = min(profile.default_tokens, profile.max_tokens)
    return InferenceFacts(
        model=profile.name,
        prompts=prompts,
        prompt_tokens=estimated if content.prompt_tokens is None else content.prompt_tokens,
        requested_tokens=default if content.max_tokens is None else content.max_tokens,
        sequences=content.sequences,
        streaming=content.streaming,
        parameters={name: value for name, value in given.items() if value is not None},
    )


def unread(verdict: Verdict) -> Judged | None:
    """What is said of a model of whose tensors none is text; None: its prompts and outputs are read.

    A model that the bundle doesn't state is read by the contract that its tensors speak, which isn't known here.
    """
    if verdict.profile.contract is not Contract.GENERIC or not verdict.profile.stated:
        return None
    return Judged(steps=(Step("content", "skip", detail="of a generic model's tensors none is known to be text"),))


def judge(verdict: Verdict, facts: InferenceFacts, output: bytes | None) -> Judged:
    """By the guards and the redaction that come with an allow; ``output`` None: it isn't known."""
    guards, steps = verdict.guards, list[Step]()
    found: tuple[Finding, ...] = ()
    if facts.prompts:
        found = () if guards is None else guards.prompt(facts)
        denial, step = _said("prompt", found)
        steps.append(step)
        if denial is not None:
            counts = _taken(verdict.audit, facts.prompts, None, steps)
            return Judged(found, denial, redacted=counts, steps=tuple(steps))
    shadow = next((forbidden(each, "the prompt") for each in found if each.verdict == "deny"), None)
    cut: Denial | None = None
    if output is not None:
        watch = None if guards is None else guards.watch(facts)
        told = () if watch is None else (*watch.feed((output,)), *watch.look(), *watch.finish())
        cut, step = _said("output", told)
        steps.append(step)
        found += told
    counts = _taken(verdict.audit, facts.prompts, output, steps)
    return Judged(found, cut, cut is not None, shadow, counts, tuple(steps))


def _said(on: str, found: Sequence[Finding]) -> tuple[Denial | None, Step]:
    denying = next((each for each in found if each.enforced == "deny"), None)
    told = [f"guards.{each.guard} {_does(each)}" for each in found]
    name: Any = on
    rules = tuple(f"guards.{each.guard}" for each in found)
    if denying is not None:
        rule = f"guards.{denying.guard}"
        return forbidden(denying, f"the {on}"), Step(name, "deny", rule, "; ".join(told), rules)
    shadowed = next((each for each in found if each.verdict == "deny"), None)
    if shadowed is not None:
        return None, Step(name, "shadow", f"guards.{shadowed.guard}", "; ".join(told), rules)
    return None, Step(name, "pass", detail="; ".join(told) or "no guard finds anything", rules=rules)


def _does(finding: Finding) -> str:
    if finding.enforced == "none":
        return f"in shadow: would {'cut' if finding.on == 'output' and finding.verdict == 'deny' else finding.verdict}"
    if finding.enforced == "flag":
        return "flags it"
    return "cuts it off" if finding.on == "output" else "denies it"


def _taken(rule: AuditRule, prompts: Sequence[bytes], output: bytes | None, steps: list[Step]) -> Mapping[str, int]:
    """How many identifiers of each class the record would be stored without."""
    kept: list[bytes] = [] if rule.level is AuditLevel.METADATA else list(prompts)
    if output is not None and rule.level is AuditLevel.FULL:
        kept.append(output)
    if not rule.redact or not kept:
        return {}
    redact = importlib.import_module("audit.redact")  # the numbering plans are 13 MB, for those who need them
    tool, counts = redact.redactor(rule.redact, _HASH_KEY), Counter[str]()
    for text in kept:
        counts.update(tool.text(text.decode("utf-8", "surrogateescape")).counts)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
    rules = tuple(f"audit.redact.{kind}" for kind in sorted(counts))
    steps.append(Step("redaction", "pass", detail=f"stored without {told}" if told else "stored as it is", rules=rules))
    return dict(counts)
