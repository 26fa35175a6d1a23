"""A sidecar is not ready before its ports take connections, whatever address they are bound to."""

from __future__ import annotations

import socket

import pytest

from sidecar.cli.demo.ports import free_ports
from sidecar.runtime import listening as listening_module
from sidecar.runtime.listening import Listening


def listener(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_server((host, port))


def test_each_port_is_missing_until_it_has_taken_a_connection() -> None:
    one, two = free_ports(2)
    addresses = [f"127.0.0.1:{one}", f"127.0.0.1:{two}"]
    listening = Listening(addresses)
    assert listening.missing() == ", ".join(addresses)
    with listener(two):
        assert listening.missing() == ", ".join(addresses), "one is asked after the other: a probe has no time for all"
    with listener(one):
        assert listening.missing() == addresses[1]
    with listener(two):
        assert listening.missing() == ""
    assert listening.missing() == "", "what has opened is not asked again"


@pytest.mark.parametrize(("bound", "address"), [("0.0.0.0", "0.0.0.0"), ("127.0.0.1", "localhost"), ("0.0.0.0", "")])
def test_any_address_is_asked_on_loopback(bound: str, address: str) -> None:
    (port,) = free_ports(1)
    listening = Listening([f"{address}:{port}"])
    assert listening.missing() == f"{address}:{port}"
    with listener(port, bound):
        assert listening.missing() == ""


def test_what_one_probe_found_open_no_slower_one_takes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    listening = Listening(["a:1", "b:2"])
    probes = [iter([True, True]), iter([False])]

    def takes(_address: str) -> bool:
        if len(probes) == 2:  # while the slower one waits, another comes and goes
            quick = probes.pop(0)
            monkeypatch.setattr(listening_module, "_takes", lambda _: next(quick))
            assert listening.missing() == ""
        return next(probes[0])

    monkeypatch.setattr(listening_module, "_takes", takes)
    assert listening.missing() == ""
    assert listening.missing() == ""


def test_no_port_is_never_missing() -> None:
    assert Listening(()).missing() == ""
