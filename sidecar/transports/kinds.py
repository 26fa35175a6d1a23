"""What kind of model a call of a stream goes to: whether its answers keep the order of the requests."""

from __future__ import annotations

from sidecar.core.model import Forward, replace
from sidecar.transports.exchange import Exchange
from sidecar.triton.knowledge import ModelBook
from sidecar.triton.peek import peek_model

__all__ = ["keeps_no_order", "told"]


def keeps_no_order(models: ModelBook, message: bytes) -> bool:
    """Whether the model that ``message`` names is known to keep no order, so that nobody need wait for its answer."""
    known = models.known(peek_model(message))
    return known is not None and known.decoupled


def told(models: ModelBook, exchange: Exchange, forward: Forward) -> Forward:
    """With the kind of the model that answers, as Triton told it, where the reader has not said so already."""
    assert exchange.recorded is not None
    if forward.ordered or forward.decoupled:
        return forward
    model = models.known(exchange.recorded.admission.verdict.profile.name)
    if model is None:  # what Triton doesn't have it says in turn too
        return replace(forward, ordered=models.current.complete)
    return replace(forward, ordered=not model.decoupled, decoupled=model.decoupled)
