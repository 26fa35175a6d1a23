"""A bundle as messages: put together again it is the same, and what can't be a bundle is none."""

from __future__ import annotations

import msgspec
import pytest

from policies.bundle import Bundle, compile_bundle
from policies.compact import End, Pack, Parts, Reply, Rows, Store, Taking, replies, rows, shared
from tests.support.policy import demo_bundle

_ENCODER, _DECODER = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(Reply)


def handed_over(bundle: Bundle, before: Bundle) -> Bundle:
    """Through bytes, as between two processes."""
    known = Store(keeps_parts=True)
    list(rows(before.tenants.values(), Pack(), known))
    taking = Taking(before, known)
    for reply in replies(bundle, before, known, "changes"):
        taken: Reply = _DECODER.decode(_ENCODER.encode(reply))
        if not isinstance(taken, End):
            taking.take(taken)
    assert taking.changes == "changes"
    return taking.whole()


def written(bundle: Bundle) -> list[object]:
    return [
        [getattr(tenant, name) for name in tenant.__struct_fields__ if name != "guards"]
        for tenant in sorted(bundle.tenants.values(), key=lambda tenant: tenant.name)
    ]


def test_nothing_changed_is_nothing_handed_over() -> None:
    before = demo_bundle()
    found = handed_over(before, before)
    assert all(found.tenants[name] is tenant for name, tenant in before.tenants.items())
    assert found.access is before.access
    assert found.models is before.models
    assert found.content() == before.content()


def test_everything_of_every_tenant_comes_over() -> None:
    """From a bundle that has none of them: each field of each tenant, by value."""
    whole = demo_bundle()
    files = {name: data for name, data in whole.files.items() if not name.startswith("tests/")}
    tenants = {name for name in files if name.startswith("tenants/")}
    few = {name: data for name, data in files.items() if name not in tenants - {"tenants/acme.yaml"}}
    few["models.yaml"] = files["models.yaml"].replace(b"birch, ", b"").replace(b", birch", b"")
    before = compile_bundle(few)
    if isinstance(before, list):  # other documents name tenants that are gone: then from the whole one, all changed
        before = compile_bundle({**files, "plans.yaml": files["plans.yaml"] + b"# changed\n"})
    assert isinstance(before, Bundle)
    found = handed_over(whole, before)
    assert written(found) == written(whole)
    assert (found.regions, found.models, found.edges, found.classes) == (
        whole.regions, whole.models, whole.edges, whole.classes,
    )  # fmt: skip
    assert found.digest == whole.digest
    assert found.hashes == whole.hashes
    assert (found.change, found.prefix_caches) == (whole.change, whole.prefix_caches)


def test_sharing_changes_no_value() -> None:
    bundle = demo_bundle()
    assert written(shared(bundle)) == written(bundle)


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Rows([["a", "a", "a", True, *[999] * 8, None, 999, 999, 999]])],
        [Rows([["a", "a", "a", True, *[-1] * 8, None, -1, -1, -1]])],
        [Rows([["a", "a"]])],
        [Parts([b"\x05abc"])],
        [Parts([b"\xff"])],
        [Parts([b"\x00\xa1a"])],
        [Parts([b""])],
        [End()],
    ],
    ids=[
        "no head",
        "a part never given",
        "a part before the first",
        "half a row",
        "a part that is none",
        "a field that is none",
        "a plain field",
        "nothing",
        "an end",
    ],
)
def test_what_is_no_bundle(messages: list[Reply]) -> None:
    with pytest.raises((ValueError, LookupError)):  # msgspec's own are ValueErrors
        put_together(messages)


def put_together(messages: list[Reply]) -> Bundle:
    taking = Taking(demo_bundle(), Store())
    for message in messages:
        taking.take(message)
    return taking.whole()
