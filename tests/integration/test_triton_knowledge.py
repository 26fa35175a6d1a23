"""What the sidecar learns of a real Triton's models is what their config.pbtxt says."""

from __future__ import annotations

from sidecar.runtime.ask import TritonDesk
from sidecar.runtime.learn import Learner
from sidecar.triton.knowledge import CorrelationId, Dialect, ModelBook, Sequences, TensorSpec
from tests.support.stack import MODELS, Triton
from tests.support.store import wait_until


def test_every_model_is_learnt(triton: Triton) -> None:
    book = ModelBook()
    learner = Learner(TritonDesk(triton.grpc), book)
    learner.start()
    try:
        wait_until(lambda: book.current.complete)
    finally:
        learner.stop()
    models = book.current.models
    assert models.keys() == set(MODELS), learner.detail
    assert not book.current.unlearnt
    assert {name: model.versions for name, model in models.items() if model.versions != ("1",)} == {"embed": ("1", "2")}
    dialects = {name: model.dialect for name, model in models.items() if model.dialect is not Dialect.GENERIC}
    assert {name: dialects[name] for name in ("chat", "slow", "rag", "generate")} == {
        "chat": Dialect.VLLM,
        "slow": Dialect.VLLM,
        "rag": Dialect.ENSEMBLE,
        "generate": Dialect.ENSEMBLE,
    }
    assert models["counter"].sequences == Sequences(CorrelationId.WIDE, 60_000_000, slots=8)
    assert models["counter"].inputs == {"number": TensorSpec("number", "INT32", (-1, 1))}
    assert models["rag"].steps == ("retrieve", "generate")
    assert {name for name, model in models.items() if model.decoupled} >= {"chat", "slow", "failing_stream"}
    assert not models["rag"].decoupled
    assert models["vision"].outputs["scores"].datatype == "FP32"
