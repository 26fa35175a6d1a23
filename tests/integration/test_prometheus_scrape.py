"""A real Prometheus scrapes the admin server, takes our rules, and answers every query of the dashboard."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import sidecar
from sidecar.core.model import Outcome, OutcomeKind, Usage
from sidecar.telemetry.exposition import AdminServer, Check
from sidecar.telemetry.instruments import PrometheusInstruments, registry
from tests.support import debian, telemetry

DASHBOARDS = Path(sidecar.__path__[0]).parent / "dashboards"
OVERVIEW: dict[str, Any] = json.loads((DASHBOARDS / "grafana/warden-overview.json").read_text("utf-8"))
QUERIES = [(panel["title"], target["expr"]) for panel in OVERVIEW["panels"] for target in panel.get("targets", [])]
VARIABLES = {"$__rate_interval": "1m", "$instance": ".*", "$tenant": ".*"}

pytestmark = pytest.mark.integration


class Prometheus:
    """Its HTTP API."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path: str, **query: str | float) -> Any:
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def until(self, read: Callable[[], Any], *, within: float = 30.0) -> Any:
        """What ``read`` gives once it gives something; Prometheus scrapes each 200 ms."""
        ends = time.monotonic() + within
        while True:
            try:
                if found := read():
                    return found
            except (urllib.error.URLError, ConnectionError):
                pass  # still starting
            assert time.monotonic() < ends, "Prometheus did not get there in time"
            time.sleep(0.05)


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    binary = debian.require("prometheus", "prometheus")
    instruments = PrometheusInstruments(telemetry.METHODS)
    instruments.watch("warden_upstream_up", lambda: 1.0)
    admin = AdminServer("127.0.0.1:0", registry(instruments), dict, lambda: {"journal": Check(ok=True)})
    admin.start()
    usage = Usage(input_tokens=7, output_tokens=5, responses=1, duration_ns=30_000_000)
    instruments.settled(telemetry.recorded("acme", sampled=True), Outcome(OutcomeKind.COMPLETED), usage)
    at = tmp_path_factory.mktemp("prometheus")
    port = _free_port()
    rules = (DASHBOARDS / "prometheus/warden.rules.yaml").read_text("utf-8")
    (at / "rules.yaml").write_text(re.sub(r"^    interval: \w+$", "    interval: 1s", rules, flags=re.MULTILINE))
    (at / "prometheus.yaml").write_text(yaml.safe_dump(_config(admin.port, at / "rules.yaml")))
    with (at / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                binary,
                f"--config.file={at / 'prometheus.yaml'}",
                f"--storage.tsdb.path={at / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Prometheus(port)
    finally:
        process.terminate()
        process.wait(timeout=20)
        admin.stop()


def _config(admin_port: int, rules: Path) -> dict[str, Any]:
    return {
        "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "scrape_configs": [{"job_name": "warden", "static_configs": [{"targets": [f"127.0.0.1:{admin_port}"]}]}],
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_it_scrapes_what_was_counted(prometheus: Prometheus) -> None:
    query = 'warden_calls_total{job="warden", tenant="acme", action="infer", outcome="completed"}'
    [series] = prometheus.until(lambda: prometheus.get("/api/v1/query", query=query)["result"])
    assert series["value"][1] == "1"
    [up] = prometheus.get("/api/v1/query", query='up{job="warden"}')["result"]
    assert up["value"][1] == "1"


def test_it_keeps_the_trace_of_a_call_as_exemplar(prometheus: Prometheus) -> None:
    query = "gen_ai_server_request_duration_seconds_bucket"
    span = {"start": telemetry.AT.wall - 3600, "end": telemetry.AT.wall + 3600}
    found = prometheus.until(lambda: prometheus.get("/api/v1/query_exemplars", query=query, **span))
    assert found[0]["exemplars"][0]["labels"] == {"trace_id": telemetry.TRACE.trace_id}


def test_it_knows_types_units_and_help(prometheus: Prometheus) -> None:
    known = prometheus.until(lambda: prometheus.get("/api/v1/metadata").get("warden_calls"))
    assert known[0]["type"] == "counter"
    assert "inference" in known[0]["help"]


def test_it_evaluates_every_rule(prometheus: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]]:
        rules = [rule for group in prometheus.get("/api/v1/rules")["groups"] for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else []

    rules = prometheus.until(evaluated)
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    assert {rule["name"] for rule in rules if rule.get("state") == "firing"} == {"WardenWatchdog"}


@pytest.mark.parametrize(("title", "query"), QUERIES)
def test_it_answers_every_query_of_the_dashboard(prometheus: Prometheus, title: str, query: str) -> None:
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    assert not re.search(r"\$\w", query), title
    answer = prometheus.until(lambda: prometheus.get("/api/v1/query", query=query))
    assert answer["resultType"] == "vector"
