"""The decision: its order, its rules, what a caller can and can't learn, and what may be remembered."""

from __future__ import annotations

import pytest

from policies import policy as policy_module
from policies.bundle import Bundle, compile_bundle
from policies.policy import LoadedPolicy
from policies.residency import Place
from sidecar.core.model import (
    Action,
    AuditLevel,
    Call,
    Contract,
    Denial,
    Disposition,
    Head,
    Instant,
    Method,
    ModelProfile,
    Principal,
    Verdict,
    replace,
)
from sidecar.core.ports import Policy
from sidecar.core.reasons import Reason
from tests.support.policy import demo_bundle, demo_policy

EVERYONE = frozenset({"tenant", "operator", "admin"})
INFER = Method("/inference.GRPCInferenceService/ModelInfer", Action.INFER, Disposition.FORWARD, EVERYONE, by_model=True)
METADATA = Method(
    "/inference.GRPCInferenceService/ModelMetadata", Action.METADATA, Disposition.FORWARD, EVERYONE, by_model=True
)
SERVER = Method("/inference.GRPCInferenceService/ServerMetadata", Action.METADATA, Disposition.FORWARD, EVERYONE)
LOAD = Method(
    "/inference.GRPCInferenceService/RepositoryModelLoad", Action.MANAGE, Disposition.FORWARD, EVERYONE, by_model=True
)
LIVE = Method("/inference.GRPCInferenceService/ServerLive", Action.HEALTH, Disposition.ANSWER, EVERYONE)
READY = Method(
    "/inference.GRPCInferenceService/ModelReady", Action.HEALTH, Disposition.FORWARD, EVERYONE, by_model=True
)
US = Place("us-east-1", "US", "US", "US")


def who(tenant: str, **more: object) -> Principal:
    return replace(Principal(tenant=tenant, name="alice", kind="jwt"), **more)  # type: ignore[arg-type] # by name


def call(method: Method = INFER, data_class: str = "") -> Call:
    return Call("id", method, Instant(0, 0), b"", Denial(Reason.CREDENTIAL_MISSING), data_class=data_class)


def ask(
    policy: LoadedPolicy, principal: Principal, model: str, method: Method = INFER, data_class: str = ""
) -> Verdict | Denial:
    return policy.authorise(principal, call(method, data_class), Head(model), 0.0)


def reason(found: Verdict | Denial) -> Reason | None:
    return found.reason if isinstance(found, Denial) else None


def with_policies(cedar: str) -> LoadedPolicy:
    bundle = compile_bundle({**demo_bundle().files, "access/more.cedar": cedar.encode()})
    assert isinstance(bundle, Bundle), [str(problem) for problem in bundle]
    place = bundle.place("eu-west-1", "EU", "EU")
    assert isinstance(place, Place)
    return LoadedPolicy(bundle, place)


def test_it_is_the_port() -> None:
    policy: Policy = demo_policy()
    assert policy.digest.startswith("sha256:")


def test_an_allow_says_all_that_the_bundle_knows() -> None:
    policy = demo_policy()
    found = ask(policy, who("acme"), "chat", data_class="phi")
    assert isinstance(found, Verdict)
    assert found.rule == "tenants/acme.yaml:models[0]"
    assert found.bundle == policy.digest
    assert found.profile == policy.bundle.models["chat"]
    assert found.limits.concurrency == 512
    assert (found.audit.level, found.audit.retention_days) == (AuditLevel.FULL, 400)
    assert found.data_class == "phi"


@pytest.mark.parametrize(
    ("tenant", "method", "allowed"),
    [
        ("acme", INFER, True),
        ("acme", LIVE, True),
        ("cobalt", LIVE, False),  # asked without regard to place, but its span would name the tenant in the EU
    ],
)
def test_a_span_may_leave_only_where_residency_allows_it(tenant: str, method: Method, allowed: bool) -> None:
    found = ask(demo_policy(), who(tenant), "chat" if method.by_model else "", method)
    assert isinstance(found, Verdict)
    assert found.may_trace is allowed


