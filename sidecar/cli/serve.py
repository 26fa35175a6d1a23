"""`warden serve`: the sidecar itself, on the wire in production (Envoy) or the portable one (grpc)."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, fail, need
from sidecar.runtime import dumps
from sidecar.runtime.compose import StartError
from sidecar.runtime.serve import serve_envoy, serve_grpc
from sidecar.runtime.settings import SettingsError, load


class Wire(StrEnum):
    ENVOY = "envoy"
    GRPC = "grpc"


def serve(
    config: ConfigOption = DEFAULT_CONFIG,
    wire: Annotated[Wire, typer.Option(help="envoy: the production wire. grpc: the portable one.")] = Wire.ENVOY,
) -> None:
    """Govern one Triton: the only way in. Runs until SIGTERM, then drains. Starts `warden ship` as its child."""
    dumps.forbid()
    need(config)
    try:
        settings = load(config)
        match wire:
            case Wire.ENVOY:
                serve_envoy(settings, config)
            case Wire.GRPC:
                if not serve_grpc(settings, config):
                    fail(Exit.NO, "the gRPC server ended by itself (its fault is in the log)")
    except (SettingsError, StartError) as fault:
        fail(Exit.USAGE, f"cannot start:\n{fault}")
