"""Properties of `warden init`'s drafts: whatever a server calls its models, the bundle loads and its cases hold."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from policies import yamlfile
from policies.bundle import Bundle, compile_bundle
from policies.cases import run_cases
from sidecar.cli.drafting import Model, Place, Server, draft, front_models, remarks

NAMES = st.one_of(
    st.text(min_size=1, max_size=300),  # Triton's are directory names: almost anything
    st.from_regex(r"[A-Za-z0-9._:#&*!|>'\"%@`{}\[\],?-]{1,20}", fullmatch=True),  # YAML's own signs
    st.sampled_from(["true", "null", "~", "- a", "a: b", "#", "'", '"', "\\", "a\u0085b", "\ud7ff", "\U0001f600"]),
)
INPUTS = st.dictionaries(
    st.sampled_from(["text_input", "sampling_parameters", "max_tokens", "input_ids", "request_output_len", "image"]),
    st.sampled_from(["BYTES", "INT32", "FP32"]),
)
MODELS = st.builds(
    Model,
    name=NAMES,
    inputs=INPUTS,
    decoupled=st.booleans(),
    steps=st.lists(NAMES, max_size=2).map(tuple),
    parameters=st.dictionaries(st.just("gpt_model_path"), st.text(max_size=250)),
)
SERVERS = st.builds(
    Server, version=st.text(max_size=60), models=st.lists(MODELS, max_size=6, unique_by=lambda m: m.name).map(tuple)
)


@settings(deadline=None, max_examples=150)
@given(SERVERS)
def test_a_draft_loads_and_its_cases_hold(server: Server) -> None:
    """For all servers: every drafted file is read without a problem, names all front models, and its cases hold."""
    files = draft(server, Place("pod-1", "eu-west-1", "EU", "main", "127.0.0.1:8001"))
    assert isinstance(yamlfile.parse(files.pop("warden.yaml").encode(), "warden.yaml"), yamlfile.Document)
    bundle = compile_bundle({name.removeprefix("bundle/"): text.encode() for name, text in files.items()})
    assert isinstance(bundle, Bundle), bundle
    assert sorted(bundle.models) == sorted(model.name for model in front_models(server))
    assert not [result for result in run_cases(bundle) if result.failure]
    assert all(sentence.isprintable() for sentence in remarks(server, "127.0.0.1:8001"))
