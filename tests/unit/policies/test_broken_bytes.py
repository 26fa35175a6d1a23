"""Bundles whose very bytes, numbers and dates can't be: each refused with what is wrong and exactly where."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from policies.bundle import Bundle, compile_bundle
from policies.files import read_files
from tests.unit.policies.test_bundle import GOOD, TENANT, files

ACME, PLANS, CEDAR = GOOD[TENANT], GOOD["plans.yaml"], GOOD["access/a.cedar"]
MISSING = "1:1: plan: required, and missing"
INTEGER = "4:16: gold.concurrency: should be a valid integer"
TEXT = f"{INTEGER}; this is text, a number is plain decimal digits without quotes"
RATE = "2:20: gold.requests.rate: is not a rate; write a number a unit of time, such as 50/s, 600/m or 100/h"
MOMENT = "4:7: from: is not a moment"


def told(name: str, data: bytes) -> list[str]:
    """The problems of the good bundle with one file's bytes replaced, without the file's name."""
    found = compile_bundle({**files({}), name: data})
    assert isinstance(found, list), "this bundle should be refused"
    assert {problem.file for problem in found} == {name}
    return [str(problem).removeprefix(f"{name}:") for problem in found]


@pytest.mark.parametrize(
    ("old", "new", "problems"),
    [
        ("gold", b"go\0ld", ["2:9: character U+0000 is not allowed in YAML"]),
        ("gold", b"g\xfcld", ["2:8: not UTF-8"]),
        ("plan:", "pl\u0430n:", [MISSING, ('2:1: ["pl\u0430n"]: unknown key (U+0430 in it is cyrillic small letter a); '
                                          'did you mean "plan"?')]),
        ("plan:", "plan\u200b:", [MISSING, ('2:1: ["plan\\\\u200b"]: unknown key (U+200B in it is zero width space); '
                                           'did you mean "plan"?')]),
        ("plan:", "\ufeffplan:", [MISSING, ('2:1: ["\\\\ufeffplan"]: unknown key (U+FEFF in it is zero width no-break '
                                           'space); did you mean "plan"?')]),
        ("active", "\u0430ctive", [("3:9: status: should be 'active' or 'suspended' (U+0430 in it is cyrillic small "
                                     'letter a); did you mean "active"?')]),
        ("  storage", "\tstorage", ["7:1: a tab; indent with spaces"]),
        ("plan: gold", "plan:\tgold", ["2:6: a tab; indent with spaces"]),
        ("plan: gold", "plan: !!binary Z29sZA==",
         ["2:7: plan: tag tag:yaml.org,2002:binary: tags are not allowed"]),
        ("plan: gold", "<<: {plan: gold}", [MISSING, '2:1: ["<<"]: unknown key']),
        ("status: active", "status: active\nplan: gold", ["4:1: plan: duplicate key, first on line 2"]),
        ("400d", "0d", ["11:35: audit.retention: is not a retention; write whole days such as 400d, or unlimited"]),
        ("status: active", "status: active\nuntil: 2026-12-01\nfrom: 2026-12-01",
         ["4:1: until: is not after from, so it is never in force"]),
        *[("status: active", f"status: active\nfrom: {written}", [f"{MOMENT}: {words}"]) for written, words in (
            ("2026-02-29", "day is out of range for month"), ("2026-13-01", "month must be in 1..12"),
            ("2026-12-01T25:00Z", "hour must be in 0..23"), ("0000-01-01", "year 0 is out of range"),
            ("2026-12-01T09:00+25:00", "its zone is a day or more away"))],
        *[("status: active", f"status: active\nfrom: {written}",
           [f"{MOMENT}; write a day (2026-12-01, from 00:00 UTC) or a time with its zone (2026-12-01T09:00+01:00)"])
          for written in ("20261201", "2026-12-1", "tomorrow", "1764547200", "10000-01-01")],
    ],
)  # fmt: skip
def test_a_tenant_s_bytes_and_dates(old: str, new: str | bytes, problems: list[str]) -> None:
    assert ACME.count(old) == 1
    data = ACME.encode().replace(old.encode(), new if isinstance(new, bytes) else new.encode())
    assert told(TENANT, data) == [each.replace("\\\\", "\\") for each in problems]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        *[("concurrency: 32", f"concurrency: {written}", TEXT)
          for written in ("0o777", "0777", "0x20", "1_000", "1:30:00", ".inf", ".nan", "yes", "\u0663\u0662", '"32"')],
        *[("concurrency: 32", f"concurrency: {written}", f"{INTEGER}; this is a fraction")
          for written in ("1e309", "1e-400", "1e3", "32.0")],
        ("concurrency: 32", "concurrency: -0", "4:16: gold.concurrency: should be greater than 0"),
        ("concurrency: 32", "concurrency: 9223372036854775808",
         "4:16: gold.concurrency: should be less than or equal to 9007199254740992"),
        *[("50/s", f"{written}/s", RATE) for written in ("1e309", "inf", "nan", "-1", "1_0", "\u0665")],
        ("50/s", "0/s", "2:20: gold.requests.rate: should be greater than 0"),
        ("8GiB", "99999999999TiB", "5:14: gold.kv_memory: is more than 8192TiB"),
        ("8GiB", "1e309GiB", "5:14: gold.kv_memory: is not a size; write a number with B, KiB, MiB, GiB or TiB"),
        ("concurrency: 32", "concurrency: 32\n  queue_timeout: 999999999999999d",
         "5:18: gold.queue_timeout: is more than 36500d"),
    ],
)  # fmt: skip
def test_a_plan_s_numbers(old: str, new: str, problem: str) -> None:
    assert PLANS.count(old) == 1
    assert told("plans.yaml", PLANS.replace(old, new).encode()) == [problem]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (ACME.encode("utf-16"), "1:1: not UTF-8"),
        (ACME.encode() + b"x: " + b"[" * 200_000, "12:24: x" + "[0]" * 20 + ": nested deeper than 20 levels"),
        (ACME.encode() + b"".join(b" " * n + b"a:\n" for n in range(900)),
         "33:22: a" + ".a" * 20 + ": nested deeper than 20 levels"),
        (ACME.encode() + b"x:\n" + b"- " * 5000, "13:41: x" + "[0]" * 20 + ": nested deeper than 20 levels"),
        (b"- a\n", "1:1: should be a mapping of keys to values"),
    ],
)  # fmt: skip
def test_a_tenant_s_whole_document(data: bytes, problem: str) -> None:
    assert told(TENANT, data) == [problem]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (CEDAR.replace("forbid", "for\0bid").encode(), "2:4: character U+0000 is not allowed"),
        (CEDAR.encode().replace(b'== "phi"', b'== "ph\xff"'), "3:33: not UTF-8"),
        (CEDAR.replace("resource", "res\u043eurce").encode(),
         ("2:49: not Cedar: a letter beyond ASCII (U+043E in it is cyrillic small letter o), outside of strings and "
          "comments")),
    ],
)  # fmt: skip
def test_a_policy_s_bytes(data: bytes, problem: str) -> None:
    assert told("access/a.cedar", data) == [problem]


@pytest.mark.parametrize("name", [TENANT, "access/a.cedar", "plans.yaml"])
def test_a_byte_order_mark_is_no_part_of_a_text(name: str) -> None:
    marked = compile_bundle({**files({}), name: b"\xef\xbb\xbf" + GOOD[name].encode()})
    assert isinstance(marked, Bundle), marked


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    for name, data in files({}).items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


def problems(directory: Path) -> list[str]:
    found = read_files(directory)
    assert isinstance(found, list)
    return [str(problem) for problem in found]


def test_what_stands_in_a_file_s_place_is_told(bundle: Path) -> None:
    (bundle / "models.yaml").unlink()
    (bundle / "models.yaml").mkdir()
    (bundle / TENANT).unlink()
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(bundle)  # a socket's path may be 108 bytes
        try:
            listening.bind(TENANT)
        finally:
            os.chdir(here)
        (bundle / "tests" / "pipe.yaml").symlink_to("../pipe")
        os.mkfifo(bundle / "pipe")
        found = problems(bundle)
    assert "tenants/acme.yaml:1:1: cannot be read: No such device or address" in found, "a socket"
    assert "tests/pipe.yaml:1:1: not a file" in found
    if hasattr(os, "geteuid") and os.geteuid() != 0:
        (bundle / "plans.yaml").chmod(0)
        assert "plans.yaml:1:1: cannot be read: Permission denied" in problems(bundle)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.ESTALE, errno.ENOENT])
def test_what_cannot_be_read_or_is_gone_since_it_was_listed_is_told(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    real = os.open

    def opening(path: str | bytes | os.PathLike[str], *arguments: int, **more: int) -> int:
        if os.fspath(path).endswith("plans.yaml"):  # type: ignore[arg-type]  # never bytes here
            raise OSError(code, os.strerror(code), path)
        return real(path, *arguments, **more)

    monkeypatch.setattr(os, "open", opening)
    assert problems(bundle) == [f"plans.yaml:1:1: cannot be read: {os.strerror(code)}"]


def test_a_folder_that_cannot_be_listed_is_told(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.listdir

    def listing(path: str) -> list[str]:
        if path.endswith("tenants"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path)

    monkeypatch.setattr(os, "listdir", listing)
    found = problems(bundle)
    assert len(found) == 1
    assert found[0].endswith("tenants:1:1: cannot be read: Permission denied")
