"""Tensors' bytes: sealed into an object store behind their records, found again, and each thing amiss named."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from audit import export_tensors, store
from audit.evidence import FaultKind
from audit.object_check import opened
from audit.object_sweep import sweep
from audit.objects import LocalObjects, ObjectStore, StoreAt
from audit.opening import Opener
from audit.payload import refs_of
from audit.ship_parts import Bounds
from audit.uploading import UploadTo
from audit.verify import Options, Report, verify
from audit.verify_export import verify_export
from sidecar.cli.evidence import app
from tests.integration.audit.test_search import write_config
from tests.integration.audit.test_verify import keys
from tests.support.objects import MemoryObjects
from tests.support.payloads import PACKED_WORDS, PIXELS, RAW, kept_call, request, response
from tests.support.policy import DEMO_BUNDLE
from tests.support.postgres import query
from tests.support.s3 import S3Server
from tests.support.store import FakeJournal, Shipping, completed, keys_in, wait_until

pytestmark = pytest.mark.integration


class Desk:
    """A sidecar with an object store, and an officer."""

    def __init__(self, dsn: str, directory: Path, objects: ObjectStore) -> None:
        self.dsn, self.directory, self.objects = dsn, directory, objects
        self.journal = FakeJournal()

    def shipping(self, **options: Any) -> Shipping:
        to = UploadTo(StoreAt(self.objects.where, lambda: self.objects), options.pop("most_bytes", 2**30))
        return Shipping(self.journal, self.dsn, self.directory, tensors=to, **options)

    def ship(self, *calls: list[Any]) -> None:
        """And all objects are there when the sidecar has ended."""
        for call in calls:
            self.journal.append(*call)
        with self.shipping() as shipping:
            status = shipping.shipper.status
            wait_until(lambda: shipping.fault or status.rows >= len(calls))
        assert (shipping.fault, status.objects_trouble, status.objects_bytes) == (None, "", 0)

    def verify(self, later: timedelta = timedelta()) -> Report:
        return verify(self.dsn, Options(keys, datetime.now(UTC) + later, objects=self.objects), jurisdiction="EU")

    def rows(self) -> list[dict[str, Any]]:
        engine = store.connect(self.dsn, application="warden-test")
        try:
            with engine.connect() as connection:
                text = "SELECT * FROM warden.audit_calls WHERE payloads <> '{}' ORDER BY position"
                return [dict(row) for row in connection.exec_driver_sql(text).mappings()]
        finally:
            engine.dispose()

    def bodies(self, row: dict[str, Any]) -> dict[str, list[bytes | None]]:
        """What an officer who may open it reads in the store, by side."""
        opener, engine = Opener(keys_in(self.directory)), store.connect(self.dsn, application="warden-test")
        try:
            with engine.connect() as connection:
                opener.load(connection, [row["data_key"]])
        finally:
            engine.dispose()
        key = opener.record_key(row)
        assert key is not None
        found = {}
        for ref in refs_of(row["payloads"]):
            data = self.objects.get(ref.name)
            assert data is not None
            found[ref.side] = list(opened(data, ref, row["payloads"], key))
        return found


@pytest.fixture(params=["directory", "s3"])
def desk(request: pytest.FixtureRequest, dsn: str, tmp_path: Path) -> Desk:
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        return Desk(dsn, tmp_path, server.objects(tmp_path.name))
    (tmp_path / "objects").mkdir()
    return Desk(dsn, tmp_path, LocalObjects(tmp_path / "objects"))


@pytest.fixture
def memory(dsn: str, tmp_path: Path) -> Desk:
    return Desk(dsn, tmp_path, MemoryObjects())


def test_bytes_are_found_again_by_their_record_and_by_nobody_without_its_key(desk: Desk) -> None:
    desk.ship(kept_call(response(1.5), response(2.5)), completed())
    (row,) = desk.rows()
    inputs, outputs = row["payloads"]["inputs"], row["payloads"]["outputs"]
    assert [each[:5] for each in inputs["tensors"]] == [
        [0, "boxes", "FP32", [2, 3], 24], [0, "pixels", "UINT8", [64], 64],
    ]  # fmt: skip
    assert [each[:5] for each in outputs["tensors"]] == [
        [n, name, datatype, shape, nbytes]
        for n in (0, 1)
        for name, datatype, shape, nbytes in (("score", "FP64", [1], 8), ("label", "BYTES", [3], len(PACKED_WORDS)))
    ]
    found = desk.bodies(row)
    assert found["inputs"] == [RAW, PIXELS]
    assert found["outputs"][1::2] == [PACKED_WORDS, PACKED_WORDS]
    everything = b"".join(desk.objects.get(each.name) or b"" for each in desk.objects.list())
    assert RAW not in everything
    assert b"acme" not in everything
    report = desk.verify()
    assert (report.faults, report.objects and report.objects.checked) == ([], 2)


def test_each_thing_amiss_is_named_apart(desk: Desk) -> None:
    desk.ship(*(kept_call(message=request(nbytes=64 + n)) for n in range(4)))
    refs = [ref for row in desk.rows() for ref in refs_of(row["payloads"])]
    inputs = [ref for ref in refs if ref.side == "inputs"]
    desk.objects.delete(inputs[0].name)
    data = desk.objects.get(inputs[1].name) or b""
    desk.objects.put(inputs[1].name, data[:-1] + bytes([data[-1] ^ 1]))
    desk.objects.put(inputs[2].name, desk.objects.get(inputs[3].name) or b"")
    told = desk.verify()
    assert (told.objects and told.objects.late) == 1
    assert sorted(str(fault.kind) for fault in told.faults) == ["object_altered", "object_swapped"]
    late = desk.verify(timedelta(hours=2))
    kinds = {fault.kind: fault.call_id for fault in late.faults}
    rows = desk.rows()
    assert kinds == {
        FaultKind.OBJECT_MISSING: rows[0]["call_id"],
        FaultKind.OBJECT_ALTERED: rows[1]["call_id"],
        FaultKind.OBJECT_SWAPPED: rows[2]["call_id"],
    }


def test_a_store_that_fails_hangs_or_lies_holds_up_no_record(memory: Desk) -> None:
    objects = memory.objects
    assert isinstance(objects, MemoryObjects)
    objects.fail = OSError("away")
    memory.journal.append(*kept_call(), *completed())
    with memory.shipping() as shipping:
        status = shipping.shipper.status
        wait_until(lambda: shipping.fault or (status.rows == 2 and status.objects_trouble))
        assert "away" in str(status.objects_trouble)
        assert status.objects_oldest is not None
        assert status.objects_bytes > 0
        objects.fail, objects.lies = None, True
        wait_until(lambda: shipping.fault or "reads back something else" in str(status.objects_trouble))
        objects.lies, objects.hold = False, threading.Event()
        objects.entered.clear()
        assert objects.entered.wait(60)
        memory.journal.append(*completed())
        calls = "SELECT count(*) FROM warden.audit_calls"
        wait_until(lambda: shipping.fault or query(memory.dsn, calls) == [(3,)])
        objects.hold.set()
        wait_until(lambda: shipping.fault or status.objects_bytes == 0)
    assert (shipping.fault, status.objects_trouble) == (None, "")
    assert memory.verify(timedelta(hours=2)).faults == []
    # What the store had kept of its lies was replaced, and that is in the log.
    assert query(memory.dsn, "SELECT count(*) > 0 FROM warden.audit_events WHERE kind = 'object_replaced'") == [(True,)]


def test_what_waits_for_the_store_is_bounded_and_nothing_is_lost(memory: Desk) -> None:
    objects = memory.objects
    assert isinstance(objects, MemoryObjects)
    objects.fail = OSError("away")
    for _ in range(20):
        memory.journal.append(*kept_call(message=request(nbytes=10_000)))
    with memory.shipping(most_bytes=30_000, bounds=Bounds(
        rows=2, rows_most=2, seconds=0.02, idle=0.005, cursor=0.05, read=4, checkpoint=0.02
    )) as shipping:  # fmt: skip
        status = shipping.shipper.status
        wait_until(lambda: shipping.fault or status.objects_bytes >= 30_000)
        wait_until(lambda: shipping.fault or status.signed_size == status.position)
        assert status.rows < 20
        assert memory.journal.waiting() > 0
        objects.fail = None
        wait_until(lambda: shipping.fault or (status.rows == 20 and status.objects_bytes == 0))
    assert shipping.fault is None
    report = memory.verify(timedelta(hours=2))
    assert (report.faults, report.objects and report.objects.checked) == ([], 40)


def test_a_sidecar_that_dies_before_the_store_has_them_brings_them_later_each_once(memory: Desk) -> None:
    objects = memory.objects
    assert isinstance(objects, MemoryObjects)
    objects.fail = OSError("away")
    memory.journal.append(*kept_call())
    with memory.shipping() as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.objects_trouble)
    assert objects.kept == {}
    objects.fail = None
    with memory.shipping() as shipping:
        wait_until(lambda: shipping.fault or (len(objects.kept) == 2 and not shipping.shipper.status.objects_bytes))
    (memory.directory / "log" / "objects.json").write_text("{")  # power took its end: all is looked at again
    puts = len(objects.puts)
    with memory.shipping() as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.objects_bytes == 0)
    assert shipping.fault is None
    assert len(objects.puts) == puts
    assert memory.verify(timedelta(hours=2)).faults == []


def test_what_lost_its_key_goes_from_the_store_and_nothing_else_does(desk: Desk) -> None:
    desk.ship(kept_call(subject="ann"), kept_call(subject="bea"))
    ann, bea = desk.rows()
    query(desk.dsn, f"UPDATE warden.data_keys SET wrapped = NULL, destroyed_at = now() WHERE id = '{ann['data_key']}'")
    stray = f"tensors/2020-01-01/{'0' * 32}/x-inputs"
    desk.objects.put(stray, b"of a database long gone")
    desk.objects.put("tensors/notes/mine", b"not ours")
    engine = store.connect(desk.dsn, application="warden-test")
    try:
        with engine.connect() as connection:
            swept = sweep(connection, desk.objects, datetime.now(UTC).date())
            assert (swept.objects, swept.keys) == (3, 2)
            assert sweep(connection, desk.objects, date(2026, 1, 1)).objects == 0
    finally:
        engine.dispose()
    left = {each.name for each in desk.objects.list()}
    assert left == {ref.name for ref in refs_of(bea["payloads"])} | {"tensors/notes/mine"}
    report = desk.verify(timedelta(hours=2))
    assert report.faults == []
    assert report.objects is not None
    assert (report.objects.checked, report.objects.erased) == (2, 2)


def command(app: Any, *arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def office(dsn: str, tmp_path: Path) -> tuple[Desk, str]:
    """A mounted directory, and the configuration that names it."""
    (tmp_path / "objects").mkdir()
    config = write_config(tmp_path, dsn)
    config.write_text(config.read_text().replace("{bundle: bundle}", f"{{bundle: {DEMO_BUNDLE}}}"))
    with config.open("a") as file:
        file.write("  objects: {directory: objects, jurisdiction: EU}\n")
        file.write("  keys: {directory: tenant-keys}\n")
    return Desk(dsn, tmp_path, LocalObjects(tmp_path / "objects")), str(config)


def test_show_tells_what_is_there_and_writes_it_with_a_reason_alone(office: tuple[Desk, str], tmp_path: Path) -> None:
    desk, config = office
    desk.ship(kept_call())
    (row,) = desk.rows()
    where = ("--config", config, row["call_id"], "--json")
    told = json.loads(command(app, "show", *where).stdout)
    assert {each["side"]: each["state"] for each in told["objects"]} == {"inputs": "there", "outputs": "there"}
    out = ("--tensors", str(tmp_path / "out"))
    assert command(app, "show", *where, *out).exit_code == 2
    done = command(app, "show", *where, *out, "--reveal", "--reason", "asked")
    assert done.exit_code == 0, done.output
    listed = json.loads((tmp_path / "out/tensors.json").read_text())
    assert [(each["name"], (tmp_path / "out" / each["file"]).read_bytes()) for each in listed[:2]] == [
        ("boxes", RAW), ("pixels", PIXELS),
    ]  # fmt: skip
    seen = "SELECT detail FROM warden.audit_events WHERE kind = 'content_revealed'"
    assert query(desk.dsn, seen)[0][0]["calls"] == [row["call_id"]]
    desk.objects.delete(refs_of(row["payloads"])[0].name)
    done = command(app, "show", *where, *out, "--reveal", "--reason", "asked")
    assert (done.exit_code, "inputs: late" in done.output) == (1, True)
    (tmp_path / "objects").rename(tmp_path / "away")
    told = json.loads(command(app, "show", *where).stdout)
    assert all(each["state"].startswith("not known: audit.objects: ") for each in told["objects"])
    assert command(app, "verify", "--config", config, "--jobs", "1").exit_code == 3
    assert command(app, "verify", "--config", config, "--jobs", "1", "--no-objects").exit_code == 0


@pytest.fixture
def exported(office: tuple[Desk, str], tmp_path: Path) -> Path:
    """Of two calls with the same input, one call of a subject that is erased, and one without tensors."""
    desk, config = office
    desk.ship(kept_call(), kept_call(response(2.0)), kept_call(subject="ann"), completed())
    asked = ("--tenant", "acme", "--subject", "ann", "--reason", "GDPR 17", "--config", config, "--json")
    assert command(app, "erase", *asked).exit_code == 0
    out = tmp_path / "export"
    done = command(app, "export", "-o", str(out), "--reveal", "--reason", "court", "--config", config, "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    # Two inputs and the labels that all have in common, and a score each.
    assert (told["records"], told["tensors"], told["lost"]) == (4, 5, 0)
    return out


def lines_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "records.ndjson").read_text().splitlines()]


def test_an_export_holds_them_and_proves_them_offline(exported: Path) -> None:
    kept = [line["tensors"]["kept"] for line in lines_of(exported) if "tensors" in line]
    assert [len(each) for each in kept] == [4, 4]
    read = [[(exported / f"tensors/{each['sha256']}.bin").read_bytes() for each in call] for call in kept]
    assert [call[:2] for call in read] == [[RAW, PIXELS], [RAW, PIXELS]]
    assert all(call[3] == PACKED_WORDS for call in read)
    report = verify_export(exported, keys)
    assert (report.faults, report.records) == ([], 4)


def test_an_export_without_reveal_or_by_request_holds_none(office: tuple[Desk, str], tmp_path: Path) -> None:
    desk, config = office
    desk.ship(kept_call())
    for n, options in enumerate(((), ("--reveal", "--reason", "court", "--no-tensors"))):
        out = tmp_path / f"export-{n}"
        assert command(app, "export", "-o", str(out), "--config", config, *options).exit_code == 0
        assert not (out / "tensors").exists()
        assert "tensors" not in lines_of(out)[0]
        assert verify_export(out, keys).faults == []
    asked = "SELECT detail -> 'tensors' FROM warden.audit_events WHERE kind = 'audit_export'"
    assert query(desk.dsn, asked) == [(False,), (False,)]


def test_what_is_gone_from_the_store_ends_no_export_and_is_told(office: tuple[Desk, str], tmp_path: Path) -> None:
    desk, config = office
    desk.ship(kept_call(), kept_call(message=request(nbytes=65)))
    (first, second) = (refs_of(row["payloads"]) for row in desk.rows())
    desk.objects.delete(first[0].name)
    desk.objects.put(second[1].name, b"other")
    out = tmp_path / "export"
    asked = ("export", "-o", str(out), "--reveal", "--reason", "court", "--config", config)
    done = command(app, *asked)
    assert (done.exit_code, "of 2 calls' inputs or outputs the tensors could not be had" in done.output) == (1, True)
    lost = [line["tensors"]["lost"] for line in lines_of(out)]
    assert sorted(map(str, lost)) == ["{'inputs': 'late'}", "{'outputs': 'altered'}"]
    assert verify_export(out, keys).faults == []  # of what it holds nothing is amiss, and what it lacks it says
    assert json.loads((out / "manifest.json").read_text())["tensors_lost"] == 2
    told = command(app, "verify", str(out), "--config", config, "--json")
    assert (told.exit_code, json.loads(told.stdout)["tensors_lost"]) == (0, 2)


def test_a_store_that_is_away_ends_no_export_and_is_asked_no_more(
    office: tuple[Desk, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk, config = office
    desk.ship(*(kept_call(message=request(nbytes=64 + n)) for n in range(6)))
    asked, get = list[str](), LocalObjects.get

    def fails(self: LocalObjects, name: str) -> bytes | None:
        asked.append(name)
        if len(asked) == 2:
            return get(self, name)
        raise OSError("no route to host")

    monkeypatch.setattr(LocalObjects, "get", fails)
    out = tmp_path / "export"
    done = command(app, "export", "-o", str(out), "--reveal", "--reason", "court", "--config", config)
    assert (done.exit_code, len(asked)) == (1, 7)
    lost = [why for line in lines_of(out) for why in line["tensors"].get("lost", {}).values()]
    assert [sum(word in why for why in lost) for word in ("no route to host", "asked no more")] == [6, 5]
    monkeypatch.undo()
    report = verify_export(out, keys)
    assert (report.faults, report.tensors_lost) == ([], 11)


def test_an_export_that_cannot_be_written_is_on_record_all_the_same(
    office: tuple[Desk, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever saw a part of it has seen it."""
    desk, config = office
    desk.ship(kept_call())

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(export_tensors, "write_whole", full)
    out = tmp_path / "export"
    done = command(app, "export", "-o", str(out), "--reveal", "--reason", "court", "--config", config)
    assert (done.exit_code, f"{out}: No space left on device" in done.output) == (2, True)
    assert (out / "records.ndjson").exists()
    asked = "SELECT reason FROM warden.audit_events WHERE kind = 'audit_export'"
    assert query(desk.dsn, asked) == [("court",)]


