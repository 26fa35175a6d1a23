"""A witness as c2sp.org/tlog-witness describes it, small: it remembers one log, and signs only what extends it."""

from __future__ import annotations

import base64
import http.server
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from audit.merkle import Frontier, verify_consistency
from audit.tlog import NoteError, Signer, Verifier, parse_checkpoint, parse_note
from audit.witness import Witness


class WitnessServer:
    """``log``: whose checkpoints it takes. ``down``, ``forged`` and ``noise`` are what a test does to it."""

    def __init__(self, log: Verifier) -> None:
        self.signer = Signer("witness.example", b"w" * 32, witness=True)
        self.log, self.size, self.root = log, 0, Frontier().root
        self.down = self.forged = False
        self.noise = ""  # lines before its own
        self.asked: list[int] = []  # the statuses that were answered
        self.now = time.time

    def answer(self, body: str) -> tuple[int, str]:
        if self.down:
            return 503, "down"
        head, _, note = body.partition("\n\n")
        first, *lines = head.split("\n")
        try:
            parsed = parse_note(note)
            checkpoint = parse_checkpoint(parsed.text)
        except NoteError as fault:
            return 400, str(fault)
        old, proof = int(first.removeprefix("old ")), [base64.b64decode(line) for line in lines]
        if checkpoint.origin != self.log.name:
            return 404, "unknown log"
        if not self.log.accepts(parsed):
            return 403, "not signed by the log"
        if old > checkpoint.size:
            return 400, "old is beyond the checkpoint"
        if old != self.size:
            return 409, f"{self.size}\n"
        if old == checkpoint.size and self.root != checkpoint.root:
            return 409, f"{self.size}\n"
        if old and not verify_consistency(old, checkpoint.size, self.root, checkpoint.root, proof):
            return 422, "the proof does not hold"
        self.size, self.root = checkpoint.size, checkpoint.root
        text = parsed.text if not self.forged else parsed.text.replace("\n", "x\n", 1)
        return 200, self.noise + self.signer.line(text, at=int(self.now()))


@contextmanager
def serving(log: Verifier) -> Iterator[tuple[WitnessServer, Witness]]:
    witness = WitnessServer(log)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/add-checkpoint"
            status, text = witness.answer(self.rfile.read(int(self.headers["Content-Length"])).decode())
            witness.asked.append(status)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Not told."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield witness, Witness(f"http://127.0.0.1:{server.server_port}", witness.signer.verifier)
    finally:
        server.shutdown()
        server.server_close()
