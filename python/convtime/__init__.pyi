from . import nn, ops
from .conv.explain.running import explain
from .conv.explain.types import Explanation
from .conv.plans import clear_plan_cache, plan_cache
from .core.config import cmake_prefix_path, show_config
from .device.clock_lock import LockedClocks, locked_clocks, reset_clocks
from .device.clocks import trace_clocks
from .integrations.ipython import load_ipython_extension as load_ipython_extension
from .integrations.ipython import unload_ipython_extension as unload_ipython_extension
from .results.advice import Advice
from .results.agreement import Agreement
from .results.batch_record import BatchRecord
from .results.ceilings import Ceilings
from .results.clock_reading import ClockReading
from .results.clock_trace import ClockTrace
from .results.comparison import Comparison, Judgement, Ratio
from .results.counters import Counters, CountersUnavailable, KernelCounters
from .results.diagnosis import Cause, Diagnosis
from .results.evidence import Evidence
from .results.exchange.files import read_measurements, write_measurements
from .results.interference import Interference
from .results.measurement import Measurement
from .results.plan import PlanChoice, TensorDescriptor
from .results.regression import Change, Changes, compare_runs
from .results.scaling import ScaledTime
from .study.diagnose.running import diagnose
from .timing.candidate import Candidate
from .timing.ceilings import ceilings
from .timing.counters.reading import counters
from .timing.stopwatch import compare, time_op

__version__: str

__all__ = [
    "Advice",
    "Agreement",
    "BatchRecord",
    "Candidate",
    "Cause",
    "Ceilings",
    "Change",
    "Changes",
    "ClockReading",
    "ClockTrace",
    "Comparison",
    "Counters",
    "CountersUnavailable",
    "Diagnosis",
    "Evidence",
    "Explanation",
    "Interference",
    "Judgement",
    "KernelCounters",
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
    "compare_runs",
    "counters",
    "diagnose",
    "explain",
    "locked_clocks",
    "nn",
    "ops",
    "plan_cache",
    "read_measurements",
    "reset_clocks",
    "show_config",
    "time_op",
    "trace_clocks",
    "write_measurements",
]
