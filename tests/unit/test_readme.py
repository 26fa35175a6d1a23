"""The README's configuration is configuration that works."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from policies.bundle import Bundle, compile_bundle
from policies.cases import run_cases
from policies.document import AuditDoc, GuardDoc, ModelsDoc, PlansDoc, ResidencyDoc
from sidecar.runtime.copy_settings import CopySection
from sidecar.runtime.settings import (
    AnchorSection,
    AuditSection,
    IdentitySection,
    JournalSection,
    ListenerSection,
    ListenSection,
    MasterKeysSection,
    QuotasSection,
    TritonSection,
)
from tests.support.policy import demo_bundle

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_an_example_is_accepted(block: str) -> None:
    document: Any = YAML(typ="safe").load(StringIO(block))
    if isinstance(document, list):  # test cases, and of the demo's bundle
        bundle = compile_bundle({**demo_bundle().files, "tests/demo.yaml": block.encode()})
        assert isinstance(bundle, Bundle)
        assert [result.failure for result in run_cases(bundle)] == [""] * len(document)
        return
    known: dict[str, Any] = {
        "identity": IdentitySection,
        "listen": ListenSection,
        "listeners": tuple[ListenerSection, ...],
        "triton": TritonSection,
        "audit": AuditDoc,  # a tenant's
        "residency": ResidencyDoc,
        "guards": tuple[GuardDoc, ...],
        "plans": PlansDoc,
        "models": ModelsDoc,
        "quotas": QuotasSection,
    }
    whole = "key_file" in document.get("audit", {}).get("journal", {})
    copies: Any = JournalSection if whole else dict[Literal["copy"], CopySection]
    for name, section in {"keys": MasterKeysSection, "anchor": AnchorSection, "journal": copies}.items():
        if name in document.get("audit", {}):  # the sidecar's
            known["audit"] = dict[Literal["keys", "anchor", "journal"], section]
    if "databases" in document.get("audit", {}):
        known["audit"] = AuditSection
        document["audit"]["journal"] = {"directory": "journal", "key_file": "keys/journal.key"}
    assert document.keys() & known.keys()
    for name, section in known.items():
        if name in document:
            TypeAdapter(section).validate_python(document[name])


def test_every_kind_of_identity_provider_has_an_example() -> None:
    text = "".join(BLOCKS)
    for sign in ("/realms/", "login.microsoftonline.com", "kubernetes.io.namespace", "spiffe://"):
        assert sign in text
