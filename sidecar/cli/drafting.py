"""Drafts a first warden.yaml and policy bundle from what a live Triton said: pure, values in, texts out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from textwrap import dedent, indent
from typing import Final

from sidecar.core.model import Contract
from sidecar.triton.tensors import DATATYPES

__all__ = [
    "AUDIENCE",
    "JOURNAL",
    "KEYS",
    "MODELS_MAX",
    "NOT_LOADED",
    "Model",
    "Place",
    "Server",
    "contract_of",
    "draft",
    "front_models",
    "listed",
    "printable",
    "remarks",
]

AUDIENCE: Final = "triton-warden"
JOURNAL: Final = "journal"  # directories beside warden.yaml
KEYS: Final = "keys"
NOT_LOADED: Final = "not loaded"  # the state "" of Triton's index
MODELS_MAX: Final = 1000  # as many as a tenant's list may name (policies.document)
_NAME: Final = re.compile(r"[^\s/*?\[\]]{1,256}")  # policies.document.ModelName
_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_WORDS: Final = frozenset({"true", "false", "null"})
_TOLD_MAX: Final = 12  # names in one warning
_PATH_MAX: Final = 200  # characters of a path in a comment


@dataclass(frozen=True, slots=True)
class Model:
    """One ready model. ``inputs``: tensor name → KServe v2 datatype; ``steps``: the models an ensemble is made of."""

    name: str
    inputs: Mapping[str, str]
    decoupled: bool = False
    steps: tuple[str, ...] = ()
    response_cache: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)  # of its config.pbtxt
    outputs: Mapping[str, str] = field(default_factory=dict)  # tensor name → KServe v2 datatype


@dataclass(frozen=True, slots=True)
class Server:
    """What Triton said. ``unready``: model → state and reason; ``untold``: ready models beyond ``MODELS_MAX``."""

    version: str
    models: tuple[Model, ...]
    unready: Mapping[str, str] = field(default_factory=dict)
    untold: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """What Triton can't know: the sidecar's name, where it stands, whose law that is, and the first tenant."""

    sidecar: str
    region: str
    jurisdiction: str
    tenant: str
    triton: str  # HOST:PORT
    restricted: tuple[str, str] | None = None  # the key and the secret's file, of a Triton that wants one


# --- what was seen ------------------------------------------------------------------------------------------------


def contract_of(inputs: Mapping[str, str], *, decoupled: bool) -> Contract:
    """The contract that a model's input tensors (name → datatype) speak of; ``generic`` unless they are all there.

    vLLM backend: src/model.py; TensorRT-LLM: triton_backend/all_models (ensemble and bls; llmapi; tensorrt_llm).
    """
    text = inputs.get("text_input") == "BYTES"
    if text and decoupled and inputs.get("sampling_parameters") == "BYTES":
        return Contract.VLLM
    if text and ("max_tokens" in inputs or "sampling_param_max_tokens" in inputs):
        return Contract.TRTLLM
    if "input_ids" in inputs and "request_output_len" in inputs:
        return Contract.TRTLLM
    return Contract.GENERIC


def composing(server: Server) -> frozenset[str]:
    """The models that some ensemble is made of: nobody calls them but it."""
    return frozenset(step for model in server.models for step in model.steps)


def front_models(server: Server) -> tuple[Model, ...]:
    """The models that clients call and a bundle can name."""
    inner = composing(server)
    return tuple(model for model in server.models if model.name not in inner and _writable(model.name))


def _writable(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name.isprintable()


def _contract(model: Model) -> Contract:
    return contract_of(model.inputs, decoupled=model.decoupled)


def remarks(server: Server, triton: str) -> Iterator[str]:
    """What was seen, or can't be seen, that whoever rolls this out should know; a sentence each."""
    by_name = {model.name: model for model in server.models}
    inner = sorted(composing(server) & by_name.keys())
    if inner:
        yield f"left out of the tenant's models, because only ensembles call them: {listed(inner)}"
    cached = [model.name for model in server.models if model.response_cache]
    if cached:
        yield (
            f"response cache on: {listed(cached)}. Its key doesn't hold the tenant, so one tenant's answers can come "
            "from another's; set response_cache { enable: false } before tenants share the model"
        )
    reusing = [m.name for m in server.models if m.parameters.get("enable_kv_cache_reuse", "").lower() == "true"]
    if reusing:
        yield f"KV-cache reuse on: {listed(reusing)}. By timing it tells tenants what others have asked"
    if any(_contract(model) is Contract.VLLM for model in front_models(server)):
        yield (
            "vLLM's prefix cache can't be seen over gRPC: in model.json write enable_prefix_caching: false where "
            "tenants share the model"
        )
    texts = [m.name for m in front_models(server) if _contract(m) is Contract.GENERIC and "text_input" in m.inputs]
    if texts:
        yield (
            f"takes text but fits neither LLM contract, so drafted as generic: {listed(texts)}. "
            "Its prompts are recorded as tensors' sizes, not as text, and its tokens aren't counted"
        )
    yield from _about_repository(server)
    host = triton.rpartition(":")[0]
    if host not in ("localhost", "[::1]") and not host.startswith("127."):
        yield f"{triton} is not on loopback: the way there is plaintext, and others may reach Triton around the sidecar"
    yield (
        "can't be seen over gRPC: whether Triton listens beyond loopback (start it with --grpc-address=127.0.0.1 "
        "--http-address=127.0.0.1 --metrics-address=127.0.0.1, else callers can go around the sidecar), its "
        "--model-control-mode (none is safest), and which models a Python or BLS model calls by itself"
    )


