"""audit.search, `warden audit` and `warden db` on a real Postgres: filters, pages, reveals, the record of each look."""

from __future__ import annotations

import itertools
import json
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from audit import search as search_module
from audit import store
from audit.opening import Opener
from audit.record import Admitted
from audit.search import Asker, Filter, Found, Keyset, search, show
from migrations import versions
from sidecar.cli.audit import app as audit_app
from sidecar.cli.db import app as db_app
from sidecar.core.model import Finding
from tests.support.postgres import query
from tests.support.store import (
    PLACE,
    ROOT,
    FakeJournal,
    Shipping,
    completed,
    content,
    facts,
    keys_in,
    refused,
    settled,
    wait_until,
)

_numbers = itertools.count()
HEAD = max(path.name[1:5] for path in Path(versions.__file__).parent.glob("m*.py"))
AT = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
SHAPE = [
    "call_id", "started_at", "tenant", "principal", "key_id", "subject", "conversation", "method", "model",
    "model_version", "model_digest", "data_class", "rule", "outcome", "reason", "status", "prompt", "output",
    "input_tokens", "output_tokens", "ttft_ms", "duration_ms", "region", "jurisdiction", "bundle", "trace_id",
    "sidecar", "position",
]  # fmt: skip


def asker(*, reveal: bool = False, reason: str = "", at: datetime = AT) -> Asker:
    return Asker("cli:ada", at, (f"look-{n}" for n in _numbers), reason, reveal)


class _Kept:
    """Where the fixture's keys are."""

    directory = Path()


@pytest.fixture(autouse=True)
def _keys_here(tmp_path: Path) -> None:
    _Kept.directory = tmp_path


@pytest.fixture
def filled(dsn: str, tmp_path: Path) -> str:
    """Six calls, a minute apart, the last one newest."""
    journal = FakeJournal()
    journal.append(
        *completed(AT - timedelta(minutes=6), call_id="c1", tenant="birch", subject="patient 7", actor="cli:olga"),
        *completed(
            AT - timedelta(minutes=5),
            call_id="c2",
            model="embed",
            trace_id="a" * 32,
            conversation="k1",
            findings=(Finding("no-cards", "prompt", "deny", "none"),),
        ),
        refused(AT - timedelta(minutes=4), call_id="c3", key_id="KEY1", principal="robot", data_class="phi"),
        *completed(
            AT - timedelta(minutes=3),
            call_id="c4",
            rule="access/phi.cedar:permit",
            prompt=content(b"caf\xc3", b"\xa9 \xff"),
        ),
    )
    broken = facts(AT - timedelta(minutes=2), call_id="c5", level="metadata", prompt=content(b"x"))
    broken = type(broken)(
        **{name: getattr(broken, name) for name in broken.__struct_fields__}
        | {"prompt": type(broken.prompt)(4, b"\x01" * 32)}
    )
    journal.append(Admitted(broken), settled(broken, outcome="failed", status=14, reason="UPSTREAM_UNAVAILABLE"))
    split = facts(AT - timedelta(minutes=1), call_id="c6")
    journal.append(
        Admitted(split), settled(split, b"na\xc3", b"\xafve <b>[red]\x1b[31m", outcome="cancelled", status=1)
    )
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 6)
    return dsn


