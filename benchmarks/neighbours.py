"""A greedy tenant (64 long streams) beside a modest one (2): what the modest one waits, and what it costs them all."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2 as kserve

from benchmarks.processes import cpu_us, ended_cpu_us, running
from benchmarks.routes import WIRES, warden
from benchmarks.setup import STREAM, warden_stack
from sidecar.cli.demo.stack import BUNDLE, Parts, Stack

GREEDY: Final = 64
MODEST: Final = 2
SHORT: Final = 24  # tokens the modest tenant asks for at a time
NO_WARDEN: Final = "no warden"
ALONE: Final = "modest alone, no warden"
GREEDY_TENANT, MODEST_TENANT = "acme", "birch"
_WARM_S: Final = 3.0  # until the queues are what they stay
_GIVE_UP_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Engine:
    """A model that tenants compete for: its slots, and how long the greedy tenant's streams are, in tokens."""

    model: str
    slots: int
    long: tuple[int, int]


ENGINES: Final = (Engine("batched", 8, (60, 140)), Engine("chat", 8, (16, 48)))


@dataclass(slots=True)
class _Seen:
    """What came within the time that counts."""

    begins: float = 0.0
    ends: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    first_ms: dict[str, list[float]] = field(default_factory=dict)
    refused: int = 0

    def counts(self) -> bool:
        return self.begins <= time.monotonic() < self.ends


def measure(around: Parts, directory: Path, *, quick: bool) -> dict[str, Any]:
    """By model, and by way: median over rounds of tokens a second (prompts' too: the shorter the answers, the more of
    them a model reads) and of the modest tenant's first token, p50 and p99.

    The rounds of all ways take turns, so that what else the machine does meets them all alike. How much CPU Triton and
    its models got is told beside it: `chat` has no accelerator, so on a busy machine that alone decides.
    """
    rounds, seconds = (1, 10.0) if quick else (3, 20.0)
    found: dict[str, Any] = {}
    with ExitStack() as kept:
        stacks = {wire: _warden(kept, directory / wire, around, wire) for wire in WIRES}
        for engine in ENGINES:
            runs: dict[str, list[dict[str, float]]] = {}
            for _ in range(rounds):
                for name, tokens in (
                    (ALONE, None), (NO_WARDEN, None), *((warden(wire), stacks[wire]) for wire in WIRES)
                ):  # fmt: skip
                    address = around.triton.grpc if tokens is None else str(tokens.info["grpc"])
                    greedy = 0 if name == ALONE else GREEDY
                    run = asyncio.run(_run(address, engine, tokens, greedy, seconds))
                    runs.setdefault(name, []).append(run)
            found[engine.model] = {name: _medians(each) for name, each in runs.items()}
    for rows in found.values():
        for row in rows.values():
            row["of_off"] = round(row["rate"] / rows[NO_WARDEN]["rate"], 3)
    return found


def _medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(run[name] for run in runs), 1) for name in runs[0]}


# --- the sidecar ---------------------------------------------------------------------------------------------------


def _warden(kept: ExitStack, directory: Path, around: Parts, wire: str) -> Stack:
    directory.parent.mkdir(exist_ok=True)
    bundle = directory.parent / "bundle"
    if not bundle.exists():
        _bundle(bundle)
    name = f"bench-neighbours-{wire}"
    stack = warden_stack(directory, around, wire, bundle, name=name)
    stack.start()
    kept.callback(stack.stop)
    return stack


def _bundle(directory: Path) -> None:
    """One plan for either tenant: half of the model is its own, and no more than three quarters is ever its."""
    shutil.copytree(BUNDLE, directory)
    shutil.rmtree(directory / "tests", ignore_errors=True)
    kv = {"bytes_per_token": 23040, "tokens_per_block": 16}
    models = {
        each.model: {"contract": "vllm", "groups": ["llm"], "kv": kv, "pool": {"concurrency": each.slots}}
        for each in ENGINES
    }
    unlimited = dict.fromkeys(("requests", "tokens", "concurrency", "kv_memory", "tensor_memory"), "unlimited")
    shares = {"greedy": ("50%", "75%"), "modest": ("25%", "100%")}
    plans = {
        name: {**unlimited, "share": {"guaranteed": least, "burst": most}, "on_limit": "queue 10s"}
        for name, (least, most) in shares.items()
    }
    (directory / "models.yaml").write_text(json.dumps(models))  # YAML holds JSON
    (directory / "plans.yaml").write_text(json.dumps(plans))
    eu = {"processing": ["EU"], "storage": ["EU"], "telemetry": ["EU"]}
    for file in (directory / "tenants").iterdir():
        file.unlink()
    for tenant, plan in ((GREEDY_TENANT, "greedy"), (MODEST_TENANT, "modest")):
        document = {
            "tenant": tenant, "plan": plan, "status": "active", "models": [each.model for each in ENGINES],
            "residency": eu, "audit": {"level": "full", "retention": "30d"},
        }  # fmt: skip
        (directory / "tenants" / f"{tenant}.yaml").write_text(json.dumps(document))


# --- the tenants ---------------------------------------------------------------------------------------------------


