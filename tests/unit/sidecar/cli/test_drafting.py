"""What `warden init` drafts from what a Triton said: contracts, documents, remarks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from policies import yamlfile
from policies.bundle import Bundle, compile_bundle
from policies.cases import run_cases
from policies.residency import Rules
from sidecar.cli.drafting import NOT_LOADED, Model, Place, Server, contract_of, draft, front_models, remarks
from sidecar.core.model import Contract, Limits, RequestRate
from sidecar.runtime.settings import load

PLACE = Place("pod-1", "eu-west-1", "EU", "main", "127.0.0.1:8001")
VLLM = {"text_input": "BYTES", "stream": "BOOL", "sampling_parameters": "BYTES", "exclude_input_in_output": "BOOL"}
TRT_ENSEMBLE = {"text_input": "BYTES", "max_tokens": "INT32", "stop_words": "BYTES", "beam_width": "INT32"}
TRT_CORE = {"input_ids": "INT32", "input_lengths": "INT32", "request_output_len": "INT32", "streaming": "BOOL"}
TRT_LLMAPI = {"text_input": "BYTES", "sampling_param_max_tokens": "INT32", "streaming": "BOOL"}
IMAGE = {"image": "FP32"}


@pytest.mark.parametrize(
    ("inputs", "decoupled", "expected"),
    [
        pytest.param(VLLM, True, Contract.VLLM, id="vLLM's backend"),
        pytest.param(VLLM, False, Contract.GENERIC, id="vLLM's tensors, but answers once"),
        pytest.param(VLLM | {"image": "BYTES", "count": "INT32"}, True, Contract.VLLM, id="vLLM and more"),
        pytest.param(TRT_ENSEMBLE, False, Contract.TRTLLM, id="TensorRT-LLM's ensemble"),
        pytest.param(TRT_ENSEMBLE, True, Contract.TRTLLM, id="the same, streaming"),
        pytest.param(TRT_CORE, True, Contract.TRTLLM, id="tensorrt_llm itself"),
        pytest.param(TRT_LLMAPI, True, Contract.TRTLLM, id="its LLM API"),
        pytest.param({"text_input": "BYTES"}, True, Contract.GENERIC, id="text alone"),
        pytest.param(VLLM | {"text_input": "INT32"}, True, Contract.GENERIC, id="text that isn't"),
        pytest.param({"input_ids": "INT64", "attention_mask": "INT64"}, False, Contract.GENERIC, id="an encoder"),
        pytest.param(IMAGE, False, Contract.GENERIC, id="an image"),
        pytest.param({}, False, Contract.GENERIC, id="no inputs"),
    ],
)
def test_a_contract_is_guessed_from_tensors(inputs: dict[str, str], decoupled: bool, expected: Contract) -> None:
    assert contract_of(inputs, decoupled=decoupled) is expected


CHAT = Model("chat", VLLM, decoupled=True)
ENSEMBLE = Model("ensemble", TRT_ENSEMBLE, steps=("preprocessing", "tensorrt_llm"))
CORE = Model("tensorrt_llm", TRT_CORE, decoupled=True, parameters={"gpt_model_path": "/engines/llama/1-gpu"})
STEP = Model("preprocessing", {"QUERY": "BYTES"})
VISION = Model("vision", IMAGE)
SERVER = Server("2.51.0", (CHAT, ENSEMBLE, STEP, CORE, VISION))


def compiled(server: Server = SERVER, place: Place = PLACE) -> Bundle:
    files = {
        name.removeprefix("bundle/"): text.encode()
        for name, text in draft(server, place).items()
        if name.startswith("bundle/")
    }
    bundle = compile_bundle(files)
    assert isinstance(bundle, Bundle), bundle
    return bundle


def settings(server: Server = SERVER, place: Place = PLACE) -> Any:
    document = yamlfile.parse(draft(server, place)["warden.yaml"].encode(), "warden.yaml")
    assert isinstance(document, yamlfile.Document), document
    return document.data


def test_only_front_models_are_named() -> None:
    assert [model.name for model in front_models(SERVER)] == ["chat", "ensemble", "vision"]
    bundle = compiled()
    assert {name: profile.contract for name, profile in bundle.models.items()} == {
        "chat": Contract.VLLM,
        "ensemble": Contract.TRTLLM,
        "vision": Contract.GENERIC,
    }


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        (IMAGE, {"scores": "FP32", "index": "INT64"}, True),
        (IMAGE, {"scores": "FP32", "caption": "BYTES"}, False),
        (IMAGE, {"scores": "FP32", "later": "FP8"}, False),
        (IMAGE, {}, False),
        (TRT_ENSEMBLE, {"cum_log_probs": "FP32"}, False),
    ],
)
def test_classes_may_be_asked_of_models_whose_outputs_are_all_numeric(
    inputs: dict[str, str], outputs: dict[str, str], expected: bool
) -> None:
    bundle = compiled(Server("2.51.0", (Model("m", inputs, outputs=outputs),)))
    assert bundle.models["m"].classification is expected


def test_every_case_of_the_draft_holds() -> None:
    results = list(run_cases(compiled()))
    assert not [result for result in results if result.failure]
    asked = {result.case.case.model: result.case.case.expect for result in results}
    assert asked == {
        "chat": "allow",
        "ensemble": "allow",
        "vision": "allow",
        "preprocessing": "MODEL_NOT_FOUND",
        "tensorrt_llm": "MODEL_NOT_FOUND",
        "": "TENANT_UNKNOWN",
    }


def test_the_tenant_is_limited_generously_and_resident_where_it_was_said() -> None:
    tenant = compiled(place=Place("pod-1", "us-east-1", "US", "acme", "127.0.0.1:8001")).tenants["acme"]
    assert tenant.limits == Limits(
        requests=RequestRate(1000, 2000),
        tokens_per_minute=10_000_000,
        concurrency=1000,
        kv_bytes=None,
        tensor_bytes=2**30,
    )
    residency = tenant.residency
    assert residency.own == Rules(("US",), ("US",), ("US",))


def test_the_way_to_kv_numbers_is_told_per_contract() -> None:
    text = draft(SERVER, PLACE)["bundle/models.yaml"]
    chat, ensemble, vision = (text.index(f"\n{name}:") for name in ("chat", "ensemble", "vision"))
    assert "# kv: {bytes_per_token:" in text[chat:ensemble]
    assert "# kv: {engine_config: engines/NAME.json}" in text[ensemble:vision]
    assert "# Triton says the engine is in /engines/llama/1-gpu\n" in text[ensemble:vision]
    assert "kv" not in text[vision:]


def test_the_hints_can_be_taken_as_they_stand() -> None:
    """Each commented kv line is YAML that the bundle takes once it is uncommented."""
    text = draft(Server("2.51.0", (CHAT,)), PLACE)["bundle/models.yaml"].replace("# kv:", "kv:")
    document = yamlfile.parse(text.encode(), "models.yaml")
    assert isinstance(document, yamlfile.Document)
    assert document.data["chat"]["kv"] == {"bytes_per_token": 131072, "tokens_per_block": 16}


def test_the_settings_observe_and_name_what_was_said() -> None:
    found = settings()
    assert found["mode"] == "observe"
    assert found["sidecar"] == {"name": "pod-1", "region": "eu-west-1"}
    assert found["triton"] == {"grpc": "127.0.0.1:8001"}
    assert found["identity"]["issuers"][0]["tenants"] == ["main"]
    assert found["identity"]["issuers"][0]["issuer"] == found["identity"]["signing"]["issuer"]
    assert found["audit"]["database"]["jurisdiction"] == "EU"


@pytest.mark.parametrize("word", ["true", "null", "12", "1e3", "0x10"])
def test_names_that_yaml_would_read_as_something_else_stay_names(word: str) -> None:
    place = Place(word, word, f"{word}0", word, "[::1]:8001")
    bundle = compiled(Server("2.51.0", (Model(word, IMAGE),)), place)
    assert (list(bundle.models), list(bundle.tenants), dict(bundle.regions)) == ([word], [word], {word: f"{word}0"})
    assert settings(place=place)["sidecar"] == {"name": word, "region": word}
    swapped = Place(word, f"{word}0", word, word, "[::1]:8001")
    assert dict(compiled(place=swapped).regions) == {f"{word}0": word}
    assert settings(place=place)["triton"] == {"grpc": "[::1]:8001"}


def test_a_server_without_models_makes_a_bundle_too() -> None:
    bundle = compiled(Server("2.51.0", ()))
    assert bundle.tenants["main"].models == ()
    assert [result.failure for result in run_cases(bundle)] == [""]


def told(*models: Model, triton: str = "127.0.0.1:8001", **more: Any) -> str:
    return "\n".join(remarks(Server("2.51.0", models, **more), triton))


@pytest.mark.parametrize(
    ("seen", "words"),
    [
        (told(ENSEMBLE, STEP), "only ensembles call them: preprocessing"),
        (told(Model("vision", IMAGE, response_cache=True)), "response cache on: vision."),
        (told(Model("m", TRT_CORE, parameters={"enable_kv_cache_reuse": "true"})), "KV-cache reuse on: m."),
        (told(CHAT), "enable_prefix_caching: false"),
        (told(Model("summary", {"text_input": "BYTES"})), "drafted as generic: summary."),
        (told(unready={"broken": "unavailable (no such file)"}), "not ready: broken: unavailable (no such file)"),
        (told(unready={"spare": NOT_LOADED}), "--model-control-mode is explicit"),
        (told(untold=7), "7 more ready models were left out"),
        (told(Model("a b", IMAGE)), "a bundle cannot name them: a b"),
        (told(Model("a\x1b[31m", IMAGE)), "a bundle cannot name them: 'a\\x1b[31m'"),
        (told(triton="triton:8001"), "triton:8001 is not on loopback"),
        (told(*(Model(f"step {n}", IMAGE) for n in range(20))), "step 11 and 8 more"),
    ],
)
def test_what_matters_is_told(seen: str, words: str) -> None:
    assert words in seen


@pytest.mark.parametrize("address", ["127.0.0.1:8001", "127.1.2.3:8001", "localhost:8001", "[::1]:8001"])
def test_nothing_but_what_grpc_hides_is_told_of_a_plain_server(address: str) -> None:
    (only,) = remarks(Server("2.51.0", (VISION,)), address)
    assert only.startswith("can't be seen over gRPC: whether Triton listens beyond loopback")


def test_what_the_drafted_bundles_comments_offer_is_a_bundle_too() -> None:
    """Each commented key, uncommented, is taken: what teaches must be true."""
    offered = re.compile(r"^( *)# ((?:redact|guards|hold_back|keys|classes):.*|  (?:- |[a-z]+: \{).*)$", re.MULTILINE)
    drafted = {name.removeprefix("bundle/"): text for name, text in draft(SERVER, PLACE).items() if "bundle/" in name}
    shown = {name: offered.sub(r"\1\2", text) for name, text in drafted.items()}
    assert {name for name in shown if shown[name] != drafted[name]} == {"bundle.yaml", "tenants/main.yaml"}
    bundle = compile_bundle({name: text.encode() for name, text in shown.items()})
    assert isinstance(bundle, Bundle), [str(problem) for problem in bundle]
    tenant = bundle.tenants["main"]
    assert bundle.classes == ("public", "phi")
    assert len(tenant.audit.redact) == 6
    assert tenant.hold is not None
    assert tenant.keys is not None
    assert tenant.keys["nightly"].limits_at(0.0) == Limits(concurrency=4)
    assert tenant.guards is not None
    assert [guard.name for guard in tenant.guards.guards] == ["no-cards", "codename"]


def test_what_the_drafted_settings_comments_offer_is_taken_too(tmp_path: Path) -> None:
    offered = re.compile(r"^( *)# ((?:copy|objects|quotas|telemetry):.*|  (?:redis|otlp): .*)$", re.MULTILINE)
    shown, changed = offered.subn(r"\1\2", draft(SERVER, PLACE)["warden.yaml"])
    assert changed == 6
    (tmp_path / "warden.yaml").write_text(shown)
    settings = load(tmp_path / "warden.yaml")
    assert settings.audit.journal.copies.keys() == {"outside"}
    assert settings.audit.objects is not None
    assert settings.quotas.redis is not None
    assert settings.telemetry.otlp is not None
