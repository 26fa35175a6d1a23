"""The bundle's directory: what belongs to it, what is refused, and a digest that depends on nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from policies import files
from policies.bundle import load
from policies.files import MAX_FILE_BYTES, digest, fingerprint, pack, read_files, unpack
from policies.yamlfile import Problem


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    directory = tmp_path / "bundle"
    for folder in ("tenants", "access"):
        (directory / folder).mkdir(parents=True)
    for name in ("bundle.yaml", "models.yaml", "plans.yaml", "tenants/acme.yaml", "access/a.cedar"):
        (directory / name).write_text(f"# {name}\n")
    return directory


def told(directory: Path) -> list[str]:
    found = read_files(directory)
    assert isinstance(found, list), found
    return [str(problem) for problem in found]


def test_reads_what_counts_sorted(bundle: Path) -> None:
    (bundle / "README.md").write_text("words")
    (bundle / ".git").mkdir()
    (bundle / "tenants" / ".acme.yaml.swp").write_text("words")
    found = read_files(bundle)
    assert isinstance(found, dict)
    assert list(found) == ["access/a.cedar", "bundle.yaml", "models.yaml", "plans.yaml", "tenants/acme.yaml"]
    assert found["bundle.yaml"] == b"# bundle.yaml\n"


def test_what_does_not_belong_is_told(bundle: Path) -> None:
    for name in ("tenants/birch.yml", "plan.yaml", "access/notes.txt"):
        (bundle / name).write_text("")
    (bundle / "tenant").mkdir()
    (bundle / "tenant" / "coral.yaml").write_text("")
    (bundle / "tenants" / "deep.yaml").mkdir()
    assert told(bundle) == [
        'access/notes.txt:1:1: not part of a bundle; did you mean "access/notes.cedar"?',
        'plan.yaml:1:1: not part of a bundle; did you mean "plans.yaml"?',
        'tenant/coral.yaml:1:1: not part of a bundle; did you mean "tenants/coral.yaml"?',
        'tenants/birch.yml:1:1: not part of a bundle; did you mean "tenants/birch.yaml"?',
        "tenants/deep.yaml:1:1: not a file",
    ]


def test_links_are_followed_inside_and_refused_outside(bundle: Path, tmp_path: Path) -> None:
    # As Kubernetes mounts a ConfigMap: a link to a link to a file, all inside the directory.
    (bundle / "..2026").mkdir()
    (bundle / "..2026" / "birch.yaml").write_text("# birch\n")
    (bundle / "..data").symlink_to("..2026")
    (bundle / "tenants" / "birch.yaml").symlink_to("../..data/birch.yaml")
    found = read_files(bundle)
    assert isinstance(found, dict)
    assert found["tenants/birch.yaml"] == b"# birch\n"
    (tmp_path / "secret.yaml").write_text("secret")
    (bundle / "tenants" / "coral.yaml").symlink_to(tmp_path / "secret.yaml")
    (bundle / "tests").symlink_to(tmp_path)
    (bundle / "tenants" / "dangling.yaml").symlink_to("nowhere.yaml")
    assert told(bundle) == [
        "tenants/coral.yaml:1:1: a link that leaves the bundle",
        "tenants/dangling.yaml:1:1: cannot be read: No such file or directory",
        "tests:1:1: a link that leaves the bundle",
    ]


def test_links_in_a_circle_are_told(bundle: Path) -> None:
    (bundle / "tenants" / "a.yaml").symlink_to("b.yaml")
    (bundle / "tenants" / "b.yaml").symlink_to("a.yaml")
    (bundle / "tests").symlink_to(".")
    found = told(bundle)
    assert found[:2] == [
        "tenants/a.yaml:1:1: cannot be read: Too many levels of symbolic links",
        "tenants/b.yaml:1:1: cannot be read: Too many levels of symbolic links",
    ]
    assert all(line.startswith("tests/") for line in found[2:])
    assert found[2:], "a folder that is the bundle itself"


@pytest.mark.parametrize("name", [b"tenants/\xff.yaml", b"access/a\nb.cedar", b"\xfe", b"tenants/\x1b[2J.yaml"])
def test_a_name_that_cannot_be_printed_is_told(bundle: Path, name: bytes) -> None:
    with open(os.path.join(os.fsencode(bundle), name), "wb"):  # noqa: PTH118, PTH123 — a Path's name is text
        pass
    (words,) = told(bundle)
    assert words.isprintable()
    assert words.endswith("a file's name that can't be printed")


def test_a_file_of_100_mb_is_refused_without_being_read(bundle: Path) -> None:
    with (bundle / "tenants" / "huge.yaml").open("wb") as file:
        file.truncate(100 * 2**20)
    assert told(bundle) == [f"tenants/huge.yaml:1:1: larger than {MAX_FILE_BYTES} bytes"]


def test_bounds_hold(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bundle / "tenants" / "huge.yaml").write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    os.mkfifo(bundle / "tenants" / "pipe.yaml")
    assert told(bundle) == [
        f"tenants/huge.yaml:1:1: larger than {MAX_FILE_BYTES} bytes",
        "tenants/pipe.yaml:1:1: not a file",
    ]
    monkeypatch.setattr(files, "MAX_FILES", 3)
    before = fingerprint(bundle)
    os.utime(bundle / "tenants" / "huge.yaml", (1, 1))
    assert fingerprint(bundle) == before, "polled, so bounded too: the fifth of five files is not looked at"
    os.utime(bundle / "bundle.yaml", (1, 1))
    assert fingerprint(bundle) != before
    assert told(bundle)[-1] == f"plans.yaml:1:1: a bundle holds at most 3 files and {files.MAX_BYTES} bytes"


def test_no_directory(tmp_path: Path) -> None:
    assert load(tmp_path / "none") == [Problem(str(tmp_path / "none"), 1, 1, "", "no such directory")]
    (tmp_path / "file").write_text("")
    assert load(tmp_path / "file") == [Problem(str(tmp_path / "file"), 1, 1, "", "no such directory")]


def test_the_digest_is_of_paths_and_bytes_only(bundle: Path) -> None:
    before, seen = read_files(bundle), fingerprint(bundle)
    for path in bundle.rglob("*"):
        os.utime(path, (1, 1))
        if path.is_file():
            path.chmod(0o600)
    after = read_files(bundle)
    assert isinstance(before, dict)
    assert isinstance(after, dict)
    assert digest(before) == digest(after)
    assert pack(before) == pack(after)
    assert fingerprint(bundle) != seen, "the fingerprint is only a hint to look again"
    assert digest(before).startswith("sha256:")
    assert digest(dict(reversed(before.items()))) == digest(before)


@pytest.mark.parametrize("edit", ["in place", "as another file"])
def test_an_edit_that_keeps_size_and_mtime_is_seen(bundle: Path, edit: str) -> None:
    path = bundle / "plans.yaml"
    before, was = fingerprint(bundle), path.stat()
    written = path if edit == "in place" else bundle / ".plans.yaml"
    while not written.exists() or written.stat().st_ctime_ns == was.st_ctime_ns:  # a tick of the clock at most
        written.write_bytes(b"! plans.yaml\n")
    os.utime(written, ns=(was.st_atime_ns, was.st_mtime_ns))
    written.replace(path)
    now = path.stat()
    assert (now.st_size, now.st_mtime_ns) == (was.st_size, was.st_mtime_ns)
    assert fingerprint(bundle) != before


def test_what_cannot_be_looked_at_is_no_news_each_time(bundle: Path) -> None:
    (bundle / "tenants" / "dangling.yaml").symlink_to("nowhere.yaml")
    assert fingerprint(bundle) == fingerprint(bundle) != fingerprint(bundle / "tenants")
    shutil.rmtree(bundle)
    assert fingerprint(bundle) == fingerprint(bundle)


def test_no_two_sets_of_files_have_one_digest() -> None:
    sets = [{}, {"a": b""}, {"b": b""}, {"a": b"b"}, {"ab": b""}, {"a": b"x", "b": b"y"}, {"a": b"xb 1\ny"}]
    assert len({digest(each) for each in sets}) == len(sets)


def test_packing_can_be_undone() -> None:
    held = {"tenants/" + "n" * 200 + ".yaml": b"x" * 1000, "bundle.yaml": b"", "access/ü.cedar": b"//"}
    assert unpack(pack(held)) == held
