"""Models as Triton describes them, for tests that need to know some: what is learnt of a config, a book of it."""

from __future__ import annotations

from typing import Any

from google.protobuf import message_factory, text_format

from sidecar.triton.knowledge import Knowledge, ModelBook, ModelFacts, read_model
from sidecar.triton.protos import descriptor

VLLM = """
  model_transaction_policy { decoupled: true } backend: "vllm"
  input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
          { name: "stream" data_type: TYPE_BOOL dims: [ 1 ] },
          { name: "sampling_parameters" data_type: TYPE_STRING dims: [ 1 ] },
          { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [ 1 ] },
          { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] } ]
  output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
           { name: "num_input_tokens" data_type: TYPE_UINT32 dims: [ 1 ] },
           { name: "num_output_tokens" data_type: TYPE_UINT32 dims: [ -1 ] } ]
"""
ENSEMBLE = """
  max_batch_size: 8 platform: "ensemble"
  input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] },
          { name: "max_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
          { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: [ 1 ] },
          { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: [ 1 ] } ]
  output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] },
           { name: "num_input_tokens" data_type: TYPE_INT32 dims: [ 1 ] },
           { name: "num_output_tokens" data_type: TYPE_INT32 dims: [ 1 ] } ]
  ensemble_scheduling { step [ { model_name: "tensorrt_llm" } ] }
"""


def sequential(data_type: str, *, idle_us: int = 60_000_000) -> str:
    """A model that keeps sequences whose ids are of ``data_type``."""
    return f"""
      input [ {{ name: "number" data_type: TYPE_INT32 dims: [ 1 ] }} ]
      output [ {{ name: "total" data_type: TYPE_INT32 dims: [ 1 ] }} ]
      sequence_batching {{
        max_sequence_idle_microseconds: {idle_us}
        control_input [ {{ name: "C" control [ {{ kind: CONTROL_SEQUENCE_CORRID data_type: {data_type} }} ] }} ]
      }}
    """


def described(name: str, config: str = "", versions: tuple[str, ...] = ("1",)) -> ModelFacts:
    """What is learnt of a model with this config.pbtxt."""
    made: Any = message_factory.GetMessageClass(descriptor("ModelConfig"))()
    text_format.Parse(config, made)
    metadata: Any = message_factory.GetMessageClass(descriptor("ModelMetadataResponse"))(name=name)
    batch = [-1] if made.max_batch_size else []
    for here, there in ((made.input, metadata.inputs), (made.output, metadata.outputs)):
        for tensor in here:
            kind = tensor.DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
            datatype = "BYTES" if kind == "TYPE_STRING" else kind.removeprefix("TYPE_")
            there.add(name=tensor.name, datatype=datatype, shape=[*batch, *tensor.dims])
    return read_model(metadata, made, versions)


def book(*models: ModelFacts) -> ModelBook:
    """A book that knows these and no others."""
    return ModelBook(Knowledge.of(models))