def ask(dsn: str, asked: Filter, who: Asker | None = None, keys: Path | None = None) -> list[dict[str, Any]]:
    opener = Opener(keys_in(keys or _Kept.directory))
    engine = store.connect(dsn, application="test")
    try:
        page = search(engine, asked, who or asker(), opener, "EU")
        return [found.shape() for found in page.found]
    finally:
        engine.dispose()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (Filter(), ["c6", "c5", "c4", "c3", "c2", "c1"]),
        (Filter(tenant="birch"), ["c1"]),
        (Filter(model="embed"), ["c2"]),
        (Filter(outcome="completed"), ["c4", "c2", "c1"]),
        (Filter(outcome="cancelled"), ["c6"]),
        (Filter(refused_for="RATE_TOKENS"), ["c3"]),
        (Filter(refused_for="UPSTREAM_UNAVAILABLE"), []),  # that one failed, nobody refused it
        (Filter(principal="robot"), ["c3"]),
        (Filter(key="KEY1"), ["c3"]),
        (Filter(subject="patient 7"), ["c1"]),
        (Filter(conversation="k1"), ["c2"]),
        (Filter(data_class="phi"), ["c3"]),
        (Filter(rule="access/phi.cedar:permit"), ["c4"]),
        (Filter(rule="guards.no-cards"), ["c2"]),
        (Filter(rule="guards.no-card"), []),
        (Filter(rule="guards.deny"), []),  # what a finding says beside its guard's name
        (Filter(region="us-east-1"), []),
        (Filter(call="c4"), ["c4"]),
        (Filter(trace="a" * 32), ["c2"]),
        (Filter(since=AT - timedelta(minutes=2)), ["c6", "c5"]),
        (Filter(until=AT - timedelta(minutes=5)), ["c1"]),
        (Filter(tenant="acme", limit=2), ["c6", "c5"]),
        (Filter(tenant="' OR 1=1 --"), []),
    ],
)
def test_filters(filled: str, asked: Filter, expected: list[str]) -> None:
    assert [found["call_id"] for found in ask(filled, asked)] == expected


def test_the_shape_is_the_contracts(filled: str) -> None:
    (found,) = ask(filled, Filter(call="c2"))
    assert list(found)[: len(SHAPE)] == SHAPE
    assert found["started_at"] == "2026-11-30T11:55:00.000000Z"
    assert (found["outcome"], found["status"], found["reason"]) == ("completed", 0, None)
    assert (found["ttft_ms"], found["duration_ms"]) == (2.0, 5.0)
    assert (found["prompt"], found["output"], found["content"]) == (None, None, "withheld")
    assert (found["prompt_bytes"], found["output_bytes"]) == (21, 11)
    assert len(found["prompt_digest"]) == 64


