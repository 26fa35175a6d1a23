"""``audit.journal.copy``: one place, in the jurisdiction, that can be opened; else a word on what and where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from audit.objects import LocalObjects
from audit.s3 import S3Objects
from sidecar.runtime.copy_settings import CopyError, CopySection, copy_to, store_of


def section(**given: Any) -> CopySection:
    return CopySection.model_validate({"jurisdiction": "EU", **given})


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"directory": "/mnt", "s3": {"bucket": "abc"}},
        {"s3": {"bucket": "No_Bucket"}},
        {"s3": {"bucket": "abc", "endpoint": "http://s3.example.com"}},  # secrets sign what goes there
        {"s3": {"bucket": "abc", "endpoint": "https://s3.example.com/path"}},
        {"s3": {"bucket": "abc", "endpoint": "s3.example.com"}},
        {"s3": {"bucket": "abc", "prefix": "/eu"}},
        {"s3": {"bucket": "abc", "prefix": "../eu"}},
        {"s3": {"bucket": "abc", "secret_access_key": "hush"}},  # secrets are in files
        {"directory": "/mnt", "deadline": "0s"},
        {"directory": "/mnt", "jurisdiction": ""},
        {"directory": "/mnt", "bucket": "abc"},
    ],
)
def test_what_names_no_place_or_two_is_an_error(given: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        section(**given)


def test_a_directory_and_a_bucket_are_opened_without_a_question_to_anybody(tmp_path: Path) -> None:
    credentials = tmp_path / "s3.json"
    credentials.touch(mode=0o600)
    credentials.write_text(json.dumps({"access_key_id": "a", "secret_access_key": "b"}))
    assert isinstance(store_of(section(directory=tmp_path)), LocalObjects)
    s3 = {"bucket": "abc", "prefix": "eu/pods", "endpoint": "http://[::1]:1", "credentials_file": credentials}
    opened = store_of(section(s3=s3))
    assert isinstance(opened, S3Objects)
    assert opened.where == "s3://abc/eu/pods at http://[::1]:1"
    to = copy_to(section(directory=tmp_path, deadline="2s", every="500ms", same_volume=True), tmp_path / "journal")
    assert to is not None
    assert (to.deadline_s, to.every_s) == (2.0, 0.5)


@pytest.mark.parametrize("given", [{"directory": "gone"}, {"s3": {"bucket": "abc", "credentials_file": "gone"}}])
def test_what_cannot_be_opened_is_named(tmp_path: Path, given: dict[str, Any]) -> None:
    words = json.loads(json.dumps(given).replace('"gone"', json.dumps(str(tmp_path / "gone"))))
    with pytest.raises(CopyError, match=r"audit\.journal\.copy: .*gone.*No such file"):
        store_of(section(**words))


def test_a_directory_on_the_journals_own_volume_is_refused_unless_it_is_meant(tmp_path: Path) -> None:
    """Whatever of the journal's own directory is there yet."""
    for journal in (tmp_path / "not" / "yet" / "there", tmp_path):
        with pytest.raises(CopyError, match="lies on the journal's own volume, and would be lost with it"):
            copy_to(section(directory=tmp_path), journal)
    assert copy_to(section(directory=tmp_path), Path("/proc")).store.where == str(tmp_path)
