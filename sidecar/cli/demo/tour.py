"""The tour: the main job shown step by step on the running stack, each step checked while it is told."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.tree import Tree

from sidecar.cli.common import here, program
from sidecar.cli.demo.caller import Answer, Caller
from sidecar.cli.demo.stack import Stack

_WAIT_S: Final = 40.0  # for records, on a busy machine
_TRITON_WAIT_S: Final = 5.0  # once the others' spans are there; it exports its own every 0.2 s
_TRACES: Final = 6  # of which Triton may overlook some
_POLL_S: Final = 0.2
_PROMPT: Final = "Why should a hospital keep a record of every question that is put to a language model?"
_FORGED: Final = (
    "eyJhbGciOiJFZERTQSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci5kZW1vLnRyaXRvbi13YXJkZW4uZXhhbXBsZSIsImF1ZCI6"
    "InRyaXRvbi13YXJkZW4iLCJzdWIiOiJtYWxsb3J5IiwidGVuYW50IjoiYWNtZSIsImlhdCI6MTc5NjAwMDAwMCwiZXhwIjo0MTAyNDQ0ODAwfQ."
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
)
_METRICS: Final = ("warden_calls_total", "warden_refusals_total", "warden_tokens_total", "warden_shipped_records_total")


class StepFailed(Exception):  # noqa: N818 — a step's answer, not an error of the program
    """A step did not do what it says."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    """One refusal to show: who tries what, and the reason it must meet."""

    reason: str
    told: str
    attempt: Callable[[], Answer]
    retry: bool = False


class Tour:
    """Walks through everything once. ``run`` says whether every step did what it says."""

    def __init__(self, stack: Stack, console: Console) -> None:
        self._stack = stack
        self._console = console
        self._caller = Caller(str(stack.info["grpc"]), stack.otlp.grpc)
        self._story: Answer | None = None  # the call that is revealed and traced later
        self._refused: dict[str, str] = {}  # trace id → reason

    def run(self) -> bool:
        steps: list[tuple[str, Callable[[], None]]] = [
            ("acme streams a chat with an API key", self._chat_with_key),
            ("acme streams again, with a signed token (JWT)", self._chat_with_token),
            ("acme classifies an image, unary", self._vision),
            ("What is refused, and why", self._refusals),
            ("The compliance officer's view: all of it is on record", self._search),
            ("One record revealed, with a reason that is itself recorded", self._reveal),
            ("One trace, from the client through the sidecar to Triton", self._trace),
            ("What Prometheus sees", self._metrics),
        ]
        good = True
        for number, (title, step) in enumerate(steps, 1):
            self._console.print(f"\n[bold]{number}. {title}[/bold]")
            try:
                step()
                self._console.print("   [green]✓[/green]")
            except StepFailed as fault:
                good = False
                self._console.print(f"   [red]✗ {escape(str(fault))}[/red]")
        self._caller.close()
        return good

    # --- calls -----------------------------------------------------------------------------------------------------

    def _key(self, tenant: str) -> dict[str, str]:
        return {"x-api-key": str(self._stack.info["tenants"][tenant]["api_key"])}

    def _token(self, tenant: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self._stack.mint(tenant)}"}

    def _stream(self, headers: dict[str, str]) -> Answer:
        self._console.print(f"   [dim]> {_PROMPT}[/dim]\n   ", end="")
        answer = self._caller.chat(
            _PROMPT, 48, headers, lambda piece: self._console.out(piece, end="", highlight=False)
        )
        self._console.print()
        _must(not answer.refusal, answer.refusal)
        _must(answer.pieces > 1, "the answer did not come in pieces")
        rate = (answer.pieces - 1) / max(answer.total_s - answer.first_s, 1e-6)
        self._console.print(
            f"   [dim]{answer.pieces} pieces, the first after {answer.first_s * 1000:.0f} ms, then {rate:.0f}/s[/dim]"
        )
        return answer

    def _chat_with_key(self) -> None:
        self._story = self._stream({**self._key("acme"), "x-warden-subject": "patient-desk-7"})

    def _chat_with_token(self) -> None:
        self._stream(self._token("acme"))

    def _vision(self) -> None:
        image = np.zeros((1, 3, 224, 224), dtype=np.float32)
        image[0, 2] = 0.9
        answer = self._caller.classify(image, self._key("acme"))
        _must(not answer.refusal, answer.refusal)
        _must("blue" in answer.text, f"a blue image was called {answer.text}")
        self._console.print(f"   a blue image → {escape(answer.text)} [dim]({answer.total_s * 1000:.0f} ms)[/dim]")

    # --- refusals --------------------------------------------------------------------------------------------------

    def _attempts(self) -> Iterator[_Refusal]:
        call = self._caller
        chat = lambda headers, tokens=8: lambda: call.chat("Hello", tokens, headers)  # noqa: E731 — a table's cell
        yield _Refusal("CREDENTIAL_MISSING", "nobody, without a credential", chat({}))
        yield _Refusal("TOKEN_SIGNATURE", "mallory, with a forged token", chat({"authorization": f"Bearer {_FORGED}"}))
        yield _Refusal("RESIDENCY_PROCESSING", "cobalt, whose data must stay in the US", chat(self._key("cobalt")))
        yield _Refusal(
            "MODEL_NOT_FOUND",
            "birch, for a model that isn't its own",
            lambda: call.ask(
                lambda client, headers: client.get_model_metadata("rag", headers=headers), self._key("birch")
            ),
        )
        yield _Refusal("TENANT_SUSPENDED", "dormant, which is suspended", chat(self._key("dormant")))
        yield _Refusal("MEMORY_KV", "birch, for 2,000 tokens of KV cache at once", chat(self._key("birch"), 2000))
        yield _Refusal("RATE_REQUESTS", "birch, in a hurry (2 a second)", self._hurry, retry=True)
        yield _Refusal(
            "METHOD_NOT_ALLOWED",
            "acme, unloading a model",
            lambda: call.ask(lambda client, headers: client.unload_model("chat", headers=headers), self._key("acme")),
        )

    def _hurry(self) -> Answer:
        """Calls until the rate refuses one; ten are enough for a burst of five."""
        answer = Answer("")
        for _ in range(10):
            answer = self._caller.ask(
                lambda client, headers: client.get_model_metadata("vision", headers=headers), self._key("birch")
            )
            if answer.refusal:
                break
        return answer

    def _refusals(self) -> None:
        table = Table("who tries", "is told", show_lines=True)
        wrong: list[str] = []
        for attempt in self._attempts():
            answer = attempt.attempt()
            self._refused[answer.trace_id] = attempt.reason
            table.add_row(attempt.told, escape(answer.refusal or "(let through)"))
            if f"[{attempt.reason}]" not in answer.refusal:
                wrong.append(f"{attempt.reason} was not what {attempt.told} was told")
            if attempt.retry and "retry in" not in answer.refusal:
                wrong.append(f"{attempt.reason} did not say when to retry")
        self._console.print(table)
        _must(not wrong, "; ".join(wrong))

    # --- what is on record -----------------------------------------------------------------------------------------

    def _audit(self, *arguments: str) -> list[dict[str, Any]]:
        done = self._run(*arguments, "--json", stdout=subprocess.PIPE)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _show(self, *arguments: str) -> None:
        """The command and what it prints: its own output, on the same terminal or pipe as ours."""
        typed = f"{program()} audit {shlex.join(arguments)} --config {here(self._stack.config)}"
        self._console.print(f"[dim]$ {escape(typed)}[/dim]", highlight=False, soft_wrap=True)
        sys.stdout.flush()
        self._run(*arguments, stdout=None)

    def _run(self, *arguments: str, stdout: int | None) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "sidecar.cli.main", "audit", *arguments, "--config", str(self._stack.config)]
        done = subprocess.run(  # noqa: S603 — our own command
            command, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
        _must(done.returncode == 0, done.stderr.strip())
        return done

    def _search(self) -> None:
        story = self._story.trace_id if self._story else ""
        wanted = {**self._refused, story: ""}
        deadline = time.monotonic() + _WAIT_S
        while True:
            found = {
                str(record["trace_id"]): record for record in self._audit("search", "--since", "10m", "--limit", "500")
            }
            missing = wanted.keys() - found.keys()
            if not missing or time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        self._show("search", "--since", "10m")
        _must(not missing, f"{len(missing)} of {len(wanted)} calls are not on record")
        wrong = [reason for trace, reason in self._refused.items() if found[trace]["reason"] != reason]
        _must(not wrong, f"recorded with another reason: {', '.join(wrong)}")
        _must(all(record["prompt"] is None for record in found.values()), "content was shown without --reveal")

    def _reveal(self) -> None:
        _must(self._story is not None, "there is no call to reveal")
        assert self._story is not None
        asked = ("search", "--trace", self._story.trace_id, "--reveal", "--reason", "demo tour")
        self._show(*asked)
        records = self._audit(*asked)
        _must(len(records) == 1, f"{len(records)} records of one call")
        record = records[0]
        _must(record["prompt"] == _PROMPT, "the recorded prompt is another")
        _must(record["output"] == self._story.text, "the recorded output is not what was streamed")

    def _trace(self) -> None:
        _must(self._story is not None, "there is no call to trace")
        assert self._story is not None
        trace = self._story.trace_id
        for _ in range(_TRACES):
            spans = self._spans(trace)
            services = {span["service"] for span in spans.values()}
            if len(services) >= 3:
                break
            # Its gRPC server reads a traceparent past its end, and where that is no 0 it takes it for none.
            self._console.print("   [dim]Triton overlooked this one's trace, as it does with some; another call[/dim]")
            trace = self._caller.chat(_PROMPT, 48, self._key("acme")).trace_id
        roots = [span for span in spans.values() if span["parent_span_id"] not in spans]
        _must(len(roots) == 1, f"{len(roots)} roots among {len(spans)} spans: not one tree")
        self._console.print(_tree(roots[0], spans))
        _must(len(services) >= 3, f"only {', '.join(sorted(services))} in the trace")

    def _spans(self, trace: str) -> dict[str, dict[str, Any]]:
        """A trace's spans by their ids: when client, sidecar and Triton each sent some, or what came by then.

        Of client and sidecar they come for certain, however late on a busy machine; of Triton soon, or not at all.
        """
        deadline, tritons = time.monotonic() + _WAIT_S, None
        while True:
            spans = {span["span_id"]: span for span in self._stack.otlp.spans(trace=trace)}
            roots = [span for span in spans.values() if span["parent_span_id"] not in spans]
            services = len({span["service"] for span in spans.values()})
            if tritons is None and services >= 2:
                tritons = time.monotonic() + _TRITON_WAIT_S
            if (len(roots) == 1 and services >= 3) or time.monotonic() > (deadline if tritons is None else tritons):
                return spans
            time.sleep(_POLL_S)

    def _metrics(self) -> None:
        lines = self._stack.metrics().splitlines()
        shown = [line for line in lines if line.startswith(_METRICS) and not line.endswith((" 0", " 0.0"))]
        for line in shown:
            self._console.out(f"   {line}", highlight=False)
        for name in _METRICS:
            _must(any(line.startswith(name) for line in shown), f"{name} counts nothing")


def _tree(root: dict[str, Any], spans: dict[str, dict[str, Any]]) -> Tree:
    def label(span: dict[str, Any]) -> str:
        ms = (int(span["end_ns"]) - int(span["start_ns"])) / 1e6
        return f"{escape(str(span['name']))}  [dim]{escape(str(span['service']))}, {ms:.1f} ms[/dim]"

    def grow(tree: Tree, span: dict[str, Any]) -> Tree:
        children = [child for child in spans.values() if child["parent_span_id"] == span["span_id"]]
        for child in sorted(children, key=lambda child: int(child["start_ns"])):
            grow(tree.add(label(child)), child)
        return tree

    return grow(Tree(label(root)), root)


def _must(condition: bool, otherwise: str) -> None:  # noqa: FBT001 — reads like assert
    if not condition:
        raise StepFailed(otherwise)
