"""migrations/versions: one line from nothing to the newest, each in the file that bears its number."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

from migrations import versions

FILES = sorted(Path(versions.__file__).parent.glob("m*.py"))


def test_migrations_form_one_line() -> None:
    modules = [import_module(f"migrations.versions.{path.stem}") for path in FILES]
    numbers = [module.revision for module in modules]
    assert [path.stem[1:5] for path in FILES] == numbers == [f"{number:04d}" for number in range(1, len(FILES) + 1)]
    assert [module.down_revision for module in modules] == [None, *numbers[:-1]]
