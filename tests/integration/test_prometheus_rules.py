"""Prometheus itself reads our rules and runs their tests; Alertmanager reads the example."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support import debian

DASHBOARDS = Path(__file__).parents[2] / "dashboards"

pytestmark = pytest.mark.integration


def run(*command: Path | str) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=DASHBOARDS / "prometheus",
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_rules_are_valid() -> None:
    text = (DASHBOARDS / "prometheus" / "warden.rules.yaml").read_text()
    written = len(re.findall(r"^ *- (?:alert|record): ", text, re.MULTILINE))
    assert written > 30
    assert f"{written} rules found" in run(
        debian.require("prometheus", "promtool"), "check", "rules", "warden.rules.yaml"
    )


def test_each_alert_fires_when_it_must_and_only_then() -> None:
    assert "SUCCESS" in run(debian.require("prometheus", "promtool"), "test", "rules", "warden.rules.test.yaml")


def test_the_alertmanager_example_is_valid() -> None:
    amtool = debian.require("prometheus-alertmanager", "amtool")
    assert "SUCCESS" in run(amtool, "check-config", DASHBOARDS / "alertmanager.example.yaml")


@pytest.mark.parametrize(
    ("labels", "receiver"),
    [
        ("severity=page alertname=WardenAbsent", "pager"),
        ("severity=ticket alertname=WardenNotShipping", "tickets"),
        ("severity=none alertname=WardenWatchdog", "dead-mans-switch"),
    ],
)
def test_an_alert_goes_where_its_severity_says(labels: str, receiver: str) -> None:
    amtool = debian.require("prometheus-alertmanager", "amtool")
    config = f"--config.file={DASHBOARDS / 'alertmanager.example.yaml'}"
    assert run(amtool, "config", "routes", "test", config, *labels.split()).strip() == receiver


def test_prometheus_takes_what_the_sidecar_exposes(tmp_path: Path) -> None:
    """`promtool check metrics` lints the exposition: names, units, help."""
    from prometheus_client.exposition import generate_latest  # noqa: PLC0415 — only this test needs them

    from sidecar.telemetry.instruments import PrometheusInstruments, registry  # noqa: PLC0415
    from tests.support import telemetry  # noqa: PLC0415

    text = generate_latest(registry(PrometheusInstruments(telemetry.METHODS)))
    promtool = debian.require("prometheus", "promtool")
    done = subprocess.run([promtool, "check", "metrics"], input=text, check=False, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr.decode()
