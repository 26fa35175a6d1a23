"""Where this pod really is: the configuration's word, held against what the node or the cloud says of itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sidecar.runtime.settings import EvidenceSection, SidecarSection

__all__ = ["Location", "look"]

MAX_BYTES: Final = 2**20  # of a node's labels or a cloud's metadata
# Well-known labels, https://kubernetes.io/docs/reference/labels-annotations-taints/; the second was the first's name.
LABELS: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
# Of cloud-init's instance-data.json; of AWS's identity document; of Azure's and of Google's instance metadata.
_CLOUD: Final = (("v1", "region"), ("region",), ("compute", "location"), ("location",))
_ZONES: Final = (("instance", "zone"), ("zone",))  # Google: projects/NUMBER/zones/europe-west1-b


@dataclass(frozen=True, slots=True)
class Location:
    """``evidence`` is what agrees, in words for the record; ``doubt`` why where this is is uncertain ("": it isn't)."""

    evidence: str
    doubt: str = ""


class _UnusableError(Exception):
    """A piece of evidence that says nothing; the message says why."""


def look(section: SidecarSection) -> Location:
    """Read the evidence anew: two files at most. Two pieces must name the same region, and none another."""
    agreeing, against, silent = ["configuration"], [], []
    for what, path, read in _pieces(section.evidence):
        try:
            named = read(path)
        except _UnusableError as fault:
            silent.append(f"{what} {path}: {fault}")
            continue
        if named == section.region:
            agreeing.append(f"{what} {path}")
        else:
            against.append(f"{what} {path}: {named}")
    evidence = " + ".join(agreeing)
    if against:
        return Location(evidence, f"configuration: {section.region}, but {'; '.join(against)}")
    if section.evidence is not None and len(agreeing) == 1:
        return Location(evidence, f"only the configuration says {section.region}: {'; '.join(silent)}")
    return Location(evidence)


def _pieces(section: EvidenceSection | None) -> Iterator[tuple[str, Path, Any]]:
    if section is not None and section.node_labels_file is not None:
        yield "node labels", section.node_labels_file, _from_labels
    if section is not None and section.cloud_metadata_file is not None:
        yield "cloud metadata", section.cloud_metadata_file, _from_cloud


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise _UnusableError(f"larger than {MAX_BYTES} bytes")
        return data.decode()
    except OSError as fault:
        raise _UnusableError(fault.strerror or "cannot be read") from None
    except UnicodeDecodeError:
        raise _UnusableError("not UTF-8") from None


def _one(found: list[str]) -> str:
    named = sorted(set(found))
    if not named:
        raise _UnusableError("names no region")
    if len(named) > 1:
        raise _UnusableError(f"names several regions: {', '.join(named)}")
    return named[0]


def _from_labels(path: Path) -> str:
    """Lines ``key="value"`` as Kubernetes' downward API writes them, or JSON (a node, or its labels alone)."""
    text = _text(path)
    labels: Mapping[str, Any] = {}
    if text.lstrip().startswith("{"):
        whole = _json(text)
        labels = _at(whole, ("metadata", "labels")) or whole.get("labels") or whole
    else:
        labels = dict(_lines(text))
    if not isinstance(labels, dict):
        raise _UnusableError("its labels are no mapping")
    return _one([labels[name] for name in LABELS if isinstance(labels.get(name), str) and labels[name]])


def _lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.partition("=")
        yield name.strip(), value.strip().strip('"')


def _from_cloud(path: Path) -> str:
    whole = _json(_text(path))
    found = [value for place in _CLOUD if isinstance(value := _at(whole, place), str) and value]
    zones = [value for place in _ZONES if isinstance(value := _at(whole, place), str) and value]
    found += [zone.rpartition("/")[2].rpartition("-")[0] for zone in zones]
    return _one(found)


def _json(text: str) -> dict[str, Any]:
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        raise _UnusableError("not JSON") from None
    if not isinstance(whole, dict):
        raise _UnusableError("not a JSON object")
    return whole


def _at(whole: Any, place: tuple[str, ...]) -> Any:
    for name in place:
        whole = whole.get(name) if isinstance(whole, dict) else None
    return whole
