"""National identity, tax and insurance numbers, by shape and check digits; weak ones only beside their name."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, NamedTuple

__all__ = ["NATIONAL", "national_ids"]

CONTEXT: Final = 48  # characters before a number in which its name must stand
BEHIND: Final = 2  # characters behind a number that tell whether it is one


class National(NamedTuple):
    """``names``: what must stand before a number whose shape alone says too little ("": nothing need)."""

    country: str
    shape: str
    number: str  # module of stdnum that checks it; "" where only the shape can
    names: str = ""


_TAX: Final = r"steuer|\bidnr|tax id|\btin\b"
NATIONAL: Final[tuple[National, ...]] = (
    National("US", r"\d{3}-\d{2}-\d{4}", "us.ssn"),
    National("US", r"9\d{2}-\d{2}-\d{4}", "us.itin"),
    National("US", r"\d{3} ?\d{2} ?\d{4}", "us.ssn", r"\bssn\b|social security"),
    # A NINO has no check digit; which letters it may begin with is HMRC's NIM39110.
    National("GB", r"(?!BG|GB|NK|KN|TN|NT|ZZ)[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?\d{2} ?\d{2} ?\d{2} ?[A-D]", ""),
    National("GB", r"\d{3}[ -]?\d{3}[ -]?\d{4}", "gb.nhs", r"\bnhs\b"),
    National("DE", r"\d{2} ?\d{3} ?\d{3} ?\d{3}", "de.idnr", _TAX),
    National("FR", r"[12] ?\d{2} ?\d{2} ?\d[\dAB] ?\d{3} ?\d{3} ?\d{2}", "fr.nir"),
    National("ES", r"\d{8}-?[A-Za-z]", "es.dni"),
    National("ES", r"[XYZxyz]-?\d{7}-?[A-Za-z]", "es.nie"),
    National("IT", r"[A-Za-z]{6}\d[\dA-Za-z][A-Za-z]\d[\dA-Za-z][A-Za-z]\d[\dA-Za-z]{2}[A-Za-z]", "it.codicefiscale"),
    National("PL", r"\d{11}", "pl.pesel", r"pesel"),
    National("NL", r"\d{4}[. ]?\d{2}[. ]?\d{3}", "nl.bsn", r"\bbsn\b|burgerservice|sofi"),
    National("CH", r"756\.?\d{4}\.?\d{4}\.?\d{2}", "ch.ssn"),
    National("BE", r"\d{2}\.?\d{2}\.?\d{2}[- ]?\d{3}[. ]?\d{2}", "be.nn"),
    National("SE", r"(?:\d{2})?\d{6}[-+]\d{4}", "se.personnummer"),
    National("DK", r"\d{6}-\d{4}", "dk.cpr"),
    National("FI", r"\d{6}[-+A-FU-Y]\d{3}[0-9A-FHJ-NPR-Y]", "fi.hetu"),
    National("NO", r"\d{6} ?\d{5}", "no.fodselsnummer"),
    National("AT", r"\d{4} ?\d{6}", "at.vnr", r"svnr|sozialversicherung|versicherungsnummer"),
    National("PT", r"\d{3} ?\d{3} ?\d{3}", "pt.nif", r"\bnif\b|contribuinte"),
    National("BR", r"\d{3}\.\d{3}\.\d{3}-\d{2}", "br.cpf"),
    National("BR", r"\d{11}", "br.cpf", r"\bcpf\b"),
    National("IN", r"\d{4} \d{4} \d{4}", "in_.aadhaar"),
    National("IN", r"\d{12}", "in_.aadhaar", r"aadhaar|आधार"),
    National("CZ", r"\d{6}/\d{3,4}", "cz.rc"),
    National("RO", r"[1-9]\d{12}", "ro.cnp"),
    National("BG", r"\d{10}", "bg.egn", r"егн|\begn\b"),
    National("HR", r"\d{11}", "hr.oib", r"\boib\b"),
    National("IE", r"\d{7}[A-Wa-w][A-IWa-iw]?", "ie.pps"),
    National("CA", r"\d{3}[ -]?\d{3}[ -]?\d{3}", "ca.sin", r"\bsin\b|social insurance|assurance sociale"),
    National("AU", r"\d{3} ?\d{3} ?\d{3}", "au.tfn", r"\btfn\b|tax file"),
    National("GR", r"\d{11}", "gr.amka", r"αμκα|\bamka\b"),
)


_END: Final = r"(?![\w]|[.-]\d)"
# Where any of them may begin: one pass instead of thirty. Each start is looked at by itself, since they may overlap.
# Most places where digits stand are told from it by the first look ahead alone: what begins with one has six of them.
_SOON: Final = r"[A-Za-z]{1,6}[ -]?\d|\d(?:[ .+/-]?\d){5}"
_SHAPES: Final = "|".join(row.shape for row in NATIONAL)
_BEGINS: Final = re.compile(rf"(?<![\w.])(?={_SOON})(?=(?:{_SHAPES}){_END})")
# All of them at one place, each in the group of its number.
_ALL: Final = re.compile("".join(rf"(?:(?=({row.shape}{_END}))|)" for row in NATIONAL))


class _Check(NamedTuple):
    valid: Callable[[str], bool]
    names: re.Pattern[str] | None


@cache
def _checks() -> tuple[_Check, ...]:
    """Made at the first use: thirty small modules need not be loaded where nobody redacts."""
    return tuple(
        _Check(
            importlib.import_module(f"stdnum.{row.number}").is_valid if row.number else bool,
            re.compile(row.names, re.IGNORECASE) if row.names else None,
        )
        for row in NATIONAL
    )


# Where digits stand close enough to be such a number, with what may be a part of it before and after.
_DIGITS: Final = re.compile(r"\d(?:\D{0,3}\d){4,}")
_BEFORE, _AFTER = 8, 4


def national_ids(text: str, begin: int = 0, new: int = 0) -> Iterator[tuple[int, int]]:
    """Start and end of each number in ``text`` that some country would have given out.

    ``begin`` and ``new`` are as in ``audit.identifiers.find``.
    """
    for digits in _DIGITS.finditer(text, begin):
        first, last = max(begin, digits.start() - _BEFORE), digits.end() + _AFTER
        for start in _BEGINS.finditer(text, first, last):
            yield from _numbers(text, start.start(), last, new)


def _numbers(text: str, at: int, last: int, new: int) -> Iterator[tuple[int, int]]:
    """Those that begin ``at`` that place."""
    found = _ALL.match(text, at, last)
    for check, number in zip(_checks(), found.groups() if found is not None else (), strict=False):
        if number is None or at + len(number) + BEHIND < new:
            continue
        near = check.names is None or check.names.search(text, max(0, at - CONTEXT), at)
        if near and check.valid(number):
            yield at, at + len(number)
