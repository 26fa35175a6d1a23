"""What Envoy's Python imports: the ASGI app of the production wire, started once per process, failing closed."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

from sidecar.runtime import drain, dumps, envoy
from sidecar.runtime.compose import StartError
from sidecar.runtime.lifecycle import Sidecar
from sidecar.runtime.settings import SettingsError, load
from sidecar.telemetry import logs
from sidecar.transports.asgi import AsgiWire
from sidecar.transports.envoy_upstream import CLUSTER, EnvoyUpstream

_LOG: Final = logging.getLogger("warden.lifecycle")
_UNSTARTED: Final = 2  # exit code: bad input (DESIGN §6)
_START: Final = threading.Lock()
_STARTED: dict[str, AsgiWire] = {}  # by "wire": shared by every listener's loop


def _quiet(unraisable: sys.UnraisableHookArgs, /) -> None:
    """Leave out pyvoy's "no attribute 'cancel_soon'": logged for every finished upstream body, and harmless."""
    if isinstance(unraisable.exc_value, AttributeError) and "cancel_soon" in str(unraisable.exc_value):
        return
    sys.__unraisablehook__(unraisable)


def _start() -> AsgiWire:
    """Called by the first listener's lifespan; the process ends here if the sidecar can't be started."""
    with _START:
        if "wire" not in _STARTED:
            logs.setup()
            dumps.forbid()  # once more: over execve only the limit was kept
            sys.unraisablehook = _quiet
            try:
                _STARTED["wire"] = _build()
            except (StartError, SettingsError) as fault:
                # A lifespan that raises would be served anyway (facts/envoy.md): end the process, closed.
                sys.stderr.write(f"warden: cannot start:\n{fault}\n")
                sys.stderr.flush()
                os._exit(_UNSTARTED)
            except BaseException:  # noqa: BLE001 — nothing may go on half started
                _LOG.exception("sidecar.unstarted")
                os._exit(1)
        return _STARTED["wire"]


def _build() -> AsgiWire:
    from pyvoy.asgi.httpclient import HTTPTransport  # noqa: PLC0415 — there inside Envoy only

    config, run = Path(os.environ[envoy.CONFIG_VARIABLE]), Path(os.environ[envoy.RUN_VARIABLE])
    settings = load(config)
    python = os.environ[envoy.PYTHON_VARIABLE]
    command = (python, "-m", "sidecar.cli.main", "ship", "--config", str(config))
    sidecar = Sidecar(settings, (command, envoy.child_environment()), python, listens=settings.addresses)
    sidecar.start()
    threading.Thread(target=_way_out, args=(sidecar, run), name="warden-drain", daemon=True).start()
    # Every call has its own deadline; the transport's must only never come first (its default is 60 s).
    transport = HTTPTransport(CLUSTER, timeout=settings.bounds.call_timeout * 2 + 60.0)
    bound = {envoy.split_address(each.address)[1]: each.address for each in settings.listeners}
    upstream = EnvoyUpstream(transport, sidecar.budget, sidecar.rooms.restricted)
    return AsgiWire(sidecar.services, upstream, sidecar.live, bound)


def _way_out(sidecar: Sidecar, run: Path) -> None:
    found = drain.wait_for_signal()
    logs.event(_LOG, logging.INFO, "signal", signal=found.name)
    admin = drain.EnvoyAdmin(run / "admin.sock")
    try:
        drain.drain_envoy(sidecar.drain, admin, sidecar.stop, lambda: shutil.rmtree(run, ignore_errors=True))
    except Exception:  # noqa: BLE001 — whatever it is: a process that refuses everything and never ends helps nobody
        _LOG.exception("drain.failed")
        os.kill(os.getpid(), signal.SIGKILL)


async def app(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """The ASGI app."""
    if scope["type"] != "lifespan":
        await _STARTED["wire"](scope, receive, send)
        return
    await receive()
    await asyncio.to_thread(_start)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
