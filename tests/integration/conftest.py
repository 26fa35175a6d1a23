"""What every integration test may ask for."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from tests.support.kms import kms, kms_server
from tests.support.openbao import openbao
from tests.support.postgres import dsn, postgres
from tests.support.s3 import s3
from tests.support.stack import SESSION, otlp, triton

__all__ = ["dsn", "kms", "kms_server", "openbao", "otlp", "postgres", "s3", "triton"]


def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test again where Triton itself died, or hung for good, under it: twice at most, and leave a living one.

    Triton 2.51's gRPC server aborts now and then when a cancel races a stream's end ("ASSERTION FAILED: prior > 0",
    "double free"; facts/triton.md §6: fixed in 25.06, CVE-2025-23322). Either is not what the test was about, but every
    test after it would fail too.
    """
    if not SESSION:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    for _ in range(3):
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
        if not any(report.failed for report in reports) or not SESSION or SESSION[0].well:
            break
        item.user_properties.append(("again", SESSION[0].last_words))
        SESSION[0].revive()
        _forget_failed_setups(item)
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


def _forget_failed_setups(item: pytest.Item) -> None:
    """Else what a module's or the session's fixture met of the dead Triton would fail every test that asks for it."""
    for definitions in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]  # pytest has no name for it
        for each in definitions:
            if each.cached_result is not None and each.cached_result[2] is not None:
                each.finish(_Asks(item))


class _Asks(NamedTuple):
    """As much of a request as a fixture's end asks for."""

    node: pytest.Item
