"""The policy bundle of the integration tests: the demo's, with the tests' models and a tenant for each quota."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from sidecar.cli.demo.stack import BUNDLE

_EU: Final = {"processing": ["EU"], "storage": ["EU"], "telemetry": ["EU"]}
_UNLIMITED: Final = dict.fromkeys(("requests", "tokens", "concurrency", "kv_memory", "tensor_memory"), "unlimited")
_SLOW: Final = {
    "contract": "vllm",
    "kv": {"bytes_per_token": 1024, "tokens_per_block": 16},
    "max_tokens": 1_000_000,
    "groups": ["llm"],
}
_DEAF: Final = {
    "contract": "vllm",
    "kv": {"bytes_per_token": 1024, "tokens_per_block": 16},
    "default_tokens": 60,  # what its calls are taken to ask for: they can't say
    "on_cancel": {"runs_on": "10m"},
}
# Each of these tenants has one limit, which a test then meets.
LIMITED: Final[dict[str, dict[str, Any]]] = {
    "one-a-minute": {"requests": {"rate": "1/m", "burst": 1}},
    "few-tokens": {"tokens": {"per_minute": 100}},
    "one-slot": {"concurrency": 1},
    "one-slot-in-line": {"concurrency": 1, "on_limit": "queue 10s"},
    "twenty-at-once": {"requests": {"rate": "6/m", "burst": 20}},
    "many-tokens": {"tokens": {"per_minute": 1500}},
    "six-slots": {"concurrency": 6},
    "hundred-a-second": {"requests": {"rate": "100/s", "burst": 20}},
    "small-kv": {"kv_memory": "256KiB"},  # 256 tokens of `slow`
    "small-tensors": {"tensor_memory": "64KiB"},
}
# Where data of a class may be processed; its tenants' other data in the EU and the US.
CLASSED: Final[dict[str, dict[str, list[str]]]] = {
    "one-stricter": {"public": ["EU", "US"], "phi": ["us-east-1"]},
    "at-odds": {"public": ["EU"], "phi": ["us-east-1"]},
}
ELSEWHERE: Final[dict[str, dict[str, list[str]]]] = {
    "stored-in-us": {**_EU, "storage": ["US"]},
    "traced-in-us": {**_EU, "telemetry": ["US"]},
}


def write_bundle(directory: Path) -> Path:
    """``directory``/bundle. `acme` and `two` may call every model, unlimited; the others are the demo's or above."""
    bundle = directory / "bundle"
    shutil.copytree(BUNDLE, bundle)
    shutil.rmtree(bundle / "tests")  # they are about the demo's tenants
    models, plans = bundle / "models.yaml", bundle / "plans.yaml"
    models.write_text(models.read_text() + _yaml("slow", _SLOW) + _yaml("deaf", _DEAF))
    plans.write_text(plans.read_text() + _yaml("ample", _UNLIMITED))
    _tenant(bundle, "acme", models=["*"], residency={**_EU, "classes": {"phi": ["eu-west-1"]}})
    _tenant(bundle, "two", models=["*"])
    for name, limits in LIMITED.items():
        _tenant(bundle, name, models=["slow", "echo", "hold", "deaf"], limits=limits)
    # Every API key of it that is called "test" may ask once a minute; a token may as often as it likes.
    _tenant(bundle, "keyed", models=["echo"], keys={"test": {"limits": {"requests": {"rate": "1/m", "burst": 1}}}})
    # `ghost` is granted and Triton has none; the bundle's models.yaml names neither of the other two.
    _tenant(bundle, "neighbour", models=["gossip", "echo", "ghost"])
    for name, residency in ELSEWHERE.items():
        _tenant(bundle, name, models=["*"], residency=residency)
    kept = {"level": "full", "retention": "30d", "tensors": {"keep": "64KiB"}}
    _tenant(bundle, "keeps-tensors", models=["*"], audit=kept)
    for name, classes in CLASSED.items():
        both = {kept: ["EU", "US"] for kept in ("processing", "storage", "telemetry")}
        _tenant(bundle, name, models=["*"], residency={**both, "classes": classes})
    return bundle


def add_tenants(bundle: Path, names: Iterable[str], *, models: list[str]) -> None:
    """Tenants without limits."""
    for name in names:
        _tenant(bundle, name, models=models)


def _tenant(bundle: Path, name: str, *, residency: object = _EU, **more: object) -> None:
    document = {
        "tenant": name,
        "plan": "ample",
        "status": "active",
        "residency": residency,
        "audit": {"level": "full", "retention": "30d"},
        **more,
    }
    (bundle / "tenants" / f"{name}.yaml").write_text(json.dumps(document))  # YAML holds JSON


def _yaml(name: str, value: object) -> str:
    return f"\n{name}: {json.dumps(value)}\n"
