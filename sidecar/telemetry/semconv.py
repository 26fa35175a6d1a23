"""The one table of span and attribute names: RPC and GenAI semantic conventions, pinned by the schema URL we send."""

from __future__ import annotations

from typing import Final

# GenAI names still move; this is the release that ours were taken from.
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.41.0"
SCOPE: Final = "triton-warden"
SERVICE: Final = "triton-warden"

ERROR_TYPE: Final = "error.type"
SERVICE_NAME: Final = "service.name"
SERVICE_INSTANCE: Final = "service.instance.id"
CLOUD_REGION: Final = "cloud.region"

RPC_SYSTEM: Final = "rpc.system.name"
RPC_SYSTEM_GRPC: Final = "grpc"
RPC_METHOD: Final = "rpc.method"
RPC_STATUS: Final = "rpc.response.status_code"

GEN_AI_OPERATION: Final = "gen_ai.operation.name"
GEN_AI_TEXT: Final = "text_completion"
GEN_AI_TENSORS: Final = "infer"  # tensors in, tensors out: the conventions have no word for it
GEN_AI_PROVIDER: Final = "gen_ai.provider.name"
GEN_AI_PROVIDER_TRITON: Final = "nvidia.triton"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_TTFT: Final = "gen_ai.response.time_to_first_chunk"

WARDEN_CALL: Final = "warden.call_id"  # the reference to the record that holds the content
WARDEN_TENANT: Final = "warden.tenant"
WARDEN_KEY: Final = "warden.key_id"
WARDEN_OUTCOME: Final = "warden.outcome"
WARDEN_REASON: Final = "warden.reason"
WARDEN_RULE: Final = "warden.rule"
WARDEN_BUNDLE: Final = "warden.bundle"
WARDEN_DATA_CLASS: Final = "warden.data_class"
WARDEN_VERSION: Final = "warden.model_version"
WARDEN_WOULD_REFUSE: Final = "warden.would_refuse"
WARDEN_JURISDICTION: Final = "warden.jurisdiction"

FIRST_RESPONSE: Final = "warden.first_response"  # an event