@pytest.mark.parametrize(
    ("principal", "model", "method", "data_class", "expected", "rule"),
    [
        (who("nobody"), "chat", INFER, "", Reason.TENANT_UNKNOWN, "tenants"),
        (who("dormant"), "chat", INFER, "", Reason.TENANT_SUSPENDED, "tenants/dormant.yaml:status"),
        # The order: a suspended tenant learns nothing of models, a foreign model nothing of policies and places.
        (who("dormant"), "rag", INFER, "phi", Reason.TENANT_SUSPENDED, "tenants/dormant.yaml:status"),
        (who("cobalt"), "rag", INFER, "phi", Reason.MODEL_NOT_FOUND, "tenants/cobalt.yaml:models"),
        (who("acme"), "rag", INFER, "phi", Reason.POLICY_FORBIDS, "phi-not-in-rag"),
        (who("cobalt"), "chat", INFER, "", Reason.RESIDENCY_PROCESSING, "tenants/cobalt.yaml:residency.processing"),
        (who("cobalt"), "chat", METADATA, "", Reason.RESIDENCY_PROCESSING, "tenants/cobalt.yaml:residency.processing"),
        (who("cobalt"), "", SERVER, "", Reason.RESIDENCY_PROCESSING, "tenants/cobalt.yaml:residency.processing"),
        (who("acme"), "chat", INFER, "x" * 65, Reason.RESIDENCY_PROCESSING, "tenants/acme.yaml:residency.classes"),
        (who("birch"), "rag", METADATA, "", Reason.MODEL_NOT_FOUND, "tenants/birch.yaml:models"),
        (who("birch"), "rag", READY, "", Reason.MODEL_NOT_FOUND, "tenants/birch.yaml:models"),
        (who("birch"), "", INFER, "", Reason.MODEL_NOT_FOUND, "tenants/birch.yaml:models"),
        (who("birch"), "c" * 300, INFER, "", Reason.MODEL_NOT_FOUND, "tenants/birch.yaml:models"),
        (who("birch"), "chat", READY, "", None, "tenants/birch.yaml:models[0]"),
        (who("birch"), "", SERVER, "", None, "tenants/birch.yaml:status"),
        # The server's health carries nothing of anybody's; still only a living tenant may ask.
        (who("cobalt"), "", LIVE, "", None, "tenants/cobalt.yaml:status"),
        (who("dormant"), "", LIVE, "", Reason.TENANT_SUSPENDED, "tenants/dormant.yaml:status"),
        # Operators act on the server: not narrowed by their tenant's list, but by their key's, and by residency.
        (who("birch", roles=frozenset({"operator"})), "rag", LOAD, "", None, "tenants/birch.yaml:status"),
        (who("birch", models=("chat",)), "rag", LOAD, "", Reason.MODEL_NOT_FOUND, "tenants/birch.yaml:models"),
        (who("cobalt"), "rag", LOAD, "", Reason.RESIDENCY_PROCESSING, "tenants/cobalt.yaml:residency.processing"),
        (who("birch"), "c" * 300, LOAD, "", Reason.MODEL_NOT_FOUND, "tenants/birch.yaml:models"),
        # A key narrows its tenant and never widens it.
        (who("acme", kind="api_key", models=("chat",)), "chat", INFER, "", None, "tenants/acme.yaml:models[0]"),
        (who("acme", kind="api_key", models=("c*",)), "counter", INFER, "", None, "tenants/acme.yaml:models[3]"),
        (who("acme", kind="api_key", models=("chat",)), "rag", INFER, "", Reason.MODEL_NOT_FOUND,
         "tenants/acme.yaml:models"),
        (who("birch", kind="api_key", models=("*",)), "rag", INFER, "", Reason.MODEL_NOT_FOUND,
         "tenants/birch.yaml:models"),
        (who("acme", kind="api_key", models=()), "chat", INFER, "", Reason.MODEL_NOT_FOUND, "tenants/acme.yaml:models"),
    ],
)  # fmt: skip
def test_decides(
    principal: Principal, model: str, method: Method, data_class: str, expected: Reason | None, rule: str
) -> None:
    policy = demo_policy()
    for _ in range(2):  # decided, then remembered
        found = ask(policy, principal, model, method, data_class)
        assert (reason(found), found.rule) == (expected, rule)


