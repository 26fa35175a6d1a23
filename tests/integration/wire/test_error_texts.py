"""What a caller reads of Triton's errors: its own words where they are its own, and never a batch-mate's."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pytest
import sqlalchemy as sa

from audit import store
from sidecar.cli.demo.otlp import OtlpReceiver
from sidecar.cli.demo.stack import Parts
from sidecar.cli.demo.triton import start_triton
from tests.support.kserve import packed, request
from tests.support.postgres import Server
from tests.support.sidecar import Bare, Launch, Sidecar, echo
from tests.support.stack import ROOT, Triton, eventually

pytestmark = pytest.mark.integration

NOT_TOLD: Final = "the model failed; its own words are in the record of call "


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def held(*shape: int, name: str = "ms", datatype: str = "INT32", model: str = "hold") -> Any:
    count = 1
    for dim in shape:
        count *= dim
    return request(model, (name, datatype, list(shape), ints(*range(count))), id="mine")


def with_output(message: Any, name: str) -> Any:
    message.outputs.add(name=name)
    return message


# What the sidecar lets through and Triton 2.51 refuses in words of its own, told as they are: the values in them are
# the request's own, or what the model's metadata says.
AS_TRITON_SAYS: Final[dict[str, Any]] = {
    "shape": held(2),
    "rank": held(1, 1),
    "datatype": held(1, datatype="FP32"),
    "no input": request("hold", id="mine"),
    "another input": held(1, name="msx"),
    "an output it has not": with_output(held(1), "zzz"),
    "batch too large": held(2, 1, model="narrow"),
    "no batch dimension": held(1, model="narrow"),
    "decoupled": request("slow", ("text_input", "BYTES", [1], packed(b"x")), id="mine"),
}


@pytest.mark.parametrize("name", AS_TRITON_SAYS)
def test_tritons_own_words_are_told(sidecar: Sidecar, bare: Bare, triton: Triton, name: str) -> None:
    message = AS_TRITON_SAYS[name].SerializeToString()
    with Bare(triton.grpc) as direct:
        expected = direct.unary(message, {})
    answer = bare.unary(message, sidecar.headers())
    assert (answer.code, answer.text) == (expected.code, expected.text)
    if name != "decoupled":
        (in_band,) = bare.stream([message], sidecar.headers())
        assert in_band.error_message == expected.text
        assert in_band.infer_response.id == "mine"


# --- batch-mates ----------------------------------------------------------------------------------------------------

SECRET: Final = "4711471147114711 is the neighbours PIN"


def gossip(text: str, **fields: Any) -> bytes:
    return bytes(request("gossip", ("text", "BYTES", [1, 1], packed(text.encode())), **fields).SerializeToString())


def _unary(bare: Bare, message: bytes, headers: dict[str, str]) -> tuple[str, str, str]:
    answer = bare.unary(message, headers)
    return answer.code, answer.text + repr(sorted(answer.trailing.items())), answer.call_id


def _stream(bare: Bare, message: bytes, headers: dict[str, str]) -> tuple[str, str, str]:
    stream = bare.stream([message], headers)
    (found,) = stream
    answer = stream.answer()
    text = str(found) if found.error_message else ""
    return ("IN_BAND" if text else "OK"), text, f"{answer.call_id}/1"


WAYS: Final[dict[str, Callable[[Bare, bytes, dict[str, str]], tuple[str, str, str]]]] = {
    "unary": _unary,
    "stream": _stream,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", ["raise", "quote", "pretend", "numbers", "queue"])
def test_an_error_that_quotes_its_batch_reaches_no_other_tenant_span_or_log(
    sidecar: Sidecar, otlp: OtlpReceiver, how: str, way: str
) -> None:
    """Two tenants' requests share a batch, and the error of one quotes both: it is in that one's record, sealed."""
    ask = WAYS[way]
    mine, theirs = f"{how} the acme side of it", SECRET
    with sidecar.bare() as one, sidecar.bare() as other, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask, one, gossip(mine), sidecar.headers("acme"))
        second = pool.submit(ask, other, gossip(theirs), sidecar.headers("neighbour"))
        (code, text, call_id), (its_code, its_text, its_id) = first.result(), second.result()
    assert code != "OK"
    assert its_code == ("OK" if how != "raise" else code)
    for said in (text, its_text):
        for secret in (SECRET, "47114711", "PIN", "acme side"):
            assert secret not in said
    assert (NOT_TOLD in text) == (how in ("raise", "quote"))

    record = sidecar.record(call_id)
    shared = "4711471147114711" if how == "numbers" else SECRET
    assert shared in record["error"], "the two were not batched together"
    assert "PIN" not in json.dumps({name: value for name, value in record.items() if name != "error"})
    sidecar.record(its_id)
    engine = store.connect(sidecar.parts.postgres_dsn, application="test")
    with engine.connect() as connection:
        row = sa.text("SELECT audit_calls::text FROM warden.audit_calls WHERE call_id = :id")
        rows = connection.execute(row, {"id": call_id}).scalars().all()
    engine.dispose()
    assert len(rows) == 1
    assert "47114711" not in rows[0].replace(call_id, "")

    eventually(lambda: call_id in otlp.path.read_text(), what="the call's span", within_s=60)
    assert "PIN" not in otlp.path.read_text()
    for log in Path(sidecar.stack.directory).rglob("*.log"):
        assert "PIN" not in log.read_text(errors="replace"), log
    assert "PIN" not in sidecar.open_metrics()
    assert sidecar.metric("warden_upstream_errors_withheld_total") > 0


# --- statuses -------------------------------------------------------------------------------------------------------


def test_a_restricted_protocol_is_our_own_fault_and_alarms(
    own: Launch, otlp: OtlpReceiver, postgres: Server, tmp_path: Path
) -> None:
    """Triton asks for a header that the sidecar was not told of; its name is told to nobody."""
    running = start_triton(
        tmp_path / "triton", (ROOT / "examples" / "models" / "echo").parent, otlp_url=otlp.http_url,
        extra_flags=["--grpc-restricted-protocol=inference,statistics:tell-nobody=s3cret"],
    )  # fmt: skip
    try:
        sidecar = own(parts=Parts(otlp, running.addresses, postgres.create_database()))
        with sidecar.bare() as bare:
            for path in ("ModelInfer", "ModelStatistics"):
                message = echo() if path == "ModelInfer" else b""
                answer = bare.unary(message, sidecar.headers(), path="/inference.GRPCInferenceService/" + path)
                assert (answer.code, answer.told().reason, answer.told().retry) == ("INTERNAL", "INTERNAL", None)
                assert "tell-nobody" not in str(answer)
        assert sidecar.metric("warden_upstream_restricted_total") == 2
    finally:
        running.stop()