@pytest.mark.parametrize("lacks", ["the store", "the master key"])
def test_tensors_that_nobody_here_can_have_are_told_as_lost(
    office: tuple[Desk, str], tmp_path: Path, lacks: str
) -> None:
    desk, config = office
    desk.ship(kept_call())
    if lacks == "the store":
        text = Path(config).read_text()
        Path(config).write_text(text.replace("  objects: {directory: objects, jurisdiction: EU}\n", ""))
    else:
        query(desk.dsn, "UPDATE warden.data_keys SET wrapped = wrapped || '\\x00'")
    out = tmp_path / "export"
    done = command(app, "export", "-o", str(out), "--reveal", "--reason", "court", "--config", config)
    assert done.exit_code == 1, done.output
    (line,) = lines_of(out)
    says = "not looked for: no audit.objects" if lacks == "the store" else "the record's key is not to be had"
    assert all(says in why for why in line["tensors"]["lost"].values())
    report = verify_export(out, keys)
    assert (report.faults, report.tensors_lost) == ([], 2)


def removed(out: Path) -> None:
    next((out / "tensors").iterdir()).unlink()


def altered(out: Path) -> None:
    next((out / "tensors").iterdir()).write_bytes(b"other")


def replaced_by_a_folder(out: Path) -> None:
    removed_one = next((out / "tensors").iterdir())
    removed_one.unlink()
    removed_one.mkdir()


