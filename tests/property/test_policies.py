"""Properties of policy decisions: what explain tells is what authorise does, and a memory never changes an answer."""

from __future__ import annotations

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from policies import yamlfile
from policies.bundle import Bundle, compile_bundle
from policies.explain import Asked, Explanation, explain, question
from policies.policy import LoadedPolicy
from policies.residency import Place
from policies.yamlfile import Document, Problem, parse
from sidecar.core.model import Action, Denial, Verdict
from sidecar.core.reasons import Reason
from tests.support.policy import demo_bundle

MORE = b"""
@id("birch-llm") permit(principal in Tenant::"birch", action, resource in Group::"llm");
@id("not-bob") forbid(principal == Principal::"acme/bob", action == Action::"infer", resource);
@id("night") forbid(principal in Tenant::"birch", action, resource) when { context.hour < 6 || context.weekday == 7 };
@id("office") @shadow("trial") forbid(principal, action, resource == Model::"vision")
unless { context has source && context.source.isInRange(ip("10.0.0.0/8")) };
@id("no-manage") forbid(principal, action == Action::"manage", resource) unless { principal.roles.contains("admin") };
"""


def _bundle() -> Bundle:
    files = dict(demo_bundle().files)
    dated = b"models: [chat, {model: vision, until: 2026-12-02}]\nkeys: {ci: {models: [chat], data_class: phi}}"
    files["tenants/cobalt.yaml"] = (
        files["tenants/cobalt.yaml"]
        .replace(b"models: [chat]", dated)
        .replace(b"  telemetry: [US]", b"  telemetry: [US]\n  classes: {phi: {storage: [US], telemetry: withheld}}")
    )
    found = compile_bundle({**files, "access/more.cedar": MORE})
    assert isinstance(found, Bundle)
    return found


BUNDLE = _bundle()
PLACES = st.sampled_from(sorted(BUNDLE.regions))
JURISDICTIONS = st.sampled_from(sorted(set(BUNDLE.regions.values())))
QUESTIONS = st.builds(
    Asked,
    tenant=st.sampled_from([*BUNDLE.tenants, "nobody"]),
    model=st.sampled_from(["", *BUNDLE.models, "absent"]),
    region=PLACES,
    data_class=st.sampled_from(["", "phi", "public", "undeclared", "x" * 70, "public,phi"]),
    action=st.sampled_from([Action.INFER, Action.METADATA, Action.MANAGE]),
    roles=st.frozensets(st.sampled_from(["tenant", "operator", "admin"]), min_size=1),
    principal=st.sampled_from(["alice", "bob"]),
    key=st.sampled_from(["", "ci", "web"]),
    source=st.sampled_from(["", "10.0.0.1", "192.0.2.1", "2001:db8::1"]),
    at=st.one_of(st.floats(0, 7 * 86400), st.floats(1796169600 - 7200, 1796169600 + 7200)),
    storage=JURISDICTIONS,
    telemetry=JURISDICTIONS,
)
# One policy a place for the whole run, so that most questions meet a memory full of others' answers.
REMEMBERING: dict[Place, LoadedPolicy] = {}


@settings(max_examples=400, deadline=None)
@given(QUESTIONS)
def test_authorise_and_explain_agree(asked: Asked) -> None:
    """Whatever is asked, and whatever was asked before, authorise's answer is explain's."""
    place = BUNDLE.place(asked.region, asked.storage or "", asked.telemetry)
    assert isinstance(place, Place)
    policy = REMEMBERING.setdefault(place, LoadedPolicy(BUNDLE, place))
    told = explain(BUNDLE, asked)
    assert isinstance(told, Explanation)
    assert policy.authorise(*question(asked), asked.at) == told.verdict
    assert told.steps[-1].outcome == ("deny" if isinstance(told.verdict, Denial) else told.steps[-1].outcome)
    assert [step.outcome for step in told.steps].count("deny") == (0 if told.allowed else 1)


@settings(max_examples=400, deadline=None)
@given(QUESTIONS)
def test_an_allow_is_in_place(asked: Asked) -> None:
    """No call is allowed for a tenant that isn't active, or where any of its three residencies says no."""
    told = explain(BUNDLE, asked)
    assert isinstance(told, Explanation)
    if not isinstance(told.verdict, Verdict):
        return
    tenant = BUNDLE.tenants[asked.tenant]
    assert tenant.active
    assert {asked.region, BUNDLE.regions[asked.region]} & set(tenant.residency.own.processing)
    assert asked.storage in tenant.residency.own.storage
    assert BUNDLE.regions[asked.region] in tenant.residency.own.storage, "the journal is storage too"
    sent = told.verdict.may_trace
    assert not sent or asked.telemetry in (tenant.residency.own.telemetry or ())
    assert asked.data_class in ("", "public,phi", *tenant.residency.classes)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(BUNDLE.tenants)), st.text(max_size=300), st.text(max_size=80))
def test_an_unlisted_model_is_never_told_apart(tenant: str, model: str, data_class: str) -> None:
    """Any name on no list gets the same refusal, byte for byte, as a model that exists and isn't the caller's."""
    if model in BUNDLE.models:
        return
    told = explain(BUNDLE, Asked(tenant, model, "eu-west-1", data_class=data_class))
    assert isinstance(told, Explanation)
    assert isinstance(told.verdict, Denial)
    shown = (told.verdict.reason, told.verdict.public, told.verdict.metadata)
    if tenant == "dormant":
        assert shown[0] is Reason.TENANT_SUSPENDED
    else:
        assert shown == (Reason.MODEL_NOT_FOUND, "no such model", ())


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.text(), st.text(alphabet="ab:-[]{}&*!|>'\"\n \t#,?%"), st.binary()))
def test_no_text_breaks_the_reader(text: str | bytes) -> None:
    """Any bytes are a document or a list of problems at places that exist; nothing is raised."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    found = parse(data, "f")
    if isinstance(found, Document):
        assert isinstance(found.data, dict | list | str | int | float | bool)
    else:
        lines = data.count(b"\n") + data.count(b"\r") + data.count(b"\xc2\x85") + data.count(b"\xe2\x80") + 2
        assert found
        assert all(isinstance(problem, Problem) and 1 <= problem.line <= lines for problem in found)
        assert all(problem.column >= 1 for problem in found)


YAML_TEXT = st.one_of(
    st.text(alphabet="ab:-[]{}&*!|>'\"\n #,?%x1.~"),
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8)),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=6), inner, max_size=4)),
        max_leaves=12,
    ).map(lambda value: yaml.safe_dump(value, allow_unicode=True)),
)


@settings(max_examples=600, deadline=None)
@given(YAML_TEXT)
def test_both_readers_read_the_same(text: str) -> None:
    """What the quick reader takes the exact one takes too, with the same data at the same places."""
    quick = yamlfile._quickly(text, "f")
    if quick is not None:
        assert yamlfile._exactly(text, "f") == quick
