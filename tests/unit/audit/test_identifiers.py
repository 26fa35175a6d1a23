"""audit.identifiers and audit.national: what is found, and what only looks like it."""

from __future__ import annotations

import pytest

from audit.identifiers import _UNSEEN, CLASSES, find, plain, seen
from audit.national import NATIONAL


def found(text: str, kind: str, *regions: str) -> list[str]:
    return [text[span.start : span.end] for span in find(plain(text), kind, regions)]


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("mail jörg.müller+x@exämple.de, now", "email", ["jörg.müller+x@exämple.de"]),
        ("(a.b@c.co.uk).", "email", ["a.b@c.co.uk"]),
        ("<mailto:x_y@sub.example.museum>", "email", ["x_y@sub.example.museum"]),
        ("邮箱 wang@例子.中国。", "email", ["wang@例子.中国"]),
        ("one@two@three.com", "email", ["two@three.com"]),
        ("@home and user@localhost and 5 @ 3.50", "email", []),
        ("DE89 3704 0044 0532 0130 00 and", "iban", ["DE89 3704 0044 0532 0130 00"]),
        ("iban:gb29nwbk60161331926819.", "iban", ["gb29nwbk60161331926819"]),
        ("FR14\u00a02004\u00a01010\u00a00505\u00a00001\u00a03M02\u00a0606", "iban",
         ["FR14\u00a02004\u00a01010\u00a00505\u00a00001\u00a03M02\u00a0606"]),
        ("DE88 3704 0044 0532 0130 00", "iban", []),  # check digits
        ("DE89 3704 0044 0532 0130", "iban", []),  # too short
        ("XX89370400440532013000", "iban", []),  # no such country
        ("4111 1111 1111 1111, 12", "card", ["4111 1111 1111 1111"]),
        ("12 4111-1111-1111-1111", "card", ["4111-1111-1111-1111"]),
        ("378282246310005", "card", ["378282246310005"]),
        ("4111 1111 1111 1112", "card", []),  # Luhn
        ("order 1234567890123452", "card", []),  # Luhn holds, no such issuer
        ("0000 0000 0000 0000", "card", []),
        ("４１１１１１１１１１１１１１１１", "card", ["４１１１１１１１１１１１１１１１"]),
        ("from 10.1.2.3:80 to 2001:db8::1", "ip", ["10.1.2.3", "2001:db8::1"]),
        ("at 12:30:45, version 1.2.3.4.5, 999.1.1.1, ::", "ip", []),
        ("SSN 536-90-4399", "national_id", ["536-90-4399"]),
        ("536904399", "national_id", []),  # nine digits are many things
        ("his social security number: 536904399", "national_id", ["536904399"]),
        ("000-12-3456", "national_id", []),
        ("NINO AB 12 34 56 C", "national_id", ["AB 12 34 56 C"]),
        ("GB 12 34 56 C", "national_id", []),
        ("756.9217.0769.85", "national_id", ["756.9217.0769.85"]),
        ("756.9217.0769.84", "national_id", []),
        ("390.533.447-05 / 390.533.447-06", "national_id", ["390.533.447-05"]),
        ("RCCMNL83S18D969H", "national_id", ["RCCMNL83S18D969H"]),
        ("Steuer-ID 36 574 261 809", "national_id", ["36 574 261 809"]),
        ("36574261809 Stück", "national_id", []),
        ("PESEL: 44051401359", "national_id", ["44051401359"]),
        ("call +49 30 901820.", "phone", ["+49 30 901820"]),
        ("call 030 901820.", "phone", []),  # of no country that was named
    ],
)  # fmt: skip
def test_what_is_found(text: str, kind: str, expected: list[str]) -> None:
    assert found(text, kind) == expected


def test_phones_are_read_as_the_named_countries_write_them() -> None:
    assert found("Ruf 030/901820 an, or (212) 555-2368", "phone", "DE", "US") == ["030/901820", "(212) 555-2368"]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_class_finds_nothing_in_nothing(kind: str) -> None:
    assert found("", kind, "DE") == []
    assert found("\udcff\x00 ordinary words, 3.50 € on 2026-11-30", kind, "DE") == []


def test_offsets_stay_where_characters_are_read_as_others() -> None:
    text = "a\u00a0b\u2011c４ｄ\U0001d7d8"
    assert len(plain(text)) == len(text)
    assert plain(text) == "a b-c4d0"


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("pay 4111 1111 11\u200b11 1111 now", "card", "4111 1111 11\u200b11 1111"),
        ("pay 41\u00ad11111111111111 now", "card", "41\u00ad11111111111111"),
        ("4\u03331\u03331\u03331\u0333 1111 1111 1111", "card", "4\u03331\u03331\u03331\u0333 1111 1111 1111"),
        ("mail jo\u0301hn@exam\u2060ple.com.", "email", "jo\u0301hn@exam\u2060ple.com"),
        ("mail mu\u0308ller@example.de", "email", "mu\u0308ller@example.de"),
        ("DE89\ufeff370400440532013000", "iban", "DE89\ufeff370400440532013000"),
        ("\u202a+49\u00a030\u200e901820\u202c", "phone", "+49\u00a030\u200e901820\u202c"),
        ("at 10.1\u200d.2.3", "ip", "10.1\u200d.2.3"),
    ],
)
def test_what_nobody_sees_hides_nothing(text: str, kind: str, told: str) -> None:
    assert found(text, kind) == [told]


def test_what_nobody_sees_is_the_same_in_characters_and_in_bytes() -> None:
    for point in (*range(0xD800), *range(0xE000, 0x30000), *range(0xE0000, 0xE2000)):
        char = chr(point)
        assert (seen(char.encode()) == b"") == (_UNSEEN.fullmatch(char) is not None), hex(point)


def test_each_row_of_the_table_names_a_check_that_exists() -> None:
    assert len(NATIONAL) >= 30
    assert found("x", "national_id") == []  # imports every check