def planted(out: Path) -> None:
    (out / "tensors" / f"{'0' * 64}.bin").write_bytes(b"nobody's")


def left_over(out: Path) -> None:
    (out / "tensors" / f".{'0' * 64}.bin.part").write_bytes(b"half")


def changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def act(out: Path) -> None:
        lines = lines_of(out)
        change(next(line for line in lines if "tensors" in line))
        (out / "records.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))

    return act


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (FaultKind.OBJECT_MISSING, removed),
        (FaultKind.OBJECT_ALTERED, altered),
        (FaultKind.OBJECT_ALTERED, replaced_by_a_folder),
        (FaultKind.OBJECT_MISSING, changed(lambda line: line.pop("tensors"))),
        (FaultKind.OBJECT_MISSING, changed(lambda line: line["tensors"]["kept"].pop())),
        (FaultKind.OBJECT_ALTERED, changed(lambda line: line["tensors"]["kept"][0].update(sha256="0" * 64))),
        (FaultKind.OBJECT_ALTERED, changed(lambda line: line["tensors"]["kept"][0].update(sha256="../../etc/passwd"))),
        (FaultKind.OBJECT_SWAPPED, changed(lambda line: line["tensors"]["kept"][0].update(n=77))),
        (FaultKind.ALTERED_COLUMN, changed(lambda line: line["sealed"].pop("payloads_sealed"))),
        (FaultKind.ALTERED_COLUMN, changed(lambda line: line.update(record_key="00" * 32))),
        (FaultKind.ALTERED_COLUMN, changed(lambda line: line.update(tensors=[]))),
        (FaultKind.ALTERED_COLUMN, changed(lambda line: line["tensors"]["kept"][0].update(sha256=5))),
        (FaultKind.ALTERED_COLUMN, changed(lambda line: line["tensors"]["kept"][0].update(n="0"))),
        (FaultKind.INSERTION, planted),
        (FaultKind.INSERTION, left_over),
    ],
)  # fmt: skip
def test_whatever_is_changed_of_an_exports_tensors_is_named(
    exported: Path, kind: FaultKind, change: Callable[[Path], None]
) -> None:
    change(exported)
    assert kind in {fault.kind for fault in verify_export(exported, keys).faults}


