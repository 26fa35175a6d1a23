"""A database that hangs, or has no space left: calls go on, and afterwards everything is in it and verifies."""

from __future__ import annotations

import pytest

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from tests.support.outage import filled, outlive, small_disk
from tests.support.postgres import Server
from tests.support.sidecar import Launch
from tests.support.stack import Triton

pytestmark = pytest.mark.integration


def test_a_database_that_hangs_holds_nothing_up(own: Launch, postgres: Server) -> None:
    """For some seconds; tests/long has five minutes of it."""
    sidecar = own()
    assert outlive(sidecar, postgres.hung(), seconds=3.0, every=0.02) > 1


def test_a_database_without_space_holds_nothing_up(
    own: Launch, otlp: OtlpReceiver, triton: Triton, postgres: Server
) -> None:
    with small_disk(64 * 2**20) as disk:
        files = disk / "files"
        files.mkdir()
        dsn = postgres.create_database(files)
        try:
            sidecar = own(parts=Parts(otlp, triton.running.addresses, dsn))
            assert outlive(sidecar, filled(disk), seconds=3.0, every=0.02) > 1
            sidecar.stack.stop()
        finally:
            postgres.drop_database(dsn)
