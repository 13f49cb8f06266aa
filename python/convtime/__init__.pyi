from . import nn, ops, testing
from .conv.advice import Advice
from .conv.engines.engine_table import EngineTable
from .conv.engines.engines import engines
from .conv.explain.explain import explain
from .conv.explain.explanation import Explanation
from .conv.plan_cache import clear_plan_cache, plan_cache
from .conv.plan_choice import PlanChoice
from .conv.tuned.tune import tune
from .core.errors import InputError, InputWarning
from .counting.costs import energy, peak_memory
from .counting.costs_result import Energy, PeakMemory
from .counting.counters import counters
from .counting.kernel_counters import Counters, CountersUnavailable, KernelCounters
from .counting.listing import counter_names
from .device.clock_lock import LockedClocks, locked_clocks, reset_clocks
from .device.clock_reading import ClockReading
from .device.clock_trace import ClockTrace
from .device.clocks import trace_clocks
from .device.config import cmake_prefix_path, show_config
from .diagnosis.diagnose import diagnose
from .diagnosis.diagnosis import Cause, Diagnosis
from .exchange.files import read_measurements, write_measurements
from .health.doctor import doctor
from .health.examination import Examination
from .histories.history import history
from .histories.result import ChangePoint, History
from .integrations.ipython import load_ipython_extension as load_ipython_extension
from .integrations.ipython import unload_ipython_extension as unload_ipython_extension
from .recording.module_times import ModuleTimes
from .recording.record import record
from .recording.recording import Recording
from .recording.region import region
from .recording.time_modules import time_modules
from .regression.attribution import Attribution
from .regression.baseline import Baseline
from .regression.changes import Change, Changes
from .regression.compare_runs import compare_runs
from .storage.load import load
from .sweeps.compare import compare
from .sweeps.comparison_table import ComparisonTable
from .sweeps.plan import SweepPoint
from .sweeps.sweep import sweep
from .sweeps.sweep_table import Sweep
from .timing.batch_record import BatchRecord
from .timing.candidate import Candidate
from .timing.ceilings import ceilings
from .timing.comparison import Agreement, Comparison
from .timing.measurement import Ceilings, Condition, Measurement
from .timing.options import Options
from .timing.time_op import time_op
from .timing.verdict import Judgement, Ratio
from .tuning.loading import load_plans
from .tuning.race import race
from .tuning.race_result import Dropped, Race
from .upgrading.result import Upgrade

__version__: str

__all__ = [
    "Advice",
    "Agreement",
    "Attribution",
    "Baseline",
    "BatchRecord",
    "Candidate",
    "Cause",
    "Ceilings",
    "Change",
    "ChangePoint",
    "Changes",
    "ClockReading",
    "ClockTrace",
    "Comparison",
    "ComparisonTable",
    "Condition",
    "Counters",
    "CountersUnavailable",
    "Diagnosis",
    "Dropped",
    "Energy",
    "EngineTable",
    "Examination",
    "Explanation",
    "History",
    "InputError",
    "InputWarning",
    "Judgement",
    "KernelCounters",
    "LockedClocks",
    "Measurement",
    "ModuleTimes",
    "Options",
    "PeakMemory",
    "PlanChoice",
    "Race",
    "Ratio",
    "Recording",
    "Sweep",
    "SweepPoint",
    "Upgrade",
    "__version__",
    "ceilings",
    "clear_plan_cache",
    "cmake_prefix_path",
    "compare",
    "compare_runs",
    "counter_names",
    "counters",
    "diagnose",
    "doctor",
    "energy",
    "engines",
    "explain",
    "history",
    "load",
    "load_plans",
    "locked_clocks",
    "nn",
    "ops",
    "peak_memory",
    "plan_cache",
    "race",
    "read_measurements",
    "record",
    "region",
    "reset_clocks",
    "show_config",
    "sweep",
    "testing",
    "time_modules",
    "time_op",
    "trace_clocks",
    "tune",
    "write_measurements",
]
