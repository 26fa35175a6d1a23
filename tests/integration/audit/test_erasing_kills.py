"""audit.erasing and audit.retain, killed wherever they commit or touch a key: no certificate says too much, ever."""

from __future__ import annotations

import itertools
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg

from audit import retain as retaining
from audit import store
from audit.erasing import Officer
from audit.filekeys import FileKeys
from audit.keys import Survivors
from audit.opening import Opener
from audit.retain import retain
from tests.integration.audit.test_erasing import COPIES, Desk, as_officer, confirming, erasing_alice, officer
from tests.integration.audit.test_verify import check
from tests.support.postgres import Server, query
from tests.support.store import completed, keys_in, signer_of

SUBJECTS = 24
NOW = datetime.now(UTC)
_ids = (f"kill-{os.getpid()}-{n}" for n in itertools.count())


@pytest.fixture
def desk(dsn: str, tmp_path: Path) -> Desk:
    """One call of each of many, one of nobody, and a day that is over."""
    made = Desk(dsn, tmp_path)
    for n in range(SUBJECTS):
        made.journal.append(*completed(call_id=f"c{n}", subject=f"s{n}"))
    made.journal.append(*completed(call_id="n", subject=""))
    made.journal.append(*completed(NOW - timedelta(days=10), call_id="old", subject="old", retention_days=5))
    made.ship(SUBJECTS + 2)
    return made


def killed_at(n: int, act: Callable[[], Any]) -> bool:
    """Run ``act`` in a child that is killed at its n-th step (from 0); whether it came so far."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forking beside threads: the child uses none of them
        child = os.fork()
    if child == 0:
        status = 1
        try:
            _step_by_step(n)
            act()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def _step_by_step(n: int) -> None:
    """Before and after each commit, each detaching, each change of a key, and each fsync within one is a step."""
    steps = itertools.count()

    def around(where: Any, name: str) -> None:
        inner = getattr(where, name)

        def outer(*args: Any, **options: Any) -> Any:
            if next(steps) == n:
                os.kill(os.getpid(), signal.SIGKILL)
            found = inner(*args, **options)
            if next(steps) == n:
                os.kill(os.getpid(), signal.SIGKILL)
            return found

        setattr(where, name, outer)

    around(PGDialect_psycopg, "do_commit")
    around(retaining, "_detach")
    around(os, "fsync")
    for where, name in ((FileKeys, "rotate"), (FileKeys, "destroy"), (Survivors, "keep")):
        around(where, name)


def steps(most: int = 200) -> Iterator[int]:
    """Bounded: an act that has more of them is another than was meant."""
    yield from range(most)
    raise AssertionError("it does not come to its end")


def certificates(desk: Desk) -> dict[str, str]:
    rows = query(desk.dsn, "SELECT id, erased_at IS NOT NULL, done_at IS NOT NULL FROM warden.erasures")
    return {name: "done" if done else "pending" if erased else "requested" for name, erased, done in rows}


@pytest.mark.parametrize("people", [1, 2])
def test_an_erasure_that_is_killed_anywhere_happened_or_did_not(desk: Desk, people: int) -> None:
    """Of two people's, the second one's confirmation is; of one's, the whole."""
    ada, bob = as_officer(desk, "ada"), as_officer(desk, "bob")
    for n in steps():
        subject, call, name = f"s{n}", f"c{n}", f"e{n}"
        assert n < SUBJECTS
        before, asked = desk.opened(), None
        if people == 2:
            asked = ada.erase(subject, two_people=True, name=name).state
            assert asked == "requested"
            act = partial(bob.act, confirming, name=name)
        else:
            act = partial(desk.act, erasing_alice, name=name, subject=subject)
        killed = killed_at(n, act)
        after, told = desk.opened(), certificates(desk).get(name)
        assert after == before | ({call: "erased"} if told == "pending" else {}), (n, told)
        if told == asked:
            assert after[call] == subject
            act()
            assert desk.opened() == before | {call: "erased"}
        if not killed:
            break
    desk.ship(0)
    assert check(desk.dsn, desk.directory / "anchor").faults == []


def test_retention_that_is_killed_anywhere_goes_on_and_says_done_only_where_it_is(desk: Desk) -> None:
    at = NOW + COPIES + timedelta(hours=1)

    def run() -> None:
        engine = store.connect(desk.dsn, application="test")
        retain(
            engine,
            Opener(keys_in(desk.directory)),
            Officer("cli:ada", at, _ids, "r"),
            copies=COPIES,
            signer_of=signer_of,
        )
        engine.dispose()

    for name in ("s0", "s1"):
        desk.act(erasing_alice, name=name, subject=name)
    whole = desk.opened()
    for _ in range(3):  # erasures and keys; the record of the drop; the drop
        for n in steps():
            killed = killed_at(n, run)
            told, versions = certificates(desk), keys_in(desk.directory).versions("acme")
            assert set(told.values()) <= {"pending", "done"}
            if "done" in told.values():
                assert min(versions) >= 3, (n, versions)  # 1 and 2 are what the two were readable under
            after = desk.opened()
            assert {call: text for call, text in after.items() if call != "old"} == {
                call: text for call, text in whole.items() if call != "old"
            }, n
            if not killed:
                break
        desk.ship(0)
    assert set(certificates(desk).values()) == {"done"}
    assert "old" not in desk.opened()
    assert check(desk.dsn, desk.directory / "anchor").faults == []


def test_a_database_that_goes_away_in_the_middle_leaves_it_undone(postgres: Server, desk: Desk) -> None:
    engine = store.connect(desk.dsn, application="test")

    def broken() -> None:
        with store.transaction(engine) as connection:
            erasing_alice(connection, Opener(keys_in(desk.directory)), subject="s0")
            postgres.stop()

    with pytest.raises((sa.exc.DBAPIError, psycopg.Error)):
        broken()
    engine.dispose()
    with pytest.raises((sa.exc.DBAPIError, psycopg.Error)):
        desk.act(erasing_alice, subject="s0")
    postgres.start()
    assert certificates(desk) == {}
    assert desk.opened()["c0"] == "s0"
    desk.act(erasing_alice, subject="s0")
    assert desk.opened()["c0"] == "erased"
    (done,) = desk.finish(officer().at + COPIES)
    assert done.state == "done"
