"""`warden serve`: checks everything that can be checked, then becomes Envoy (or runs the portable wire)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sidecar.runtime import drain, tls
from sidecar.runtime.compose import StartError, check
from sidecar.runtime.lifecycle import Sidecar
from sidecar.runtime.settings import Settings
from sidecar.telemetry import logs

if TYPE_CHECKING:
    import grpc.aio

_LOG: Final = logging.getLogger("warden.lifecycle")
_LOOK: Final = 1.0  # seconds between two looks at the portable wire's own port
_REFUSALS: Final = 2  # in a row, until it counts as closed
_RUN_PREFIX = "warden-"


def serve_envoy(settings: Settings, config: Path) -> None:
    """Replace this process by Envoy with our app inside. Does not return; raises ``StartError``."""
    # Only this wire needs pyvoy and its Envoy.
    from sidecar.runtime import envoy  # noqa: PLC0415

    check(settings)
    _claimable("listen.grpc", settings.listen.grpc)
    for n, bound in enumerate(settings.listeners):
        _claimable(f"listeners[{n}]", bound.address)
    run = Path(tempfile.mkdtemp(prefix=_RUN_PREFIX))  # 0700, ours, empty: Envoy's Python has it first on sys.path
    config_file = run / "envoy.json"
    config_file.write_text(json.dumps(envoy.configuration(settings, run)))
    command = envoy.command(settings, config_file)
    environment = envoy.environment(config, run)
    drain.block_signals()  # inherited over execve; Envoy itself would drop live streams at once
    os.chdir(run)
    os.execve(command[0], command, environment)  # noqa: S606 — no shell, our own arguments


def _claimable(name: str, address: str) -> None:
    """Raise ``StartError`` where nobody could listen: an Envoy that can't would linger, half started."""
    host, _, port = address.rpartition(":")
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Envoy does: TIME_WAIT is no obstacle
            probe.bind(place)
            probe.listen()
    except OSError as fault:
        raise StartError(f"{name}: cannot listen on {address}: {fault.strerror}") from fault


def serve_grpc(settings: Settings, config: Path) -> bool:
    """The portable wire, in this process, until SIGTERM or SIGINT. Raises ``StartError``.

    False where its server ended by itself: one request whose path is not UTF-8 ends grpc.aio's (grpcio 1.85), and
    nothing can be put before it. The process must end then, so that what runs it starts another.
    """
    logs.setup()
    section = settings.listen.tls
    if section is not None and section.client_ca_file is not None and not section.require_client_certificate:
        # gRPC's Python servers either require a client certificate or never ask for one: of the C library's five modes
        # (grpc_security_constants.h) grpcio passes two, by its boolean, with static files and dynamic ones alike.
        raise StartError(
            "listen.tls.client_ca_file: on this wire, set require_client_certificate too (or --wire envoy)"
        )
    command = (sys.executable, "-m", "sidecar.cli.main", "ship", "--config", str(config.resolve()))
    sidecar = Sidecar(settings, (command, dict(os.environ)), listens=settings.addresses)
    return asyncio.run(_serve_grpc(sidecar))


async def _serve_grpc(sidecar: Sidecar) -> bool:
    import grpc.aio  # noqa: PLC0415 — not on the production wire

    from sidecar.transports.grpc_aio import WardenInterceptor, server_options  # noqa: PLC0415
    from sidecar.transports.grpc_upstream import GrpcUpstream, connect  # noqa: PLC0415

    settings, section = sidecar.settings, sidecar.settings.listen.tls
    async with connect(settings.triton.grpc) as channel:
        upstream, bounds = GrpcUpstream(channel, sidecar.rooms.restricted), settings.bounds
        options = server_options(bounds.message_bytes, bounds.metadata_bytes, bounds.streams_per_connection)

        def server_at(name: str, address: str, credentials: Any, listener: str = "") -> grpc.aio.Server:
            """One server for each address: a handler can't tell which of its server's ports a call came in on."""
            interceptor = WardenInterceptor(sidecar.services, upstream, sidecar.live, listener=listener)
            made = grpc.aio.server(interceptors=[interceptor], options=options)
            _bind(made, name, address, credentials)
            return made

        server = server_at("listen.grpc", settings.listen.grpc, section and tls.server_credentials(section, _refused))
        bound = [
            server_at(f"listeners[{n}]", each.address, None, each.address) for n, each in enumerate(settings.listeners)
        ]
        await asyncio.to_thread(sidecar.start)
        for each in (server, *bound):
            await each.start()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        asked = asyncio.create_task(stop.wait(), name="signal")
        ended = [asyncio.create_task(_ended(each), name="server") for each in (server, *bound)]
        closed = [asyncio.create_task(_closed(address), name="port") for address in settings.addresses]
        await asyncio.wait({asked, *ended, *closed}, return_when=asyncio.FIRST_COMPLETED)
        by_itself = not asked.done()
        for task in closed:
            task.cancel()
        await asyncio.to_thread(sidecar.drain.run)
        await asyncio.gather(*(each.stop(grace=1.0) for each in (server, *bound)))
        await asyncio.to_thread(sidecar.stop)
        stop.set()
        await asyncio.wait({asked, *ended, *closed})
        return not by_itself


async def _ended(server: grpc.aio.Server) -> None:
    """Until the server has stopped; logged where a fault of its own made it stop."""
    try:
        await server.wait_for_termination()
    except Exception:  # noqa: BLE001 — grpc.aio raises here whatever ended its loop
        _LOG.exception("server.failed")


async def _closed(address: str) -> None:
    """Until nobody listens there: a server that failed takes nobody any more, and says so once its last call ended."""
    host, _, port = address.rpartition(":")
    refused = 0
    while refused < _REFUSALS:
        await asyncio.sleep(_LOOK)
        try:
            _, connection = await asyncio.open_connection(host.strip("[]"), int(port))
        except ConnectionRefusedError:
            refused += 1
        except OSError:  # of ours: no descriptor is left, say
            continue
        else:
            refused = 0
            connection.close()


def _refused(detail: str) -> None:
    logs.event(_LOG, logging.ERROR, "certificate.refused", detail=detail)


def _bind(server: Any, name: str, address: str, credentials: Any) -> None:
    with contextlib.suppress(RuntimeError):
        if server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials):
            return
    raise StartError(f"{name}: cannot listen on {address}")
