"""Calls on the CPU that are prepared as calls on a GPU are: on copies at other addresses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from convtime.core.load import _C
from convtime.timing.candidate import Candidate
from convtime.timing.options import Options
from convtime.timing.sampling import calls as calls_module
from convtime.timing.sampling import placement
from convtime.timing.sampling.calls import PreparedCalls
from convtime.timing.sampling.copying import Original

CPU = torch.device("cpu")
ROOM = 1 << 30


def original(fn: Callable[..., object], *args: Any, **kwargs: Any) -> Original:
    return Original(Candidate(fn, *args, kwargs=kwargs, name="one"), CPU)


def placed(candidate: Candidate, **options: Any) -> PreparedCalls:
    """A candidate on the CPU, prepared as one on a GPU is, but for the results."""
    chosen = Options(**{"placement": "random", "cache": "warm", **options})
    with pytest.MonkeyPatch.context() as patch:
        # Where copying takes longer, as on a busy machine, there are fewer copies.
        patch.setattr(placement, "_EFFORT", placement._EFFORT._replace(seconds=60.0))
        calls = calls_module._on_gpu(candidate, chosen, CPU, ROOM)
    calls.result_blocks = None
    return calls


ON_A_CPU: dict[str, Any] = {"method": "cpu", "on_gpu": False, "stream": 0, "flush": []}
ON_A_CPU |= {"metric": "busy", "queue": "none", "regime": "as-is"}
ON_A_CPU |= {"other_devices": [], "several_ranks": False, "on_batch": None}
ONE_CALL: dict[str, Any] = {"warmup_calls": 1, "warmup_seconds": 0.0, "warmup_steady": False}
ENDLESS: dict[str, Any] = {"budget": 60.0, "tolerance": 0.01, "margin": 0.01}
ENDLESS |= {"stop": "count", "first_batch_seconds": 0.0, "seconds_left": float("inf")}


def call(calls: PreparedCalls, samples: int = 20) -> dict[str, Any]:
    """Make one call for the warm-up and others for samples; return what is said of them."""
    (record,) = _C.time_candidates(
        candidates=[calls.described()],
        max_steady_seconds=0.0,
        min_samples=samples,
        max_samples=samples,
        **ON_A_CPU,
        **ONE_CALL,
        **ENDLESS,
    )
    return calls.outcome(record["results_reason"])