def test_an_erasures_certificate_counts_them_and_retention_deletes_them(office: tuple[Desk, str]) -> None:
    desk, config = office
    desk.ship(kept_call(subject="ann"), kept_call(subject="ann"), kept_call(subject="bea"))
    asked = ("--tenant", "acme", "--subject", "ann", "--reason", "GDPR 17", "--config", config, "--json")
    done = command(app, "erase", *asked)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["objects"] == 4
    ann = desk.rows()[0]
    assert desk.objects.get(refs_of(ann["payloads"])[0].name)  # it lies there still, and nobody opens it
    told = json.loads(command(app, "retain", "--config", config, "--json").stdout)
    assert told["objects"] == 4
    assert len(list(desk.objects.list())) == 2
    (desk.directory / "objects").rename(desk.directory / "away")
    done = command(app, "retain", "--config", config)
    assert (done.exit_code, "still in the object store" in done.output) == (3, True)


def test_a_sidecar_without_a_store_says_that_they_are_nowhere(dsn: str, tmp_path: Path) -> None:
    journal = FakeJournal()
    journal.append(*kept_call())
    with Shipping(journal, dsn, tmp_path) as shipping:
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 1)
    ((payloads,),) = query(dsn, "SELECT payloads FROM warden.audit_calls")
    told = payloads if isinstance(payloads, dict) else json.loads(payloads)
    assert {side: (each["unkept"], "object" in each) for side, each in told.items()} == {
        "inputs": ("nowhere", False), "outputs": ("nowhere", False),
    }  # fmt: skip
    assert all(len(tensor[5]) == 64 for tensor in told["inputs"]["tensors"])
