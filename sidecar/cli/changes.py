"""``warden policy diff`` and ``replay``: what a new bundle would change, beforehand."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from policies.compare import Change, Comparison, compare
from policies.differences import Difference
from policies.replay import Told
from sidecar.cli.bundles import BundleArgument, good, moment, since_when
from sidecar.cli.common import DEFAULT_CONFIG, ConfigOption, Exit, JsonOption, JurisdictionOption, fail
from sidecar.cli.listing import Lines, Object
from sidecar.cli.past import Reading, Replaying

__all__ = ["ContentOption", "ReasonOption", "diff_command", "reading", "replay_command"]

PROGRESS_S: Final = 5.0
PROGRESS_CALLS: Final = 100  # between two looks at the clock
STOPPED: Final = 130  # by SIGINT, as shells say it
MOST_NAMES: Final = 8  # of those whom the same change is about, in one line


def diff_command(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="The bundle as it is.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="The bundle as it is to be.")],
    *,
    at: Annotated[str | None, typer.Option(help="From when on: a day, or a time with its zone (default: now).")] = None,
    json: JsonOption = False,
) -> None:
    """Whose calls would be answered otherwise, and which limits, guards and other terms change.

    Over the cases of both, and every principal, model, action, region and class that they tell apart. Exits 0 where
    nothing changes, else 1.
    """
    compared = compare(good(old), good(new), moment(at))
    changed = _as_json(compared) if json else _for_reading(compared)
    if changed:
        raise typer.Exit(int(Exit.NO))


def _as_json(compared: Comparison) -> bool:
    told = Object()
    changes = told.items("changes", map(_changed, compared.changes()))
    terms = told.items("terms", map(_term, compared.terms()))
    told.value("asked", compared.asked)
    told.value("old", compared.old.digest)
    told.value("new", compared.new.digest)
    told.end()
    return bool(changes or terms)


def _for_reading(compared: Comparison) -> bool:
    terms = list(compared.terms())
    lines = Lines()
    for line in _folded(terms):
        lines.add(line)
    lines.end()
    lines, count = Lines(), 0
    # A tenant's stand together, so that no more than those are held at once.
    for _, changes in itertools.groupby(compared.changes(), key=lambda change: (change.case, change.asked.tenant)):
        told = [_changed(change) for change in changes]
        count += len(told)
        for line in _lines(told):
            lines.add(line)
    lines.end()
    typer.echo(f"{count} of {compared.asked} questions answered otherwise; {len(terms)} other terms changed")
    return bool(count or terms)


# --- terms ----------------------------------------------------------------------------------------------------------


def _term(told: Difference) -> dict[str, Any]:
    dates = {name: None if at is None else _date(at) for name, at in (("from", told.begins), ("until", told.ends))}
    return {"subject": told.subject, "name": told.name, "old": told.old, "new": told.new, **dates}


def _folded(terms: Iterable[Difference]) -> Iterator[str]:
    """The same change of several tenants is one line."""
    subjects: dict[tuple[str, str, str, float | None, float | None], list[str]] = {}
    for each in terms:
        subjects.setdefault((each.name, each.old, each.new, each.begins, each.ends), []).append(each.subject)
    for (name, old, new, begins, ends), whose in subjects.items():
        more = f" and {len(whose) - MOST_NAMES} more" if len(whose) > MOST_NAMES else ""
        dates = [f"{word} {_date(at)}" for word, at in (("from", begins), ("until", ends)) if at is not None]
        when = f" ({' '.join(dates)})" if dates else ""
        what = f" {name}" if name else ""
        yield f"{'; '.join(whose[:MOST_NAMES])}{more}:{what} {old or 'none'} → {new or 'none'}{when}"


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")


# --- verdicts -------------------------------------------------------------------------------------------------------


def _lines(changes: list[dict[str, Any]]) -> list[str]:
    """Changes for reading: those that differ only in their moment or their data class are one line."""
    moments: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for change in changes:
        asked = {name: str(value or "") for name, value in change["asked"].items()}
        at, data_class = asked.pop("at"), asked.pop("data_class")
        found = change.get("found", {})
        old, new = (_with(change[side], found.get(side, ())) for side in ("old", "new"))
        answer = (old, new, change["rule"])
        moments.setdefault(((*answer, *asked.values()), data_class), []).append(at)
    classes: dict[tuple[tuple[str, ...], tuple[str, ...]], list[str]] = {}
    for (same, data_class), ats in moments.items():
        classes.setdefault((same, tuple(ats)), []).append(data_class)
    return [_line(same, ats, of) for (same, ats), of in classes.items()]


def _with(verdict: str, found: Iterable[str]) -> str:
    """A verdict, and what was found in the content."""
    told = ", ".join(found)
    return f"{verdict} ({told})" if told else str(verdict)


def _line(same: tuple[str, ...], ats: tuple[str, ...], classes: list[str]) -> str:
    old, new, rule, *who = same
    of = " | ".join(each or "no class" for each in classes) if len(classes) > 1 else classes[0]
    when = ats[0] if len(ats) == 1 else f"{ats[0]} to {ats[-1]} ({len(ats)} moments)"
    return f"{' '.join(filter(None, [*who, of and f'[{of}]', when]))}: {old} → {new}  by {rule}"


def _changed(change: Change) -> dict[str, Any]:
    asked = change.asked
    who = f"key {asked.key}" if asked.key else "" if asked.principal == "explain" else asked.principal
    told = {
        "case": change.case,
        "tenant": asked.tenant,
        "principal": " ".join(filter(None, (who, "" if asked.kind == "jwt" else f"by {asked.kind}"))),
        "issuer": asked.issuer,
        "roles": "" if asked.roles == frozenset({"tenant"}) else ",".join(sorted(asked.roles)),
        "action": asked.action.value,
        "method": asked.method,
        "model": asked.model,
        "region": asked.region,
        "storage": f"stored in {asked.storage}" if asked.storage else "",
        "telemetry": f"traced to {asked.telemetry}" if asked.telemetry else "",
        "data_class": asked.data_class,
        "source": asked.source,
        "at": _date(asked.at),
    }
    found = {name: list(answer.found) for name, answer in (("old", change.old), ("new", change.new)) if answer.found}
    answers = {"old": change.old.verdict, "new": change.new.verdict, "rule": change.new.rule}
    return {"asked": told, **answers, **({"found": found} if found else {})}


# --- calls of the past ----------------------------------------------------------------------------------------------


ContentOption = Annotated[
    bool,
    typer.Option("--content", help="Open prompts and outputs for the guards to judge; none is shown. Needs --reason."),
]
ReasonOption = Annotated[str, typer.Option(help="Why contents are opened; kept with your name.")]


def reading(jurisdiction: str | None, *, content: bool, reason: str) -> Reading:
    if content and not reason.strip():
        fail(Exit.USAGE, "--content needs --reason TEXT: it is kept with your name")
    return Reading(jurisdiction, content, reason)


def replay_command(
    bundle: BundleArgument,
    *,
    since: Annotated[str, typer.Option(help="An age (24h, 7d), a day, or a time with its zone.")] = "24h",
    content: ContentOption = False,
    reason: ReasonOption = "",
    config: ConfigOption = DEFAULT_CONFIG,
    jurisdiction: JurisdictionOption = None,
    json: JsonOption = False,
) -> None:
    """Decide the recorded calls again under BUNDLE, and tell those whose answer would be another; exits 1 if any.

    Without --content, or where content was not kept whole, calls that guards look at are counted apart.
    """
    replaying = Replaying(
        good(bundle), since_when(since), config, reading(jurisdiction, content=content, reason=reason)
    )
    told = map(_call, replaying.changed(_Progress(replaying)))
    stopped = False
    lines, whole = Lines(), Object()
    try:
        if json:
            whole.items("changed", told)
        else:
            for call in told:
                found = f" ({', '.join(call['findings'])})" if call["findings"] else ""
                who = f"{call['call_id']} {call['tenant']} {call['model']}"
                lines.add(f"{who}: {call['old']} → {call['new']}  by {call['rule']}{found}")
    except KeyboardInterrupt:
        stopped = True
    if json and not stopped:
        whole.value("counts", replaying.replay.counts)
        whole.value("undecided", replaying.replay.undecided)
        whole.value("since", replaying.since.isoformat())
        whole.value("until", replaying.until.isoformat())
        whole.end()
    elif not json:
        lines.end()
        _tell_end(replaying)
    if stopped:
        sys.stderr.write(f"warden: stopped at {replaying.at.isoformat(timespec='seconds')}: not whole\n")
        raise typer.Exit(STOPPED)
    if replaying.replay.counts["changed"]:
        raise typer.Exit(int(Exit.NO))


def _tell_end(replaying: Replaying) -> None:
    for why, count in sorted(replaying.replay.undecided.items()):
        typer.echo(f"content of {count} calls not judged: {why}")
    counts = ", ".join(f"{count} {what}" for what, count in replaying.replay.counts.items())
    period = f"{replaying.since.isoformat(timespec='seconds')} to {replaying.at.isoformat(timespec='seconds')}"
    typer.echo(f"{counts}\n{'all' if replaying.whole else 'the first'} {replaying.calls} calls of {period}")


class _Progress:
    """Says on stderr how far it is, now and then."""

    def __init__(self, replaying: Replaying) -> None:
        self._replaying = replaying
        self._next = time.monotonic() + PROGRESS_S

    def __call__(self) -> None:
        if self._replaying.calls % PROGRESS_CALLS or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + PROGRESS_S
        done, of = (at - self._replaying.since for at in (self._replaying.at, self._replaying.until))
        part = f"{100 * done / of:.0f} % of the time" if of else ""
        changed = self._replaying.replay.counts["changed"]
        sys.stderr.write(f"{self._replaying.calls} calls, {changed} changed, {part}\n")


def _call(each: Told) -> dict[str, Any]:
    return {
        "call_id": each.past.call_id,
        "tenant": each.past.principal.tenant,
        "model": each.past.model,
        "region": each.past.region,
        "old": each.old,
        "new": each.new,
        "rule": each.rule,
        "findings": list(each.found),
    }
