"""audit.transit on a real OpenBao: keys that never leave it end there, and a provider that errs costs no record."""

from __future__ import annotations

import http.server
import itertools
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from audit.keyring import Keyring
from audit.keys import KeyAlteredError, KeyFaultError, KeyGoneError, KeyMissingError
from audit.transit import Transit, TransitKeys
from sidecar.cli.evidence import app
from tests.integration.audit import test_erasing as erasing

# The whole of it once more, with this provider.
from tests.integration.audit.test_erasing import (  # noqa: F401 — collected here too
    CALLS,
    Desk,
    test_a_dictionary_finds_nothing_in_the_dump,
    test_a_dump_beside_todays_keys_is_unreadable_once_it_is_done,
    test_a_hold_refuses_an_erasure_until_it_is_released,
)  # fmt: skip
from tests.integration.audit.test_search import write_config
from tests.support import store as support
from tests.support.openbao import OpenBao
from tests.support.store import Shipping, completed, wait_until

_prefixes = (f"t{os.getpid()}-{n}-" for n in itertools.count())


@pytest.fixture
def provide(openbao: OpenBao, tmp_path: Path) -> Iterator[Callable[[], TransitKeys]]:
    """A provider for this test's directory; each call is another process, as it were."""
    prefix = next(_prefixes)

    def made() -> TransitKeys:
        return openbao.keys(tmp_path, prefix)

    support.PROVIDERS[tmp_path] = made
    yield made
    del support.PROVIDERS[tmp_path]


@pytest.fixture
def desk(provide: Callable[[], TransitKeys], dsn: str, tmp_path: Path) -> Desk:
    """As in test_erasing, whose tests run here too."""
    desk = Desk(dsn, tmp_path)
    for name, subject, tenant in CALLS:
        whose = {"call_id": name, "subject": subject, "tenant": tenant}
        desk.journal.append(*completed(**whose, principal="app", principal_kind="api_key", conversation="k"))
    desk.ship(5)
    assert desk.opened() == erasing.EVERYBODY
    assert not list(tmp_path.rglob("*.key"))  # no master key lies anywhere here
    return desk


@pytest.mark.parametrize("tenant", ["acme", "", "../acme", "é" * 200, "a/b", "\ud800"])
def test_every_tenant_has_its_own_keys(provide: Callable[[], TransitKeys], tenant: str) -> None:
    keys = provide()
    assert keys.versions(tenant) == []
    assert keys.current(tenant) == keys.current(tenant) == 1
    wrapped = keys.wrap(tenant, 1, b"k" * 32, b"here")
    assert provide().unwrap(tenant, 1, wrapped, b"here") == b"k" * 32
    for version, context in ((1, b"there"), (2, b"here")):
        with pytest.raises(KeyAlteredError):
            keys.unwrap(tenant, version, wrapped, context)
    keys.current("other")
    with pytest.raises(KeyAlteredError):
        keys.unwrap("other", 1, wrapped, b"here")
    assert keys.mac(tenant, 1, b"alice") == provide().mac(tenant, 1, b"alice") != keys.mac(tenant, 1, b"bob")
    assert keys.mac(tenant, 1, b"alice") != keys.mac("other", 1, b"alice")
    assert len(keys.mac(tenant, 1, b"alice")) == 16


def test_what_was_destroyed_unwraps_no_more_and_its_number_never_comes_back(provide: Callable[[], TransitKeys]) -> None:
    keys = provide()
    wrapped = keys.wrap("acme", keys.current("acme"), b"k" * 32, b"")
    second = keys.rotate("acme")
    kept = keys.wrap("acme", second, b"s" * 32, b"")
    assert keys.versions("acme") == [1, 2]
    assert keys.mac("acme", 1, b"alice") != keys.mac("acme", 2, b"alice")
    other = provide()
    assert other.unwrap("acme", 1, wrapped, b"") == b"k" * 32
    keys.destroy("acme", 1, {"id-1": (second, kept)})
    for process in (keys, other):
        with pytest.raises(KeyGoneError):
            process.unwrap("acme", 1, wrapped, b"")
        with pytest.raises(KeyGoneError):
            process.wrap("acme", 1, b"k" * 32, b"")
        assert (process.versions("acme"), process.destroyed("acme", 1), process.destroyed("acme", 2)) == (
            [2], True, False,
        )  # fmt: skip
        assert process.unwrap("acme", *(process.survivor("acme", "id-1") or (0, b"")), b"") == b"s" * 32
        assert process.survivor("acme", "id-2") is None
    keys.destroy("acme", 1, {})  # twice: nothing more happens
    assert keys.rotate("acme") == 3


def test_an_engine_that_lost_its_keys_begins_behind_the_numbers_that_were_given_up(
    openbao: OpenBao, provide: Callable[[], TransitKeys], tmp_path: Path
) -> None:
    """Another mount, or an engine restored from before: what was wrapped there under the same numbers opens nothing."""
    old = openbao.keys(tmp_path / "old", next(_prefixes))
    wrapped = old.wrap("acme", old.current("acme"), b"k" * 32, b"")
    assert old.rotate("acme") == 2
    ring = Keyring(provide(), lambda _: [1, 2])
    for act in (ring.current, ring.rotate):
        with pytest.raises(KeyMissingError, match=r"transit/keys/t\d+-\d+-t-acme: .* lacks version 1,2"):
            act("acme")
    assert ring.versions("acme") == []
    ring.give_up("acme", [1, 2])
    assert ring.current("acme") == 3
    assert [ring.destroyed("acme", version) for version in (1, 2, 3)] == [True, True, False]
    with pytest.raises(KeyGoneError):
        provide().unwrap("acme", 1, wrapped, b"")


