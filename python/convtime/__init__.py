"""convtime: how long GPU operations really take, and what PyTorch's convolutions really run."""

from convtime import _load  # isort: skip  (checks that the compiled core fits this torch)
from convtime import nn, ops
from convtime._build_info import version as __version__
from convtime.ceilings import Ceilings
from convtime.clocks import (
    ClockReading,
    ClockTrace,
    LockedClocks,
    locked_clocks,
    reset_clocks,
    trace_clocks,
)
from convtime.comparison import Comparison, Ratio, compare
from convtime.config import cmake_prefix_path, show_config
from convtime.explain import Explanation, explain
from convtime.measurement import Measurement, ScaledTime
from convtime.plans import PlanChoice, TensorDescriptor, clear_plan_cache, plan_cache
from convtime.timing import ceilings, time_op

__all__ = [
    "Ceilings",
    "ClockReading",
    "ClockTrace",
    "Comparison",
    "Explanation",
    "LockedClocks",
    "Measurement",
    "PlanChoice",
    "Ratio",
    "ScaledTime",
    "TensorDescriptor",
    "__version__",
    "ceilings",
    "clear_plan_cache",
    "cmake_prefix_path",
    "compare",
    "explain",
    "locked_clocks",
    "nn",
    "ops",
    "plan_cache",
    "reset_clocks",
    "show_config",
    "time_op",
    "trace_clocks",
]

del _load
