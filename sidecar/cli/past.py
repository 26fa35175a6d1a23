"""What `warden policy` does with calls of the past: explains one under its own bundle, replays a day under another."""

from __future__ import annotations

import itertools
import os
import tarfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from audit.decisions import bundle_content, content_of, decision_of, decisions_since
from audit.opening import Opener
from audit.search import Asker
from policies.bundle import Bundle, compile_bundle
from policies.explain import Explanation
from policies.files import unpack
from policies.replay import GUARDS, Past, Replay, Told, Unknown, again, verdict_of
from sidecar.cli.common import Exit, fail
from sidecar.cli.database import database, opener_of
from sidecar.cli.desk import load_settings, operator
from sidecar.core.model import Finding, InferenceFacts, Principal
from sidecar.core.reasons import Reason
from sidecar.runtime.clock import now
from sidecar.runtime.ids import uuid7
from sidecar.triton.methods import METHODS

__all__ = ["Reading", "Replaying", "explain_past"]


@dataclass(frozen=True, slots=True)
class Reading:
    """Which jurisdiction's database is read, whether contents may be opened, and why: kept with who asked."""

    jurisdiction: str | None = None
    content: bool = False
    reason: str = ""


def explain_past(call_id: str, under: Bundle | None, config: Path, reading: Reading) -> tuple[Past, Explanation]:
    """A recorded call and its decision made anew: under ``under``, or the very bundle that decided it then."""
    with database(config, reading.jurisdiction, application="warden-policy") as opened:
        opener, asker = opener_of(opened), _asker(reading)
        row = decision_of(opened.engine, call_id, asker, opener, opened.jurisdiction, content=reading.content)
        if row is None:
            fail(Exit.NO, f"no record of call {call_id}")
        past = _past(row, opened.jurisdiction)
        if past is None:
            fail(Exit.NO, f"call {call_id}: its method is not in the table any more")
        content = None if under else bundle_content(opened.engine, past.bundle)
        bundle = under or _stored(content or _own(config, past.bundle), past.bundle)
        found = again(bundle, past, partial(_read, opened.engine, opener, row) if reading.content else None)
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


class Replaying:
    """The calls recorded since, decided again a page at a time; ``at`` is how far it has come."""

    def __init__(self, bundle: Bundle, since: datetime, config: Path, reading: Reading) -> None:
        self._config, self._reading = config, reading
        self._row: Mapping[str, Any] = {}
        self._opened: tuple[sa.Engine, Opener] | None = None
        self.asker = _asker(reading)
        self.since, self.until, self.at = since, self.asker.at, since
        self.calls, self.whole = 0, False
        self.replay = Replay(bundle, self._content if reading.content else None)

    def changed(self, progress: Callable[[], None]) -> Iterator[Told]:
        """Those whose answer would be another, as they are found; ``progress`` is called after each call."""
        with database(self._config, self._reading.jurisdiction, application="warden-policy") as opened:
            opener = opener_of(opened)
            self._opened = opened.engine, opener
            rows = decisions_since(
                opened.engine, self.since, self.until, self.asker, opener, opened.jurisdiction,
                content=self._reading.content,
            )  # fmt: skip
            for row in rows:
                self._row, self.at = row, row["started_at"]
                self.calls += 1
                past = _past(row, opened.jurisdiction)
                told = None if past is None else self.replay.decide(past)
                if past is None:
                    self.replay.counts["not decided by a bundle"] += 1
                elif told is not None:
                    yield told
                progress()
        self.at, self.whole = self.until, True

    def _content(self, past: Past) -> tuple[InferenceFacts, bytes | None] | Unknown:
        assert self._opened is not None
        return _read(*self._opened, self._row, past)


def _read(
    engine: sa.Engine, opener: Opener, row: Mapping[str, Any], past: Past
) -> tuple[InferenceFacts, bytes | None] | Unknown:
    """A call's content as it was kept; what was taken out of it, or cut off, can't be judged again."""
    if row["redacted"]:
        return Unknown("identifiers were taken out of it")
    if row["prompt_truncated"] or row["output_truncated"]:
        return Unknown("it was not kept whole")
    found = content_of(engine, row, opener)
    if found.why:
        return Unknown(found.why.partition(":")[0])
    if found.prompt is None and row["prompt_bytes"]:
        return Unknown("its prompt was not kept")
    prompts = tuple(found.prompt or ())
    kept = found.output is not None or not row["output_bytes"]
    parameters = {} if found.identity is None else found.identity.parameters
    facts = InferenceFacts(
        model=row["model"], prompts=prompts, requested_tokens=row["requested_tokens"], parameters=parameters
    )
    return facts, b"".join(found.output or ()) if kept and past.answered else None


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
        would_rule=decision.get("would_rule", ""),
        guarded=_guarded(row),
        findings=tuple(Finding(*found) for found in row["findings"]),
        answered=row["outcome"] != "refused",
    )


def _guarded(row: Mapping[str, Any]) -> str:
    if row["reason"] != Reason.POLICY_FORBIDS:
        return "allow"
    if row["outcome"] == "refused":
        return Reason.POLICY_FORBIDS if row["rule"].startswith(GUARDS) else "allow"
    return "cut"  # nothing else that a policy says ends a call under way


def _asker(reading: Reading) -> Asker:
    at = now()
    ids: Iterator[str] = (uuid7(at.wall_ns, os.urandom(10)) for _ in itertools.count())
    return Asker(f"cli:{operator()}", datetime.fromtimestamp(at.wall, UTC), ids, reading.reason, reading.content)
