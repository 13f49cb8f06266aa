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
from .results.costs import Energy, PeakMemory
from .results.counters import Counters, CountersUnavailable, KernelCounters
from .results.diagnosis import Cause, Diagnosis
from .results.evidence import Evidence
from .results.exchange.files import read_measurements, write_measurements
from .results.interference import Interference
from .results.measurement import Measurement
from .results.modules import ModuleTimes, PassTimes
from .results.plan import PlanChoice, TensorDescriptor
from .results.recording import Recording, RegionTimes
from .results.regression import Change, Changes, compare_runs
from .results.scaling import ScaledTime
from .results.sweep import Sweep
from .results.sweep_plan import SweepPlan, SweepPoint
from .study.diagnose.running import diagnose
from .study.modules import time_modules
from .study.sweep.running import sweep
from .timing.candidate import Candidate
from .timing.ceilings import ceilings
from .timing.costs import energy, peak_memory
from .timing.counters.listing import CounterName, counter_names
from .timing.counters.reading import counters
from .timing.recording import record
from .timing.regions import region
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
    "CounterName",
    "Counters",
    "CountersUnavailable",
    "Diagnosis",
    "Energy",
    "Evidence",
    "Explanation",
    "Interference",
    "Judgement",
    "KernelCounters",
    "LockedClocks",
    "Measurement",
    "ModuleTimes",
    "PassTimes",
    "PeakMemory",
    "PlanChoice",
    "Ratio",
    "Recording",
    "RegionTimes",
    "ScaledTime",
    "Sweep",
    "SweepPlan",
    "SweepPoint",
    "TensorDescriptor",
    "__version__",
    "ceilings",
    "clear_plan_cache",
    "cmake_prefix_path",
    "compare",
    "compare_runs",
    "counter_names",
    "counters",
    "diagnose",
    "energy",
    "explain",
    "locked_clocks",
    "nn",
    "ops",
    "peak_memory",
    "plan_cache",
    "read_measurements",
    "record",
    "region",
    "reset_clocks",
    "show_config",
    "sweep",
    "time_modules",
    "time_op",
    "trace_clocks",
    "write_measurements",
]
