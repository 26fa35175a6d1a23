"""A journal whose process is killed -9 while it appends: all that was acknowledged is there, once, in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from audit import record
from tests.support.journal import entries, open_journal

CYCLES = 25
pytestmark = pytest.mark.integration

# Appends numbered entries for ever and says each sequence on stdout only after append returned.
WRITER = """
import os, secrets, sys, time
from pathlib import Path
from audit.journal import Bounds, Journal
from tests.support.journal import ORIGIN, ROOT
journal = Journal.open(
    Path(sys.argv[1]), ROOT, ORIGIN, Bounds(segment_bytes=50_000, min_free=1),
    random=secrets.token_bytes, wall_ns=time.time_ns, monotonic=time.monotonic,
)
assert isinstance(journal, Journal), journal
while True:
    sequence = journal.append(b"entry %d " % journal.next_sequence * 20)
    os.write(1, b"%d\\n" % sequence)
"""


def acknowledged(directory: Path, after: int) -> list[int]:
    """Run a writer, kill it once it has acknowledged ``after`` entries, and say what it acknowledged."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    with writer.stdout, writer.stderr:
        lines = [writer.stdout.readline() for _ in range(after)]
        os.kill(writer.pid, signal.SIGKILL)
        lines += writer.stdout.read().splitlines()
        assert writer.wait() == -signal.SIGKILL, writer.stderr.read().decode()
    return [int(line) for line in lines if line]


def test_what_was_acknowledged_survives_kill_9(tmp_path: Path) -> None:
    chance = random.Random(7)
    last = -1
    for _ in range(CYCLES):
        sequences = acknowledged(tmp_path, chance.randrange(1, 400))
        assert sequences[0] > last, "no sequence twice"
        last = sequences[-1]
        found = entries(tmp_path, max(last - 50, 0))
        assert found[-1][0] >= last
    journal = open_journal(tmp_path)
    assert journal.recovery.faults == ()
    found = entries(tmp_path)
    assert [sequence for sequence, _ in found] == list(range(journal.next_sequence))
    assert journal.next_sequence > last
    assert all(data == b"entry %d " % sequence * 20 for sequence, data in found)
    journal.close()


CALLER = """
import secrets, sys, time
from pathlib import Path
from audit import record
from audit.journal import Bounds, Journal
from tests.support.journal import ORIGIN, ROOT
journal = Journal.open(
    Path(sys.argv[1]), ROOT, ORIGIN, Bounds(min_free=1),
    random=secrets.token_bytes, wall_ns=time.time_ns, monotonic=time.monotonic,
)
for n in range(3):
    facts = record.CallFacts(f"call-{n}", 1000, 2000, "/m")
    journal.append(record.encode(record.Admitted(facts)), opens=facts.call_id)
    journal.append(record.encode(record.Output(facts.call_id, 3000, 0, [b"partial"])), reserve=True)
print("ready", flush=True)
time.sleep(60)
"""


def test_calls_that_a_kill_cut_off_are_found_open(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", CALLER, str(tmp_path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    with writer.stdout:
        assert writer.stdout.readline() == b"ready\n"
        os.kill(writer.pid, signal.SIGKILL)
        writer.wait()
    journal = open_journal(tmp_path)
    assert [(call.call_id, call.output_bytes) for call in journal.recovery.open_calls] == [
        ("call-0", 7), ("call-1", 7), ("call-2", 7),
    ]  # fmt: skip
    assert isinstance(record.decode(entries(tmp_path)[0][1]), record.Admitted)
    journal.close()
