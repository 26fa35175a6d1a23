"""Many streams at once against a model that counts them, and a Triton of its own that tells how many they ever were."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import struct
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio

from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.triton import start_triton
from sidecar.triton.protos import ModelStreamInferResponse
from tests.support.kserve import packed, request
from tests.support.sidecar import STREAM, Bare, Sidecar
from tests.support.stack import ROOT, Triton, eventually

DEAF: Final = "deaf_crowd"  # the same model by another name, so that the bundle may say that it heeds no cancel
ENGINES: Final = ROOT / "tests" / "support" / "engines"
_EU: Final = {"processing": ["EU"], "storage": ["EU"], "telemetry": ["EU"]}
_UNLIMITED: Final = dict.fromkeys(("requests", "tokens", "concurrency", "kv_memory", "tensor_memory"), "unlimited")
_CHANNELS: Final = 4
# A sidecar that was killed is back within seconds: who waits for it longer than need be tests less.
_OPTIONS: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.use_local_subchannel_pool", 1),
)


@contextmanager
def engines(directory: Path, otlp: OtlpReceiver) -> Iterator[Triton]:
    """A Triton with `crowd`, `deaf_crowd` and `engine` alone: what it counts is what its own tests did."""
    models, report = directory / "models", directory / "report"
    shutil.copytree(ENGINES, models)
    shutil.copytree(models / "crowd", models / DEAF)
    config = models / DEAF / "config.pbtxt"
    config.write_text(config.read_text().replace('name: "crowd"', f'name: "{DEAF}"'))
    report.touch()
    found = Triton(running=start_triton(directory / "triton", models), report=report, otlp=otlp)
    try:
        yield found
    finally:
        found.running.stop()


def write_crowd_bundle(directory: Path, model: Mapping[str, Any], limits: Mapping[str, Any]) -> Path:
    """`acme` may call `crowd`, which is as ``model`` says, within ``limits``; and `engine`, to say what it tells."""
    (directory / "tenants").mkdir(parents=True)
    kv = {"bytes_per_token": 1024, "tokens_per_block": 16}
    documents = {
        "bundle.yaml": {"regions": {"eu-west-1": {"jurisdiction": "EU"}}},
        "models.yaml": {
            "crowd": {"contract": "vllm", "kv": kv, "default_tokens": 48, **model},
            DEAF: {"contract": "vllm", "kv": kv, "on_cancel": {"runs_on": "10m"}},
            "engine": {"contract": "generic"},
        },
        "plans.yaml": {"ample": _UNLIMITED},
        "tenants/acme.yaml": {
            "tenant": "acme", "plan": "ample", "status": "active", "models": ["crowd", DEAF, "engine"],
            "limits": limits, "residency": _EU, "audit": {"level": "full", "retention": "30d"},
        },
    }  # fmt: skip
    for name, document in documents.items():
        (directory / name).write_text(json.dumps(document))  # YAML holds JSON
    return directory


def joining(count: int, delay_ms: int, *, deaf: bool = False, **fields: Any) -> bytes:
    """A request to `crowd`, or to `deaf_crowd`; a count of 0 makes all of the model's streams end."""
    numbers = [(name, "INT32", [1], struct.pack("<i", n)) for name, n in (("count", count), ("delay_ms", delay_ms))]
    message = request(
        DEAF if deaf else "crowd", ("text_input", "BYTES", [1], packed(b"a b c")), *numbers,
        ("deaf", "BOOL", [1], b"\x01" if deaf else b"\x00"), **fields,
    )  # fmt: skip
    return bytes(message.SerializeToString())


def saying(told: Mapping[str, list[tuple[Mapping[str, str], object]]]) -> bytes:
    """A request to `engine`: families and the values of their series, as they stand in Triton's metrics from now on."""
    return bytes(request("engine", ("say", "BYTES", [1], packed(json.dumps(told).encode()))).SerializeToString())


@dataclass(slots=True)
class Crowd:
    """``workers`` streams at a time until ``stop``, or until ``cancels`` of them were cancelled at a random moment."""

    address: str
    headers: Mapping[str, str]
    message: bytes
    workers: int
    cancels: int = 0
    longest_s: float = 0.3  # until the cancel, where they are cancelled
    seed: int = 1
    ended: Counter[str] = field(default_factory=Counter)
    cancelled: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        self._over.set()

    async def _run(self) -> None:
        dice = random.Random(self.seed)
        channels = [grpc.aio.insecure_channel(self.address, options=_OPTIONS) for _ in range(_CHANNELS)]
        try:
            await asyncio.gather(*(self._work(channels[n % _CHANNELS], dice) for n in range(self.workers)))
        finally:
            await asyncio.gather(*(channel.close() for channel in channels))

    def _more(self) -> bool:
        return not self._over.is_set() and (not self.cancels or self.cancelled < self.cancels)

    async def _work(self, channel: grpc.aio.Channel, dice: random.Random) -> None:
        while self._more():
            call: Any = channel.stream_stream(STREAM)(metadata=tuple(self.headers.items()), timeout=60)
            try:
                patience = dice.uniform(0, self.longest_s) if self.cancels else 60
                async with asyncio.timeout(patience):
                    how = await self._one(call)
            except TimeoutError:
                call.cancel()
                self.cancelled += 1
                how = "cancelled"
            except grpc.aio.AioRpcError as fault:
                how = fault.code().name
            except grpc.aio.InternalError:  # half-closed amid a crash: grpcio 1.85 raises what it met, not the status
                how = "UNAVAILABLE"
            self.ended[how] += 1
            if how not in ("answered", "cancelled"):
                await asyncio.sleep(1.0)  # refused, or nobody there: asked again soon, as a careless client does

    async def _one(self, call: Any) -> str:
        await call.write(self.message)
        await call.done_writing()
        async for message in call:
            error = ModelStreamInferResponse.FromString(message).error_message
            if error:
                return error.partition("]")[0].lstrip("[")
        return "answered"


def crash_loop(sidecar: Sidecar, triton: Triton, crowd: Crowd, *, crashes: int, slots: int) -> None:
    """Kill and start the sidecar amid the streams of a deaf ``crowd``. What was let in before goes on at the model over
    each crash; while it does nobody else is let in, and once it has ended somebody is."""

    def now() -> float:
        return triton.metric("crowd_now", model=DEAF)

    worker = threading.Thread(target=crowd.run)
    worker.start()
    try:
        for _ in range(crashes):
            eventually(lambda: now() == slots, what="all slots in use", within_s=90)
            process = sidecar.stack.process
            assert process is not None
            process.kill()
            process.wait()
            sidecar.stack.start_warden()
            refused = 3 * slots
            eventually(
                lambda refused=refused: sidecar.metric("warden_refusals_total", reason="CONCURRENCY") >= refused,  # type: ignore[misc]  # bound now
                what="refusals after the crash", within_s=90,
            )  # fmt: skip
            assert now() == slots, (
                "what was let in before did not go on over the crash, or somebody was let in beside it"
            )
            with Bare(triton.grpc) as direct:
                direct.stream([joining(0, 0, deaf=True)], {}).answer()
            # For a second or two: only then has the sidecar seen twice that nothing is under way.
            eventually(lambda: now() == 0, what="the end of all that was let in before", within_s=30)
        eventually(lambda: now() == slots, what="all slots in use", within_s=90)
    finally:
        crowd.stop()
        with Bare(triton.grpc) as direct:
            while worker.is_alive():  # those that were let in meanwhile, too
                direct.stream([joining(0, 0, deaf=True)], {}).answer()
                worker.join(0.5)
