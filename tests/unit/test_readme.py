"""The README's configuration is configuration that works."""

from __future__ import annotations

import re
import shlex
from io import StringIO
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from pydantic import TypeAdapter
from ruamel.yaml import YAML

from policies.bundle import Bundle, compile_bundle
from policies.cases import run_cases
from policies.document import AuditDoc, GuardDoc, ModelsDoc, PlansDoc, ResidencyDoc
from sidecar.cli.main import build
from sidecar.core.reasons import Reason
from sidecar.runtime.copy_settings import CopySection
from sidecar.runtime.object_settings import TensorStoreSection
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
TEXT = README.read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)


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
    copies: Any = JournalSection if whole else dict[Literal["copy"], dict[str, CopySection]]
    own = {"keys": MasterKeysSection, "anchor": AnchorSection, "journal": copies, "objects": TensorStoreSection}
    for name, section in own.items():
        if name in document.get("audit", {}):  # the sidecar's
            known["audit"] = dict[Literal["keys", "anchor", "journal", "objects"], section]
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


def test_every_reason_of_a_refusal_is_explained() -> None:
    told = {name for line in TEXT.splitlines() if line.startswith("| `") for name in re.findall(r"`([A-Z_]+)`", line)}
    assert set(Reason) <= told


def test_every_link_leads_somewhere() -> None:
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
    assert len(anchors) == len(titles)
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) > 20
    for link in links:
        if link.startswith("#"):
            assert link[1:] in anchors, link
        else:
            assert "://" in link or (README.parent / link).exists(), link


def test_every_command_that_it_shows_is_one() -> None:
    blocks = re.findall(r"^ *```(\w*)\n(.*?)^ *```$", TEXT, re.DOTALL | re.MULTILINE)
    joined = "\n".join(block for language, block in blocks if not language).replace("\\\n", " ")
    shown = [line.strip().removeprefix("$ ") for line in joined.splitlines()]
    commands = [shlex.split(line, comments=True) for line in shown if line.startswith("warden ")]
    assert len(commands) > 50
    root = typer.main.get_command(build())
    for words in commands:
        command: Any = root
        rest = words[1:]
        while hasattr(command, "commands"):
            assert rest[0] in command.commands, words
            command, rest = command.commands[rest[0]], rest[1:]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        unknown = {word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)} - known
        assert unknown == set(), words
