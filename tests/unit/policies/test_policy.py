"""The decision: its order, its rules, what a caller can and can't learn, and what may be remembered."""

from __future__ import annotations

import re

import pytest

from policies import memory as memory_module
from policies.bundle import Bundle, compile_bundle
from policies.policy import LoadedPolicy
from policies.residency import Place
from policies.units import parse_moment
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
    "/inference.GRPCInferenceService/RepositoryModelLoad", Action.MANAGE, Disposition.FORWARD, EVERYONE, by_model=True,
    whole=EVERYONE,
)  # fmt: skip
STAFF = frozenset({"operator", "admin"})
CONFIG = Method(
    "/inference.GRPCInferenceService/ModelConfig", Action.MANAGE, Disposition.FORWARD, EVERYONE, by_model=True,
    whole=STAFF,
)  # fmt: skip
STATISTICS = Method(
    "/inference.GRPCInferenceService/ModelStatistics", Action.MANAGE, Disposition.FORWARD, EVERYONE, by_model=True,
    whole=STAFF, all_models=True,
)  # fmt: skip
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
        # What a manager's method shows a tenant is its own models; the whole only to who is staff.
        (who("birch"), "rag", CONFIG, "", Reason.MODEL_NOT_FOUND, "tenants/birch.yaml:models"),
        (who("birch"), "chat", CONFIG, "", None, "tenants/birch.yaml:models[0]"),
        (who("birch", roles=STAFF), "rag", CONFIG, "", None, "tenants/birch.yaml:status"),
        (who("birch", roles=STAFF, models=("chat",)), "rag", CONFIG, "", Reason.MODEL_NOT_FOUND,
         "tenants/birch.yaml:models"),
        (who("birch"), "", STATISTICS, "", None, "tenants/birch.yaml:status"),
        (who("birch"), "", CONFIG, "", Reason.MODEL_NOT_FOUND, "tenants/birch.yaml:models"),
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
            anew, _ = policy.trace(principal, call(method, data_class), Head(model), 0.0)
            assert ask(policy, principal, model, method, data_class) == anew
    assert len({reason(ask(policy, *question)) for question in questions}) == 4


def dated(tenant: str, **changes: str) -> LoadedPolicy:
    """The demo's bundle with entries of a tenant's document replaced, or added."""
    files = dict(demo_bundle().files)
    name = f"tenants/{tenant}.yaml"
    entries = re.split(r"\n(?=\w)", files[name].decode())
    kept = [changes.pop(entry.partition(":")[0], entry) for entry in entries]
    files[name] = "\n".join([*kept, *changes.values(), ""]).encode()
    bundle = compile_bundle(files)
    assert isinstance(bundle, Bundle), [str(problem) for problem in bundle]
    place = bundle.place("eu-west-1", "EU", "EU")
    assert isinstance(place, Place)
    return LoadedPolicy(bundle, place)


DAYS = [parse_moment(f"2026-12-0{day}") for day in (1, 2, 3)]


def test_dates_decide_as_time_goes_on_whatever_is_remembered() -> None:
    policy = dated(
        "birch",
        status="status: active\nfrom: 2026-12-01\nuntil: 2026-12-03",
        models="models: [chat, {model: vision, from: 2026-12-02}]",
        limits="limits: [{from: 2026-12-02, concurrency: 9}]",
    )

    def at(model: str, moment: float) -> tuple[Reason | None, str, int | None]:
        found = policy.authorise(who("birch"), call(), Head(model), moment)
        limits = found.limits.concurrency if isinstance(found, Verdict) else None
        return reason(found), found.rule.partition(":")[2], limits

    for _ in range(2):  # also backwards in time
        assert at("chat", DAYS[0] - 1) == (Reason.TENANT_SUSPENDED, "from", None)
        assert at("chat", DAYS[0]) == (None, "models[0]", 4)
        assert at("vision", DAYS[1] - 1) == (Reason.MODEL_NOT_FOUND, "models", None)
        assert at("vision", DAYS[1]) == (None, "models[1]", 9)
        assert at("chat", DAYS[2]) == (Reason.TENANT_SUSPENDED, "until", None)


