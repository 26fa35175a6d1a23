"""The governor's reader of Triton's messages: model first, all else for authorised calls only (``ports.Reader``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final

import msgspec

from sidecar.core import kv
from sidecar.core.model import (
    NO_FACTS,
    NO_HEAD,
    Action,
    Admission,
    Call,
    Contract,
    Demand,
    Denial,
    Forward,
    Head,
    InferenceFacts,
    Instant,
    MalformedRequest,
    Method,
    ModelProfile,
    Outcome,
    OutcomeKind,
    Principal,
    ResponseFacts,
    TensorFacts,
    Usage,
    Verdict,
)
from sidecar.core.ports import Sees, everything
from sidecar.core.reasons import Reason
from sidecar.triton import views, wire
from sidecar.triton.aim import aimed, renamed
from sidecar.triton.chat import read_chat
from sidecar.triton.contracts import Asked, ask, estimate_tokens
from sidecar.triton.isolation import Isolation, contract_of, manage
from sidecar.triton.knowledge import ModelBook
from sidecar.triton.layout import Layout, layout
from sidecar.triton.methods import KSERVE
from sidecar.triton.protos import service
from sidecar.triton.request import EACH_MAX, NAME, RAW_TAG, read_request, whole_name
from sidecar.triton.responses import read_response
from sidecar.triton.tallies import Tallies
from sidecar.triton.tokens import Counter

__all__ = ["TritonReader", "named"]

# Triton reads a version with std::stol: "01", " 1", "+1" and "1abc" are all 1 there, so only one spelling is let
# through. "" is the latest. 18 digits fit a long.
_VERSION: Final = re.compile(r"[1-9][0-9]{0,17}")
_CHANGE_MODELS: Final = frozenset({"RepositoryModelLoad", "RepositoryModelUnload"})
_FIELDS_MAX: Final = 4 * EACH_MAX + 4  # at the top of any request: three scalars, at most four lists of at most 256


@dataclass(frozen=True, slots=True)
class _Heading:
    """The field numbers of a request's model and version (0: it has none), and of what would change something."""

    spec: wire.Spec
    model: int
    version: int
    changing: frozenset[int]
    infer: bool  # it is a ModelInferRequest


def _headings() -> dict[str, _Heading]:
    found: dict[str, _Heading] = {}
    for method in service().methods:
        numbers = {field.name: field.number for field in method.input_type.fields}
        changing = {numbers[name] for name in ("parameters", "settings") if name in numbers}
        found[KSERVE + method.name] = _Heading(
            wire.spec_of(method.input_type),
            numbers.get("model_name") or numbers.get("name") or 0,
            numbers.get("model_version") or numbers.get("version") or 0,
            frozenset(changing),
            method.input_type.name == "ModelInferRequest",
        )
    return found


_HEADINGS: Final = _headings()
_INFER: Final = _HEADINGS[KSERVE + "ModelInfer"]
_HEADS: Final = 1024  # names and versions that are remembered
_NAMED_MAX: Final = 160  # bytes of one: a name of 128, a version of 18


