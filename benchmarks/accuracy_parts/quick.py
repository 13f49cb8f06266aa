"""How far quick calls are from full measurements of the same operations, and what they take."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping

import results
from common.running import Call

from accuracy_parts.rows import CACHES
from convtime import time_op
from convtime.timing.options import Cache

_TURNS = 4
_REST_SECONDS = 0.2
_LONGEST_SECONDS = 2e-3


def measure_quick(ops: Mapping[str, Callable[[], Call]]) -> results.Row:
    """Every operation and cache: full measurements, and quick ones, each in an order of its own.

    The quick calls follow each other without rest, as an autotuner's do; the full ones are made
    before and after them, and by turns with rests.
    """
    cases: list[tuple[str, Cache, Call]] = []
    for op, make in ops.items():
        call = make()
        if time_op(call, quick=True).median <= _LONGEST_SECONDS:
            cases += [(f"{op}/{cache}", cache, call) for cache in CACHES]
    found: dict[str, results.Row] = {
        name: {"full": [], "tick": 0.0, "quick": [], "quick_s": [], "intervals": []}
        for name, _, _ in cases
    }

    def time_fully() -> None:
        for name, cache, call in cases:
            time.sleep(_REST_SECONDS)
            measured = time_op(call, cache=cache)
            found[name]["full"].append(measured.median)
            found[name]["tick"] = measured.clock_tick

    order = random.Random(1)  # noqa: S311  # not a secret
    time_fully()
    for _, cache, call in cases:  # a process's first quick call makes its buffers
        time_op(call, cache=cache, quick=True)
    for _ in range(_TURNS):
        for name, cache, call in order.sample(cases, len(cases)):
            begin = time.perf_counter()
            measured = time_op(call, cache=cache, quick=True)
            found[name]["quick_s"].append(time.perf_counter() - begin)
            found[name]["quick"].append(measured.median)
            found[name]["intervals"].append(list(measured.median_interval))
    time_fully()
    return {"ops": found}