def test_foreign_absent_and_narrowed_away_models_are_one_refusal() -> None:
    policy = with_policies('@id("no") forbid(principal, action, resource == Model::"counter");')
    narrowed = who("birch", kind="api_key", models=("vision",))
    shown = {
        (found.reason, found.detail, found.rule, found.metadata, found.retry_after)
        for found in (
            ask(policy, who("birch"), "rag"),
            ask(policy, who("birch"), "no-such-model"),
            ask(policy, who("birch"), "counter"),  # a forbid on it must not show that it exists
            ask(policy, narrowed, "chat"),
            ask(policy, who("birch"), "rag", data_class="phi"),
        )
        if isinstance(found, Denial)
    }
    assert shown == {(Reason.MODEL_NOT_FOUND, "", "tenants/birch.yaml:models", (), None)}


def test_a_permit_grants_further_models_and_a_forbid_wins_over_it() -> None:
    grant = '@id("birch-llm") permit(principal in Tenant::"birch", action, resource in Group::"llm");'
    granted = ask(with_policies(grant), who("birch"), "rag")
    assert isinstance(granted, Verdict)
    assert granted.rule == "birch-llm"
    assert granted.profile.contract is Contract.TRTLLM
    assert reason(ask(with_policies(grant), who("birch"), "counter")) is Reason.MODEL_NOT_FOUND
    narrowed = who("birch", kind="api_key", models=("chat",))
    assert reason(ask(with_policies(grant), narrowed, "rag")) is Reason.MODEL_NOT_FOUND
    both = with_policies(grant + '@id("no-rag") forbid(principal, action, resource == Model::"rag");')
    denied = ask(both, who("birch"), "rag")
    assert (reason(denied), denied.rule) == (Reason.POLICY_FORBIDS, "no-rag")


def test_a_policy_that_cannot_be_evaluated_closes() -> None:
    policy = with_policies('@id("odd") forbid(principal, action, resource) when { Tenant::"cobalt".plan == "gold" };')
    denied = ask(policy, who("acme"), "chat")
    assert isinstance(denied, Denial)
    assert (denied.reason, denied.detail) == (Reason.POLICY_FORBIDS, "a policy could not be evaluated")
    assert "cobalt" in denied.internal


def test_who_exactly_asks_is_remembered_apart_where_a_policy_looks_at_it() -> None:
    policy = with_policies('@id("not-bob") forbid(principal == Principal::"acme/bob", action, resource);')
    assert isinstance(ask(policy, who("acme"), "chat"), Verdict)
    assert reason(ask(policy, who("acme", name="bob"), "chat")) is Reason.POLICY_FORBIDS
    assert isinstance(ask(policy, who("acme", name="carol"), "chat"), Verdict)


def test_one_odd_name_decides_for_nobody_else() -> None:
    policy = demo_policy()
    assert isinstance(ask(policy, who("acme", name="\ud800"), "chat"), Verdict)
    assert isinstance(ask(policy, who("acme"), "chat"), Verdict)
    named = with_policies('@id("not-bob") forbid(principal == Principal::"acme/bob", action, resource);')
    assert reason(ask(named, who("acme", name="\ud800"), "chat")) is Reason.POLICY_FORBIDS
    assert isinstance(ask(named, who("acme"), "chat"), Verdict)


