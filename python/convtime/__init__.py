"""convtime: how long GPU operations really take, and what PyTorch's convolutions really run."""

from convtime import _load  # isort: skip  (checks that the compiled core fits this torch)
from convtime import nn, ops
from convtime._build_info import version as __version__
from convtime.ceilings import Ceilings
from convtime.comparison import Comparison, Ratio, compare
from convtime.config import cmake_prefix_path, show_config
from convtime.measurement import Measurement, ScaledTime
from convtime.timing import ceilings, time_op

__all__ = [
    "Ceilings",
    "Comparison",
    "Measurement",
    "Ratio",
    "ScaledTime",
    "__version__",
    "ceilings",
    "cmake_prefix_path",
    "compare",
    "nn",
    "ops",
    "show_config",
    "time_op",
]

del _load
