from . import conv, nn, ops, testing
from .core.errors import InputError, InputWarning
from .counting.costs import energy, peak_memory
from .counting.counters import counters
from .counting.metrics import counter_names
from .counting.results import Counters, CountersUnavailable, Energy, PeakMemory
from .device.clock_lock import locked_clocks, reset_clocks
from .device.clock_trace import ClockTrace
from .device.clocks import trace_clocks
from .device.config import cmake_prefix_path, show_config
from .diagnosis.diagnose import diagnose
from .diagnosis.diagnosis import Diagnosis
from .exchange.files import read_measurements, write_measurements
from .health.doctor import doctor
from .health.examination import Examination
from .histories.history import history
from .histories.result import History
from .integrations.ipython import load_ipython_extension as load_ipython_extension
from .integrations.ipython import unload_ipython_extension as unload_ipython_extension
from .recording.module_times import ModuleTimes
from .recording.record import record
from .recording.recording import Recording
from .recording.region import region
from .recording.time_modules import time_modules
from .regression.baseline import Baseline
from .regression.changes import Changes
from .regression.compare_runs import compare_runs
from .storage.load import load
from .sweeps.compare import compare
from .sweeps.comparison_table import ComparisonTable
from .sweeps.sweep import sweep
from .sweeps.sweep_table import Sweep
from .timing.candidate import Candidate
from .timing.comparison import Comparison
from .timing.measurement import Measurement, Measurements
from .timing.options import BatchRecord, Options
from .timing.time_op import ceilings, time_op
from .timing.verdict import Ratio
from .tuning.race import race
from .tuning.race_result import Race
from .upgrading.result import Upgrade

__version__: str

__all__ = [
    "Baseline",
    "BatchRecord",
    "Candidate",
    "Changes",
    "ClockTrace",
    "Comparison",
    "ComparisonTable",
    "Counters",
    "CountersUnavailable",
    "Diagnosis",
    "Energy",
    "Examination",
    "History",
    "InputError",
    "InputWarning",
    "Measurement",
    "Measurements",
    "ModuleTimes",
    "Options",
    "PeakMemory",
    "Race",
    "Ratio",
    "Recording",
    "Sweep",
    "Upgrade",
    "__version__",
    "ceilings",
    "cmake_prefix_path",
    "compare",
    "compare_runs",
    "conv",
    "counter_names",
    "counters",
    "diagnose",
    "doctor",
    "energy",
    "history",
    "load",
    "locked_clocks",
    "nn",
    "ops",
    "peak_memory",
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
    "write_measurements",
]
