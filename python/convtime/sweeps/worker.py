"""What runs in a worker: points one after the other, the control in between, and its machine."""

from __future__ import annotations

import dataclasses
import os
import pickle
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Generic

import torch

from convtime.core.checks import require
from convtime.core.errors import InputError, first_line, one_line
from convtime.device.cpu import written_cpus
from convtime.device.provenance import gpu_uuid, provenance
from convtime.device.resolve import resolve_device
from convtime.sweeps.application import Application
from convtime.sweeps.axes import Axes
from convtime.sweeps.plan import Point
from convtime.timing.snippet import raised_by

# A worker visits the control again after this many points, or after these seconds if that is
# sooner. A control that takes long still gets no larger share of the time.
_POINTS_BETWEEN_CONTROLS = 8
_SECONDS_BETWEEN_CONTROLS = 180.0
# Runs whose functions a process keeps, as several can use the same executor at a time. A function
# has the values of its run's axes, which can be large.
_MOST_RUNS = 4
# Facts that distinguish machines with incomparable times.
_MACHINE = ("gpu", "cpu", "driver", "cuda", "cudnn", "torch", "convtime", "threads")


@dataclasses.dataclass
class Worker(Generic[Point]):
    """Measures points of a run in this process, or in the one to which it is sent.

    Attributes:
        applications: what is measured, by name.
        axes: the values of the axes, and the options.
    """

    applications: Mapping[str, Application]
    axes: Axes
    _points: int = dataclasses.field(default=0, init=False)  # since the last control
    _next_control: float = dataclasses.field(default=0.0, init=False)

    @property
    def device(self) -> torch.device:
        """The device of this process that the run uses."""
        return resolve_device(self.axes.options.get("device"))

    def measure(self, point: Point) -> Point:
        """Return the point with its measurement, or with its error."""
        raise NotImplementedError

    def visit(
        self, point: Point, control: Point | None, *, is_last: bool
    ) -> tuple[str, tuple[Point, ...]]:
        """Measure a point, after the control if that is due.

        Args:
            point: the point.
            control: the control; None to leave it out.
            is_last: whether the worker gets no further point, so that the control follows.

        Returns:
            What identifies the process, and the visits in order of time.
        """
        visits = []
        is_due = self._points >= _POINTS_BETWEEN_CONTROLS or time.monotonic() >= self._next_control
        if control is not None and is_due:
            visits.append(self._visit_control(control))
        visits.append(self._measured(point))
        self._points += 1
        if control is not None and is_last:
            visits.append(self._visit_control(control))
        return f"{socket.gethostname()} {os.getpid()}", tuple(visits)

    def _visit_control(self, control: Point) -> Point:
        start = time.monotonic()
        measured = self._measured(control)
        end = time.monotonic()
        self._points = 0
        self._next_control = end + max(
            _SECONDS_BETWEEN_CONTROLS, _POINTS_BETWEEN_CONTROLS * (end - start)
        )
        return measured

    @cached_property
    def _name(self) -> str:
        return name_of_worker(self.device)

    def _measured(self, point: Point) -> Point:
        measured: Point = dataclasses.replace(self.measure(point), worker=self._name)
        # Cached blocks of this point's sizes rarely fit the next point.
        torch.cuda.empty_cache()
        return measured


def name_of_worker(device: torch.device) -> str:
    """Return what identifies a worker in results: its GPU, or its host and CPUs."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} {gpu_uuid(device)}"
    return f"{socket.gethostname()} CPU {written_cpus(os.sched_getaffinity(0))}"


def machine_of(device: torch.device) -> dict[str, Any]:
    """Return the facts that must be the same for all points of a run."""
    facts = provenance(device)
    return {fact: facts[fact] for fact in _MACHINE if facts[fact] is not None}


def describe(requested: torch.device | str | int | None, _run: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the machine of the worker that this process is.

    Args:
        requested: the run's device; None for the default.
        _run: identifies the run, since Dask answers equal calls from its cache.
    """
    device = resolve_device(requested)
    return name_of_worker(device), machine_of(device)


def check_alike(
    name: str,
    machine: Mapping[str, Any],
    expected: Mapping[str, Any],
    facts: Sequence[str] = _MACHINE,
    whose: str = "on the first worker",
) -> None:
    """Require that a worker's machine is as expected.

    Args:
        name: name of the worker.
        machine: facts of its machine.
        expected: facts that it must have.
        facts: names of the facts that must be equal.
        whose: where the expected facts come from.

    Raises:
        InputError: a fact differs.
    """
    for fact in facts:
        require(
            machine.get(fact) == expected.get(fact),
            f"all workers must have the same {fact}, got {machine.get(fact)} on worker {name} "
            f"and {expected.get(fact)} {whose}",
        )


_busy = threading.Lock()  # held while this process measures a point for an executor
_functions: dict[str, Any] = {}  # of the latest runs, by their identifiers; latest last


def call(
    sent: bytes,
    run: str,
    requested: torch.device | str | int | None,
    machine: Mapping[str, Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call a function in a process of an executor, which keeps the function for the next call.

    Args:
        sent: the pickled function.
        run: identifies the run; see :func:`describe`.
        requested: the run's device; None for the default.
        machine: the machine that the run is on.
        args: arguments of the function.
        kwargs: keyword arguments of the function.

    Raises:
        InputError: this process cannot be a worker of the run.
    """
    require(
        _busy.acquire(blocking=False),
        "executor must run one point at a time in each process, got several: they would "
        "disturb each other's times; use processes instead of threads (Dask: "
        "threads_per_worker=1)",
    )
    try:
        function = _functions.pop(run, None)
        if function is None:
            if len(_functions) == _MOST_RUNS:
                del _functions[next(iter(_functions))]
            function = _unpickle(sent)
            check_alike(*describe(requested, run), machine)
        _functions[run] = function
        return function(*args, **kwargs)
    finally:
        _busy.release()


def _unpickle(sent: bytes) -> Any:
    try:
        return pickle.loads(sent)  # noqa: S301 (from the process that began the run)
    except Exception as error:
        raise InputError(
            f"workers must be able to import what they time, got {first_line(error)} on "
            f"{socket.gethostname()}; define it in a module that is installed there"
        ) from error


def failure_of(error: BaseException) -> str:
    """Return why a point failed, in one line."""
    if isinstance(error, InputError):
        return one_line(error)
    return raised_by(error) or first_line(error)
