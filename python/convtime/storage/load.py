"""Read any result from a file."""

from __future__ import annotations

import os

from convtime.conv.engines.engine_table import EngineTable
from convtime.conv.explain.explanation import Explanation
from convtime.core.codec import Stored
from convtime.core.proof import Proof
from convtime.counting.costs_result import Energy, PeakMemory
from convtime.counting.kernel_counters import Counters
from convtime.device.clock_trace import ClockTrace
from convtime.diagnosis.diagnosis import Diagnosis
from convtime.exchange.files import Found, read_file
from convtime.health.examination import Examination
from convtime.health.survey import Survey
from convtime.histories.result import History
from convtime.recording.module_times import ModuleTimes
from convtime.recording.recording import Recording
from convtime.regression.baseline import Baseline
from convtime.regression.changes import Changes
from convtime.sweeps.result import Sweep
from convtime.sweeps.table import ComparisonTable
from convtime.timing.comparison import Comparison
from convtime.timing.measurement import Measurement
from convtime.tuning.plan_set import Plans
from convtime.tuning.race_result import Race
from convtime.upgrading.result import Upgrade

#: The types of results that files hold, by name.
TYPES: dict[str, type[Stored]] = {
    kind.__name__: kind
    for kind in (
        *(Baseline, Changes, ClockTrace, Comparison, ComparisonTable, Counters, Diagnosis, Energy),
        *(EngineTable, Examination, Explanation, History, Measurement, ModuleTimes, PeakMemory),
        *(Plans, Proof, Race, Recording, Survey, Sweep, Upgrade),
    )
}


def load(path: str | os.PathLike[str]) -> Found:
    """Read the result in a file: what a result's ``save`` or a command's ``--json`` wrote.

    Files that convtime 0.1.0 wrote before results named their type are read, too. The times of
    kernels in the oldest of them are sums of durations; their ``metric`` says so.

    Args:
        path: the file.

    Returns:
        The result. For ``convtime conv --json`` and files of other tools, it is a dict of
        measurements by name (see :func:`convtime.read_measurements`).

    Raises:
        InputError: the file cannot be read; the message says in one sentence why.
    """
    return read_file(path, TYPES)
