"""Envoy's configuration holds every setting that safety rests on (facts/envoy.md)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.runtime import envoy
from sidecar.runtime.settings import Settings, load
from sidecar.transports.envoy_upstream import CLUSTER
from tests.support.config import write


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load(write(tmp_path, bounds={"metadata_bytes": "32KiB", "streams_per_connection": 77, "grace": "12s"}))


@pytest.fixture
def config(settings: Settings, tmp_path: Path) -> dict[str, Any]:
    return envoy.configuration(settings, tmp_path)


def listener(config: dict[str, Any]) -> dict[str, Any]:
    (found,) = config["static_resources"]["listeners"]
    return dict(found)


def manager(config: dict[str, Any]) -> dict[str, Any]:
    (chain,) = listener(config)["filter_chains"]
    return dict(chain["filters"][-1]["typed_config"])


def found(value: Any, key: str) -> list[Any]:
    """Everything under ``key``, at any depth."""
    if isinstance(value, dict):
        here = [value[key]] if key in value else []
        return here + [each for item in value.values() for each in found(item, key)]
    return [each for item in value for each in found(item, key)] if isinstance(value, list) else []


def test_the_admin_endpoint_is_a_socket_of_ours_alone(config: dict[str, Any], tmp_path: Path) -> None:
    assert config["admin"] == {"address": {"pipe": {"path": str(tmp_path / "admin.sock"), "mode": 0o600}}}


def test_there_is_one_listener_where_we_were_told_and_nobody_shares_its_port(config: dict[str, Any]) -> None:
    address = listener(config)["address"]["socket_address"]
    assert (address["address"], address["port_value"]) == ("127.0.0.1", 18011)
    assert listener(config)["enable_reuse_port"] is False
    assert "additional_addresses" not in listener(config)
    assert "api_listener" not in listener(config)


def test_a_client_cannot_say_where_it_comes_from(config: dict[str, Any]) -> None:
    assert manager(config)["use_remote_address"] is True
    assert manager(config)["skip_xff_append"] is True


def test_quiet_streams_live_and_what_one_client_makes_envoy_hold_is_bounded(config: dict[str, Any]) -> None:
    http = manager(config)
    assert http["stream_idle_timeout"] == "0s"
    assert http["max_request_headers_kb"] == 32
    assert http["common_http_protocol_options"]["max_headers_count"] == 128
    options = http["http2_protocol_options"]
    assert options["max_concurrent_streams"] == 77
    assert options["initial_stream_window_size"] == 2**20
    assert listener(config)["per_connection_buffer_limit_bytes"] == 2**20


def test_the_app_fails_closed_at_start(config: dict[str, Any]) -> None:
    """Without it, a lifespan that raises is served all the same. pyvoy hands its filter one JSON text."""
    (hosted,) = found(manager(config), "filter_config")
    assert json.loads(hosted["value"]) | {"root_path": ""} == {
        "app": envoy.APP,
        "interface": "asgi",
        "root_path": "",
        "lifespan": True,
    }


def test_routes_set_no_deadline_of_their_own(config: dict[str, Any]) -> None:
    assert set(found(manager(config)["route_config"], "timeout")) <= {"0s"}


def test_triton_is_one_cluster_spoken_to_in_http2(config: dict[str, Any]) -> None:
    (cluster,) = [each for each in config["static_resources"]["clusters"] if each["name"] == CLUSTER]
    (address,) = found(cluster["load_assignment"], "socket_address")
    assert address == {"address": "127.0.0.1", "port_value": 18001}
    assert found(cluster, "explicit_http_config")[0].keys() == {"http2_protocol_options"}
    (breaker,) = cluster["circuit_breakers"]["thresholds"]
    assert min(breaker.values()) >= 10**6  # the governor decides how many


@pytest.mark.parametrize(
    ("address", "parts"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:8011", ("::1", 8011)), ("a.b:1", ("a.b", 1))]
)
def test_an_address_is_split(address: str, parts: tuple[str, int]) -> None:
    assert envoy.split_address(address) == parts


def test_envoys_python_finds_the_shim_first_and_our_packages(tmp_path: Path) -> None:
    environment = envoy.environment(Path("warden.yaml"), tmp_path)
    first, *others = environment["PYTHONPATH"].split(os.pathsep)
    assert Path(first) == envoy.SHIM
    assert (envoy.SHIM / "envoy" / "__init__.py").is_file()
    assert others
    assert environment[envoy.CONFIG_VARIABLE] == str(Path("warden.yaml").resolve())
    assert environment[envoy.RUN_VARIABLE] == str(tmp_path)
    assert environment[envoy.PYTHON_VARIABLE] == sys.executable


def test_a_child_inherits_nothing_that_envoys_python_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "KEPT"):
        monkeypatch.setenv(name, "x")
    environment = envoy.child_environment()
    assert environment["KEPT"] == "x"
    assert not {"LD_PRELOAD", "PYTHONHOME", "PYTHONPATH"} & environment.keys()


def test_the_command_runs_one_worker_and_no_hot_restart(settings: Settings, tmp_path: Path) -> None:
    binary, *arguments = envoy.command(settings, tmp_path / "envoy.json")
    assert os.access(binary, os.X_OK)
    assert arguments[arguments.index("--concurrency") + 1] == "1"
    assert "--disable-hot-restart" in arguments
    assert arguments[arguments.index("--drain-time-s") + 1] == "12"
    assert arguments[arguments.index("--config-path") + 1] == str(tmp_path / "envoy.json")


def test_what_envoy_hosts_imports_none_of_the_heavy_packages() -> None:
    """grpc's threads and forks don't belong in Envoy's process, and SQLAlchemy would double its memory."""
    program = (
        "import sys, sidecar.runtime.lifecycle, sidecar.runtime.envoy, sidecar.transports.asgi,"
        " sidecar.transports.envoy_upstream\n"
        "heavy = {'grpc', 'sqlalchemy', 'alembic', 'opentelemetry', 'numpy', 'typer', 'rich', 'tritonclient'}\n"
        "print(sorted(heavy & {name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_bound_listeners_are_plaintext_with_ports_of_their_own(tmp_path: Path) -> None:
    principal = {"tenant": "acme", "name": "perf"}
    listeners = [
        {"address": f"{host}:{port}", "principal": principal} for host, port in (("127.0.0.1", 1), ("[::1]", 2))
    ]
    listen = {"tls": {"cert_file": "c", "key_file": "k"}}
    config = envoy.configuration(load(write(tmp_path, listeners=listeners, listen=listen)), tmp_path)
    tenants, bound = config["static_resources"]["listeners"]
    addresses = found(bound, "socket_address")
    assert [(each["address"], each["port_value"]) for each in addresses] == [("127.0.0.1", 1), ("::1", 2)]
    assert bound["enable_reuse_port"] is False
    assert "additional_addresses" not in tenants
    assert tenants["name"] != bound["name"]
    (chain,), (secured,) = bound["filter_chains"], tenants["filter_chains"]
    assert "transport_socket" in secured
    assert chain == {name: value for name, value in secured.items() if name != "transport_socket"}
