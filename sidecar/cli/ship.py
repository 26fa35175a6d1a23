"""`warden ship`: follow the journal into the database and to the collector, until SIGTERM or until the parent dies."""

from __future__ import annotations

import os
import signal
import threading

from audit.logbook import ForkError
from audit.seal import KeyFault
from audit.store import WrongJurisdictionError
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, fail
from sidecar.cli.desk import load_settings
from sidecar.runtime import dumps
from sidecar.runtime.dsn import sidecar_dsn
from sidecar.runtime.rootkeys import root_keys
from sidecar.runtime.shipper import PARENT_VARIABLE
from sidecar.runtime.shipping import AlreadyShippingError, bind_to_parent, load_sealer
from sidecar.runtime.shipping import ship as run
from sidecar.runtime.stranded import StrandedError
from sidecar.telemetry import logs


def ship(config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Store the journal's records in Postgres and send spans. `warden serve` starts it; it runs by itself as well.

    Ends with the batch at hand on SIGTERM, and when the process that started it ends.
    """
    dumps.forbid()
    stop = threading.Event()
    bind_to_parent(stop, int(os.environ.get(PARENT_VARIABLE, "0")) or None)
    ends = (signal.SIGTERM, signal.SIGINT)
    for number in ends:
        signal.signal(number, lambda *_: stop.set())
    # Envoy's process has them blocked, and a child inherits that: then neither its stop nor its death would end us.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
    settings = load_settings(config)
    logs.setup()
    root, sealer = root_keys(settings.audit.journal), load_sealer(settings)
    if isinstance(root, KeyFault):
        fail(Exit.USAGE, root.detail)
    if isinstance(sealer, KeyFault):
        fail(Exit.USAGE, sealer.detail)
    dsn = sidecar_dsn(settings.audit.database)
    if isinstance(dsn, KeyFault):
        fail(Exit.USAGE, dsn.detail)
    try:
        run(settings, root, stop)
    except WrongJurisdictionError as fault:
        fail(Exit.NO, f"{config}: {fault}")
    except ForkError as fault:
        fail(Exit.NO, f"{fault}: nothing is shipped before a person has looked")
    except StrandedError as fault:
        fail(Exit.NO, f"{config}: {fault}")
    except AlreadyShippingError as fault:
        fail(Exit.DEPENDENCY, str(fault))
    except OSError as fault:
        fail(Exit.DEPENDENCY, f"{fault.filename or config}: {fault.strerror or fault}")