def test_a_raise_ends_at_the_second_it_says_and_a_later_one_counts() -> None:
    policy = dated(
        "birch",
        limits="limits: [{until: 2026-12-03, concurrency: 9}, {from: 2026-12-02, until: 2026-12-03, concurrency: 12}]",
    )

    def at(moment: float) -> int | None:
        found = policy.authorise(who("birch"), call(), Head("chat"), moment)
        assert isinstance(found, Verdict)
        return found.limits.concurrency

    for _ in range(2):  # also backwards in time
        assert at(DAYS[1] - 0.001) == 9
        assert at(DAYS[1]) == 12
        assert at(DAYS[2] - 0.001) == 12
        assert at(DAYS[2]) == 4  # the plan's


def test_a_grant_in_shadow_holds_and_says_what_is_to_come() -> None:
    policy = dated("birch", models='models: [{model: chat, shadow: true}, "v*", {model: vision, shadow: true}]')
    found = ask(policy, who("birch"), "chat")
    assert isinstance(found, Verdict)
    assert found.rule == "tenants/birch.yaml:models[0]"
    assert found.would_refuse == Denial(Reason.MODEL_NOT_FOUND, rule="tenants/birch.yaml:models[0]")
    other = ask(policy, who("birch"), "vision")
    assert isinstance(other, Verdict)
    assert (other.rule, other.would_refuse) == ("tenants/birch.yaml:models[1]", None), "another grant holds it"


def test_a_forbid_in_shadow_refuses_nothing_and_is_told() -> None:
    policy = with_policies(
        '@id("trial") @shadow("until January") forbid(principal, action, resource == Model::"chat");'
    )
    found = ask(policy, who("acme"), "chat")
    assert isinstance(found, Verdict)
    assert found.would_refuse is not None
    assert (found.would_refuse.reason, found.would_refuse.rule) == (Reason.POLICY_FORBIDS, "trial")
    _, steps = policy.trace(who("acme"), call(), Head("chat"), 0.0)
    assert [(step.outcome, step.rule) for step in steps if step.step == "access"] == [("shadow", "trial")]
    assert isinstance(ask(policy, who("acme"), "vision"), Verdict)


def test_a_key_is_narrowed_by_its_name() -> None:
    policy = dated(
        "acme", keys="keys: {ci: {models: [chat, rag], until: 2026-12-02, data_class: phi}, web: {from: 2026-12-02}}"
    )
    ci, web = who("acme", kind="api_key", name="ci"), who("acme", kind="api_key", name="web")

    def at(principal: Principal, model: str, moment: float) -> tuple[Reason | None, str]:
        found = policy.authorise(principal, call(), Head(model), moment)
        return reason(found), found.rule

    for _ in range(2):
        assert at(ci, "chat", DAYS[0]) == (None, "tenants/acme.yaml:models[0]")
        assert at(ci, "vision", DAYS[0]) == (Reason.MODEL_NOT_FOUND, "tenants/acme.yaml:models")
        assert at(ci, "rag", DAYS[0]) == (Reason.POLICY_FORBIDS, "phi-not-in-rag"), "its class counts as said"
        assert at(ci, "chat", DAYS[1]) == (Reason.POLICY_FORBIDS, "tenants/acme.yaml:keys.ci")
        assert at(web, "chat", DAYS[0]) == (Reason.POLICY_FORBIDS, "tenants/acme.yaml:keys.web")
        assert at(web, "vision", DAYS[1]) == (None, "tenants/acme.yaml:models[1]")
        assert at(who("acme", name="ci"), "vision", DAYS[1])[0] is None, "a token's subject is no key's name"
    found = policy.authorise(ci, call(), Head("chat"), DAYS[0])
    assert isinstance(found, Verdict)
    assert found.data_class == "phi"


