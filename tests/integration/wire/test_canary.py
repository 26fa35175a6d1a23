"""A key's secret, a token and the pepper are looked for everywhere after a run with failures: they are nowhere."""

from __future__ import annotations

import base64
import json
import os
import re
import resource
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_bytes

import psycopg
import pytest
from typer.testing import CliRunner

from audit import store as audit_store
from audit.seal import load_root_key
from audit.segments import Frame, FrameReader, JournalFault, segments_in, unlock
from sidecar.cli import keys as keys_command
from sidecar.core.model import Secret
from sidecar.identity import keys, store
from sidecar.identity.keys import read_pepper
from sidecar.triton.methods import KSERVE
from tests.support.postgres import query
from tests.support.sidecar import Bare, Launch, Sidecar, echo, failing, slow
from tests.support.stack import eventually

pytestmark = pytest.mark.integration


def forms(secret: bytes) -> Iterator[bytes]:
    """The ways a secret's bytes may have been written: as they are, in hex, in base64 at each of its three phases."""
    yield secret
    yield secret.hex().encode()
    for phase in range(3):
        coded = base64.b64encode(b"\0" * phase + secret)
        yield coded[4 : len(coded) // 4 * 4 - 4]
        yield coded[4 : len(coded) // 4 * 4 - 4].replace(b"+", b"-").replace(b"/", b"_")


class Search:
    """Looks for canaries, and for the witness that must be there (or the search itself looks in the wrong place)."""

    def __init__(self, canaries: dict[str, bytes]) -> None:
        self._patterns = {
            name: re.compile(b"|".join(re.escape(form) for form in forms(secret))) for name, secret in canaries.items()
        }
        self.found: list[str] = []
        self.places: dict[str, int] = {}

    def look(self, place: str, data: bytes) -> None:
        self.places[place] = self.places.get(place, 0) + len(data)
        self.found += [f"{name} in {place}" for name, pattern in self._patterns.items() if pattern.search(data)]


def journal_entries(sidecar: Sidecar) -> Iterator[bytes]:
    """Every frame of the journal, opened."""
    root = load_root_key(sidecar.stack.directory / "keys" / "journal.key")
    assert isinstance(root, Secret)
    for _, path in segments_in(sidecar.stack.directory / "journal"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            segment = unlock(descriptor, path, root)
            assert not isinstance(segment, JournalFault)
            reader = FrameReader(descriptor, segment)
            while isinstance(frame := reader.next(search=True), Frame):
                yield frame.entry
        finally:
            os.close(descriptor)


def dump(dsn: str) -> Iterator[tuple[str, bytes]]:
    """Every row of every table, as a logical dump would hold it."""
    with psycopg.connect(dsn) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'warden'").fetchall()
        for (table,) in tables:
            with connection.cursor().copy(f"COPY (SELECT * FROM warden.{table}) TO STDOUT") as rows:
                yield table, b"".join(map(bytes, rows))


def misbehave(bare: Bare, key: str, token: str) -> None:
    """Good calls, and every kind of failure with the credential at hand."""
    for header in ({"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"authorization": f"Bearer {token}"}):
        bare.unary(echo(), header)
        bare.unary(b"\xff\xff\xff", header)
        bare.unary(echo(), header, path=KSERVE + "Nothing")
        bare.unary(failing("INTERNAL", "the model broke"), header)
        bare.several([echo(), echo()], header)
        bare.unary(echo(), {**header, "x-data-class": "\t" + "x" * 100})
        list(bare.stream([slow(2, id="a", prompt=b"witness-in-a-prompt"), b"\xff"], header))
        stream = bare.stream([slow(500, 10, id="b")], header)
        stream.next()
        stream.call.cancel()
        bare.unary(slow(500, 10, id="c"), header, timeout=0.2)
    # The credential where it does not belong, mangled, or twice.
    for header in (
        {"authorization": key}, {"authorization": f"Basic {key}"}, {"x-api-key": f"{key},{key}"},
        {"authorization": f"Bearer {key}x"}, {"authorization": f"Bearer {key[:-1]}"}, {"x-api-key": token},
        {"authorization": f"Bearer {token}x"}, {"authorization": f"Bearer {token} {key}"},
        {"authorization": f"Bearer {token}", "x-api-key": key}, {"authorization": f"Bearer {token[:-9]}AAAAAAAAA"},
    ):  # fmt: skip
        bare.unary(echo(), header)


def test_a_secret_is_in_no_sink(own: Launch, tmp_path: Path) -> None:
    """Looked for in everything that a run with failures leaves behind."""
    sidecar = own()
    directory = sidecar.stack.directory
    pepper = read_pepper((directory / "keys" / "pepper.key").read_bytes())
    assert isinstance(pepper, Secret)
    engine = audit_store.connect(sidecar.parts.postgres_dsn, application="warden-test", pool=1)
    office = store.Office(pepper, "demo", token_bytes, lambda *_: None, "test")
    with engine.begin() as connection:
        issued = store.issue(connection, office, store.NewKey("acme", "canary"), datetime.now(UTC))
    engine.dispose()
    assert isinstance(issued, store.Issued)
    key, token = issued.key.reveal().decode(), sidecar.token("acme")
    parsed = keys.parse(key.encode())
    assert parsed is not None
    with sidecar.bare() as bare:
        eventually(lambda: bare.unary(echo(), {"x-api-key": key}).code == "OK", what="the key known")
        misbehave(bare, key, token)
        sidecar.record(bare.unary(echo(), {"x-api-key": key}).call_id)  # all before it is shipped then, too
    metrics = sidecar.open_metrics()
    shown = CliRunner().invoke(
        keys_command.app, ["show", issued.info.id, "--json", "--config", str(sidecar.stack.config)]
    )
    assert shown.exit_code == 0
    eventually((directory / "journal" / "identity.snapshot").exists, what="the snapshot on disk")
    sidecar.settles()
    sidecar.stack.stop_warden()
    search = Search(
        {
            "the key's secret": parsed.secret.reveal(),
            "the token's signature": token.rpartition(".")[2].encode(),
            "the token's signature, decoded": base64.urlsafe_b64decode(token.rpartition(".")[2] + "=="),
            "the pepper": pepper.reveal(),
        }
    )
    search.look("metrics", metrics.encode())
    search.look("keys show", shown.output.encode())
    for path in sorted(directory.rglob("*")):
        if path.is_file() and path.parent.name != "keys" and path.name != "demo.json":
            search.look(f"file {path.relative_to(directory).parts[0]}", path.read_bytes())
    for entry in journal_entries(sidecar):
        search.look("journal, opened", entry)
    for table, rows in dump(sidecar.parts.postgres_dsn):
        search.look(f"table {table}", rows)
    search.look("spans", sidecar.parts.otlp.path.read_bytes())
    for record in sidecar.search(tenant="acme", limit=1000):
        search.look("records, revealed", json.dumps(record, default=str).encode())
    print(f"\n{sidecar.wire}: looked through", search.places)
    assert not search.found
    # That the search can find: what must be in some of these places is.
    witness = Search({"the prompt": b"witness-in-a-prompt", "the key's id": issued.info.id.encode()})
    for entry in journal_entries(sidecar):
        witness.look("journal", entry)
    assert {"the prompt in journal", "the key's id in journal"} <= set(witness.found)
    assert query(sidecar.parts.postgres_dsn, "SELECT count(*) FROM warden.audit_calls")[0][0] > 20


def test_no_process_of_ours_dumps_core(sidecar: Sidecar) -> None:
    """Neither `serve` (Envoy, on the production wire) nor `ship`, its child."""
    pids = [sidecar.pid, *_children(sidecar.pid)]
    assert len(pids) >= 2
    for pid in pids:
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert re.search(r"^Max core file size +0 +0 ", limits, re.MULTILINE), pid
        assert resource.prlimit(pid, resource.RLIMIT_CORE) == (0, 0)
        # An undumpable process's files belong to root, whoever runs it (proc(5)); as root only the limit can be seen.
        assert Path(f"/proc/{pid}/environ").stat().st_uid == 0


def _children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += map(int, (task / "children").read_text().split())
    return found
