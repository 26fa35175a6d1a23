"""Which weights answer: by the files' bytes, computed once until they change, and never guessed."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from sidecar.runtime import digests
from sidecar.runtime.digests import ModelDigests, digest_directory


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    version = tmp_path / "models" / "chat" / "1"
    (version / "deep").mkdir(parents=True)
    (version / "model.py").write_bytes(b"code")
    (version / "deep" / "weights").write_bytes(b"w" * 3_000_000)
    (tmp_path / "models" / "chat" / "config.pbtxt").write_text("name: 'chat'")
    return tmp_path / "models"


def looked(*repositories: Path) -> ModelDigests:
    found = ModelDigests(repositories)
    found.look()
    return found


def test_it_is_over_paths_and_bytes_as_documented(repository: Path) -> None:
    whole = hashlib.sha256()
    for path, data in ((b"deep/weights", b"w" * 3_000_000), (b"model.py", b"code")):
        whole.update(b"%d %s %d\n" % (len(path), path, len(data)) + data)
    expected = f"sha256:{whole.hexdigest()}"
    assert digest_directory(repository / "chat" / "1") == expected
    assert looked(repository).of("chat", "1") == expected


def test_only_versions_have_one(repository: Path) -> None:
    for name in ("0", "01", "x", "1a"):
        (repository / "chat" / name).mkdir()
    (repository / "chat" / "2").mkdir()
    found = looked(repository)
    assert set(found.digests) == {("chat", "1"), ("chat", "2")}
    assert found.of("chat", "3") == ""
    assert found.of("other", "1") == ""


def test_nothing_is_read_twice_until_it_changes(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = looked(repository)
    first = found.of("chat", "1")
    with monkeypatch.context() as patch:
        patch.setattr(digests, "_digest", lambda *_: pytest.fail("read again"))
        found.look()
    assert found.changed == frozenset()
    weights = repository / "chat" / "1" / "deep" / "weights"
    weights.write_bytes(b"v" * 3_000_000)
    found.look()
    assert found.of("chat", "1") != first
    assert found.changed == {("chat", "1")}
    weights.write_bytes(b"w" * 3_000_000)
    found.look()
    assert found.of("chat", "1") == first
    assert found.changed == frozenset()


def test_a_link_to_weights_elsewhere_is_followed(repository: Path, tmp_path: Path) -> None:
    blob = tmp_path / "blob"
    blob.write_bytes(b"one")
    (repository / "chat" / "1" / "linked").symlink_to(blob)
    found = looked(repository)
    first = found.of("chat", "1")
    blob.write_bytes(b"two!")
    found.look()
    assert found.of("chat", "1") not in ("", first)


@pytest.mark.parametrize("fault", ["dangling", "circle", "many"])
def test_what_cannot_be_read_whole_has_none(
    repository: Path, fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    version = repository / "chat" / "1"
    match fault:
        case "dangling":
            (version / "gone").symlink_to("/no/such/file")
        case "circle":
            (version / "round").symlink_to(version, target_is_directory=True)
        case _:
            monkeypatch.setattr(digests, "FILES_MAX", 1)
    found = looked(repository)
    assert found.of("chat", "1") == ""
    found.look()
    assert [record.message for record in caplog.records] == ["digest.unknown"], "once, not at every look"


def test_files_that_change_under_the_reader_have_none_until_they_rest(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, weights = digests._digest, repository / "chat" / "1" / "model.py"

    def disturbed(directory: Path, files: digests._Print) -> str:
        weights.write_bytes(os.urandom(8))
        return real(directory, files)

    found = ModelDigests([repository])
    with monkeypatch.context() as patch:
        patch.setattr(digests, "_digest", disturbed)
        found.look()
    assert found.of("chat", "1") == ""
    found.look()
    assert found.of("chat", "1") == digest_directory(repository / "chat" / "1")


def test_a_repository_that_is_not_there_is_told_and_the_others_are_read(
    repository: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = looked(tmp_path / "none", repository)
    assert found.of("chat", "1")
    assert [record.message for record in caplog.records] == ["digest.unknown"]


def test_a_version_that_goes_is_forgotten(repository: Path) -> None:
    found = looked(repository)
    (repository / "chat" / "1").rename(repository / "chat" / "2")
    found.look()
    assert set(found.digests) == {("chat", "2")}
    assert found.changed == frozenset()


def test_what_loading_leaves_behind_does_not_count(repository: Path) -> None:
    before = looked(repository).of("chat", "1")
    cache = repository / "chat" / "1" / "__pycache__"
    cache.mkdir()
    (cache / "model.pyc").write_bytes(b"compiled")
    assert looked(repository).of("chat", "1") == before
