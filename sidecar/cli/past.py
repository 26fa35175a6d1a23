"""What `warden policy` does with calls of the past: explains one under its own bundle, replays a day under another."""

from __future__ import annotations

import itertools
import os
import tarfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from audit.decisions import bundle_content, decision_of, decisions_since
from audit.search import Asker
from policies.bundle import Bundle, compile_bundle
from policies.explain import Explanation
from policies.files import unpack
from policies.replay import Past, Replay, Told, again, verdict_of
from sidecar.cli.common import Exit, fail
from sidecar.cli.database import database, opener_of
from sidecar.cli.desk import load_settings, operator
from sidecar.core.model import Principal
from sidecar.runtime.clock import now
from sidecar.runtime.ids import uuid7
from sidecar.triton.methods import METHODS

__all__ = ["explain_past", "replay"]


def explain_past(
    call_id: str, under: Bundle | None, config: Path, jurisdiction: str | None
) -> tuple[Past, Explanation]:
    """A recorded call and its decision made anew: under ``under``, or the very bundle that decided it then."""
    with database(config, jurisdiction, application="warden-policy") as opened:
        row = decision_of(opened.engine, call_id, _asker(), opener_of(opened.settings), opened.jurisdiction)
        if row is None:
            fail(Exit.NO, f"no record of call {call_id}")
        past = _past(row, opened.jurisdiction)
        if past is None:
            fail(Exit.NO, f"call {call_id}: its method is not in the table any more")
        content = None if under else bundle_content(opened.engine, past.bundle)
    bundle = under or _stored(content or _own(config, past.bundle), past.bundle)
    found = again(bundle, past)
    if isinstance(found, str):
        fail(Exit.NO, f"call {call_id}: {found}")
    return past, found


def _own(config: Path, digest: str) -> bytes | None:
    """From the pod's own database, which alone keeps bundles."""
    own = load_settings(config).audit.database.jurisdiction
    with database(config, own, application="warden-policy") as opened:
        return bundle_content(opened.engine, digest)


def _stored(content: bytes | None, digest: str) -> Bundle:
    if content is None:
        fail(Exit.NO, f"the database has no bundle {digest or '(none)'}; name one to explain the call under that")
    try:
        found = compile_bundle(unpack(content))
    except tarfile.TarError as fault:
        fail(Exit.NO, f"bundle {digest} in the database cannot be read: {fault}")
    if isinstance(found, list):  # written for another version
        fail(Exit.NO, f"bundle {digest} is none to this version: {found[0]}")
    return found


def replay(bundle: Bundle, since: datetime, config: Path, jurisdiction: str | None) -> tuple[Replay, list[Told]]:
    """Every call recorded since, decided again; those whose answer would be another."""
    replayed = Replay(bundle)
    changed: list[Told] = []
    with database(config, jurisdiction, application="warden-policy") as opened:
        asker, opener = _asker(), opener_of(opened.settings)
        for row in decisions_since(opened.engine, since, asker.at, asker, opener, opened.jurisdiction):
            past = _past(row, opened.jurisdiction)
            told = None if past is None else replayed.decide(past)
            if past is None:
                replayed.counts["not decided by a bundle"] += 1
            elif told is not None:
                changed.append(told)
    return replayed, changed


def _past(row: Mapping[str, Any], storage: str) -> Past | None:
    method = METHODS.get(row["method"])
    decision = row["decision"]
    if method is None:
        return None
    models = decision.get("models")
    kind = row["principal_kind"]
    who = Principal(
        tenant=row["tenant"],
        name=row["principal"],
        kind=kind if kind in ("jwt", "api_key", "certificate", "listener") else "observed",
        roles=frozenset(decision.get("roles", ())),
        issuer=row["issuer"],
        models=None if models is None else tuple(models),
    )
    return Past(
        call_id=row["call_id"],
        principal=who,
        method=method,
        model=row["alias"] or row["model"],
        data_class=",".join(decision.get("classes", ())),
        peer=row["peer"],
        at=row["decided_at"].timestamp(),
        region=row["region"],
        storage=storage,
        telemetry=decision.get("telemetry") or None,
        bundle=row["bundle"],
        verdict=None if kind == "observed" else verdict_of(row["outcome"], row["reason"], row["rule"]),
        rule=row["rule"],
        would_refuse=row["would_refuse"],
    )


def _asker() -> Asker:
    at = now()
    ids: Iterator[str] = (uuid7(at.wall_ns, os.urandom(10)) for _ in itertools.count())
    return Asker(f"cli:{operator()}", datetime.fromtimestamp(at.wall, UTC), ids)
