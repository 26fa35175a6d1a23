"""Bundles: what a good one means, and every kind of broken one with the exact places of its mistakes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from policies.bundle import Bundle, compile_bundle
from policies.files import digest, unpack
from policies.residency import Place, Rules
from policies.units import parse_moment
from policies.yamlfile import Problem
from sidecar.core.model import AuditLevel, AuditRule, Contract, KvProfile, Limits, ModelProfile, RequestRate
from tests.support.policy import demo_bundle

GOOD: Mapping[str, str] = {
    "bundle.yaml": "regions:\n  eu-west-1: {jurisdiction: EU}\n  us-east-1: {jurisdiction: US}\n",
    "models.yaml": "chat:\n  contract: vllm\n  kv: {bytes_per_token: 1024, tokens_per_block: 16}\n  groups: [llm]\n",
    "plans.yaml": (
        "gold:\n"
        "  requests: {rate: 50/s, burst: 100}\n"
        "  tokens: {per_minute: 60000}\n"
        "  concurrency: 32\n"
        "  kv_memory: 8GiB\n"
        "  tensor_memory: unlimited\n"
    ),
    "tenants/acme.yaml": (
        "tenant: acme\n"
        "plan: gold\n"
        "status: active\n"
        "models: [chat, 'embed-*']\n"
        "residency:\n"
        "  processing: [EU]\n"
        "  storage: [EU]\n"
        "  telemetry: [EU]\n"
        "  classes:\n"
        "    phi: [eu-west-1]\n"
        "audit: {level: prompt, retention: 400d}\n"
    ),
    "access/a.cedar": (
        '@id("no-phi")\nforbid (principal in Tenant::"acme", action, resource in Group::"llm")\n'
        'when { context.data_class == "phi" };\n'
    ),
    "tests/a.yaml": "- {tenant: acme, model: chat, region: eu-west-1, expect: allow}\n",
}


def files(changes: Mapping[str, str | None]) -> dict[str, bytes]:
    """The good bundle with whole files replaced (None: removed)."""
    return {name: text.encode() for name, text in {**GOOD, **changes}.items() if text is not None}


def edited(name: str, old: str, new: str) -> dict[str, str | None]:
    assert GOOD[name].count(old) == 1, f"{old!r} stands {GOOD[name].count(old)} times in {name}"
    return {name: GOOD[name].replace(old, new)}


def good(changes: Mapping[str, str | None] = {}) -> Bundle:
    found = compile_bundle(files(changes))
    assert isinstance(found, Bundle), [str(problem) for problem in found]
    return found


def told(changes: Mapping[str, str | None]) -> list[str]:
    found = compile_bundle(files(changes))
    assert isinstance(found, list), "this bundle should be refused"
    return [str(problem) for problem in found]


def test_a_good_bundle_is_understood() -> None:
    bundle = good()
    acme = bundle.tenants["acme"]
    assert bundle.regions == {"eu-west-1": "EU", "us-east-1": "US"}
    assert bundle.models == {"chat": ModelProfile("chat", Contract.VLLM, KvProfile(1024, 16), groups=("llm",))}
    assert acme.limits == Limits(RequestRate(50.0, 100), 60000, 32, 8 * 2**30, None)
    assert acme.audit == AuditRule(level=AuditLevel.PROMPT, retention_days=400)
    assert acme.models == ("chat", "embed-*")
    assert acme.residency.classes == {"phi": Rules(("eu-west-1",), ("EU",), ("EU",))}
    assert acme.active
    assert list(bundle.access.statements) == ["no-phi"]
    assert [(case.file, case.line) for case in bundle.cases] == [("tests/a.yaml", 1)]


def test_classes_may_be_asked_of_a_model_only_where_it_is_written() -> None:
    models = GOOD["models.yaml"] + "plain: {contract: generic}\nimage: {contract: generic, classification: true}\n"
    bundle = good({"models.yaml": models})
    assert {name: model.classification for name, model in bundle.models.items()} == {
        "chat": False,
        "plain": False,
        "image": True,
    }


TENANT = "tenants/acme.yaml"
POOL = "contract: vllm\n  pool: {kv_memory: %s}"
BROKEN: list[tuple[str, Mapping[str, str | None], list[str]]] = [
    ("no bundle.yaml", {"bundle.yaml": None}, ["bundle.yaml:1:1: no such file"]),
    ("no models.yaml", {"models.yaml": None, "access/a.cedar": None}, ["models.yaml:1:1: no such file"]),
    ("no plans.yaml", {"plans.yaml": None}, ["plans.yaml:1:1: no such file"]),
    ("no regions", {"bundle.yaml": "", "tests/a.yaml": None}, ["bundle.yaml:1:1: regions: required, and missing"]),
    ("region that is a jurisdiction", edited("bundle.yaml", "us-east-1: {jurisdiction: US}", "US: {jurisdiction: US}"),
     ["bundle.yaml:3:3: regions.US: is a jurisdiction too; residency rules couldn't tell which is meant"]),
    ("misspelt key", edited(TENANT, "plan: gold", "plna: gold"),
     ["tenants/acme.yaml:1:1: plan: required, and missing",
      'tenants/acme.yaml:2:1: plna: unknown key; did you mean "plan"?']),
    ("duplicate key", edited(TENANT, "status: active", "plan: gold\nstatus: active"),
     ["tenants/acme.yaml:3:1: plan: duplicate key, first on line 2"]),
    ("tab", edited(TENANT, "  storage: [EU]", "\tstorage: [EU]"),
     ["tenants/acme.yaml:7:1: a tab; indent with spaces"]),
    ("unknown plan", edited(TENANT, "plan: gold", "plan: glod"),
     ['tenants/acme.yaml:2:7: plan: no such plan in plans.yaml; did you mean "gold"?']),
    ("unknown status", edited(TENANT, "status: active", "status: paused"),
     ["tenants/acme.yaml:3:9: status: should be 'active' or 'suspended'"]),
    ("file named otherwise", {TENANT: None, "tenants/acne.yaml": GOOD[TENANT], "access/a.cedar": None},
     ["tenants/acne.yaml:1:9: tenant: should be acne, as the file is named"]),
    ("duplicate tenant", {"tenants/b.yaml": GOOD[TENANT]},
     ["tenants/b.yaml:1:9: tenant: duplicate tenant, also in tenants/acme.yaml",
      "tenants/b.yaml:1:9: tenant: should be b, as the file is named"]),
    ("a name that isn't one", edited(TENANT, "tenant: acme", "tenant: 'a b'"),
     ["tenants/acme.yaml:1:9: tenant: should match pattern '^[a-z0-9][a-z0-9-]{0,62}$'"]),
    ("no residency", {TENANT: "tenant: acme\nplan: gold\nstatus: active\nmodels: []\n"
                              "audit: {level: full, retention: 1d}\n"},
     ["tenants/acme.yaml:1:1: residency: required, and missing"]),
    ("residency half stated", edited(TENANT, "  telemetry: [EU]\n", ""),
     ["tenants/acme.yaml:5:1: residency.telemetry: required, and missing"]),
    ("unknown jurisdiction", edited(TENANT, "processing: [EU]", "processing: [EU, eu-west-2]"),
     [('tenants/acme.yaml:6:20: residency.processing[1]: no such region or jurisdiction in bundle.yaml; '
      'did you mean "eu-west-1"?')]),
    ("region where only a jurisdiction can be known", edited(TENANT, "storage: [EU]", "storage: [eu-west-1]"),
     ["tenants/acme.yaml:7:13: residency.storage[0]: no such jurisdiction in bundle.yaml"]),
    ("unknown region of a class", edited(TENANT, "phi: [eu-west-1]", "phi: [eu-west-9]"),
     [('tenants/acme.yaml:10:11: residency.classes.phi[0]: no such region or jurisdiction in bundle.yaml; '
      'did you mean "eu-west-1"?')]),
    ("class outside processing", edited(TENANT, "phi: [eu-west-1]", "phi: [us-east-1]"),
     ["tenants/acme.yaml:10:11: residency.classes.phi[0]: lies outside processing, so it allows nothing"]),
    ("a class that isn't a name", edited(TENANT, "phi: [eu-west-1]", "'P HI': [eu-west-1]"),
     [('tenants/acme.yaml:10:5: residency.classes["P HI"]: should match pattern '
      "'^[a-z0-9][a-z0-9._-]{0,63}$'")]),
    ("unknown audit level", edited(TENANT, "level: prompt", "level: promt"),
     ["tenants/acme.yaml:11:16: audit.level: should be 'full', 'prompt' or 'metadata'; did you mean \"prompt\"?"]),
    ("retention in words", edited(TENANT, "retention: 400d", "retention: a year"),
     ["tenants/acme.yaml:11:35: audit.retention: is not a retention; write whole days such as 400d, or unlimited"]),
    ("redaction of no class", edited(TENANT, "retention: 400d}", "retention: 400d, redact: [email, emial]}"),
     [("tenants/acme.yaml:11:57: audit.redact[1]: no class 'emial'; known are email, phone, iban, card, national_id, "
       "ip; or give it a pattern")]),
    ("a pattern that could take forever", edited(TENANT, "400d}", "400d, redact: [{class: badge, pattern: '(a)\\1'}]}"),
     ["tenants/acme.yaml:11:50: audit.redact[0]: pattern: not RE2: invalid escape sequence: \\1"]),
    ("phones of nowhere", edited(TENANT, "400d}", "400d, redact: [{class: phone, regions: [XX]}]}"),
     ["tenants/acme.yaml:11:50: audit.redact[0]: no numbering plan is known of XX"]),
    ("searchable as a word", edited(TENANT, "retention: 400d}", "retention: 400d, searchable: ja}"),
     ["tenants/acme.yaml:11:53: audit.searchable: should be a valid boolean"]),
    ("models that aren't a list", edited(TENANT, "models: [chat, 'embed-*']", "models: chat"),
     ["tenants/acme.yaml:4:9: models: should be a list"]),
    ("zero rate", edited("plans.yaml", "50/s", "0/s"),
     ["plans.yaml:2:20: gold.requests.rate: should be greater than 0"]),
    ("negative rate", edited("plans.yaml", "50/s", "-5/s"),
     [("plans.yaml:2:20: gold.requests.rate: is not a rate; write a number a unit of time, such as 50/s, 600/m "
      "or 100/h")]),
    ("zero burst", edited("plans.yaml", "burst: 100", "burst: 0"),
     ["plans.yaml:2:33: gold.requests.burst: should be greater than 0"]),
    ("rate without burst", edited("plans.yaml", ", burst: 100", ""),
     ["plans.yaml:2:3: gold.requests.burst: required, and missing"]),
    ("negative concurrency", edited("plans.yaml", "concurrency: 32", "concurrency: -1"),
     ["plans.yaml:4:16: gold.concurrency: should be greater than 0"]),
    ("true is no number", edited("plans.yaml", "concurrency: 32", "concurrency: true"),
     ["plans.yaml:4:16: gold.concurrency: should be a valid integer"]),
    ("a size without its unit's spelling", edited("plans.yaml", "8GiB", "8GB"),
     ["plans.yaml:5:14: gold.kv_memory: is not a size; write a number with B, KiB, MiB, GiB or TiB"]),
    ("a limit left empty", edited("plans.yaml", "tensor_memory: unlimited", "tensor_memory:"),
     ["plans.yaml:6:3: gold.tensor_memory: is empty; write a limit, or unlimited"]),
    ("a limit left out", edited("plans.yaml", "  tensor_memory: unlimited\n", ""),
     ["plans.yaml:1:1: gold.tensor_memory: required, and missing"]),
    ("memory for less than a block", edited("plans.yaml", "8GiB", "16383"),
     ["tenants/acme.yaml:4:10: models[0]: kv_memory (16383 bytes) is less than one block of chat (16384)"]),
    ("a live pool without a size to fall back on", edited("models.yaml", "contract: vllm", POOL % "live"),
     [("models.yaml:3:3: chat.pool: kv_memory: live needs kv_fallback, the size that counts while the engine tells "
       "none")]),
    ("a size to fall back on where nothing is live",
     edited("models.yaml", "contract: vllm", POOL % "1GiB, kv_fallback: 1GiB"),
     ["models.yaml:3:27: chat.pool.kv_fallback: is for kv_memory: live"]),
    ("a fallback of less than a block",
     edited("models.yaml", "contract: vllm", POOL % "live, kv_fallback: 16383"),
     ["models.yaml:3:40: chat.pool.kv_fallback: is less than one block of the model's KV cache (16384 bytes)"]),
    ("an engine that can't be a model's name",
     edited("models.yaml", "contract: vllm", POOL % "1GiB, engine: ../other"),
     ["models.yaml:3:35: chat.pool.engine: should match pattern '^[^\\s/*?\\[\\]]{1,256}$'"]),
    ("a pool in words", edited("models.yaml", "contract: vllm", POOL % "plenty"),
     ["models.yaml:3:21: chat.pool.kv_memory: is not a size; write a number with B, KiB, MiB, GiB or TiB"]),
    ("an empty pool", edited("models.yaml", "contract: vllm", POOL % "0"),
     ["models.yaml:3:21: chat.pool.kv_memory: should be greater than 0"]),
    ("a pool of less than a block", edited("models.yaml", "contract: vllm", POOL % "16383"),
     ["models.yaml:3:21: chat.pool.kv_memory: is less than one block of the model's KV cache (16384 bytes)"]),
    ("unknown contract", edited("models.yaml", "contract: vllm", "contract: vlm"),
     ["models.yaml:2:13: chat.contract: should be 'vllm', 'trtllm' or 'generic'; did you mean \"vllm\"?"]),
    ("kv both ways", edited("models.yaml", "tokens_per_block: 16", "engine_config: engines/x.json"),
     ["models.yaml:3:3: chat.kv: write one of engine_config, checkpoint, or bytes_per_token and tokens_per_block"]),
    ("kv of a generic model", edited("models.yaml", "vllm", "generic"),
     ["models.yaml:1:1: chat: a generic model has no tokens, so kv means nothing"]),
    ("classes of text", edited("models.yaml", "contract: vllm", "contract: vllm\n  classification: true"),
     ["models.yaml:1:1: chat: a language model's output is text, and Triton dies when asked to classify text"]),
    ("classes, maybe", edited("models.yaml", "contract: vllm", "contract: vllm\n  classification: 1"),
     ["models.yaml:3:19: chat.classification: should be a valid boolean"]),
    ("more tokens by default than allowed", edited("models.yaml", "contract: vllm",
                                                   "contract: vllm\n  default_tokens: 20\n  max_tokens: 10"),
     ["models.yaml:3:3: chat.default_tokens: is more than max_tokens"]),
    ("engine that isn't there", edited("models.yaml", "{bytes_per_token: 1024, tokens_per_block: 16}",
                                       "{engine_config: engines/chat.json}"),
     ["models.yaml:3:23: chat.kv.engine_config: no such file among the bundle's engines/*.json"]),
    ("engine outside the bundle", edited("models.yaml", "{bytes_per_token: 1024, tokens_per_block: 16}",
                                         "{engine_config: ../chat.json}"),
     ["models.yaml:3:23: chat.kv.engine_config: no such file among the bundle's engines/*.json"]),
    ("engine that isn't one", {**edited("models.yaml", "{bytes_per_token: 1024, tokens_per_block: 16}",
                                        "{engine_config: engines/chat.json}"), "engines/chat.json": "{}"},
     [("models.yaml:3:23: chat.kv.engine_config: not a TensorRT-LLM engine's config.json: is no model's config.json: "
      "it has neither pretrained_config, builder_config nor num_hidden_layers")]),
    ("a day that no calendar has", edited(TENANT, "status: active", "status: active\nuntil: 2026-02-30"),
     ["tenants/acme.yaml:4:8: until: is not a moment: day is out of range for month"]),
    ("a time without its zone", edited(TENANT, "status: active", "status: active\nfrom: 2026-12-01T09:00"),
     [("tenants/acme.yaml:4:7: from: is not a moment; write a day (2026-12-01, from 00:00 UTC) or a time with its zone "
      "(2026-12-01T09:00+01:00)")]),
    ("an end before its beginning", edited(TENANT, "'embed-*'", "{model: x, from: 2026-12-02, until: 2026-12-01}"),
     ["tenants/acme.yaml:4:45: models[1].until: is not after from, so it is never in force"]),
    ("a grant's misspelt key", edited(TENANT, "'embed-*'", "{model: x, form: 2026-12-02}"),
     ['tenants/acme.yaml:4:27: models[1].form: unknown key; did you mean "from"?']),
    ("a grant that is a number", edited(TENANT, "'embed-*'", "7"),
     ["tenants/acme.yaml:4:16: models[1]: should be a mapping of keys to values"]),
    ("shadow, maybe", edited(TENANT, "'embed-*'", "{model: x, shadow: 1}"),
     ["tenants/acme.yaml:4:35: models[1].shadow: should be a valid boolean"]),
    ("a limit's misspelt key", edited(TENANT, "status: active", "status: active\nlimits: {concurency: 2}"),
     ['tenants/acme.yaml:4:10: limits.concurency: unknown key; did you mean "concurrency"?']),
    ("a limit of several that is none", edited(TENANT, "status: active", "status: active\nlimits: [{tokens: 5}]"),
     ["tenants/acme.yaml:4:19: limits[0].tokens: should be a mapping of keys to values"]),
    ("identity in shadow", edited(TENANT, "  processing: [EU]", "  shadow: true\n  processing: [EU]"),
     ["tenants/acme.yaml:6:3: residency.shadow: unknown key"]),
    ("audit in shadow", edited(TENANT, "audit: {", "audit: {shadow: true, "),
     ["tenants/acme.yaml:11:9: audit.shadow: unknown key"]),
    ("a key's class that its tenant has not", edited(TENANT, "status: active",
                                                      "status: active\nkeys: {ci: {data_class: phy}}"),
     ['tenants/acme.yaml:4:25: keys.ci.data_class: not among residency.classes; did you mean "phi"?']),
    ("a class that the bundle has not", edited("bundle.yaml", "regions:", "classes: {pii: {}}\nregions:"),
     ['access/a.cedar:3:30: no-phi: data class "phi" is not in bundle.yaml; did you mean "pii"?',
      'tenants/acme.yaml:10:5: residency.classes.phi: no such data class in bundle.yaml; did you mean "pii"?']),
    ("a class that narrows nothing", edited(TENANT, "phi: [eu-west-1]", "phi: {}"),
     [("tenants/acme.yaml:10:5: residency.classes.phi: is empty; write what it narrows: processing, storage, "
      "records or telemetry")]),
    ("a class stored outside", edited(TENANT, "phi: [eu-west-1]", "phi: {storage: [US], telemetry: [UK]}"),
     ["tenants/acme.yaml:10:21: residency.classes.phi.storage[0]: lies outside storage, so it allows nothing",
      "tenants/acme.yaml:10:38: residency.classes.phi.telemetry[0]: no such jurisdiction in bundle.yaml"]),
    ("records stored nowhere", edited(TENANT, "  telemetry: [EU]", "  records: [US, UK]\n  telemetry: [EU]"),
     ["tenants/acme.yaml:8:13: residency.records[0]: lies outside storage, so it allows nothing",
      "tenants/acme.yaml:8:17: residency.records[1]: no such jurisdiction in bundle.yaml"]),
    ("no records at all", edited(TENANT, "  telemetry: [EU]", "  records: []\n  telemetry: [EU]"),
     ["tenants/acme.yaml:8:3: residency.records: should have at least 1 item"]),
    ("a class's records stored nowhere", edited(TENANT, "phi: [eu-west-1]", "phi: {records: [US]}"),
     ["tenants/acme.yaml:10:21: residency.classes.phi.records[0]: lies outside storage, so it allows nothing"]),
    ("telemetry in other words", edited(TENANT, "telemetry: [EU]", "telemetry: none"),
     ["tenants/acme.yaml:8:14: residency.telemetry: should be a list of jurisdictions, or withheld"]),
    ("a change by nobody", edited("bundle.yaml", "regions:", "change: {author: ''}\nregions:"),
     ["bundle.yaml:1:18: change.author: should have at least 1 character"]),
    ("a YAML bomb", edited("bundle.yaml", "regions:", "a: &a [x, x]\nb: &b [*a, *a]\nregions:"),
     ["bundle.yaml:1:4: a: anchor &a: anchors and aliases are not allowed",
      "bundle.yaml:2:4: b: anchor &b: anchors and aliases are not allowed",
      "bundle.yaml:2:8: b[0]: alias *a: anchors and aliases are not allowed",
      "bundle.yaml:2:12: b[1]: alias *a: anchors and aliases are not allowed"]),
    ("a key written twice in a mapping on one line", edited("plans.yaml", "burst: 100", "burst: 100, burst: 200"),
     ["plans.yaml:2:38: gold.requests.burst: duplicate key, first on line 2"]),
    ("bad Cedar", edited("access/a.cedar", "action, resource", "resource"),
     ["access/a.cedar:2:38: not Cedar: found the variable `resource` where the variable `action` must be used"]),
    ("Cedar about an unknown tenant", edited("access/a.cedar", 'Tenant::"acme"', 'Tenant::"acmee"'),
     ['access/a.cedar:2:22: no-phi: Tenant::"acmee" is not in the bundle; did you mean "acme"?']),
    ("case in an unknown region", edited("tests/a.yaml", "eu-west-1", "eu-west-2"),
     ['tests/a.yaml:1:39: [0].region: no such region in bundle.yaml; did you mean "eu-west-1"?']),
    ("case that expects what no policy says", edited("tests/a.yaml", "allow", "RATE_REQUESTS"),
     [("tests/a.yaml:1:58: [0].expect: should be allow, cut (of an output), or one of TENANT_UNKNOWN, "
      "TENANT_SUSPENDED, MODEL_NOT_FOUND, "
      "POLICY_FORBIDS, RESIDENCY_PROCESSING, RESIDENCY_STORAGE, RESIDENCY_TELEMETRY")]),
]  # fmt: skip


def test_there_are_more_than_forty() -> None:
    assert len(BROKEN) > 40


@pytest.mark.parametrize(("changes", "problems"), [row[1:] for row in BROKEN], ids=[row[0] for row in BROKEN])
def test_a_broken_bundle_is_told_exactly(changes: Mapping[str, str | None], problems: list[str]) -> None:
    assert told(changes) == problems


def test_all_problems_of_all_files_are_told_at_once() -> None:
    problems = told(
        {
            **edited("plans.yaml", "8GiB", "8GB"),
            **edited(TENANT, "status: active", "status: paused"),
            **edited("access/a.cedar", "data_class", "dataclass"),
            **edited("tests/a.yaml", "eu-west-1", "eu-west-2"),
            **edited("models.yaml", "vllm", "vlm"),
        }
    )
    assert [problem.split(":")[0] for problem in problems] == [
        "access/a.cedar", "models.yaml", "plans.yaml", "tenants/acme.yaml", "tests/a.yaml",
    ]  # fmt: skip


def test_the_tenant_s_own_limits_replace_the_plan_s() -> None:
    limits = good({TENANT: GOOD[TENANT] + "limits: {concurrency: 2, requests: unlimited}\n"}).tenants["acme"].limits
    assert limits == Limits(None, 60000, 2, 8 * 2**30, None)


def test_dated_limits_follow_one_another() -> None:
    text = (
        "limits:\n  - {concurrency: 2}\n"
        "  - {from: 2026-12-01, until: 2026-12-03, concurrency: 8, tokens: unlimited}\n"
        "  - {from: 2026-12-02, concurrency: 16}\n"
    )
    acme = good({TENANT: GOOD[TENANT] + text}).tenants["acme"]
    days = [parse_moment(f"2026-12-0{day}") for day in (1, 2, 3)]
    told = [(acme.limits_at(at).concurrency, acme.limits_at(at).tokens_per_minute) for at in (0.0, *days)]
    assert told == [(2, 60000), (8, None), (16, None), (16, 60000)]
    assert acme.limits_at(days[0] - 1) is acme.limits
    assert acme.limits_at(days[0]) is acme.limits_at(days[1] - 1), "the same object, so quotas see no change"
    assert list(acme.edges()) == days


def test_the_bundle_knows_every_moment_at_which_an_answer_may_change() -> None:
    text = (
        GOOD[TENANT]
        .replace("status: active", "status: active\nuntil: 2027-01-01")
        .replace("'embed-*'", "{model: x, from: 2026-12-05}")
        + "keys: {ci: {from: 2026-12-06, models: [{model: chat, until: 2026-12-07}]}}\n"
    )
    days = ("2026-12-05", "2026-12-06", "2026-12-07", "2027-01-01")
    assert good({TENANT: text}).edges == tuple(map(parse_moment, days))
    assert good().edges == ()


def test_content_holds_the_files_and_makes_the_same_bundle() -> None:
    bundle = good()
    assert unpack(bundle.content()) == bundle.files
    again = compile_bundle(unpack(bundle.content()))
    assert isinstance(again, Bundle)
    assert again.digest == bundle.digest == digest(files({}))
    assert again.content() == bundle.content()


def test_an_unchanged_bundle_is_the_same_object() -> None:
    bundle = good()
    assert compile_bundle(files({}), bundle) is bundle


BIRCH = GOOD[TENANT].replace("tenant: acme", "tenant: birch")


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        (edited("access/a.cedar", '"phi"', '"pii"'), True),
        ({"tenants/acme.yaml": GOOD[TENANT].replace("active", "suspended")}, True),
        ({"tests/a.yaml": None}, True),
        (edited("plans.yaml", "concurrency: 32", "concurrency: 64"), False),
        (edited("models.yaml", "16", "32"), False),
        ({"bundle.yaml": GOOD["bundle.yaml"] + "  us-west-1: {jurisdiction: US}\n"}, False),
        ({"tenants/birch.yaml": BIRCH.replace("active", "suspended")}, False),
        ({"engines/x.json": "{}"}, False),
    ],
)
def test_a_tenant_that_nothing_touched_is_not_read_again(changes: Mapping[str, str | None], *, kept: bool) -> None:
    before = good({"tenants/birch.yaml": BIRCH})
    changed = files({"tenants/birch.yaml": BIRCH, **changes})
    after = compile_bundle(changed, before)
    assert isinstance(after, Bundle)
    assert (after.tenants["birch"] is before.tenants["birch"]) is kept
    assert replace(after, access=before.access) == replace(good_of(changed), access=before.access)


def good_of(changed: Mapping[str, bytes]) -> Bundle:
    found = compile_bundle(changed)
    assert isinstance(found, Bundle)
    return found


def test_a_place_is_in_the_bundle_s_terms() -> None:
    bundle = good()
    assert bundle.place("eu-west-1", "EU", None) == Place("eu-west-1", "EU", "EU", None)
    assert bundle.place("eu-west-2", "UE", "EU") == [
        Problem("bundle.yaml", 1, 1, "regions",
                'the sidecar\'s region eu-west-2 is not in the bundle; did you mean "eu-west-1"?'),
        Problem("bundle.yaml", 1, 1, "regions", "the database's jurisdiction UE is not in the bundle"),
    ]  # fmt: skip


def test_the_demo_s_bundle_is_as_the_demo_needs_it() -> None:
    bundle = demo_bundle()
    assert set(bundle.tenants) == {"acme", "birch", "cobalt", "dormant"}
    assert {name: model.contract for name, model in bundle.models.items()} == {
        "chat": Contract.VLLM, "vision": Contract.GENERIC, "rag": Contract.TRTLLM, "counter": Contract.GENERIC,
        "embed": Contract.GENERIC,
    }  # fmt: skip
    kv = bundle.models["chat"].kv
    birch = bundle.tenants["birch"].limits
    assert kv == KvProfile(2 * 30 * 3 * 64 * 2, 16)
    assert birch.kv_bytes is not None
    assert 100 * kv.bytes_per_token < birch.kv_bytes < 2000 * kv.bytes_per_token, "so that MEMORY_KV can be shown"
