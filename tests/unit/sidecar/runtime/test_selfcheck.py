"""Looking at Triton: what the host shows of it, what is told once, and what the bundle says of who shares."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from sidecar.runtime import selfcheck
from sidecar.runtime.selfcheck import SelfCheck, flags_of, local_addresses, stated
from sidecar.runtime.settings import load
from sidecar.triton.selfcheck import SEVERITY, Cache, FindingName, Seen, Stated
from tests.support import config
from tests.support.policy import demo_bundle

FIB_TRIE = """\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.5
           /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
  |-- 127.0.0.1
     /32 host LOCAL
Local:
        |-- 10.0.0.5
           /32 host LOCAL
"""
IF_INET6 = """\
00000000000000000000000000000001 01 80 10 80       lo
fe800000000000000042acfffe110002 02 40 20 80     eth0
20010db8000000000000000000000001 02 40 00 80     eth0
"""


def test_this_hosts_addresses_but_loopback_and_link_local() -> None:
    assert local_addresses(FIB_TRIE, IF_INET6) == ["10.0.0.5", "2001:db8::1"]
    assert local_addresses("", "") == []


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["/opt/tritonserver/bin/tritonserver"], {}),
        (["tritonserver", "--grpc-port=9001", "--reuse-grpc-port"], {"grpc-port": ("9001",), "reuse-grpc-port": ("",)}),
        (["tritonserver", "--grpc-port", "9001", "--x", "-1"], {"grpc-port": ("9001",), "x": ("",)}),
        (
            ["tritonserver", "--trace-config=mode=triton", "--trace-config=rate=0"],
            {"trace-config": ("mode=triton", "rate=0")},
        ),
        (["python", "tritonserver"], None),
        ([""], None),
    ],
)
def test_a_command_line_is_read(words: list[str], flags: dict[str, tuple[str, ...]] | None) -> None:
    assert flags_of(b"\0".join(word.encode() for word in words) + b"\0") == flags


def test_it_looks_until_triton_answers_and_tells_each_finding_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    seen: list[Seen | None] = [
        None,
        Seen(version="2.60", flags={}),
        Seen(version="2.60", flags={}),
        Seen(version="2.70", flags={}),
    ]
    check = SelfCheck(lambda: seen.pop(0), Stated)
    assert not check.look()
    assert (check.findings, check.summary, check.reading()) == (None, "Triton was not looked at yet", None)
    assert check.look()
    assert check.summary == "1 warning"
    assert check.look()
    assert [record.getMessage() for record in caplog.records] == ["selfcheck.finding"]
    reading = check.reading()
    assert reading is not None
    assert {labels for labels, value in reading.items() if value} == {("version-old", "warning")}
    assert len(reading) == len(SEVERITY)
    assert check.look()
    assert check.summary == "nothing amiss"
    assert [record.getMessage() for record in caplog.records] == ["selfcheck.finding", "selfcheck.mended"]


def test_a_crash_of_one_look_does_not_end_the_looking(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []

    def gather() -> Seen | None:
        looked.append(1)
        if len(looked) == 1:
            raise RuntimeError("a bug")
        return Seen(flags={})

    monkeypatch.setattr(selfcheck, "SOON", 0.001)
    monkeypatch.setattr(selfcheck, "EVERY", 0.001)
    check = SelfCheck(gather, Stated)
    check.start()
    while check.findings is None:
        os.sched_yield()
    check.stop()
    assert not check._thread.is_alive()


def test_what_the_bundle_says(tmp_path: Path) -> None:
    said = stated(demo_bundle(), load(config.write(tmp_path)))
    assert said.callers["chat"] == ["acme", "birch", "cobalt"]  # not dormant, which is suspended
    assert said.caches["chat"] == Cache(enabled=True, trusted=False)
    assert said.canaries["embed"].version == "2"
    assert (said.secret, said.traced) == (False, False)


def test_an_engines_own_word_on_prefix_caching(tmp_path: Path) -> None:
    for model, versions in {
        "on": [True],
        "off": [False],
        "both": [False, True],
        "silent": [None],
        "bad": ["yes"],
    }.items():
        for version, value in enumerate(versions, 1):
            place = tmp_path / model / str(version)
            place.mkdir(parents=True)
            document = {} if value is None else {"enable_prefix_caching": value}
            (place / "model.json").write_text(json.dumps(document))
    (tmp_path / "bad" / "2").mkdir()
    (tmp_path / "bad" / "2" / "model.json").write_text("{")
    models = ["on", "off", "both", "silent", "bad", "absent"]
    assert selfcheck._engines([tmp_path], models) == {"on": True, "off": False, "both": True}


def test_a_name_that_is_no_loopback() -> None:
    assert selfcheck._is_loopback("127.0.0.1")
    assert selfcheck._is_loopback("::1")
    assert not selfcheck._is_loopback("10.0.0.1")
    assert FindingName.ELSEWHERE in SEVERITY
