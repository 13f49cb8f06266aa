"""Read another tool's number from a number, a callable, a file, or the name of the tool."""

from __future__ import annotations

import functools
import importlib
import math
import os
from collections.abc import Callable
from typing import Any

import torch

from convtime.core.errors import InputError
from convtime.diagnosis.difference import Other
from convtime.exchange.files import read_measurements
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement
from convtime.timing.options import is_finite

_TOOLS_OF_FILES = {"nvbench": "nvbench", "torch.utils.benchmark": "torch Timer"}
_TAKEN = (
    "a number of seconds, a callable that returns one, 'do_bench', 'do_bench_cudagraph' or "
    "'timer', a file or Measurement of another tool"
)


def other_of(against: Any, candidate: Candidate) -> Other:
    """Return another tool's number for a candidate; a tool given by name is run.

    Raises:
        InputError: ``against`` has another type, the number is not a valid time, or the tool is not
            installed.
    """
    if isinstance(against, str) and against in _RUN:
        return _RUN[against](candidate)
    if isinstance(against, str | os.PathLike):
        return _of_file(against)
    if type(against).__module__.startswith("torch.utils.benchmark"):
        (against,) = read_measurements(against).values()
    if isinstance(against, Measurement):
        return _of_measurement(against)
    if callable(against):
        return Other(_time(against(), "the callable against"))
    return Other(_time(against, "against"))


def _time(value: Any, what: str) -> float:
    if not is_finite(value) or not 0 < float(value) < math.inf:
        raise InputError(f"{what} must give {_TAKEN}; the time must be above 0, got {value!r}")
    return float(value)


def _of_file(path: str | os.PathLike[str]) -> Other:
    found = read_measurements(path)
    if len(found) != 1:
        raise InputError(
            f"against must be a file with one measurement, got {os.fspath(path)} with "
            f"{len(found)}; pass one element of convtime.read_measurements(…)"
        )
    return _of_measurement(next(iter(found.values())))


def _of_measurement(measured: Measurement) -> Other:
    tool = str(measured.provenance.get("tool", ""))
    # nvbench's own number is the mean of its samples.
    seconds = measured.mean if tool == "nvbench" else measured.median
    return Other(seconds, _TOOLS_OF_FILES.get(tool, ""))


def _triton(function: str, candidate: Candidate) -> Other:
    if not torch.cuda.is_available():
        raise InputError(
            f"against={function!r} needs a GPU, and PyTorch finds none; use against='timer'"
        )
    try:
        testing: Any = importlib.import_module("triton.testing")
    except ImportError as error:
        raise InputError(
            f"against={function!r} requires triton, which cannot be imported ({error})"
        ) from error
    return Other(1e-3 * float(getattr(testing, function)(_bare(candidate))), f"triton {function}")


def _timer(candidate: Candidate) -> Other:
    from torch.utils.benchmark import Timer

    timer: Any = Timer(stmt="call()", globals={"call": _bare(candidate)})
    return Other(float(timer.blocked_autorange(min_run_time=0.2).median), "torch Timer")


def _bare(candidate: Candidate) -> Callable[[], object]:
    return lambda: candidate.fn(*candidate.args, **candidate.kwargs)


_RUN: dict[str, Callable[[Candidate], Other]] = {
    "do_bench": functools.partial(_triton, "do_bench"),
    "do_bench_cudagraph": functools.partial(_triton, "do_bench_cudagraph"),
    "timer": _timer,
}