def test_a_token_that_may_not_and_a_server_that_is_gone_are_told(openbao: OpenBao, tmp_path: Path) -> None:
    token = tmp_path / "token"
    for text, mode, words in (
        ("nonsense", 0o600, "403"),
        ("x", 0o644, "lets others use it"),
        (None, 0, "No such file"),
    ):
        token.unlink(missing_ok=True)
        if text is not None:
            token.touch(mode=0o600)
            token.write_text(text)
            token.chmod(mode)
        keys = TransitKeys(Transit(openbao.address, token), tmp_path)
        with pytest.raises(KeyFaultError, match=words):
            keys.current("acme")
    token.touch(mode=0o600)
    gone = TransitKeys(Transit("http://127.0.0.1:9", token), tmp_path)
    with pytest.raises(KeyFaultError, match=r"127\.0\.0\.1:9"):
        gone.current("acme")


def test_records_wait_while_the_provider_hangs_and_none_is_lost(
    openbao: OpenBao, provide: Callable[[], TransitKeys], dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("audit.transit.TIMEOUT", 0.3)
    desk = Desk(dsn, tmp_path)
    with Shipping(desk.journal, dsn, tmp_path) as shipping:
        desk.journal.append(*completed(call_id="before"))
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 1)
        openbao.process.send_signal(signal.SIGSTOP)
        try:
            desk.journal.append(*completed(call_id="during", subject="new"))
            wait_until(lambda: shipping.fault or "timed out" in str(shipping.shipper.status.last_error))
        finally:
            openbao.process.send_signal(signal.SIGCONT)
        wait_until(lambda: shipping.fault or shipping.shipper.status.rows == 2)
        assert shipping.shipper.status.poisoned == 0
    assert shipping.fault is None
    assert desk.opened() == {"before": "", "during": "new"}


class _Liar(http.server.BaseHTTPRequestHandler):
    """Says yes to everything, and gives back a plaintext of its own."""

    answers: ClassVar[dict[str, Any]] = {}

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        name = self.path.split("/")[3]
        body = json.dumps(self.answers[name]).encode() if name in self.answers else b"<html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # noqa: N815 — the library's names

    def log_message(self, *_: Any) -> None:
        """Not told."""


LIES: list[tuple[str, dict[str, Any]]] = [
    ("another plaintext", {"decrypt": {"data": {"plaintext": "AAAA"}}}),
    ("no plaintext", {"decrypt": {"data": {}}}),
    ("a plaintext that is none", {"decrypt": {"data": {"plaintext": "%%"}}}),
    ("no JSON", {}),
    ("a list", {"decrypt": [1]}),
    ("a key that is none", {"keys": {"data": {"latest_version": "two", "keys": 7}}}),
    ("an infinite version", {"keys": {"data": {"latest_version": float("inf"), "keys": {}}}}),
]


@pytest.mark.parametrize(("lie", "answers"), LIES, ids=[name for name, _ in LIES])
def test_nothing_is_sealed_under_what_a_lying_provider_wrapped(
    dsn: str, tmp_path: Path, lie: str, answers: dict[str, Any]
) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    key = {"data": {"latest_version": 1, "keys": {"1": 1}}}
    handler = type(
        "Liar", (_Liar,), {"answers": {"keys": key, "encrypt": {"data": {"ciphertext": "vault:v1:AA"}}} | answers}
    )
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    place = Transit(f"http://127.0.0.1:{server.server_port}", token)
    support.PROVIDERS[tmp_path] = lambda: TransitKeys(place, tmp_path)
    try:
        desk = Desk(dsn, tmp_path)
        desk.journal.append(*completed())
        with Shipping(desk.journal, dsn, tmp_path) as shipping:
            wait_until(lambda: shipping.fault or shipping.shipper.status.last_error)
            assert (shipping.shipper.status.rows, shipping.shipper.status.poisoned) == (0, 0), lie
        assert shipping.fault is None
    finally:
        del support.PROVIDERS[tmp_path]
        server.shutdown()
        server.server_close()


def test_the_commands_take_it_from_the_configuration(openbao: OpenBao, desk: Desk) -> None:
    """``audit search`` opens what was sealed under keys that only the engine has; without the token it says why not."""
    config = write_config(desk.directory, desk.dsn)
    prefix = support.PROVIDERS[desk.directory]()._place.prefix  # type: ignore[attr-defined]
    section = f"{{address: '{openbao.address}', token_file: '{openbao.token_file}', prefix: '{prefix}'}}"
    config.write_text(config.read_text() + f"  keys: {{directory: survivors, vault: {section}}}\n")
    asked = ["search", "--subject", "bob", "--tenant", "acme", "--config", str(config)]
    done = CliRunner().invoke(app, [*asked, "--json"])
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["call_id"] for line in done.stdout.splitlines()] == ["b1"]
    config.write_text(config.read_text().replace(str(openbao.token_file), "/nowhere"))
    done = CliRunner().invoke(app, asked)
    assert (done.exit_code, "/nowhere" in done.output) == (3, True)
    config.write_text(config.read_text().replace("http://127", "http://128"))
    done = CliRunner().invoke(app, ["search", "--config", str(config)])
    assert (done.exit_code, "https://HOST" in done.output) == (2, True)