def test_several_classes_are_judged_each() -> None:
    policy = demo_policy()
    claimed = who("acme", data_classes=("phi",))
    assert reason(ask(policy, claimed, "rag")) is Reason.POLICY_FORBIDS
    assert reason(ask(policy, who("acme"), "rag", data_class="public, phi")) is Reason.POLICY_FORBIDS
    assert reason(ask(policy, claimed, "chat", data_class="made-up")) is Reason.RESIDENCY_PROCESSING
    found = ask(policy, claimed, "chat", data_class="public")
    assert isinstance(found, Verdict)
    assert found.data_class == "phi"


def test_policies_see_the_address_and_the_hour() -> None:
    policy = with_policies(
        """
        @id("office") forbid(principal, action, resource == Model::"chat")
        unless { context has source && context.source.isInRange(ip("10.0.0.0/8")) };
        @id("night") forbid(principal, action, resource == Model::"vision") when { context.hour < 6 };
        """
    )

    def at(model: str, peer: str, moment: float) -> str:
        found = policy.authorise(who("acme"), replace(call(), peer=peer), Head(model), moment)
        return found.rule if isinstance(found, Denial) else "allow"

    for _ in range(2):
        inside, outside = ("10.1.2.3:99", "[::ffff:10.1.2.3]:9"), ("192.0.2.1:99", "", "unix:")
        assert {at("chat", peer, 0.0) for peer in inside} == {"allow"}
        assert {at("chat", peer, 0.0) for peer in outside} == {"office"}
        assert [at("vision", "", hour * 3600.0) for hour in (0, 5.99, 6, 23.9, 24)] == [
            "night", "night", "allow", "allow", "night",
        ]  # fmt: skip


def test_only_what_policies_mention_is_remembered_apart() -> None:
    plain = demo_policy()
    for principal in (who("acme"), who("acme", name="b", issuer="i", kind="api_key", roles=frozenset({"x"}))):
        for method in (INFER, replace(INFER, path=INFER.path.replace("ModelInfer", "ModelStreamInfer"))):
            for peer in ("10.0.0.1:1", "10.0.0.2:2"):
                plain.authorise(principal, replace(call(method), peer=peer), Head("chat"), 0.0)
    assert len(plain._memory.verdicts) == 1
    by_method = with_policies('@id("x") forbid(principal, action, resource) when { context.method == "x" };')
    for method in (INFER, METADATA):
        ask(by_method, who("acme"), "chat", method)
        ask(by_method, who("acme", name="other"), "chat", method)
    assert len(by_method._memory.verdicts) == 2


def test_where_the_pod_is_in_doubt_everything_is_refused() -> None:
    bundle = demo_bundle()
    policy = LoadedPolicy(bundle, Place("eu-west-1", "EU", "EU", "EU", doubt="the node says us-east-1"))
    found = ask(policy, who("acme"), "chat")
    assert isinstance(found, Denial)
    assert (found.reason, found.rule, found.internal) == (
        Reason.RESIDENCY_PROCESSING, "location", "the node says us-east-1",
    )  # fmt: skip
    assert isinstance(ask(policy, who("acme"), "", LIVE), Verdict)


def test_a_refusal_names_only_regions_that_would_take_the_call() -> None:
    eu = with_policies(
        '@id("no-us") forbid(principal, action, resource == Model::"chat") when { context.region == "us-east-1" };'
    )
    found = ask(eu, who("cobalt"), "chat")
    assert isinstance(found, Denial)
    assert dict(found.metadata)["allowed_regions"] == ""
    assert found.detail == "this is eu-west-1 (EU); allowed: nowhere"


def test_models_the_bundle_does_not_name_are_generic() -> None:
    policy = demo_policy()
    assert policy.profile("chat").contract is Contract.VLLM
    assert policy.profile("other") == ModelProfile("other", stated=False)


def test_elsewhere_the_same_bundle_says_otherwise() -> None:
    assert isinstance(ask(demo_policy(US), who("cobalt"), "chat"), Verdict)
    assert reason(ask(demo_policy(US), who("acme"), "chat")) is Reason.RESIDENCY_PROCESSING


def test_a_remembered_verdict_is_the_same_object() -> None:
    policy = demo_policy()
    assert ask(policy, who("acme"), "chat") is ask(policy, who("acme", name="bob", expires_at=1.0), "chat")
    assert ask(policy, who("acme"), "rag", data_class="phi") is ask(policy, who("acme"), "rag", data_class="phi")


