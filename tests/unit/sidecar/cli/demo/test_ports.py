"""Ports: the preferred one where it is free, another where it isn't."""

from __future__ import annotations

import socket

from sidecar.cli.demo.ports import LOOPBACK, free_port, free_ports, is_free, pick


def test_a_port_that_something_listens_on_is_not_free_and_another_is_picked() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        taken = server.getsockname()[1]
        assert not is_free(taken)
        assert pick(taken) != taken
        assert is_free(pick(taken))


def test_a_free_port_is_picked_as_it_is() -> None:
    port = free_port()
    assert pick(port) == port


def test_a_port_is_free_again_at_once_after_its_server_closed_a_connection() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        port = server.getsockname()[1]
        client = socket.create_connection((LOOPBACK, port))
        server.accept()[0].close()  # the side that closes first keeps the port in TIME_WAIT
        client.close()
    assert is_free(port)


def test_several_free_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20
