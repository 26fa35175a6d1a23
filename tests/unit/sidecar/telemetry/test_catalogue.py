"""The table of metrics: names, units and labels follow the Prometheus conventions, and say what they are."""

from __future__ import annotations

import re

import pytest

from sidecar.core.model import OutcomeKind, Quantity
from sidecar.core.reasons import Reason
from sidecar.telemetry.catalogue import BY_NAME, CATALOGUE, Kind, Metric


def test_no_name_is_there_twice() -> None:
    assert len(BY_NAME) == len(CATALOGUE)
    assert len({metric.family for metric in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.parametrize("metric", CATALOGUE, ids=lambda metric: metric.name)
def test_a_metric_follows_the_conventions(metric: Metric) -> None:
    # The GenAI conventions own the names under gen_ai_server_; everything else of ours is warden_ (DESIGN §6).
    assert re.fullmatch(r"(warden|gen_ai_server)_[a-z][a-z_]*[a-z]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    assert metric.name.endswith("_info") == (metric.kind is Kind.INFO)
    assert metric.help.endswith("."), "help is a sentence"
    if metric.unit:
        assert metric.family.endswith(f"_{metric.unit}")
    for unit in ("seconds", "bytes"):
        assert (metric.unit == unit) == metric.family.endswith(f"_{unit}")
    assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM)
    assert list(metric.buckets) == sorted(set(metric.buckets))
    assert set(metric.values) <= set(metric.labels)
    assert "le" not in metric.labels
    if metric.by_tenant:
        assert metric.labels[0] == "tenant"


def test_the_closed_labels_are_the_tables_of_the_core() -> None:
    assert BY_NAME["warden_refusals_total"].values["reason"] == tuple(Reason)
    assert BY_NAME["warden_throttled_total"].values["quantity"] == tuple(Quantity)
    outcomes = set(BY_NAME["warden_calls_total"].values["outcome"])
    assert outcomes == set(OutcomeKind) - {OutcomeKind.ABORTED}


def test_the_gen_ai_histograms_have_the_conventions_buckets() -> None:
    assert BY_NAME["gen_ai_server_request_duration_seconds"].buckets == (
        0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92,
    )  # fmt: skip
    assert BY_NAME["gen_ai_server_time_to_first_token_seconds"].buckets == (
        0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    )  # fmt: skip
    assert BY_NAME["gen_ai_server_time_per_output_token_seconds"].buckets == (
        0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5,
    )  # fmt: skip