def _about_repository(server: Server) -> Iterator[str]:
    odd = [model.name[:80] for model in server.models if not _writable(model.name)]
    if odd:
        yield f"left out, because a bundle cannot name them: {listed(odd)}"
    if server.unready:
        told = [f"{name}: {why}" for name, why in sorted(server.unready.items())]
        yield f"left out, because they are not ready: {listed(told)}"
    if NOT_LOADED in server.unready.values():
        # Triton 2.51 with mode none or poll tries to load every model, and says UNAVAILABLE of one that failed.
        yield (
            "some models were never loaded, so --model-control-mode is explicit: whoever reaches Triton itself can "
            "load models, which is running code there; use none where you can"
        )
    if server.untold:
        yield f"{server.untold} more ready models were left out: a tenant's list holds at most {MODELS_MAX}"


def listed(names: list[str]) -> str:
    """Names come from a server, and go to a terminal."""
    rest = len(names) - _TOLD_MAX
    shown = [name if name.isprintable() else ascii(name) for name in names[:_TOLD_MAX]]
    return ", ".join(shown) + (f" and {rest} more" if rest > 0 else "")


# --- what is written ----------------------------------------------------------------------------------------------


def draft(server: Server, place: Place) -> dict[str, str]:
    """The files by their path beside warden.yaml, warden.yaml last: it is what makes the rest count."""
    models = front_models(server)
    inner = sorted(name for name in composing(server) if _writable(name))
    tenant = place.tenant
    return {
        "bundle/bundle.yaml": _bundle(place),
        "bundle/models.yaml": _models(server, models),
        "bundle/plans.yaml": _PLANS,
        f"bundle/tenants/{tenant}.yaml": _tenant(place, models),
        f"bundle/tests/{tenant}.yaml": _cases(place, models, inner),
        "warden.yaml": _settings(server, place),
    }


def _scalar(text: str) -> str:
    """``text`` as a YAML string; JSON's quotes are YAML's (YAML 1.2 §1.3)."""
    plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
    return text if plain else json.dumps(text, ensure_ascii=False)


def _bundle(place: Place) -> str:
    return (
        "# Every region that the bundle speaks of, and the legal area it lies in.\n"
        "regions:\n"
        f"  {_scalar(place.region)}: {{jurisdiction: {_scalar(place.jurisdiction)}}}\n"
        "\n"
        "# The data classes that callers may name (x-data-class) and tenants narrow (residency.classes).\n"
        "# classes:\n"
        "#   public: {about: published or meant to be}\n"
        "#   phi: {about: health data of a person}\n"
    )


_MODELS_HEAD: Final = """\
# How each model's tensors are read, guessed from the tensors that Triton named.
# contract: vllm or trtllm: its prompts and outputs are recorded as text, its tokens counted. generic: neither.
# default_tokens: what a request that names no maximum is taken to ask for.
# max_tokens: the most a request may ask for; set it to what the model can do.
# classification: callers may ask for outputs as labels; only where every output is numeric, or Triton 2.51 dies of it.
"""