class TritonReader:
    """Plain functions of their arguments, of what is known of models, of live sequences and of tenants' counts.

    Safe from several threads. ``counters``: models with a tokenizer, by name.
    """

    __slots__ = ("_counters", "_isolation", "_tallies")

    def __init__(self, isolation: Isolation, counters: Mapping[str, Counter] | None = None) -> None:
        self._isolation = isolation
        self._counters = counters or {}
        self._tallies = Tallies()

    @property
    def models(self) -> ModelBook:
        """What is known of Triton's models."""
        return self._isolation.book

    def _contract(self, profile: ModelProfile) -> Contract:
        """As models.yaml states it, or where it doesn't name the model, as the model's tensors speak."""
        if profile.stated:
            return profile.contract
        return contract_of(profile, self.models.current.models.get(profile.name))

    def _as_read(self, profile: ModelProfile) -> ModelProfile:
        return profile if profile.stated else msgspec.structs.replace(profile, contract=self._contract(profile))

    def head(self, method: Method, message: bytes) -> Head:
        """Model and version, by the scanner alone. A method that names no model is only held to be well-formed."""
        heading = _HEADINGS.get(method.path)
        if heading is None:
            return NO_HEAD
        if heading.infer:
            parts = layout(message, 0, len(message), RAW_TAG)
            if parts is not None and 0 < parts.named <= _NAMED_MAX:
                head = named(message[: parts.named])
                return Head(head.model, head.version, parts)
        model, version = _names(heading, message)
        return _checked(model, version) if method.by_model and (model or not method.all_models) else NO_HEAD

    def facts(self, method: Method, message: bytes, profile: ModelProfile, head: Head = NO_HEAD) -> InferenceFacts:
        """Everything an inference asks for; raises ``MalformedRequest``."""
        if method.action is not Action.INFER:
            return NO_FACTS
        parts = head.parts if isinstance(head.parts, Layout) else None
        if parts is not None and profile.contract is Contract.VLLM and profile.stated:
            chat = read_chat(message, parts, profile) if profile.name not in self._counters else None
            if chat is not None:
                return chat
        request = read_request(message, parts)
        asked = ask(request, self._as_read(profile))
        if asked.prompts and not asked.prompt_tokens_exact and profile.name in self._counters:
            asked = _counted(asked, self._counters[profile.name])
        tensors, parameters = request.tensors.values(), request.parameters
        if asked.sampling:
            parameters = {**parameters, **asked.sampling} if parameters else asked.sampling
        return InferenceFacts(
            request.id,
            request.model,
            request.version,
            tuple([TensorFacts(each.name, each.datatype, each.shape, each.nbytes) for each in tensors]),
            request.outputs,
            parameters,
            asked.prompts,
            asked.prompt_tokens,
            asked.prompt_tokens_exact,
            asked.requested_tokens,
            asked.sequences,
            asked.streaming,
            sum([each.nbytes for each in tensors]),
            asked.flags,
            asked.loras,
            request.raw,
        )

    def isolate(
        self,
        call: Call,
        principal: Principal,
        facts: InferenceFacts,
        verdict: Verdict,
        at: Instant,
        sees: Sees,
    ) -> Forward | Denial:
        """What may go to Triton, and under which names; or why it may not."""
        if call.method.action is Action.INFER:
            found = self._isolation.infer(call, principal, facts, verdict, at)
            return aimed(found, verdict) if isinstance(found, Forward) else found
        heading = _HEADINGS.get(call.method.path)
        if heading is None:
            return Forward(call.message)
        try:
            head = self.head(call.method, call.message)
            fields = wire.scan(call.message, heading.spec, most=_FIELDS_MAX) if heading.changing else ()
        except MalformedRequest as fault:  # only in mode observe: it is refused by now
            return Denial(fault.reason, fault.detail, rule="message")
        if head.version and not sees(head.model, head.version):
            return Denial(Reason.MODEL_NOT_FOUND, rule="version", internal="not among the versions it may use")
        changing = tuple(found.field.name for found in fields if found.field.number in heading.changing)
        managed = manage(call, changing)
        return aimed(managed, verdict) if isinstance(managed, Forward) else managed

    def forgone(self, tenant: str, model: str, forward: Forward, at: Instant) -> None:
        """A sequence that the call would have begun has not begun, and takes no room."""
        if forward.begins is not None:
            self._isolation.sequences.forgo(tenant, model, *forward.begins, at.mono_ns)

    def demand(self, facts: InferenceFacts, profile: ModelProfile) -> Demand:
        """Worst case: every sequence generates all it asked for, in whole blocks of cache."""
        tokens = facts.prompt_tokens + facts.requested_tokens * facts.sequences
        return Demand(
            tokens,
            _kv_bytes(facts, profile),
            facts.tensor_bytes,
            facts.prompt_tokens,
            timed=profile.contract is Contract.GENERIC,
            kv_block=profile.kv,
        )

    def ended(self, admission: Admission, outcome: Outcome, usage: Usage, at: Instant) -> None:
        """Count an inference for its tenant's ModelStatistics; where it was its sequence's last, that ends.

        A first one that failed is as a last one: whether Triton has the sequence now isn't known.
        """
        undo = admission.forward.undo
        failed = outcome.kind is not OutcomeKind.COMPLETED
        ends = None if undo is None else undo.sequence
        if failed:
            ends = ends or admission.forward.begins
        if ends is not None:
            tenant, model = admission.principal.tenant, admission.verdict.profile.name
            self._isolation.sequences.leave(tenant, model, *ends, at.mono_ns, failed=failed)
        if admission.call.method.action is Action.INFER:
            self._tallies.add(
                admission.principal.tenant,
                admission.verdict.profile.name,
                usage.model_version or admission.facts.version,
                failed=failed,
                duration_ns=usage.duration_ns,
                wall_ns=at.wall_ns,
            )

    def response(self, admission: Admission, message: bytes, sees: Sees) -> ResponseFacts:
        """What one response says; of other methods than inference, its length and what this caller is shown of it."""
        method, verdict = admission.call.method, admission.verdict
        if method.action is not Action.INFER:
            if method.name in _CHANGE_MODELS:
                self.models.doubt()
            facts = self._view(admission, message, sees)
        else:
            contract = self._contract(verdict.profile)
            facts = read_response(method, message, contract, admission.forward.undo)
        return renamed(facts, method, verdict.alias) if verdict.alias else facts

    def _view(self, admission: Admission, message: bytes, sees: Sees) -> ResponseFacts:
        method, principal = admission.call.method, admission.principal
        shown: bytes | None = message
        ours = admission.forward.answer is not None
        if not ours and sees is not everything and not method.shows_all(principal.roles):
            count = partial(self._tallies.fill, principal.tenant)
            shown = views.shown(method, message, sees, count, admission.verdict.alias)
        return ResponseFacts(nbytes=len(message), final=True, withheld=shown is None, message=shown or b"")