async def _run(address: str, engine: Engine, stack: Stack | None, greedy: int, seconds: float) -> dict[str, float]:
    seen = _Seen()
    seen.begins = time.monotonic() + _WARM_S
    seen.ends = seen.begins + seconds
    dice = random.Random(1)  # the same lengths in every run
    pid = None if stack is None or stack.process is None else stack.process.pid
    engines = running("tritonserver")
    before = (0.0 if pid is None else cpu_us(pid), 0.0 if engines is None else ended_cpu_us(engines))
    async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        crowd = [
            asyncio.create_task(
                _greedy(
                    _Caller(channel, engine.model, GREEDY_TENANT, _metadata(stack, GREEDY_TENANT), seen), dice, engine
                )
            )
            for _ in range(greedy)
        ]
        await asyncio.sleep(seen.begins - time.monotonic())
        modest = _Caller(channel, engine.model, MODEST_TENANT, _metadata(stack, MODEST_TENANT), seen)
        try:  # the crowd stays until the modest tenant's last call has begun to be answered, however long that takes
            await asyncio.gather(*(_modest(modest) for _ in range(MODEST)))
        finally:
            for task in crowd:
                task.cancel()
            failed = [
                each for each in await asyncio.gather(*crowd, return_exceptions=True) if isinstance(each, Exception)
            ]
        if failed:
            raise failed[0]
    took = time.monotonic() - seen.begins + _WARM_S
    waits = sorted(seen.first_ms[MODEST_TENANT])
    return {
        "rate": sum(seen.tokens.values()) / seconds,
        "modest_rate": seen.tokens.get(MODEST_TENANT, 0) / seconds,
        "first_p50_ms": waits[len(waits) // 2],
        "first_p99_ms": waits[min(len(waits) - 1, int(len(waits) * 0.99))],
        "answers": len(waits),
        "refused": seen.refused,
        "cpu_percent": 0.0 if pid is None else (cpu_us(pid) - before[0]) / 1e4 / took,
        "engine_cpu_percent": 0.0 if engines is None else (ended_cpu_us(engines) - before[1]) / 1e4 / took,
    }


@dataclass(frozen=True, slots=True)
class _Caller:
    channel: grpc.aio.Channel
    model: str
    tenant: str
    metadata: tuple[tuple[str, str], ...]
    seen: _Seen

    async def call(self, tokens: int) -> float | None:
        """One call, read to its end; ms until its first token. None: refused."""
        began = time.monotonic()
        call = self.channel.stream_stream(STREAM)(metadata=self.metadata, timeout=_GIVE_UP_S)
        first: float | None = None
        try:
            await call.write(_request(self.model, tokens))
            await call.done_writing()
            async for message in call:
                answer = kserve.ModelStreamInferResponse.FromString(message)
                if answer.error_message.startswith("[CONCURRENCY]"):
                    self.seen.refused += self.seen.counts()
                    return None
                if answer.error_message:
                    raise RuntimeError(f"{self.tenant}, {self.model}: {answer.error_message}")
                told = _told(answer.infer_response)
                tokens = told.get("num_output_tokens", 0) + (told.get("num_input_tokens", 0) if first is None else 0)
                first = first or (time.monotonic() - began) * 1000
                if self.seen.counts():
                    self.seen.tokens[self.tenant] = self.seen.tokens.get(self.tenant, 0) + tokens
                elif self.tenant == MODEST_TENANT:
                    break
        finally:
            call.cancel()
        return first


def _metadata(stack: Stack | None, tenant: str) -> tuple[tuple[str, str], ...]:
    return () if stack is None else (("authorization", f"Bearer {stack.mint(tenant, lifetime=3600)}"),)


async def _greedy(caller: _Caller, dice: random.Random, engine: Engine) -> None:
    """One after the other, for ever; refused, it asks again at once, or nearly."""
    while True:
        if await caller.call(dice.randint(*engine.long)) is None:
            await asyncio.sleep(0.1)


async def _modest(caller: _Caller) -> None:
    """One after the other until the time is over. A refused one counts with all that it waits until it is let in."""
    while caller.seen.counts():
        refused_ms, began = 0.0, time.monotonic()
        while (first := await caller.call(SHORT)) is None:
            await asyncio.sleep(0.1)
            refused_ms = (time.monotonic() - began) * 1000
        caller.seen.first_ms.setdefault(caller.tenant, []).append(refused_ms + first)


def _told(answer: Any) -> dict[str, int]:
    """The model's own counts: what it generated since its last response, and the prompt, each time again."""
    counts = ((output.name, answer.raw_output_contents[place]) for place, output in enumerate(answer.outputs))
    return {name: int.from_bytes(raw[:4], "little") for name, raw in counts if name.startswith("num_")}


def _request(model: str, tokens: int) -> bytes:
    request = kserve.ModelInferRequest(model_name=model)
    sampling = json.dumps({"max_tokens": tokens, "temperature": 0, "ignore_eos": True}).encode()
    for name, text in (("text_input", b"Tell me a long story."), ("sampling_parameters", sampling)):
        request.inputs.add(name=name, datatype="BYTES", shape=[1])
        request.raw_input_contents.append(len(text).to_bytes(4, "little") + text)
    for name in ("stream", "return_num_input_tokens", "return_num_output_tokens"):
        request.inputs.add(name=name, datatype="BOOL", shape=[1])
        request.raw_input_contents.append(b"\x01")
    return bytes(request.SerializeToString())
