"""Keys are found wherever they stand in a text, and nothing that only looks like one."""

from __future__ import annotations

import json

from sidecar.identity import keys, leaks
from tests.support.identity import seeded

KEY, OTHER = (keys.generate("live", seeded(number)).text() for number in (1, 2))


def found(text: str | bytes) -> list[str]:
    return [key.text() for key in leaks.find(text.encode() if isinstance(text, str) else text)]


def test_a_key_is_found_wherever_it_stands() -> None:
    report = json.dumps([{"token": KEY, "type": "warden", "url": "https://git.example/x", "source": "content"}])
    for text in (KEY, f"export KEY={KEY}\n", f'"{KEY}"', f"x-api-key:{KEY}", report, f"é{KEY}é", f"a_{KEY}", f"{KEY}."):
        assert found(text) == [KEY], text
    assert found(b"\xff\x00" + KEY.encode() + b"\x00\xff") == [KEY]


def test_each_once_in_their_order() -> None:
    assert found(f"{OTHER} {KEY}\n{OTHER}") == [OTHER, KEY]


def test_what_only_looks_like_one_is_none() -> None:
    wrong = KEY[:-1] + ("0" if KEY[-1] != "0" else "1")
    for text in (
        "",
        "wdn_",
        KEY[:-1],
        KEY + "0",
        wrong,
        KEY.upper(),
        KEY.replace("_", "-"),
        KEY[:20] + "\n" + KEY[20:],
    ):
        assert found(text) == [], text


def test_no_more_are_found_than_the_bound() -> None:
    many = "\n".join(keys.generate("live", seeded(number)).text() for number in range(leaks.MAX_FOUND + 5))
    assert len(found(many)) == leaks.MAX_FOUND


def test_a_text_made_to_be_slow_is_read_in_one_pass() -> None:
    assert found("wdn_live_" * 100_000) == []
    assert found("wdn_" + "a" * 1_000_000) == []
