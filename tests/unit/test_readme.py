"""The README's configuration is configuration that works."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from policies.document import AuditDoc, GuardDoc, ModelsDoc, PlansDoc
from sidecar.runtime.settings import (
    AnchorSection,
    IdentitySection,
    ListenerSection,
    ListenSection,
    MasterKeysSection,
    QuotasSection,
    TritonSection,
)

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_is_accepted(block: str) -> None:
    document: dict[str, Any] = YAML(typ="safe").load(StringIO(block))
    known: dict[str, Any] = {
        "identity": IdentitySection,
        "listen": ListenSection,
        "listeners": tuple[ListenerSection, ...],
        "triton": TritonSection,
        "audit": AuditDoc,  # a tenant's
        "guards": tuple[GuardDoc, ...],
        "plans": PlansDoc,
        "models": ModelsDoc,
        "quotas": QuotasSection,
    }
    for name, section in {"keys": MasterKeysSection, "anchor": AnchorSection}.items():
        if name in document.get("audit", {}):  # the sidecar's
            known["audit"] = dict[Literal["keys", "anchor"], section]
    assert document.keys() & known.keys()
    for name, section in known.items():
        if name in document:
            TypeAdapter(section).validate_python(document[name])


def test_every_kind_of_identity_provider_has_an_example() -> None:
    text = "".join(BLOCKS)
    for sign in ("/realms/", "login.microsoftonline.com", "kubernetes.io.namespace", "spiffe://"):
        assert sign in text
