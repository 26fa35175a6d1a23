"""The table that people read, with where each budget of DESIGN §7 stands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks import neighbours, quotas
from benchmarks.routes import DIRECT, ENVOY, HOSTED, WIRES, warden

_NAMES = {
    DIRECT: "direct",
    ENVOY: "Envoy, passing through",
    HOSTED: "Envoy, hosting an app that passes through",
    warden("envoy"): "warden, wire envoy",
    warden("grpc"): "warden, wire grpc",
}


def show(numbers: dict[str, Any]) -> None:
    console = Console(width=128)
    machine = numbers["machine"]
    console.print(
        f"\n{machine['cores']} cores {machine['cpu']}, Python {machine['python']}, commit {numbers['commit']}, "
        f"load average {numbers['load_average']}, calibration {machine['speed_us']} µs, {numbers['seconds']} s"
    )
    for name, tables in _ALONE:
        if name in numbers:
            for table in tables(numbers[name]):
                console.print(table)
    for name, title in (
        ("standin", "One ModelInfer of 1 KB, upstream: a stand-in for Triton in C (13 µs a call): the wire alone"),
        ("triton", "One ModelInfer of 1 KB, upstream: real Triton, Python backend"),
    ):
        if name in numbers:
            console.print(_wires(title, numbers[name]))
    if "streams" in numbers:
        console.print(_streams(numbers["streams"]))
    for model, rows in numbers.get("neighbours", {}).items():
        console.print(_neighbours(model, rows))
    console.print(_budgets(numbers))


def _governance(found: dict[str, Any]) -> list[Table]:
    table = Table(title="Governance alone: one unary call, 1 KB prompt and output, audit full", title_justify="left")
    table.add_column("step")
    table.add_column("µs", justify="right")
    for name, value in found["steps_us"].items():
        table.add_row(name, f"{value:.2f}")
    table.add_section()
    table.add_row("whole call, CPU, least round (median)", f"{found['cpu_us_min']:.1f} ({found['cpu_us_median']:.1f})")
    table.add_row("beside it, the wire's: read the headers", f"{found['headers_us_min']:.1f}")
    table.add_row("all of wire envoy's own Python, governance in it", f"{found['app']['cpu_us_min']:.1f}")
    return [table]


def _reading(found: dict[str, Any]) -> list[Table]:
    table = Table(title="Read one request: model and facts, CPU", title_justify="left")
    for column in (
        "request",
        "message, bytes",
        "µs, header seen before",
        "µs, afresh",
        "extra memory at its peak, bytes",
    ):
        table.add_column(column, justify="left" if column == "request" else "right")
    for name, row in found["requests"].items():
        table.add_row(name, f"{row['message_bytes']:,}", f"{row['us']:.2f}", f"{row['afresh_us']:.2f}",
                      f"{row['extra_bytes']:,}")  # fmt: skip
    guards = Table(title="Guards, where nothing is found: CPU µs a KB, outputs by bytes a piece", title_justify="left")
    guards.add_column("looked for")
    columns = list(next(iter(found["guards"].values())))
    for column in columns:
        guards.add_column(column.replace("_", ", "), justify="right")
    for name, row in found["guards"].items():
        guards.add_row(name, *(f"{row[column]:.1f}" for column in columns))
    return [table, guards]


def _quotas(found: dict[str, float]) -> list[Table]:
    table = Table(title="Quotas of one call: CPU", title_justify="left")
    table.add_column("what")
    table.add_column("µs", justify="right")
    for name, value in found.items():
        if not name.startswith(quotas.TRIPS):
            table.add_row(name, f"{value:.2f}")
    traffic = Table(title="Leases of one pod and tenant: round trips to Redis", title_justify="left")
    traffic.add_column("calls a second")
    traffic.add_column("per 1,000 calls", justify="right")
    for name, value in found.items():
        if name.startswith(quotas.TRIPS):
            traffic.add_row(name.removeprefix(quotas.TRIPS), f"{value:.1f}")
    return [table, traffic]


def _policies(found: dict[str, Any]) -> list[Table]:
    """How long a thread that wants the interpreter waited for it; in brackets, with nothing else done."""
    table = Table(title=f"A bundle of {found['tenants']:,} tenants", title_justify="left")
    table.add_column("what")
    table.add_column("measured", justify="right")
    table.add_row("load, CPU ms", f"{found['load_cpu_ms']:,.0f}")
    table.add_row("memory a tenant, bytes", f"{found['bytes_a_tenant']:,.0f}")
    table.add_row("verdict, remembered (worked out), CPU µs", f"{found['cached_us']:.2f} ({found['uncached_us']:.0f})")
    for name, what in (("one", "one tenant changed"), ("all", "the plans changed")):
        took, cpu = found[f"reload_{name}_wall_ms"], found[f"reload_{name}_cpu_ms"]
        child = found[f"reload_{name}_child_cpu_ms"]
        table.add_row(
            f"reload, {what}: ms (CPU here; CPU of the compiling process)", f"{took:,.0f} ({cpu:,.0f}; {child:,.0f})"
        )
        for kind, told in (("p99_9", "p99.9"), ("max", "at the longest")):
            pause, idle = found[f"reload_{name}_pause_{kind}_ms"], found[f"idle_{name}_pause_{kind}_ms"]
            table.add_row(f"  a call beside it waits, {told}, ms (without)", f"{pause:.2f} ({idle:.2f})")
    return [table]


def _journal(found: dict[str, dict[str, float]]) -> list[Table]:
    table = Table(title="One journal entry of 1.5 KB, added to the call that waits for it, µs", title_justify="left")
    table.add_column("audit.journal.mode")
    for name in ("p50", "p99", "this disk's bare write and fsync, p50"):
        table.add_column(name, justify="right")
    for mode, took in found.items():
        table.add_row(mode, f"{took['p50']:.1f}", f"{took['p99']:.1f}", f"{took['bare_fsync_p50']:.1f}")
    return [table]


def _evidence(found: dict[str, Any]) -> list[Table]:
    behind = ", ".join(f"{row['calls']:,}" for row in found.values())
    title = f"Evidence: from a journal into Postgres, sealed, in a signed log, catching up on {behind} calls"
    table = Table(title=title, title_justify="left")
    names = {
        "shipped_per_s": "records/s shipped",
        "shipped_per_cpu_s": "a CPU second of ours",
        "database_us": "Postgres, CPU µs a record",
        "grown_mb": "memory grown, MB",
        "verified_per_s_1": "verified/s",
        "verified_per_s_2": "by 2 processes",
        "stored_bytes": "bytes stored a call",
    }
    table.add_column("prompt, bytes")
    for name in names.values():
        table.add_column(name, justify="right")
    for size, row in found.items():
        table.add_row(f"{int(size):,}", *(f"{row[name]:,}" for name in names))
    return [table]


def _search(found: dict[str, Any]) -> list[Table]:
    title = f"One search among {found['rows']:,} calls ({found['database_mb']} MB), newest 100, its own record included"
    table = Table(title=title, title_justify="left")
    table.add_column("asked for")
    for column in ("p50 ms", "p95 ms", "found"):
        table.add_column(column, justify="right")
    for name, each in found["ms"].items():
        table.add_row(name, f"{each['p50']:.0f}", f"{each['p95']:.0f}", str(each["most"]))
    return [table]


def _identity(found: dict[str, Any]) -> list[Table]:
    steps = Table(title="Identify a caller: CPU", title_justify="left")
    steps.add_column("what")
    steps.add_column("µs", justify="right")
    for name, value in found["steps_us"].items():
        steps.add_row(name, f"{value:.2f}")
    attacks = found["attacks"]
    steps.add_row(f"refuse a forged token, median of {attacks['number']} kinds", f"{attacks['median_us']:.2f}")
    steps.add_row(f"refuse the slowest ({attacks['slowest']})", f"{attacks['slowest_us']:.2f}")
    kept = found["snapshot"]
    told = f"{kept['memory_mib']} MiB, {kept['disk_mib']} MiB on disk, look-up {kept['lookup_us']} µs"
    reloads = Table(
        title=f"{kept['keys']:,} API keys: {told}, a start from disk {kept['start_from_disk_ms']} ms",
        title_justify="left",
    )
    for column in ("reload", "until known, ms", "longest stretch without a pause, ms", "its p99"):
        reloads.add_column(column, justify="left" if column == "reload" else "right")
    for name, row in kept["reloads"].items():
        reloads.add_row(name, f"{row['took_ms']}", f"{row['longest_ms']:.2f}", f"{row['p99_ms']:.2f}")
    return [steps, reloads, _refusals(found["refusals"])]


def _refusals(found: dict[str, Any]) -> Table:
    one = next(iter(found.values()))
    table = Table(
        title=f"{one['attacks']} hostile credentials, each {one['each']} times on a warm connection: ms a client waits",
        title_justify="left",
    )
    for column in ("wire", "p50 / p99 of all", "slowest kind, at best", "slowest median", "kinds over 5 ms (median)",
                   "more than a health check", "a good call, p50"):  # fmt: skip
        table.add_column(column, justify="left" if column == "wire" else "right")
    for wire, row in found.items():
        table.add_row(
            _NAMES[warden(wire)],
            f"{row['p50_ms']:.2f} / {row['p99_ms']:.2f}",
            f"{row['slowest_ms']:.2f} ({row['slowest']})",
            f"{row['slowest_median_ms']:.2f}",
            f"{row['over_bar']} ({row['over_bar_median']})",
            f"{row['added_ms']:+.2f}",
            f"{row['good_p50_ms']:.2f}",
        )
    return table


def _wires(title: str, found: dict[str, Any]) -> Table:
    table = Table(title=title, title_justify="left")
    columns = ("way", "RPC/s", "CPU µs/RPC", "× Envoy", "at half load", "ship µs", "alone p50/p99 µs",
               "half load p50/p99 µs", "RSS MB (ship)")  # fmt: skip
    for column in columns:
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, row in found.items():
        cpu = row.get("cpu_us")
        rss, ship = row.get("rss_mb"), row.get("ship_rss_mb")
        table.add_row(
            _NAMES[name],
            f"{row['rate']:,}",
            f"{cpu['min']:.0f} ({cpu['median']:.0f})" if cpu else "–",
            f"{row['cpu_ratio']:.2f}" if cpu else "–",
            f"{row['cpu_half_us']:.0f}" if cpu else "–",
            f"{row['ship_us']:.0f}" if "ship_us" in row else "–",
            f"{row['calm_us']['p50']:,} / {row['calm_us']['p99']:,}",
            f"{row['half_us']['p50']:,} / {row['half_us']['p99']:,}",
            (f"{rss[0]}→{rss[1]}" if rss else "–") + (f" ({ship[0]}→{ship[1]})" if ship else ""),
        )
    return table


def _streams(found: dict[str, Any]) -> Table:
    table = Table(title="Streamed tokens, audit full (stand-in upstream)", title_justify="left")
    for column in ("way", "flood: CPU µs/token", "tokens/s a core", "tokens/s seen", "paced 1,000/s: CPU µs/token",
                   "lateness p50/p99 µs", "p99 added to Envoy's"):  # fmt: skip
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, row in found["paced"].items():
        flood = found["flood"].get(name)
        table.add_row(
            _NAMES[name],
            f"{flood['cpu_us']:.1f}" if flood else "–",
            f"{flood['per_core']:,}" if flood and flood["per_core"] else "–",
            f"{flood['rate']:,}" if flood else "–",
            f"{row['cpu_us']:.0f}" if name != DIRECT else "–",
            f"{row['p50_us']:,} / {row['p99_us']:,}",
            f"{row['p99_added_us']:+,}",
        )
    return table


def _neighbours(model: str, found: dict[str, Any]) -> Table:
    crowd = f"{neighbours.GREEDY} long streams of one tenant, {neighbours.MODEST} of another"
    title = f"{crowd}, on the real Triton: {model}"
    table = Table(title=title, title_justify="left")
    for column in ("way", "modest: first token p50, ms", "p99, ms", "its tokens/s", "all tokens/s", "of no warden's",
                   "sidecar's CPU", "Triton's"):  # fmt: skip
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, row in found.items():
        table.add_row(
            _NAMES.get(name, name),
            f"{row['first_p50_ms']:,.0f}",
            f"{row['first_p99_ms']:,.0f}",
            f"{row['modest_rate']:.0f}",
            f"{row['rate']:.0f}",
            "–" if name == neighbours.ALONE else f"{row['of_off']:.1%}",
            f"{row['cpu_percent']:.0f} %" if row["cpu_percent"] else "–",
            f"{row['engine_cpu_percent']:.0f} %",
        )
    return table


_ALONE: Final[tuple[tuple[str, Callable[[dict[str, Any]], list[Table]]], ...]] = (
    ("governance", _governance),
    ("reading", _reading),
    ("quotas", _quotas),
    ("policies", _policies),
    ("journal", _journal),
    ("evidence", _evidence),
    ("search", _search),
    ("identity", _identity),
)


def _audit_budgets(numbers: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    rows: list[tuple[str, str, str, bool]] = []
    if "evidence" in numbers:
        shipped = numbers["evidence"]["1024"]["shipped_per_cpu_s"]
        rows.append(("records of 1 KB shipped a CPU second", "≥ 25,000", f"{shipped:,}", shipped >= 25_000))
    if "search" in numbers:
        for kind, most in (("filter", 200), ("word", 1000)):
            slow = max(each["p95"] for name, each in numbers["search"]["ms"].items()
                       if name.startswith("word") == (kind == "word"))  # fmt: skip
            rows.append((f"search among {numbers['search']['rows']:,} calls, p95 of the slowest {kind}",
                         f"≤ {most} ms", f"{slow:.0f} ms", slow <= most))  # fmt: skip
    return rows


def budgets(numbers: dict[str, Any]) -> list[tuple[str, str, str, bool]]:
    """Each budget of DESIGN §7 that was measured: what, at most (or at least), where it stands, whether it is met."""
    rows: list[tuple[str, str, str, bool]] = []
    if "governance" in numbers:
        cost = numbers["governance"]["cpu_us_min"]
        rows.append(("governance itself, CPU µs a unary call", "≤ 25", f"{cost:.1f}", cost <= 25))
    if "identity" in numbers:
        pause = numbers["identity"]["snapshot"]["longest_pause_ms"]
        rows.append(("reload of 100,000 keys: longest pause", "≤ 5 ms", f"{pause:.2f} ms", pause <= 5))
        for wire, row in numbers["identity"]["refusals"].items():
            rows.append((f"refuse an attack, slowest kind, wire {wire}", "≤ 5 ms", f"{row['slowest_median_ms']:.2f} ms",
                         row["slowest_median_ms"] <= 5))  # fmt: skip
    rows += _audit_budgets(numbers)
    wire = numbers.get("standin", {}).get(warden("envoy"))
    if wire is not None:
        rows += [
            ("sidecar CPU against Envoy passing through", "≤ 1.5×", f"{wire['cpu_ratio']:.2f}×",
             wire["cpu_ratio"] <= 1.5),
            ("p50 latency against that Envoy", "≤ 1.5×", f"{wire['p50_ratio']:.2f}×", wire["p50_ratio"] <= 1.5),
            ("p99 added at half load", "≤ 1 ms", f"{wire['p99_added_half_us'] / 1000:.2f} ms",
             wire["p99_added_half_us"] <= 1000),
            ("memory of serve, at rest", "≤ 150 MB", f"{wire['rss_mb'][0]} MB", wire["rss_mb"][0] <= 150),
        ]  # fmt: skip
    if "streams" in numbers:
        flood = numbers["streams"]["flood"][warden("envoy")]["per_core"] or 0
        late = numbers["streams"]["paced"][warden("envoy")]["p99_added_us"]
        rows += [
            ("streamed tokens a second through one core", "≥ 10,000", f"{flood:,}", flood >= 10_000),
            ("inter-token p99 added", "≤ 1 ms", f"{late / 1000:.2f} ms", late <= 1000),
        ]
    for model, ways in numbers.get("neighbours", {}).items():
        for wire in WIRES:
            share = ways[warden(wire)]["of_off"]
            rows.append((f"all tokens/s of {model} beside a greedy tenant, against no warden, wire {wire}", "≥ 95 %",
                         f"{share:.1%}", share >= 0.95))  # fmt: skip
    return rows


def _budgets(numbers: dict[str, Any]) -> Table:
    table = Table(title="Budgets of DESIGN §7", title_justify="left")
    for column in ("what", "budget", "now", ""):
        table.add_column(column, justify="left" if column in {"what", ""} else "right")
    for what, budget, now, met in budgets(numbers):
        table.add_row(what, budget, now, "met" if met else "not yet")
    return table
