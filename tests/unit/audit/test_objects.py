"""A directory as an object store: durable, whole, and nothing where it is not mounted."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import NoReturn

import pytest

from audit.objects import LocalObjects, Together
from audit.s3 import S3Access, S3Objects


def test_a_directory_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LocalObjects(tmp_path / "unmounted")
    assert not (tmp_path / "unmounted").exists()


def test_an_object_and_every_folder_above_it_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda fd: (synced.append(str(Path(f"/proc/self/fd/{fd}").readlink())), real(fd))[1]
    )
    objects = LocalObjects(tmp_path)
    objects.put("j/s/0-1", b"x")
    under = [str(Path(path).relative_to(tmp_path)) for path in synced]
    assert under == [".", "j", "j/s/.0-1.part", "j/s"]


def test_a_full_volume_leaves_neither_part_nor_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = LocalObjects(tmp_path)
    objects.put("a", b"old")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            objects.put("a", b"new")
    assert objects.get("a") == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_volume_that_went_away_under_its_name_takes_nothing(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    objects._device += 1  # as after an unmount: the directory below is another device's
    for act in (lambda: objects.put("a", b"x"), lambda: objects.get("a"), lambda: list(objects.list())):
        with pytest.raises(OSError, match="no longer the volume"):
            act()
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_a_crash_left_is_no_object(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path)
    objects.put("a/x", b"1")
    (tmp_path / "a" / ".y.part").write_bytes(b"half")
    assert [each.name for each in objects.list()] == ["a/x"]
    assert objects.on_volume_of(tmp_path / "a")


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"access_key_id": "A"}', '{"access_key_id": 1, "secret_access_key": "hush"}', "hush"]
)
def test_credentials_that_are_none_are_named_by_their_file_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "credentials.json"
    path.touch(mode=0o600)
    path.write_text(content)
    with pytest.raises(ValueError, match=r"credentials\.json: not JSON with") as caught:
        S3Objects(S3Access("bucket", credentials=path))
    assert "hush" not in str(caught.value)


def test_credentials_that_others_may_read_and_a_ca_that_is_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "credentials.json"
    path.write_text(json.dumps({"access_key_id": "A", "secret_access_key": "B"}))
    path.chmod(0o644)
    with pytest.raises(OSError, match="mode 0644 lets others use it"):
        S3Objects(S3Access("bucket", credentials=path))
    path.chmod(0o600)
    with pytest.raises(FileNotFoundError):
        S3Objects(S3Access("bucket", credentials=path, ca_file=tmp_path / "none.pem"))
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(ValueError, match=r"."):
        S3Objects(S3Access("bucket", credentials=path, ca_file=tmp_path / "bad.pem"))


class _Silent:
    """Raises whatever it is asked."""

    where = "silent"

    def _ask(self, *_: object) -> NoReturn:
        self.asked += 1
        raise OSError("silent: no answer")

    put = put_new = get = list = delete = _ask

    def __init__(self) -> None:
        self.asked = 0


def test_of_several_stores_one_that_is_away_is_asked_once_and_named(tmp_path: Path) -> None:
    silent, store = _Silent(), LocalObjects(tmp_path)
    store.put("j/a", b"x")
    both = Together([silent, store], {"third": "third: could not be opened"})
    assert [each.name for each in both.list()] == ["j/a"]
    assert (both.get("j/a"), both.get("j/b")) == (b"x", None)
    assert (silent.asked, both.silent) == (1, False)
    assert both.away == {"third": "third: could not be opened", "silent": "silent: no answer"}


def test_what_one_store_lacks_another_gives(tmp_path: Path) -> None:
    stores = [LocalObjects(tmp_path / name) for name in ("a", "b") if not (tmp_path / name).mkdir()]
    stores[0].put("first", b"1")
    stores[1].put("second", b"2")
    both = Together(stores)
    assert [each.name for each in both.list()] == ["first", "second"]
    assert (both.get("first"), both.get("second"), both.away) == (b"1", b"2", {})


def test_where_no_store_answers_nothing_is_taken_for_empty() -> None:
    for none in (Together([_Silent()]), Together([], {"gone": "gone: no answer"})):
        for act in (
            lambda none=none: none.get("a"),
            lambda none=none: [*none.list()],
            lambda none=none: none.delete("a"),
        ):
            with pytest.raises(OSError, match="no answer"):
                act()
        assert none.silent
