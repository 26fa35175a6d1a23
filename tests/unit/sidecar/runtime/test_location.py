"""Where a pod is: two pieces of evidence that agree, or none is believed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sidecar.runtime.location import MAX_BYTES, Location, look
from sidecar.runtime.settings import EvidenceSection, SidecarSection

LABELS = 'app="x"\ntopology.kubernetes.io/region="eu-west-1"\ntopology.kubernetes.io/zone="eu-west-1b"\n'


def section(labels: Path | None = None, cloud: Path | None = None) -> SidecarSection:
    return SidecarSection(
        name="pod-1",
        region="eu-west-1",
        evidence=EvidenceSection(node_labels_file=labels, cloud_metadata_file=cloud),
    )


def written(directory: Path, name: str, content: object) -> Path:
    path = directory / name
    path.write_bytes(
        content
        if isinstance(content, bytes)
        else (content if isinstance(content, str) else json.dumps(content)).encode()
    )
    return path


@pytest.mark.parametrize(
    "content",
    [
        LABELS,
        "topology.kubernetes.io/region=eu-west-1",
        'failure-domain.beta.kubernetes.io/region="eu-west-1"\n',
        {"topology.kubernetes.io/region": "eu-west-1"},
        {"labels": {"topology.kubernetes.io/region": "eu-west-1"}},
        {"kind": "Node", "metadata": {"labels": {"topology.kubernetes.io/region": "eu-west-1"}}},
    ],
)
def test_a_node_s_labels_agree(tmp_path: Path, content: object) -> None:
    path = written(tmp_path, "labels", content)
    assert look(section(labels=path)) == Location(f"configuration + node labels {path}")


@pytest.mark.parametrize(
    "content",
    [
        {"v1": {"cloud_name": "aws", "region": "eu-west-1"}, "ds": {}},
        {"accountId": "1", "region": "eu-west-1"},
        {"compute": {"location": "eu-west-1"}},
        {"instance": {"zone": "projects/1/zones/eu-west-1-b"}},
    ],
)
def test_a_cloud_s_metadata_agrees(tmp_path: Path, content: object) -> None:
    path = written(tmp_path, "cloud.json", content)
    assert look(section(cloud=path)) == Location(f"configuration + cloud metadata {path}")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ('topology.kubernetes.io/region="us-east-1"\n', "us-east-1"),
        ("", "names no region"),
        ('topology.kubernetes.io/region=""\n', "names no region"),
        ("{not json", "not JSON"),
        ('{"labels": []}', "names no region"),
        ('{"labels": ["a"]}', "its labels are no mapping"),
        (b"\xff", "not UTF-8"),
        (b"#" * (MAX_BYTES + 1), f"larger than {MAX_BYTES} bytes"),
        (
            'topology.kubernetes.io/region="eu-west-1"\nfailure-domain.beta.kubernetes.io/region="us-east-1"\n',
            "names several regions: eu-west-1, us-east-1",
        ),
    ],
)
def test_what_does_not_agree_is_doubted_with_its_reason(tmp_path: Path, content: object, why: str) -> None:
    path = written(tmp_path, "labels", content)
    found = look(section(labels=path))
    assert found.evidence == "configuration"
    assert found.doubt.endswith(f"node labels {path}: {why}")
    assert "eu-west-1" in found.doubt


def test_a_file_that_is_not_there_is_no_evidence(tmp_path: Path) -> None:
    assert look(section(labels=tmp_path / "none")).doubt == (
        f"only the configuration says eu-west-1: node labels {tmp_path / 'none'}: No such file or directory"
    )
    assert "Is a directory" in look(section(labels=tmp_path)).doubt


def test_one_that_agrees_is_enough_but_not_beside_one_that_disagrees(tmp_path: Path) -> None:
    labels, cloud = written(tmp_path, "labels", LABELS), tmp_path / "cloud.json"
    assert look(section(labels, cloud)).doubt == ""
    cloud.write_text('{"region": "us-east-1"}')
    assert look(section(labels, cloud)).doubt == f"configuration: eu-west-1, but cloud metadata {cloud}: us-east-1"


def test_to_observe_the_configuration_s_word_is_enough() -> None:
    assert look(SidecarSection(name="pod-1", region="eu-west-1")) == Location("configuration")
