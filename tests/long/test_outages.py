"""A database that hangs for five minutes under load; the short form is in tests/integration/wire/test_outages.py."""

from __future__ import annotations

import pytest

from tests.support.outage import outlive
from tests.support.postgres import Server
from tests.support.sidecar import Launch

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
SECONDS = 300.0


def test_five_minutes_of_a_hung_database(own: Launch, postgres: Server) -> None:
    calls = outlive(own(), postgres.hung(), seconds=SECONDS, every=0.05)
    print(f"\n{calls} calls over {SECONDS:.0f} s of a hung database: all answered, all recorded, verified")
