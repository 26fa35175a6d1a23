"""The migrations are one chain, each named by its number: two of one number would leave a database with two heads."""

from __future__ import annotations

import re
from pathlib import Path

VERSIONS = Path(__file__).parents[2] / "migrations" / "versions"


def test_each_follows_the_one_before() -> None:
    files = sorted(VERSIONS.glob("m*.py"))
    assert len(files) > 1
    for number, path in enumerate(files, 1):
        source = path.read_text("utf-8")
        assert path.name.startswith(f"m{number:04d}_"), path.name
        assert re.search(rf'^revision = "{number:04d}"$', source, re.MULTILINE), path.name
        before = f'"{number - 1:04d}"' if number > 1 else "None"
        assert re.search(rf"^down_revision = {before}$", source, re.MULTILINE), path.name