_KV: Final = {
    Contract.VLLM: """\
        # For KV-cache quotas, write what a token takes over all GPUs, from the Hugging Face config.json:
        #   bytes_per_token = 2 × num_hidden_layers × num_key_value_heads × head_dim × bytes of the cache's dtype
        #   tokens_per_block = vLLM's block_size (16 unless model.json says otherwise)
        # Llama 3 8B in fp16: 2 × 32 × 8 × 128 × 2 = 131072
        # kv: {bytes_per_token: 131072, tokens_per_block: 16}
        """,
    Contract.TRTLLM: """\
        # For KV-cache quotas, copy the engine's config.json into bundle/engines/ and name it here:
        # kv: {engine_config: engines/NAME.json}
        """,
}


def _models(server: Server, models: tuple[Model, ...]) -> str:
    return "\n".join([_MODELS_HEAD, *(_model(server, model) for model in models)])


def _model(server: Server, model: Model) -> str:
    contract = _contract(model)
    body = f"contract: {contract}\n"
    if contract is not Contract.GENERIC:
        body += "default_tokens: 16\nmax_tokens: 4096\n" + dedent(_KV[contract])
        engine = _engine(server, model)
        body += f"# Triton says the engine is in {engine}\n" if engine else ""
    elif _numeric(model):
        body += "classification: true\n"
    return f"{_scalar(model.name)}:\n{indent(body, '  ')}"


def _numeric(model: Model) -> bool:
    """Whether every output is known, and none holds strings (whose elements have no size of their own)."""
    return bool(model.outputs) and all(DATATYPES.get(datatype, 0) > 0 for datatype in model.outputs.values())


def _engine(server: Server, model: Model) -> str:
    """Where a TensorRT-LLM engine lies, said by the model or by a model that it is made of; "" where nobody says."""
    by_name = {each.name: each for each in server.models}
    family = [model, *(by_name[step] for step in model.steps if step in by_name)]
    paths = [each.parameters.get("gpt_model_path", "") for each in family]
    return next((path for path in paths if path and path.isprintable() and len(path) <= _PATH_MAX), "")


_PLANS: Final = """\
# A plan states all five limits, per pod. What isn't limited says "unlimited". This one is generous: observe first
# (warden audit search, the dashboards), then write plans that fit.
default:
  requests: {rate: 1000/s, burst: 2000}
  tokens: {per_minute: 10000000} # prompt and requested output
  concurrency: 1000 # calls in flight
  kv_memory: unlimited # until models.yaml states kv
  tensor_memory: 1GiB # of requests in flight
"""


def _tenant(place: Place, models: tuple[Model, ...]) -> str:
    here = _scalar(place.jurisdiction)
    allowed = "".join(f"  - {_scalar(model.name)}\n" for model in models)
    return (
        f"tenant: {_scalar(place.tenant)}\n"
        "plan: default\n"
        "status: active # or suspended: every call is refused\n"
        "# Models that clients call; what an ensemble is made of is not among them. Patterns may be used: embed-*\n"
        + (f"models:\n{allowed}" if models else "models: []\n")
        + "# Where its data may be processed (jurisdictions or regions), its records stored, its traces sent.\n"
        "residency:\n"
        f"  processing: [{here}]\n"
        f"  storage: [{here}]\n"
        f"  telemetry: [{here}]\n"
        "audit:\n"
        "  level: full # prompts and outputs, sealed; prompt: no outputs; metadata: neither\n"
        "  retention: 30d\n"
        "  # redact: [email, phone, iban, card, national_id, ip] # taken out before a record is stored\n"
        "# What prompts and outputs may hold; in mode observe what guards find is recorded and nothing is refused.\n"
        "# guards:\n"
        "#   - {id: no-cards, on: prompt, classes: [card], then: flag} # deny refuses the call\n"
        "#   - {id: codename, on: output, patterns: ['(?i)project x'], then: deny, shadow: true}\n"
        "# hold_back: {bytes: 512, within: 200ms} # how far a stream stays behind, where a guard on outputs denies\n"
        "# What single API keys are narrowed to, by their names.\n"
        "# keys:\n"
        "#   nightly: {models: [], limits: {concurrency: 4}, until: 2030-01-01}\n"
    )


