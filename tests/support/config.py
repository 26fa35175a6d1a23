"""A sidecar's configuration in a directory of its own: real keys, the demo's bundle, no other process needed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.support.identity import AUDIENCE, ISSUER, generate, jwk, jwks
from tests.support.policy import DEMO_BUNDLE


def document(directory: Path, **changes: Any) -> dict[str, Any]:
    """What is needed to start, with ports of the system's choice; ``changes`` replace whole sections."""
    keys = directory / "keys"
    keys.mkdir(exist_ok=True)
    for name in ("journal.key", "pepper"):
        path = keys / name
        if not path.exists():
            path.write_bytes(os.urandom(32).hex().encode() if name == "pepper" else os.urandom(32))
            path.chmod(0o600)
    if not (keys / "jwks.json").exists():
        (keys / "jwks.json").write_bytes(jwks(jwk(generate("EdDSA"), "k1")))
    (directory / "node-labels").write_text('topology.kubernetes.io/region="eu-west-1"\n')
    return {
        "sidecar": {"name": "pod-1", "region": "eu-west-1", "evidence": {"node_labels_file": "node-labels"}},
        "listen": {"grpc": "127.0.0.1:18011", "admin": "127.0.0.1:18012"},
        "triton": {"grpc": "127.0.0.1:18001"},
        "policy": {"bundle": str(DEMO_BUNDLE)},
        "identity": {
            "issuers": [
                {
                    "issuer": ISSUER,
                    "audience": [AUDIENCE],
                    "jwks": "keys/jwks.json",
                    "algorithms": ["EdDSA"],
                    "tenants": ["acme"],
                }
            ]
        },
        "audit": {
            "journal": {"directory": "journal", "key_file": "keys/journal.key"},
            "database": {"dsn": "postgresql://127.0.0.1:1/none", "jurisdiction": "EU"},
        },
        **changes,
    }


def write(directory: Path, **changes: Any) -> Path:
    """As a file: JSON is YAML."""
    path = directory / "warden.yaml"
    path.write_text(json.dumps(document(directory, **changes), indent=2))
    return path
