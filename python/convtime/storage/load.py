"""Read any result from a file."""

from __future__ import annotations

import os

from convtime.core.codec import Stored
from convtime.exchange.files import MEASURED, read_file

#: Modules of all types of results that files hold, by the types' names.
MODULES = MEASURED | {
    "Changes": "convtime.regression.changes",
    "ClockTrace": "convtime.device.clock_trace",
    "Counters": "convtime.counting.results",
    "Diagnosis": "convtime.diagnosis.diagnosis",
    "Energy": "convtime.counting.results",
    "EngineTable": "convtime.conv.engine_table",
    "Examination": "convtime.health.examination",
    "Explanation": "convtime.conv.explanation",
    "History": "convtime.histories.result",
    "ModuleTimes": "convtime.recording.module_times",
    "PeakMemory": "convtime.counting.results",
    "Plans": "convtime.conv.plans.plan_set",
    "Proof": "convtime.device.proof",
    "Race": "convtime.tuning.race_result",
    "Recording": "convtime.recording.recording",
    "Survey": "convtime.health.survey",
    "Upgrade": "convtime.upgrading.result",
}


def load(path: str | os.PathLike[str]) -> Stored:
    """Read the result in a file: what a result's ``save`` or a command's ``--json`` wrote.

    Args:
        path: the file.

    Returns:
        The result. For ``convtime conv --json`` and files of other tools, it is a
        :class:`Measurements` (see :func:`convtime.read_measurements`).

    Raises:
        InputError: the file cannot be read; the message says in one sentence why.
    """
    return read_file(path, MODULES)
