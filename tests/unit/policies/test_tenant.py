"""policies.tenant: how a call of several data classes is recorded."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from policies.document import TenantDoc
from policies.tenant import Tenant, compile_tenant
from sidecar.core.model import Durability, OnPressure, TensorRule


def tenant(**audit: Any) -> Tenant:
    places = {"processing": ["EU"], "storage": ["EU"], "telemetry": ["EU"]}
    document = {
        "tenant": "acme", "plan": "gold", "status": "active", "models": ["*"], "residency": places,
        "audit": {"level": "full", "retention": "30d", **audit},
    }  # fmt: skip
    return compile_tenant("tenants/acme.yaml", TenantDoc.model_validate(document), None)


CLASSES = {
    "phi": {"durability": "strict", "on_pressure": "refuse"},
    "logs": {"durability": "batch", "on_pressure": "shed"},
    "plain": {"on_pressure": "shed"},
}


@pytest.mark.parametrize(
    ("own", "classes", "durability", "on_pressure"),
    [
        (None, (), None, OnPressure.REFUSE),
        (None, ("unnamed",), None, OnPressure.REFUSE),
        (None, ("phi",), Durability.STRICT, OnPressure.REFUSE),
        (None, ("logs",), Durability.BATCH, OnPressure.SHED),
        (None, ("logs", "phi"), Durability.STRICT, OnPressure.REFUSE),
        (None, ("logs", "plain"), None, OnPressure.SHED),  # plain's is the sidecar's own, which may be strict
        ("strict", ("logs", "plain"), Durability.STRICT, OnPressure.SHED),
        ("strict", ("logs",), Durability.BATCH, OnPressure.SHED),
    ],
)
def test_the_strictest_word_of_each_class_counts(
    own: str | None, classes: tuple[str, ...], durability: Durability | None, on_pressure: OnPressure
) -> None:
    more = {} if own is None else {"durability": own}
    rule = tenant(classes=CLASSES, **more).audit_of(classes, "chat")
    assert (rule.durability, rule.on_pressure, rule.retention_days) == (durability, on_pressure, 30)


@pytest.mark.parametrize(
    ("own", "classes", "copy"),
    [
        (None, (), None),
        (None, ("phi",), ("",)),
        ("none", ("plain",), ()),  # its own word, where the class has none
        ("none", ("phi", "logs"), ("",)),
        (None, ("plain", "logs"), None),  # plain's is the sidecar's own, which may copy
        ("required", ("logs",), ()),
        ("cold-1", ("plain", "logs"), ("cold-1",)),
        ("cold-1", ("phi", "plain", "vault"), ("", "cold-1", "vault-eu")),  # each of them
    ],
)
def test_of_several_classes_one_that_asks_for_a_copy_counts(
    own: str | None, classes: tuple[str, ...], copy: tuple[str, ...] | None
) -> None:
    words = {
        "phi": {"copy": "required"},
        "logs": {"copy": "none"},
        "plain": {"on_pressure": "shed"},
        "vault": {"copy": "vault-eu"},
    }
    assert tenant(classes=words, **({} if own is None else {"copy": own})).audit_of(classes, "chat").copies == copy


def test_nobodys_content_is_shed_unless_its_document_says_so() -> None:
    assert tenant().audit.on_pressure is OnPressure.REFUSE
    assert tenant(on_pressure="shed").audit.on_pressure is OnPressure.SHED


@pytest.mark.parametrize(
    "audit",
    [
        {"on_pressure": "drop"},
        {"copy": "S3"},
        {"classes": {"phi": {"durability": "never"}}},
        {"classes": {"phi": {"level": "full"}}},
    ],
)
def test_a_word_that_means_nothing_is_an_error(audit: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        tenant(**audit)


KEPT = {"keep": "4MiB", "models": ["vision*"]}


@pytest.mark.parametrize(
    ("classes", "model", "nbytes"),
    [
        ((), "vision-2", 4 * 2**20),
        ((), "chat", None),
        (("phi",), "vision-2", None),
        (("logs",), "vision-2", 2**10),
        (("plain",), "vision-2", 4 * 2**20),  # no class keeps more than its tenant
        (("logs", "phi"), "vision-2", None),
    ],
)
def test_tensors_are_kept_of_the_models_that_are_named_and_of_classes_the_least(
    classes: tuple[str, ...], model: str, nbytes: int | None
) -> None:
    words = {"phi": {"tensors": "none"}, "logs": {"tensors": "1KiB"}, "plain": {"tensors": "16MiB"}}
    kept = tenant(tensors=KEPT, classes=words).audit_of(classes, model).tensors
    assert kept == (None if nbytes is None else TensorRule(nbytes, models=("vision*",)))
    assert tenant(classes=words).audit_of(classes, model).tensors is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"tensors": {"keep": "17MiB"}},
        {"tensors": {"keep": 0}},
        {"tensors": {}},
        {"tensors": {"keep": "1MiB", "of": []}},
        {"tensors": {"keep": "1MiB", "of": ["prompts"]}},
        {"tensors": {"keep": "1MiB"}, "level": "prompt"},
        {"tensors": {"keep": "1MiB", "of": ["inputs"]}, "level": "metadata"},
        {"classes": {"phi": {"tensors": "some"}}},
    ],
)
def test_tensors_that_the_level_does_not_keep_or_nobody_could_are_errors(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        tenant(**wrong)
    assert tenant(tensors={"keep": "1MiB", "of": ["inputs"]}, level="prompt").audit.tensors == TensorRule(
        2**20, outputs=False
    )
