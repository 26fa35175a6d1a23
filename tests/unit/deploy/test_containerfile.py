"""The image's recipe against the project: it carries every package, this Python, and the ports of the manifest."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.specifiers import SpecifierSet

from sidecar.runtime.settings import ListenSection

ROOT = Path(__file__).parents[3]
RECIPE = (ROOT / "deploy" / "Containerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def lines(instruction: str) -> list[str]:
    return re.findall(rf"^{instruction} (.+)$", RECIPE, re.MULTILINE)


def test_it_carries_every_package_and_what_the_build_reads() -> None:
    copied = {word for line in lines("COPY") if not line.startswith("--from") for word in line.split()[:-1]}
    patterns = PROJECT["tool"]["setuptools"]["packages"]["find"]["include"]
    packages = {found.name for pattern in patterns for found in ROOT.glob(pattern) if found.is_dir()}
    assert copied == packages | {"pyproject.toml", "constraints.txt", PROJECT["project"]["readme"]}


def test_it_has_a_python_that_the_project_takes() -> None:
    (version,) = set(re.findall(r"libpython(\d+\.\d+)", RECIPE))
    assert SpecifierSet(PROJECT["project"]["requires-python"]).contains(version)
    assert set(lines("FROM")) == {"debian:bookworm-slim AS build", "debian:bookworm-slim"}  # Python 3.11 is bookworm's


def test_it_runs_the_sidecar_as_nobody_special() -> None:
    listen = ListenSection()
    assert lines("EXPOSE") == [" ".join(address.rpartition(":")[2] for address in (listen.grpc, listen.admin))]
    assert lines("ENTRYPOINT") == ['["warden"]']
    assert lines("CMD") == ['["serve", "--config", "/etc/warden/warden.yaml"]']
    assert [re.fullmatch(r"[1-9]\d*:[1-9]\d*", user) is not None for user in lines("USER")] == [True]


def test_it_says_that_it_was_not_built() -> None:
    assert "has not been built or run" in RECIPE.split("FROM")[0]
