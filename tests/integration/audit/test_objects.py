"""What is promised of an object store holds of a directory and of a real S3 server alike."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

import pytest

from audit.objects import LocalObjects, ObjectStore
from audit.s3 import S3Access, S3Objects
from tests.support.s3 import BUCKET, S3Server
from tests.support.stack import eventually

pytestmark = pytest.mark.integration


@pytest.fixture(params=["directory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return LocalObjects(tmp_path)
    server: S3Server = request.getfixturevalue("s3")
    return server.objects(f"{tmp_path.name}/nested")


def names(objects: ObjectStore, prefix: str = "") -> list[tuple[str, int]]:
    return [(each.name, each.nbytes) for each in objects.list(prefix)]


def test_objects_are_put_whole_found_by_folder_and_deleted(objects: ObjectStore) -> None:
    before = time.time()
    assert names(objects) == []
    assert objects.get("a/x") is None
    large = os.urandom(9 * 2**20)
    for name, data in {"a/y": b"two", "a/x": b"one", "ab/x": b"", "top": large}.items():
        objects.put(name, data)
    assert names(objects) == [("a/x", 3), ("a/y", 3), ("ab/x", 0), ("top", len(large))]
    assert names(objects, "a") == [("a/x", 3), ("a/y", 3)]
    assert names(objects, "none") == []
    assert objects.get("top") == large
    objects.put("a/x", b"other")
    assert objects.get("a/x") == b"other"
    objects.delete("a/x")
    objects.delete("a/x")
    assert names(objects, "a") == [("a/y", 3)]
    assert all(abs(each.at - before) < 120 for each in objects.list())


def test_what_is_new_is_never_written_over_what_is_there(objects: ObjectStore) -> None:
    assert objects.put_new("heads/a", b"first")
    assert not objects.put_new("heads/a", b"second")
    assert objects.get("heads/a") == b"first"
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda n: objects.put_new("heads/b", b"%d" % n), range(8)))
    assert objects.get("heads/b") == b"%d" % won.index(True)
    assert won.count(True) == 1
    assert names(objects, "heads") == [("heads/a", 5), ("heads/b", 1)]


@pytest.mark.parametrize("name", ["", "/a", "../a", "a/../../b", "a//b", ".hidden", "a/", "a\0b", "a" * 200, "ä"])
def test_no_name_leads_elsewhere(objects: ObjectStore, name: str) -> None:
    for act in (lambda: objects.put(name, b""), lambda: objects.get(name), lambda: objects.delete(name)):
        with pytest.raises(ValueError, match="no object's name"):
            act()


def test_more_objects_than_one_answer_lists_are_all_listed(s3: S3Server, tmp_path: Path) -> None:
    objects = s3.objects(tmp_path.name)
    wanted = [(f"many/{n:04}", 1) for n in range(1100)]  # an answer lists 1,000 at most
    for name, _ in wanted:
        objects.put(name, b"x")
    assert names(objects, "many") == wanted


def test_a_wrong_secret_and_a_missing_server_say_what_and_where(s3: S3Server, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.touch(mode=0o600)
    wrong.write_text(json.dumps({"access_key_id": "warden-test", "secret_access_key": "not it"}))
    objects = S3Objects(S3Access(BUCKET, "x", endpoint=s3.endpoint, credentials=wrong, deadline_s=10))
    with pytest.raises(OSError, match=f"s3://{BUCKET}/x at http://127.*: put a: .*SignatureDoesNotMatch") as caught:
        objects.put("a", b"x")
    assert "not it" not in str(caught.value)
    assert "not it" not in repr(objects)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        gone = S3Objects(S3Access(BUCKET, endpoint=endpoint, credentials=wrong, deadline_s=1))
        calls: list[Callable[[], object]] = [
            lambda: gone.put("a", b"x"), lambda: gone.get("a"), lambda: gone.delete("a"), lambda: list(gone.list()),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(OSError, match="s3://"):
                call()


def test_credentials_that_are_rotated_in_are_read_again(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.s3._RENEW", timedelta(seconds=-1))  # over at once
    path = tmp_path / "rotated.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps({"access_key_id": "warden-test", "secret_access_key": "old"}))
    objects = S3Objects(S3Access(BUCKET, tmp_path.name, endpoint=s3.endpoint, credentials=path, deadline_s=10))
    with pytest.raises(OSError, match="SignatureDoesNotMatch"):
        objects.put("a", b"x")
    path.write_text(s3.credentials.read_text())
    objects.put("a", b"x")
    assert objects.get("a") == b"x"


def test_a_server_that_hangs_ends_the_call_within_its_deadline(s3: S3Server, tmp_path: Path) -> None:
    objects = s3.objects(tmp_path.name, deadline_s=1)
    s3.hang()
    try:
        for act in (lambda: objects.put("a", b"x"), lambda: objects.get("a"), lambda: list(objects.list())):
            began = time.monotonic()
            with pytest.raises(OSError, match="s3://"):
                act()
            assert time.monotonic() - began < 30  # a bound, not a measure: without a deadline it would be for ever
    finally:
        s3.go_on()
    eventually(lambda: _puts(objects), what="the server to take objects again")


def _puts(objects: ObjectStore) -> bool:
    try:
        objects.put("a", b"x")
    except OSError:
        return False
    return objects.get("a") == b"x"
