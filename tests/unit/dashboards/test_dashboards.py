"""What the dashboard and the rules ask for exists, and every alert leads to its runbook and its panel."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import sidecar
from sidecar.core.reasons import Code, Reason
from sidecar.telemetry.catalogue import CATALOGUE, JournalState, Metric
from tests.unit.dashboards.promql import Selector, groupings, selectors

DASHBOARDS = Path(sidecar.__path__[0]).parent / "dashboards"
RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DASHBOARDS / "prometheus/warden.rules.yaml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
]
ALERTS = [rule for rule in RULES if "alert" in rule]
TESTS = yaml.safe_load((DASHBOARDS / "prometheus/warden.rules.test.yaml").read_text("utf-8"))["tests"]
OVERVIEW: dict[str, Any] = json.loads((DASHBOARDS / "grafana/warden-overview.json").read_text("utf-8"))

SERIES: dict[str, Metric] = {name: metric for metric in CATALOGUE for name in metric.series}
RECORDED = {rule["record"] for rule in RULES if "record" in rule}
# Prometheus's own, and the process's (prometheus_client.ProcessCollector).
FOREIGN = {"up", "ALERTS", "process_cpu_seconds_total", "process_resident_memory_bytes"}
TARGET = {"job", "instance"}  # labels of every scraped series
VALUES = {"state": tuple(JournalState)}  # closed values of labels that are watched, not counted


def panel_queries() -> list[tuple[str, str]]:
    queries = [(p["title"], target["expr"]) for p in OVERVIEW["panels"] for target in p.get("targets", [])]
    variables = [(v["name"], v["query"]["query"]) for v in OVERVIEW["templating"]["list"] if v["type"] == "query"]
    notes = [(a["name"], a["expr"]) for a in OVERVIEW["annotations"]["list"]]
    return queries + variables + notes


QUERIES = panel_queries() + [(rule.get("alert") or rule["record"], rule["expr"]) for rule in RULES]


@pytest.mark.parametrize(("where", "query"), QUERIES)
def test_every_metric_asked_for_is_in_the_catalogue(where: str, query: str) -> None:
    found = selectors(query)
    assert found or query == "vector(1)"
    for selector in found:
        assert selector.name in SERIES.keys() | RECORDED | FOREIGN, f"{where}: there is no {selector.name}"
        check_labels(where, selector)


def check_labels(where: str, selector: Selector) -> None:
    metric = SERIES.get(selector.name)
    if metric is None:
        return
    for label, operator, value in selector.matchers:
        assert label in {*metric.labels, *TARGET, "le"}, f"{where}: {metric.name} has no label {label}"
        closed = metric.values.get(label) or VALUES.get(label)
        if closed and operator in ("=", "!="):
            assert value in closed, f"{where}: {metric.name} has no {label}={value}"


@pytest.mark.parametrize(("where", "query"), QUERIES)
def test_every_label_grouped_by_is_one_of_the_metrics(where: str, query: str) -> None:
    labels = {label for s in selectors(query) if s.name in SERIES for label in SERIES[s.name].labels}
    assert groupings(query) <= labels | TARGET | {"le"}, where


def test_every_metric_of_ours_is_looked_at_somewhere() -> None:
    asked = {selector.name for _, query in QUERIES for selector in selectors(query)}
    unseen = {metric.name for metric in CATALOGUE if not asked & set(metric.series)}
    assert not unseen, "shown by nobody: add a panel, or drop the metric"


def test_the_reader_of_queries_reads_them() -> None:
    query = (
        'sum by (le, tenant) (rate(a_bucket{x="y(z)", t=~"$tenant"}[5m])) / on (job) b:c unless d == 1 and e{f!="g"}'
    )
    assert [s.name for s in selectors(query)] == ["a_bucket", "b:c", "d", "e"]
    assert selectors(query)[0].matchers == (("x", "=", "y(z)"), ("t", "=~", "$tenant"))
    assert groupings(query) == {"le", "tenant", "job"}
    assert [s.name for s in selectors('label_values(a{job="b"}, tenant)')] == ["a"]


# --- alerts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"] + rule["labels"].get("burn", ""))
def test_an_alert_says_what_it_must(rule: dict[str, Any]) -> None:
    name = rule["alert"]
    assert re.fullmatch(r"Warden([A-Z][a-z]+)+", name)
    assert rule["labels"]["severity"] in ("page", "ticket", "none")
    assert rule.keys() >= {"for", "keep_firing_for"}
    notes = rule["annotations"]
    assert notes.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
    assert notes["runbook_url"].endswith(f"/{name}.md")
    uid, panel = re.fullmatch(r"https://[^/]+/d/([\w-]+)\?viewPanel=(\d+)", notes["dashboard_url"]).groups()  # type: ignore[union-attr]  # asserted by use
    assert uid == OVERVIEW["uid"]
    assert int(panel) in {panel["id"] for panel in OVERVIEW["panels"]}


@pytest.mark.parametrize("name", sorted({rule["alert"] for rule in ALERTS}))
def test_an_alert_has_its_runbook(name: str) -> None:
    text = (DASHBOARDS / "runbooks" / f"{name}.md").read_text("utf-8")
    headings = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert text.startswith(f"# {name}\n")
    assert headings == [
        "What the caller sees", "What it means", "How to confirm", "What to do", "What is recorded meanwhile",
    ]  # fmt: skip


@pytest.mark.parametrize("path", sorted((DASHBOARDS / "runbooks").glob("*.md")), ids=lambda path: path.stem)
def test_a_runbook_belongs_to_an_alert_and_names_what_exists(path: Path) -> None:
    assert path.stem in {rule["alert"] for rule in ALERTS}
    text = path.read_text("utf-8")
    for block in re.findall(r"```promql\n(.*?)```", text, re.DOTALL):
        for query in block.strip().splitlines():
            for selector in selectors(query):
                assert selector.name in SERIES.keys() | RECORDED | FOREIGN, f"there is no {selector.name}"
                check_labels(path.stem, selector)
    for name in set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", text)):
        assert name in Reason.__members__ or name in Code.__members__, f"{name} is no reason"


@pytest.mark.parametrize("name", sorted({rule["alert"] for rule in ALERTS} - {"WardenWatchdog"}))
def test_an_alert_is_tested_where_it_fires_where_not_and_across_a_restart(name: str) -> None:
    cases = [(t["name"], c) for t in TESTS for c in t.get("alert_rule_test", []) if c["alertname"] == name]
    assert any(case["exp_alerts"] for _, case in cases), "nowhere does it fire"
    assert any(not case["exp_alerts"] for _, case in cases), "nowhere is it quiet"
    assert any("restart" in title for title, _ in cases), "no restart"


# --- the overview -------------------------------------------------------------------------------------------------


def test_the_overview_can_be_narrowed_to_a_sidecar_and_a_tenant() -> None:
    assert {variable["name"] for variable in OVERVIEW["templating"]["list"]} == {"datasource", "instance", "tenant"}
    for title, query in panel_queries():
        for selector in selectors(query):
            metric = SERIES.get(selector.name)
            if metric is not None and metric.by_tenant and title not in ("In flight", "instance", "tenant"):
                assert ("tenant", "=~", "$tenant") in selector.matchers, title


def test_panels_have_their_own_ids_and_places() -> None:
    ids = [panel["id"] for panel in OVERVIEW["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in OVERVIEW["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
        if panel["type"] != "row":
            assert panel["description"], panel["title"]
            assert panel["datasource"]["uid"] == "${datasource}"
