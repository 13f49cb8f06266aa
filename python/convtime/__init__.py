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
from convtime.measurement import Measurement
from convtime.timing import ceilings, time_op

__all__ = [
    "Ceilings",
    "ClockReading",
    "ClockTrace",
    "Comparison",
    "LockedClocks",
    "Measurement",
    "Ratio",
    "__version__",
    "ceilings",
    "cmake_prefix_path",
    "compare",
    "locked_clocks",
    "nn",
    "ops",
    "reset_clocks",
    "show_config",
    "time_op",
    "trace_clocks",
]

del _load