def test_what_callers_make_up_is_not_remembered_and_the_rest_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "MAX_VERDICTS", 3)
    policy = demo_policy()
    ask(policy, who("acme"), "chat")
    kept = dict(policy._memory.verdicts)
    for n in range(20):
        ask(policy, who(f"t{n}"), "chat")
        ask(policy, who("acme"), f"m{n}")
        ask(policy, who("acme"), "chat", data_class=f"c{n}")
    assert policy._memory.verdicts == kept
    for model in ("chat", "rag", "vision", "counter"):
        assert isinstance(ask(policy, who("acme"), model), Verdict)
        assert len(policy._memory.verdicts) <= 3


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


# --- aliases ------------------------------------------------------------------------------------------------------


def with_aliases() -> LoadedPolicy:
    """birch's plan calls vision `eyes`, and chat by counter's name; rag is not on birch's list."""
    files = demo_bundle().files
    plans = files["plans.yaml"] + b"  aliases: {eyes: vision, counter: chat, docs: rag}\n"  # of bronze, the last plan
    bundle = compile_bundle({**files, "plans.yaml": plans})
    assert isinstance(bundle, Bundle), [str(problem) for problem in bundle]
    return LoadedPolicy(bundle, Place("eu-west-1", "EU", "EU", "EU"))


def test_access_and_contract_of_an_alias_are_those_of_what_answers() -> None:
    policy = with_aliases()
    for _ in range(2):  # made, then remembered
        found = ask(policy, who("birch"), "counter")
        assert isinstance(found, Verdict)
        assert (found.profile.name, found.profile.contract, found.alias) == ("chat", Contract.VLLM, "counter")
        own = ask(policy, who("birch"), "chat")
        assert isinstance(own, Verdict)
        assert (own.profile.name, own.alias) == ("chat", "")
    assert reason(ask(policy, who("birch"), "docs")) is Reason.MODEL_NOT_FOUND, "an alias grants nothing"


def test_an_alias_is_its_plans_alone() -> None:
    found = ask(with_aliases(), who("acme"), "counter")
    assert isinstance(found, Verdict)
    assert (found.profile.name, found.alias) == ("counter", "")
    assert reason(ask(with_aliases(), who("acme"), "eyes")) is Reason.MODEL_NOT_FOUND


@pytest.mark.parametrize(("models", "allowed"), [(("eyes",), True), (("vision",), True), (("chat",), False)])
def test_a_key_may_be_narrowed_by_either_name(models: tuple[str, ...], allowed: bool) -> None:
    found = ask(with_aliases(), who("birch", kind="api_key", models=models), "eyes")
    assert isinstance(found, Verdict) is allowed


def test_operators_act_on_the_servers_own_names() -> None:
    staff = who("birch", roles=frozenset({"admin"}))
    found = ask(with_aliases(), staff, "counter", LOAD)
    assert isinstance(found, Verdict)
    assert (found.profile.name, found.alias) == ("counter", "")


def test_an_alias_is_seen_where_what_answers_is() -> None:
    policy = with_aliases()
    assert policy.sees(who("birch"), "eyes", "")
    assert not policy.sees(who("birch"), "docs", "")


def test_an_alias_is_a_step_of_the_explanation() -> None:
    _, steps = with_aliases().trace(who("birch"), call(), Head("eyes"), 0.0)
    assert [(s.step, s.outcome) for s in steps][:3] == [("tenant", "pass"), ("alias", "pass"), ("status", "pass")]
    assert (steps[1].rule, steps[1].detail) == ("plans.yaml:bronze.aliases.eyes", "answered by vision")


def test_a_tenants_own_limits_are_told_only_of_those_that_may_call() -> None:
    policy = demo_policy()
    told = policy.limits("acme", "chat", "", 0.0)
    assert told is not None
    assert policy.limits_of("acme", 0.0) is told[0]
    assert policy.limits_of("dormant", 0.0) is None  # suspended
    assert policy.limits_of("nobody", 0.0) is None
