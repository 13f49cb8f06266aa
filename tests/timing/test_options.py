"""Options: which values are refused, and that signatures, docs and types are one list."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import time
from typing import Any

import numpy as np
import pytest
import torch

import convtime
from convtime.core.load import _C
from convtime.timing import options as options_module
from convtime.timing.options import Options, Stop
from convtime.tuning.race import OWN_OPTIONS

NAN, INFINITE = float("nan"), float("inf")

BAD: list[tuple[dict[str, Any], str]] = [
    ({"method": "clock"}, "method must be one of 'auto', 'kernel', .*'cpu', got 'clock'"),
    ({"method": "event"}, "method 'event' times work on a GPU and this work is on the CPU"),
    ({"method": "graph", "backward": True}, "method 'graph' captures calls back to back"),
    ({"metric": "total"}, "metric must be one of 'busy', 'span', 'sum', got 'total'"),
    ({"metric": "span"}, "metric 'span' needs a GPU's activity records.*on the CPU"),
    ({"queue": "full"}, "queue must be one of 'gate', 'sleep', 'none', got 'full'"),
    ({"cache": "hot"}, "cache must be one of 'auto', .*'warm', 'rotate', got 'hot'"),
    ({"cache": "rotate", "grad_to_none": [torch.ones(1)]}, "grad_to_none .*cache='rotate'"),
    ({"regime": "hot"}, "regime must be one of 'auto', 'as-is', 'burst', .*got 'hot'"),
    ({"regime": "burst", "quick": True}, "quick=True .*got regime='burst'"),
    ({"clocks": "boost"}, "clocks must be one of 'observe', 'lock', got 'boost'"),
    ({"clocks": "lock"}, "clocks='lock' locks a GPU's clocks, and this work is on the CPU"),
    ({"quick": "yes"}, "quick must be True or False, got 'yes'"),
    ({"exclusive": 1}, "exclusive must be True or False, got 1"),
    ({"min_samples": 0}, "min_samples must be at least 1, got 0"),
    ({"min_samples": True}, "min_samples must be a whole number, 0 or more, got True"),
    ({"min_samples": 5, "max_samples": 4}, "max_samples must be at least min_samples"),
    ({"max_samples": -1}, "max_samples must be a whole number, 0 or more, got -1"),
    ({"max_samples": 2**64}, "max_samples must be a whole number"),
    ({"pin": False}, "pin must be a whole number, 0 or more, got False"),
    ({"warmup": "long"}, "warmup must be 'steady', a whole number of calls or a float of sec"),
    ({"warmup": -1.5}, "warmup must be 'steady', .* 0 or more, got -1.5"),
    ({"timeout": True}, "timeout must be a positive number of seconds or None, got True"),
    ({"timeout": 0}, "timeout must be a positive number .*, got 0"),
    ({"timeout": NAN}, "timeout must be a positive number .*, got nan"),
    ({"stop": "never"}, "stop must be one of 'interval', 'noise', .*, got 'never'"),
    ({"stop": "verdict"}, "needs something to compare with; use convtime.compare"),
    ({"flops": 0}, "flops must be a positive number, got 0"),
    ({"nbytes": INFINITE}, "nbytes must be a positive number, got inf"),
    ({"budget": True}, "budget must be a number, got True"),
    ({"budget": NAN}, "budget must be a number, got nan"),
    ({"budget": 10**400}, "budget must be a number"),
    ({"budget": 0}, "budget must be more than 0 seconds"),
    ({"tolerance": -1}, "tolerance must be 0 or more"),
    ({"device": "gpu"}, "device must be cpu, cuda or cuda:N, got 'gpu'"),
    ({"device": "cuda:99"}, "cuda"),
]


def never() -> None:
    raise AssertionError("called")


def test_bad_options_are_refused_before_anything_is_called() -> None:
    for options, message in BAD:
        with pytest.raises(ValueError, match=message):
            convtime.time_op(never, **{"device": "cpu", **options})
    with pytest.raises(TypeError, match="log must be a callable .*, got 'file.log'"):
        convtime.time_op(never, log="file.log", device="cpu")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stream must be a torch.cuda.Stream, got 7"):
        convtime.time_op(never, stream=7)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="time_op has no option 'metod'"):
        convtime.time_op(never, metod="cpu")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="compare has no option 'foo'; there are method, metric, "):
        convtime.compare({"one": never}, foo=1)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"stop='verdict' needs several candidates, got \['one'\]"):
        convtime.compare({"one": never}, stop="verdict", device="cpu")


def test_numpys_numbers_are_options_too() -> None:
    given: dict[str, Any] = {"max_samples": np.int64(10), "tolerance": np.float32(0)}
    assert len(convtime.time_op(time.sleep, 0, device="cpu", **given).seconds) == 10
    cpu: Any = np.array(min(os.sched_getaffinity(0)))
    Options(pin=cpu).check_ranges()


@pytest.mark.parametrize("stop", ["interval", "noise", "entropy", "verdict", "count", "budget"])
def test_budget_and_numbers_of_samples_end_what_does_not_settle(stop: Stop) -> None:
    rule = Options(stop=stop, tolerance=0).stop_rule()
    varied = np.random.default_rng(0).random(10_000).tolist()
    reason = _C.stop_reason(samples=[varied], elapsed_seconds=0, **rule)
    assert reason == ("not yet" if stop == "budget" else "max_samples")
    for samples, elapsed, expected in (
        (9, 1.1, "not yet"),
        (10, 0.9, "not yet"),
        (10, 1, "budget"),
    ):
        reason = _C.stop_reason(samples=[varied[:samples]], elapsed_seconds=elapsed, **rule)
        assert reason == ("not yet" if stop == "count" else expected)


def test_the_options_signature_docs_and_types_are_one_list() -> None:
    names = [field.name for field in dataclasses.fields(Options)]
    for function, but in (
        (convtime.time_op, {"margin"}),
        (convtime.compare, set()),
        (convtime.race, set(OWN_OPTIONS)),
    ):
        taken = [name for name in names if name not in but]
        assert set(taken) <= set(inspect.signature(function).parameters)
        assert all(f"        {name}: " in (function.__doc__ or "") for name in taken)
        assert "{options}" not in (function.__doc__ or "")
    # What type checkers see is written out beside it, since no type follows from a dataclass.
    annotated: dict[str, dict[str, Any]] = {
        node.name: {
            ast.unparse(statement.target): statement.annotation
            for statement in node.body
            if isinstance(statement, ast.AnnAssign)
        }
        for node in ast.walk(ast.parse(inspect.getsource(options_module)))
        if isinstance(node, ast.ClassDef)
    }
    kinds = {name: kind.slice.elts[0] for name, kind in annotated["Options"].items()}
    del kinds["margin"]
    parts = ["PlaceOptions", "DeviceOptions", "RaceOptions", "TuneOptions", "LimitOptions"]
    parts += ["SharedOptions", "SweepOptions"]
    typed = {name: kind for part in parts for name, kind in annotated[part].items()}
    assert dict(zip(typed, map(ast.dump, typed.values()), strict=True)) == dict(
        zip(kinds, map(ast.dump, kinds.values()), strict=True)
    )
