"""Each step of a governed call is found and timed, wherever it lives by now."""

from __future__ import annotations

from benchmarks.governance import APPEND, SEAL, STEPS, WRITE, breakdown, rig


def test_every_step_is_timed() -> None:
    with rig() as made:
        for _ in range(20):
            made.govern()
        steps = breakdown(made, 50)
    assert {label for _, _, label in STEPS} | {SEAL, WRITE, APPEND} < steps.keys()
    assert steps[SEAL] > 0
    assert steps[WRITE] > 0
