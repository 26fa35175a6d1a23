"""Learns what each model of this Triton is, from a thread of its own, and swaps the knowledge whole."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from sidecar.runtime.ask import TritonDesk, Unanswered
from sidecar.telemetry import logs
from sidecar.triton.knowledge import MODELS_MAX, Knowledge, ModelBook, ModelFacts, read_index, read_model

__all__ = ["EVERY", "Learner"]

_LOG: Final = logging.getLogger("warden.models")
EVERY: Final = 5.0  # seconds between two rounds; a load or unload through the sidecar begins one at once
SOONEST: Final = 0.25  # seconds between two rounds however often somebody doubts: each costs 2 RPCs a model
_JOIN: Final = 10.0  # seconds


class Learner:
    """Asks for the index, then for each ready model's metadata and configuration.

    A round that can't read the index leaves what was known; ``age`` then grows. A model that can't be asked about is
    unlearnt until a later round.
    """

    def __init__(
        self,
        desk: TritonDesk,
        book: ModelBook,
        *,
        every: float = EVERY,
        soonest: float = SOONEST,
        monotonic: Callable[[], float] = time.monotonic,
        learnt: Callable[[Knowledge], None] = lambda _: None,
    ) -> None:
        """``learnt`` is told of the knowledge after each round that has some, the same object where nothing changed."""
        self._desk = desk
        self._book = book
        self._every = every
        self._soonest = soonest
        self._monotonic = monotonic
        self._learnt = learnt
        self._learnt_at: float | None = None
        self._doubted = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="warden-models", daemon=True)
        self._failing: bool | None = None
        self.detail = "not asked yet"  # what is known, or why the last round failed
        self.asked = False  # Triton was heard of its models, if only to say no
        book.on_doubt(self._doubted.set)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._doubted.set()
        self._thread.join(_JOIN)

    def once(self) -> None:
        """One round, in the caller's thread, where none runs of its own."""
        self._round()

    @property
    def age(self) -> float | None:
        """Seconds since the knowledge in the book was learnt; None: nothing was yet."""
        return None if self._learnt_at is None else self._monotonic() - self._learnt_at

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._doubted.clear()
            try:
                self._round()
            except Exception as fault:  # noqa: BLE001 — a thread that died would leave its knowledge standing for good
                _LOG.error("models.crashed", exc_info=fault)
                self._told(f"learning failed: {type(fault).__name__}")
            self._stopping.wait(self._soonest)
            self._doubted.wait(self._every)

    def _round(self) -> None:
        index = self._desk.ask("RepositoryIndex")
        if isinstance(index, Unanswered):
            self.asked = self.asked or index.code is not None
            self._told(f"RepositoryIndex: {index.detail}")
            return
        versions = read_index(index)
        models: list[ModelFacts] = []
        unlearnt = set(list(versions)[MODELS_MAX:])
        fault = f"more than {MODELS_MAX} models" if unlearnt else ""
        for name in list(versions)[:MODELS_MAX]:
            found = self._model(name, versions[name])
            if isinstance(found, ModelFacts):
                models.append(found)
            else:
                unlearnt.add(name)
                fault = f"{name[:128]}: {found.detail}"
        knowledge, before = Knowledge.of(models, unlearnt), self._book.current
        if knowledge != before:
            self._book.current = knowledge
            changed = {name for name, model in knowledge.models.items() if before.models.get(name) != model}
            gone = before.models.keys() - knowledge.models.keys()
            logs.event(
                _LOG, logging.INFO, "models.learnt", count=len(knowledge.models),
                detail=f"{len(changed)} new or changed, {len(gone)} gone",
            )  # fmt: skip
        self._learnt_at, self.asked = self._monotonic(), True
        self._learnt(self._book.current)
        self._told(fault)

    def _model(self, name: str, versions: tuple[str, ...]) -> ModelFacts | Unanswered:
        metadata: Any = self._desk.ask("ModelMetadata", name=name)
        if isinstance(metadata, Unanswered):
            return metadata
        answer: Any = self._desk.ask("ModelConfig", name=name)
        return answer if isinstance(answer, Unanswered) else read_model(metadata, answer.config, versions)

    def _told(self, fault: str) -> None:
        """One line where a round begins to fail, and one where it goes well again."""
        known = len(self._book.current.models)
        if fault and not self._failing:
            logs.event(_LOG, logging.WARNING, "models.unlearnt", detail=fault)
        elif self._failing and not fault:
            logs.event(_LOG, logging.INFO, "models.current", count=known)
        self._failing = bool(fault)
        self.detail = f"{known} known; {fault}" if fault else f"{known} known"