def _names(heading: _Heading, message: bytes) -> tuple[str, str]:
    model = version = ""
    for found in wire.scan(message, heading.spec, most=_FIELDS_MAX):
        number = found.field.number
        if number == heading.model:
            model = wire.text(message, found, heading.spec)
        elif number == heading.version:
            version = wire.text(message, found, heading.spec)
    return model, version


def _checked(model: str, version: str) -> Head:
    if not whole_name(model):
        raise MalformedRequest(f"model name {model[:128]!a}: must match {NAME.pattern}, without ..")
    if version and _VERSION.fullmatch(version) is None:
        raise MalformedRequest(f"model version {version[:32]!a}: must be empty or a number without leading zeros")
    return Head(model, version)


@lru_cache(_HEADS)
def named(names: bytes) -> Head:
    """Of a ModelInferRequest's first bytes, its name and version."""
    return _checked(*_names(_INFER, names))


def _counted(asked: Asked, count: Counter) -> Asked:
    """With the tokenizer's count of every prompt, where it gives one of each."""
    counts = [count(prompt) for prompt in asked.prompts]
    whole = [each for each in counts if each is not None]
    if len(whole) < len(counts):
        return asked
    return msgspec.structs.replace(asked, prompt_tokens=sum(whole), prompt_tokens_exact=True)


def _kv_bytes(facts: InferenceFacts, profile: ModelProfile) -> int:
    if profile.kv is None or facts.prompt_tokens + facts.requested_tokens == 0:
        return 0
    if len(facts.prompts) > 1 and facts.sequences % len(facts.prompts) == 0:
        # A batch's prompts share no blocks with each other.
        each = facts.sequences // len(facts.prompts)
        return sum(
            kv.kv_bytes(profile.kv, estimate_tokens(prompt), facts.requested_tokens, each) for prompt in facts.prompts
        )
    return kv.kv_bytes(profile.kv, facts.prompt_tokens, facts.requested_tokens, facts.sequences)