def _cases(place: Place, models: tuple[Model, ...], inner: list[str]) -> str:
    """One case a model, and the strangers that must stay out."""
    tenant, region = _scalar(place.tenant), _scalar(place.region)
    stranger = "nobody" if place.tenant != "nobody" else "somebody"
    lines = ["# Each case is a question and the answer it must get: warden policy test bundle"]
    lines += [
        f"- {{tenant: {tenant}, model: {_scalar(name)}, region: {region}, expect: {expected}}}"
        for names, expected in (([model.name for model in models], "allow"), (inner, "MODEL_NOT_FOUND"))
        for name in names
    ]
    lines.append(f"- {{tenant: {stranger}, region: {region}, action: metadata, expect: TENANT_UNKNOWN}}")
    return "\n".join(lines) + "\n"


def _restricted(place: Place) -> str:
    if place.restricted is None:
        return ""
    key, file = (json.dumps(value) for value in place.restricted)
    return f"  restricted_secret: {{key: {key}, file: {file}}} # sent with every RPC; keep a copy where the pod runs\n"


def _settings(server: Server, place: Place) -> str:
    issuer = _scalar(f"urn:warden:{place.sidecar}")
    region, here = _scalar(place.region), _scalar(place.jurisdiction)
    return f"""\
# Drafted from Triton {printable(server.version)}. Check it with: warden config check warden.yaml
# Relative paths are taken from this file's directory.

sidecar:
  name: {_scalar(place.sidecar)} # one a sidecar: it names this one's records
  region: {region} # one of bundle/bundle.yaml's
  # SET THIS before mode enforce: what else says where this is. Where it disagrees, every call is refused.
  # evidence:
  #   node_labels_file: /etc/pod/labels # topology.kubernetes.io/region="{place.region}", by Kubernetes' downward API
  #   cloud_metadata_file: /run/cloud-init/instance-data.json

# observe: decides and records every call and refuses none, so it is safe beside running traffic.
# enforce: what would have been refused is refused.
mode: observe

listen:
  grpc: 127.0.0.1:8011 # where clients go instead of to Triton; 0.0.0.0:8011 for those on other machines
  admin: 127.0.0.1:8012 # /metrics, /livez, /readyz

triton:
  grpc: {json.dumps(place.triton)}
{_restricted(place)}
policy:
  bundle: bundle

identity:
  # Your own identity provider: its issuer, audience and JWKS URL, and the tenants it may speak for.
  # This one trusts the key that `warden token mint` signs with.
  issuers:
    - issuer: {issuer}
      audience: [{AUDIENCE}]
      jwks: {KEYS}/jwks.json
      algorithms: [EdDSA]
      tenants: [{_scalar(place.tenant)}]
  keys: # API keys: warden keys issue
    pepper_file: {KEYS}/pepper.key
  signing: # warden token mint
    issuer: {issuer}
    audience: {AUDIENCE}
    key_file: {KEYS}/signing.pem

audit:
  journal:
    directory: {JOURNAL}
    key_file: {KEYS}/journal.key # in production on another volume than the journal, and kept: it opens the records
    mode: batch # outlives the process; strict: outlives power, and waits for the disk before it forwards
    # copy: {{outside: {{directory: /mnt/copies, jurisdiction: {here}}}}} # or s3: the node's loss then loses no record
  database:
    # SET THIS. Without a password here, libpq takes it from PGPASSWORD or ~/.pgpass.
    dsn: postgresql://warden@127.0.0.1:5432/warden
    jurisdiction: {here} # whose law the database is under; warden db upgrade writes it into the database
  keys:
    directory: {KEYS}/tenants # the tenants' master keys, made as needed: keep them, out of the database's backups
  # Where tensors' bytes go, of tenants that want them kept (audit.tensors); or s3:
  # objects: {{directory: /mnt/tensors, jurisdiction: {here}}}

# Several pods share their tenants' limits in one Redis a region:
# quotas:
#   redis: {{url: "rediss://redis.internal:6379/0"}}

# Traces, sent by `warden ship` to an OpenTelemetry collector:
# telemetry:
#   otlp: {{endpoint: "http://127.0.0.1:4317", jurisdiction: {here}}}
"""


def printable(text: str) -> str:
    """What a server calls itself, fit for a comment and a terminal."""
    return text[:40] if text.isprintable() else "(unnamed)"
