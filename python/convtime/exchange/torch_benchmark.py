"""Read measurements of torch.utils.benchmark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from convtime.core.checks import require
from convtime.core.errors import InputError, shown
from convtime.exchange.other_tools import measurements_by_name, of_samples
from convtime.timing.forms import PAYLOAD
from convtime.timing.measurement import Measurement, Measurements

if TYPE_CHECKING:
    from torch.utils import benchmark

_TOOL = "torch.utils.benchmark"


def read(source: Any) -> Measurements:
    """Convert one or several of PyTorch's measurements, or its Compare.

    Samples with equal task specifications are merged, as in Compare. A measurement that
    Measurement.to_torch created is restored unchanged.

    Raises:
        InputError: the source is of another type, or a measurement has no samples.
    """
    # Slow to import, and already imported if the source is one of its objects.
    torch_benchmark = sys.modules.get(_TOOL)
    if torch_benchmark is not None and isinstance(source, torch_benchmark.Compare):
        source = source._results
    elif torch_benchmark is not None and isinstance(source, torch_benchmark.Measurement):
        source = [source]
    given = list(source) if hasattr(source, "__iter__") else [source]
    for one in given:
        if torch_benchmark is None or not isinstance(one, torch_benchmark.Measurement):
            raise InputError(
                "source must be a file, a data frame or measurements of torch.utils.benchmark, "
                f"got an object of type {type(one).__name__}"
            )
    own = [one.metadata[PAYLOAD] for one in given if PAYLOAD in (one.metadata or {})]
    others = [one for one in given if PAYLOAD not in (one.metadata or {})]
    calls = {one.task_spec: one.number_per_run for one in others}
    merged = type(others[0]).merge(others) if others else []
    measurements = [Measurement.from_dict(fields) for fields in own]
    measurements += [_measurement(one, calls[one.task_spec]) for one in merged]
    return measurements_by_name(measurements, "the measurements of torch.utils.benchmark")


def _measurement(theirs: benchmark.Measurement, calls_per_sample: int) -> Measurement:
    task = theirs.task_spec
    name = ", ".join(filter(None, (task.title, task.description, task.env)))
    require(
        theirs.raw_times,
        f"the measurement of {shown(name)} must have at least one sample, got none",
    )
    averaged = f"; each sample is the mean of {calls_per_sample} calls"
    return of_samples(
        name,
        theirs.times,
        _TOOL,
        {"threads": task.num_threads, "stmt": task.stmt, "setup": task.setup},
        method_reason=f"{_TOOL} does not say{averaged if calls_per_sample > 1 else ''}",
    )