def test_all_that_matters_is_remembered_apart() -> None:
    policy = with_policies(
        """
        @id("a") forbid(principal, action, resource) when { principal.roles.contains("admin") };
        @id("c") forbid(principal, action, resource == Model::"vision") when { principal.kind == "api_key" };
        @id("d") forbid(principal, action, resource) when { context.method == "ModelMetadata" };
        @id("e") forbid(principal, action, resource) when { principal.issuer == "https://other" };
        @id("f") forbid(principal, action, resource) when { principal.name == "bob" };
        """
    )
    base = who("acme")
    principals = [
        base,
        who("birch"),
        who("acme", roles=frozenset({"admin"})),
        who("acme", kind="api_key"),
        who("acme", issuer="https://other"),
        who("acme", name="bob"),
        who("acme", models=("vision",)),
        who("acme", models=("chat",)),
    ]
    questions = [
        (principal, model, method, data_class)
        for principal in principals
        for model in ("chat", "vision")
        for method in (INFER, METADATA)
        for data_class in ("", "phi", "public")
    ]
    for _ in range(2):
        for principal, model, method, data_class in questions:
            anew, _ = policy.trace(principal, call(method, data_class), Head(model))
            assert ask(policy, principal, model, method, data_class) == anew
    assert len({reason(ask(policy, *question)) for question in questions}) == 4


def test_models_the_bundle_does_not_name_are_generic() -> None:
    policy = demo_policy()
    assert policy.profile("chat").contract is Contract.VLLM
    assert policy.profile("other") == ModelProfile("other")


def test_elsewhere_the_same_bundle_says_otherwise() -> None:
    assert isinstance(ask(demo_policy(US), who("cobalt"), "chat"), Verdict)
    assert reason(ask(demo_policy(US), who("acme"), "chat")) is Reason.RESIDENCY_PROCESSING


def test_a_remembered_verdict_is_the_same_object() -> None:
    policy = demo_policy()
    assert ask(policy, who("acme"), "chat") is ask(policy, who("acme", name="bob", expires_at=1.0), "chat")
    assert ask(policy, who("acme"), "rag", data_class="phi") is ask(policy, who("acme"), "rag", data_class="phi")


def test_what_callers_make_up_is_not_remembered_and_the_rest_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_module, "MAX_VERDICTS", 3)
    policy = demo_policy()
    ask(policy, who("acme"), "chat")
    kept = dict(policy._verdicts)
    for n in range(20):
        ask(policy, who(f"t{n}"), "chat")
        ask(policy, who("acme"), f"m{n}")
        ask(policy, who("acme"), "chat", data_class=f"c{n}")
    assert policy._verdicts == kept
    for model in ("chat", "rag", "vision", "counter"):
        assert isinstance(ask(policy, who("acme"), model), Verdict)
        assert len(policy._verdicts) <= 3


def test_serves_known_and_active_tenants_alone() -> None:
    policy = demo_policy()
    assert [policy.serves(tenant) for tenant in ("acme", "dormant", "nobody")] == [True, False, False]


@pytest.mark.parametrize(
    ("principal", "models", "seen"),
    [
        (who("birch"), ("chat", "counter", "nope"), (True, False, False)),
        (who("acme", models=("chat",)), ("chat", "vision"), (True, False)),
        (who("dormant"), ("chat",), (False,)),
        (who("nobody"), ("chat",), (False,)),
        (who("birch", roles=frozenset({"operator"})), ("chat", "vision", "m" * 300), (True, True, False)),
        (who("birch", roles=frozenset({"admin"}), models=("chat",)), ("chat", "vision"), (True, False)),
    ],
)
def test_who_may_know_of_a_model(principal: Principal, models: tuple[str, ...], seen: tuple[bool, ...]) -> None:
    """As much as ``authorise`` lets on: what it calls MODEL_NOT_FOUND is not seen."""
    policy = demo_policy()
    assert tuple(policy.sees(principal, model, "") for model in models) == seen
    if "tenant" in principal.roles and policy.serves(principal.tenant):
        found = [ask(policy, principal, model, METADATA) for model in models]
        assert tuple(not isinstance(each, Denial) for each in found) == seen