def test_pages_by_keyset_lose_and_repeat_nothing(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    for number in range(10):  # four records share each instant
        journal.append(refused(AT - timedelta(minutes=number // 4), call_id=f"same-{number}"))
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.shipper.status.rows == 10)
    engine = store.connect(dsn, application="test")
    seen: list[str] = []
    before: Keyset | None = None
    for _ in range(5):
        page = search(engine, Filter(limit=3, before=before), asker(), None, "EU")
        seen += [found.columns["call_id"] for found in page.found]
        before = page.following
        if before is None:
            break
    engine.dispose()
    assert sorted(seen) == sorted(f"same-{number}" for number in range(10))


def test_pages_show_what_was_stored_when_the_first_was_asked(dsn: str, tmp_path: Path) -> None:
    """Two sidecars' records arrive between pages, some older than what was read: no later page shows them."""
    first, second = FakeJournal(), FakeJournal(replace(PLACE, sidecar="pod-2", journal="journal-2"))
    for number in range(9):
        first.append(refused(AT - timedelta(minutes=number), call_id=f"a-{number}"))
        second.append(refused(AT - timedelta(minutes=number), call_id=f"b-{number}"))
    expected = [f"{log}-{number}" for number in range(9) for log in ("b", "a")]
    engine = store.connect(dsn, application="test")
    (tmp_path / "pod-2").mkdir()
    with Shipping(first, dsn, tmp_path) as one, Shipping(second, dsn, tmp_path / "pod-2", sidecar="pod-2") as two:
        wait_until(lambda: one.shipper.status.rows + two.shipper.status.rows == 18)
        seen: list[str] = []
        after: str | None = None
        for turn in range(18):
            page = search(engine, Filter(limit=3, after=after), asker(at=AT + timedelta(minutes=turn)), None, "EU")
            seen += [found.columns["call_id"] for found in page.found]
            after = page.next
            if after is None:
                break
            for journal in (first, second):  # where pages go on, and where they have been
                journal.append(*(refused(AT - timedelta(minutes=m), call_id=f"late-{turn}-{m}") for m in (1, 8)))
            wait_until(lambda: one.shipper.status.rows + two.shipper.status.rows == 18 + 4 * (turn + 1))  # noqa: B023
        assert seen == expected
        assert len(search(engine, Filter(limit=500), asker(), None, "EU").found) > 18
    engine.dispose()
    details = [detail for (detail,) in query(dsn, "SELECT detail FROM warden.audit_events WHERE kind = 'audit_search'")]
    assert [len(detail.get("logs", ())) for detail in details].count(2) == 1  # kept once, by the first page
    assert sum("page_of" in detail for detail in details) == 6


def test_content_is_revealed_with_a_reason_and_that_is_recorded(filled: str) -> None:
    found = ask(filled, Filter(), asker(reveal=True, reason="ticket 12"))
    by_id = {record["call_id"]: record for record in found}
    assert by_id["c1"]["prompt"] == "Where is the \nlibrary?"
    assert by_id["c1"]["output"] == "Over there."
    assert by_id["c4"]["prompt"].endswith("\ufffd")  # not UTF-8: shown as well as can be
    assert by_id["c6"]["output"] == "naïve <b>[red]\x1b[31m"  # a character split over two messages
    assert by_id["c5"]["content"] == "none"
    events = query(filled, "SELECT kind, actor, reason, detail - 'login' FROM warden.audit_events ORDER BY kind")
    assert [event[:3] for event in events] == [
        ("audit_search", "cli:ada", "ticket 12"),
        ("content_revealed", "cli:ada", "ticket 12"),
    ]
    assert events[1][3] == {"calls": ["c6", "c4", "c3", "c2", "c1"], "tenants": ["acme", "birch"]}


def test_without_the_keys_nothing_opens_and_it_says_so(filled: str, tmp_path: Path) -> None:
    (found,) = ask(filled, Filter(call="c1"), asker(reveal=True, reason="r"), tmp_path / "elsewhere")
    assert found["prompt"] is None
    assert found["subject"] is None
    assert found["content"] == "unreadable: the key it is sealed under is not here"


def test_who_was_sought_is_not_named_in_the_record_of_the_search(filled: str) -> None:
    for asked in (Filter(subject="patient 7"), Filter(conversation="patient 7"), Filter(principal="patient 7")):
        ask(filled, asked)
    told = query(filled, "SELECT detail::text FROM warden.audit_events WHERE kind = 'audit_search'")
    assert len(told) == 3
    assert all("patient" not in detail and "mac:" in detail for (detail,) in told)


@pytest.fixture
def talk(dsn: str, tmp_path: Path) -> str:
    """A conversation of 1,100 calls of two subjects on one day, four at each instant; and another between them."""
    journal = FakeJournal()
    for number in range(1100):
        at, whose = AT - timedelta(seconds=number // 4), f"patient {number % 2}"
        model = "rare" if number in {3, 1098} else "chat"
        journal.append(refused(at, call_id=f"t-{number}", conversation="long", subject=whose, model=model))
        if number % 100 == 0:
            journal.append(refused(at, call_id=f"u-{number}", conversation="short", subject=whose))
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 1111)
    return dsn


def paged(dsn: str, asked: Filter) -> tuple[list[str], int]:
    """The ids that all pages show, and how often a conversation was looked for."""
    engine, seen, looks = store.connect(dsn, application="test"), list[str](), list[str]()

    @sa.event.listens_for(engine, "before_cursor_execute")
    def count(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        looks.extend(["look"] if "hits" in statement else [])

    opener = Opener(keys_in(_Kept.directory))
    for _ in range(20):
        page = search(engine, asked, asker(), opener, "EU")
        seen += [found.columns["call_id"] for found in page.found]
        if page.next is None:
            break
        asked = replace(asked, after=page.next)
    engine.dispose()
    return seen, len(looks)


def test_a_conversation_of_more_calls_than_are_looked_up_at_once_is_shown_whole(
    talk: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [f"t-{number}" for number in range(1100)]
    order = sorted(ids, key=lambda name: (-(int(name[2:]) // 4), name), reverse=True)
    long = Filter(conversation="long", limit=search_module.LIMIT)
    assert paged(talk, long) == (order, 2)
    assert paged(talk, replace(long, limit=550)) == (order, 3)  # the last page is full: another is asked for
    assert paged(talk, replace(long, model="rare")) == (["t-3", "t-1098"], 2)
    assert paged(talk, replace(long, limit=1, model="rare"))[0] == ["t-3", "t-1098"]
    odd = [name for name in order if int(name[2:]) % 2]
    assert paged(talk, replace(long, subject="patient 1", limit=300)) == (odd, 2)
    assert paged(talk, replace(long, subject="patient 2")) == ([], 0)
    assert paged(talk, Filter(conversation="short", subject="patient 1"))[0] == []
    assert len(paged(talk, Filter(conversation="short", subject="patient 0"))[0]) == 11
    monkeypatch.setattr(search_module, "TALK", 100)  # eleven parts: it is sought as often as of two
    assert paged(talk, replace(long, model="rare")) == (["t-3", "t-1098"], 2)


def test_identities_are_sealed_with_the_record_and_shown_to_who_may_open_it(filled: str) -> None:
    (found,) = ask(filled, Filter(call="c1"))
    assert (found["subject"], found["principal"], found["content"]) == ("patient 7", "ada", "withheld")
    assert found["actor"] == "cli:olga"
    columns = query(filled, "SELECT * FROM warden.audit_calls WHERE call_id = 'c1'")
    assert "patient 7" not in str(columns)


def test_a_search_that_cannot_be_recorded_returns_nothing(filled: str) -> None:
    who = Asker("cli:ada", AT, itertools.repeat("the same id"), "", reveal=False)
    assert len(ask(filled, Filter(), who)) == 6
    with pytest.raises(Exception, match="duplicate key"):
        ask(filled, Filter(), who)


def test_words_are_found_in_prompts_and_outputs(filled: str) -> None:
    who = asker(reveal=True, reason="r")
    window = Filter(since=AT - timedelta(hours=1), until=AT)
    assert [r["call_id"] for r in ask(filled, search_module.replaced(window, text="LIBRARY"), who)] == [
        "c6",
        "c3",
        "c2",
        "c1",
    ]
    assert [r["call_id"] for r in ask(filled, search_module.replaced(window, text="over there"), who)] == [
        "c4",
        "c2",
        "c1",
    ]
    assert [r["call_id"] for r in ask(filled, search_module.replaced(window, text="library", limit=1), who)] == ["c6"]
    (seen,), *_ = query(
        filled,
        "SELECT detail -> 'calls' FROM warden.audit_events WHERE kind = 'content_revealed' ORDER BY recorded_at DESC",
    )
    assert seen == ["c6"]


def test_show_is_whole_and_recorded_even_when_there_is_nothing(filled: str) -> None:
    engine = store.connect(filled, application="test")
    found = show(engine, "c3", asker(), None, "EU")
    assert isinstance(found, Found)
    assert found.whole()["internal"] == "bucket empty"
    assert show(engine, "c99", asker(), None, "EU") is None
    engine.dispose()
    shown = "SELECT detail - 'login' FROM warden.audit_events WHERE kind = 'audit_show' ORDER BY recorded_at"
    assert query(filled, shown) == [
        ({"call": "c3", "found": True, "reveal": False},),
        ({"call": "c99", "found": False, "reveal": False},),
    ]


def test_what_observe_would_have_refused_is_found(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    for call_id, reason in (("o1", "RATE_TOKENS"), ("o2", "MEMORY_KV"), ("o3", "")):
        call = facts(AT, call_id=call_id, would_refuse=reason)
        journal.append(Admitted(call), settled(call))
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 3)
    assert [found["call_id"] for found in ask(dsn, Filter(would_refuse="MEMORY_KV"))] == ["o2"]
    done = run(audit_app, "search", "--config", str(write_config(tmp_path, dsn)), "--would-refuse", "RATE_TOKENS")
    assert "would be RATE_TOKENS" in done.stdout
    assert ("o1" in done.stdout, "o2" in done.stdout) == (True, False)


def test_a_database_of_another_jurisdiction_is_not_searched(filled: str) -> None:
    engine = store.connect(filled, application="test")
    with pytest.raises(store.WrongJurisdictionError):
        search(engine, Filter(), asker(), None, "US")
    engine.dispose()


@pytest.fixture
def streams(dsn: str, tmp_path: Path) -> str:
    """A stream of two messages, one of a single message, and ids that are near theirs but other calls'."""
    journal = FakeJournal()
    for number, call_id in enumerate(("s1/1", "s1/2", "s2/1", "s10")):
        journal.append(*completed(AT - timedelta(minutes=9 - number), call_id=call_id))
    journal.append(*completed(AT, call_id="s1x/1"), *completed(AT, call_id="s1-a/1"), *completed(AT, call_id="s"))
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 7)
    return dsn


@pytest.mark.parametrize(
    ("call", "expected"),
    [("s1", ["s1/2", "s1/1"]), ("s1/2", ["s1/2"]), ("s2", ["s2/1"]), ("s10", ["s10"]), ("s", ["s"]), ("s1/", [])],
)
def test_a_streams_id_finds_its_messages(streams: str, call: str, expected: list[str]) -> None:
    assert [found["call_id"] for found in ask(streams, Filter(call=call))] == expected


def test_show_takes_a_streams_id(streams: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(write_config(tmp_path, streams))
    one = run(audit_app, "show", "s2", "--config", path, "--json", "--reveal", "--reason", "r")
    assert json.loads(one.stdout)["call_id"] == "s2/1"
    several = run(audit_app, "show", "s1", "--config", path, "--json", "--reveal", "--reason", "r")
    assert (several.exit_code, several.stdout) == (1, "")
    assert several.stderr == "warden: s1 is a stream of 2 messages; show one of\ns1/1\ns1/2\n"
    monkeypatch.setattr(search_module, "MESSAGES_LISTED", 1)
    more = run(audit_app, "show", "s1", "--config", path)
    assert more.stderr == "warden: s1 is a stream of more than 1 messages; show one of\ns1/1\n"
    seen = query(streams, "SELECT detail - 'login' FROM warden.audit_events WHERE kind = 'content_revealed'")
    assert seen == [({"calls": ["s2/1"], "tenants": ["acme"]},)]  # a list of ids reveals nothing


# --- the commands -------------------------------------------------------------------------------------------------


@pytest.fixture
def config(filled: str, tmp_path: Path) -> Path:
    return write_config(tmp_path, filled)


def write_config(directory: Path, dsn: str, jurisdiction: str = "EU") -> Path:
    key = directory / "journal.key"
    if not key.exists():
        key.write_bytes(ROOT)
        key.chmod(0o600)
    path = directory / "warden.yaml"
    path.write_text(
        f"""
sidecar: {{name: pod-1, region: eu-west-1}}
policy: {{bundle: bundle}}
identity: {{}}
audit:
  journal: {{directory: journal, key_file: journal.key}}
  database: {{dsn: "{dsn}", jurisdiction: {jurisdiction}}}
"""
    )
    return path


def run(app: Any, *arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_search_prints_one_object_a_line(config: Path) -> None:
    done = run(audit_app, "search", "--config", str(config), "--since", "2026-11-30T12:57+01:00", "--json")
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["call_id"] for line in done.stdout.splitlines()] == ["c6", "c5", "c4"]


def test_a_search_that_finds_nothing_says_so(config: Path) -> None:
    since, until = "2026-11-23 Europe/Berlin", "2026-11-30 Europe/Berlin"
    for form in ([], ["--json"]):
        done = run(audit_app, "search", "--config", str(config), "--since", since, "--until", until, *form)
        assert (done.exit_code, done.stdout, done.stderr) == (0, "", "warden: no record fits\n")


def test_search_tells_how_to_go_on(config: Path) -> None:
    done = run(audit_app, "search", "--config", str(config), "--limit", "4", "--json")
    assert "--after " in done.stderr
    following = done.stderr.split("--after ")[1].strip()
    assert [json.loads(line).get("next") for line in done.stdout.splitlines()] == [None, None, None, following]
    rest = run(audit_app, "search", "--config", str(config), "--after", following, "--json")
    assert [json.loads(line)["call_id"] for line in rest.stdout.splitlines()] == ["c2", "c1"]
    other = run(audit_app, "search", "--config", str(config), "--after", following, "--tenant", "acme")
    assert (other.exit_code, "differs in tenant" in other.stderr) == (2, True)
    for none in ("x", "a~b~c", following[3:], f"{following.partition('~')[0]}~"):
        assert run(audit_app, "search", "--config", str(config), "--after", none).exit_code == 2


def test_tables_keep_a_tenants_text_harmless(config: Path) -> None:
    done = run(audit_app, "search", "--config", str(config), "--call", "c6", "--reveal", "--reason", "r")
    assert done.exit_code == 0, done.output
    assert "\x1b[31m" not in done.stdout
    assert done.stdout.endswith("  output:\n    na\u00efve <b>[red]\ufffd[31m\n")


def test_what_is_read_by_no_terminal_is_never_cut(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    done = run(audit_app, "search", "--config", str(config))
    assert len(done.stdout.splitlines()) == 2 * 6
    shown = run(audit_app, "show", "c3", "--config", str(config)).stdout
    digest = json.loads(run(audit_app, "show", "c3", "--config", str(config), "--json").stdout)["prompt_digest"]
    assert digest in shown


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search", "--reveal"], "--reason"),
        (["search", "--text", "x"], "--reveal"),
        (["search", "--since", "2026-11-30T09:00"], "zone"),
        (["search", "--since", "yesterday"], "--since"),
        (["search", "--trace", "4bf9"], "32 hexadecimal digits"),
        (["search", "--outcome", "fine"], "completed"),
        (["search", "--refused-for", "X"], "RATE_TOKENS"),
        (["search", "--would-refuse", "X"], "RATE_TOKENS"),
        (["search", "--key", "wdn_live_0123456789ab_" + "s" * 49], "the 12 characters in the middle"),
        (["search", "--limit", "0"], "limit"),
        (["search", "--before", "2026-11-30T09:00Z"], "--before"),
        (["search", "--text", "x", "--reveal", "--reason", "r", "--since", "90d"], "31 days"),
    ],
)
def test_wrong_use_exits_2_and_says_what(config: Path, arguments: list[str], words: str) -> None:
    done = run(audit_app, *arguments, "--config", str(config))
    assert done.exit_code == 2
    assert words in done.stderr
    assert "ssssss" not in done.output


def test_show_exits_1_for_an_unknown_call(config: Path) -> None:
    assert run(audit_app, "show", "nope", "--config", str(config)).exit_code == 1
    done = run(audit_app, "show", "c1", "--config", str(config), "--reveal", "--reason", "r", "--json")
    assert json.loads(done.stdout)["output"] == "Over there."


def test_commands_exit_3_when_the_database_is_away(tmp_path: Path) -> None:
    away = str(write_config(tmp_path, "postgresql://nobody:hunter2@127.0.0.1:1/none"))
    for app, command in ((audit_app, "search"), (db_app, "status"), (db_app, "upgrade")):
        done = run(app, command, "--config", away)
        assert done.exit_code == 3, done.output
        assert "does not answer" in done.stderr
        assert "hunter2" not in done.output


def test_a_database_that_accepts_and_says_nothing_is_away(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        begun = time.monotonic()
        done = run(audit_app, "search", "--config", str(write_config(tmp_path, f"postgresql://u@127.0.0.1:{port}/x")))
    assert done.exit_code == 3
    assert time.monotonic() - begun < 60


def test_a_dsn_that_is_none_is_not_quoted(tmp_path: Path) -> None:
    done = run(audit_app, "search", "--config", str(write_config(tmp_path, "postgresql://u:hunter2@[::1/x")))
    assert done.exit_code == 3
    assert "hunter2" not in done.output


def test_db_upgrade_and_status(config: Path, tmp_path: Path, filled: str) -> None:
    done = run(db_app, "status", "--config", str(config), "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["current"] is True
    assert json.loads(run(db_app, "upgrade", "--config", str(config), "--json").stdout)["from"] == HEAD
    elsewhere = str(write_config(tmp_path, filled, "US"))
    assert run(db_app, "upgrade", "--config", elsewhere).exit_code == 1
    assert run(db_app, "status", "--config", elsewhere).exit_code == 1
    assert run(audit_app, "search", "--config", elsewhere).exit_code == 1


def test_an_unprepared_database_is_told_apart(postgres: Any, tmp_path: Path) -> None:
    made = str(write_config(tmp_path, postgres.create_database()))
    assert run(db_app, "status", "--config", made).exit_code == 1
    done = run(audit_app, "search", "--config", made)
    assert done.exit_code == 3
    assert "warden db upgrade" in done.stderr
