"""The one table of RPCs: Triton's twenty and gRPC health's two; what is not in it does not exist (facts §1)."""

from __future__ import annotations

from typing import Final

from sidecar.core.model import STAFF, Action, Disposition, Method

KSERVE: Final = "/inference.GRPCInferenceService/"
HEALTH: Final = "/grpc.health.v1.Health/"

PATH_CHARS: Final = 200  # of an unknown path that are kept, for its record

ROLES: Final = ("tenant", "operator", "admin")

# Roles don't include one another: who administers a server is not thereby let in to prompt its models.
_TENANT: Final = frozenset({"tenant"})
_STAFF: Final = STAFF
_ADMIN: Final = frozenset({"admin"})
_EVERYONE: Final = _TENANT | _STAFF
_NOBODY: Final[frozenset[str]] = frozenset()

_IN_THE_REQUEST: Final = "shared memory is one namespace for all tenants: send the tensors in the request"

_ANSWER, _FORWARD, _REFUSE = Disposition.ANSWER, Disposition.FORWARD, Disposition.REFUSE


def _row(
    name: str,
    action: Action,
    disposition: Disposition,
    roles: frozenset[str],
    whole: frozenset[str] = _NOBODY,
    *,
    service: str = KSERVE,
    by_model: bool = False,
    streaming: bool = False,
    instead: str = "",
    all_models: bool = False,
) -> Method:
    return Method(service + name, action, disposition, roles, by_model, streaming, instead, whole, all_models)


# Last of the two sets of roles: those whom it shows the whole server. The others are shown their tenant's own models,
# and of these no path, no argument of a backend, no count but of their own calls (``views``).
METHODS: Final[dict[str, Method]] = {
    method.path: method
    for method in (
        _row("ServerLive", Action.HEALTH, _ANSWER, _EVERYONE),
        _row("ServerReady", Action.HEALTH, _ANSWER, _EVERYONE),
        _row("Check", Action.HEALTH, _ANSWER, _EVERYONE, service=HEALTH),
        _row("Watch", Action.HEALTH, _ANSWER, _EVERYONE, service=HEALTH, streaming=True),
        _row("ModelInfer", Action.INFER, _FORWARD, _TENANT, by_model=True),
        _row("ModelStreamInfer", Action.INFER, _FORWARD, _TENANT, by_model=True, streaming=True),
        _row("ModelReady", Action.METADATA, _FORWARD, _EVERYONE, _STAFF, by_model=True),
        _row("ModelMetadata", Action.METADATA, _FORWARD, _EVERYONE, _STAFF, by_model=True),
        _row("ServerMetadata", Action.METADATA, _FORWARD, _EVERYONE, _STAFF),
        # To staff their answers hold paths, backend arguments and every tenant's counters.
        _row("ModelConfig", Action.MANAGE, _FORWARD, _EVERYONE, _STAFF, by_model=True),
        _row("ModelStatistics", Action.MANAGE, _FORWARD, _EVERYONE, _STAFF, by_model=True, all_models=True),
        _row("RepositoryIndex", Action.MANAGE, _FORWARD, _EVERYONE, _STAFF),
        # With parameters a load uploads a model, and so code; what a settings call may change ``isolation`` says.
        _row("RepositoryModelLoad", Action.MANAGE, _FORWARD, _ADMIN, _ADMIN, by_model=True),
        _row("RepositoryModelUnload", Action.MANAGE, _FORWARD, _ADMIN, _ADMIN, by_model=True),
        _row("TraceSetting", Action.MANAGE, _FORWARD, _ADMIN, _ADMIN, by_model=True, all_models=True),
        _row("LogSettings", Action.MANAGE, _FORWARD, _ADMIN, _ADMIN),
        # One namespace for all tenants, and an empty name means all regions: open to nobody.
        _row("SystemSharedMemoryStatus", Action.MANAGE, _REFUSE, _NOBODY, instead=_IN_THE_REQUEST),
        _row("SystemSharedMemoryRegister", Action.MANAGE, _REFUSE, _NOBODY, instead=_IN_THE_REQUEST),
        _row("SystemSharedMemoryUnregister", Action.MANAGE, _REFUSE, _NOBODY, instead=_IN_THE_REQUEST),
        _row("CudaSharedMemoryStatus", Action.MANAGE, _REFUSE, _NOBODY, instead=_IN_THE_REQUEST),
        _row("CudaSharedMemoryRegister", Action.MANAGE, _REFUSE, _NOBODY, instead=_IN_THE_REQUEST),
        _row("CudaSharedMemoryUnregister", Action.MANAGE, _REFUSE, _NOBODY, instead=_IN_THE_REQUEST),
    )
}


def lookup(path: str) -> Method:
    """The table's row for a request path; any other path is a method that nobody may call."""
    return METHODS.get(path) or Method(_printable(path), Action.UNKNOWN, _REFUSE, _NOBODY)


def _printable(path: str) -> str:
    """What a stranger wrote, safe to log: printable ASCII, at most ``PATH_CHARS`` characters."""
    return "".join(char if "!" <= char <= "~" else "?" for char in path[:PATH_CHARS])
