"""The workers of a run: this process, local processes, or those of the caller's executor."""

from __future__ import annotations

import contextlib
import functools
import io
import pickle
import secrets
import sys
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, wait
from typing import Any, Literal, TypeVar

import torch

from convtime.core.checks import require
from convtime.core.errors import InputError, first_line, one_line
from convtime.sweeps.local_pool import LocalPool, worker_resources
from convtime.sweeps.plan import Point
from convtime.sweeps.worker import (
    Worker,
    call,
    check_alike,
    describe,
    machine_of,
)

# A point can compile kernels for minutes, but a worker says at once what it is.
ANSWER_SECONDS = 600.0
_FIRST_ANSWER_SECONDS = 60.0

Item = TypeVar("Item")
#: What runs the points: None for this process, a number of local workers, or an executor.
Workers = Executor | int | Literal["gpus"] | None
#: Has a worker measure a point.
Submit = Callable[..., Future[Any]]


def _submit_call(
    executor: Executor, call: Callable[..., Any], *args: Any, **kwargs: Any
) -> Future[Any]:
    """Submit a call to an executor.

    Raises:
        BrokenExecutor: it does not take the call; executors raise other errors too, such as a
            RuntimeError after they were shut down.
    """
    try:
        return executor.submit(call, *args, **kwargs)
    except (BrokenExecutor, InputError):
        raise
    except Exception as error:
        raise BrokenExecutor(f"submit raised {first_line(error)}") from error


def _call_here(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(call(*args, **kwargs))
    return future


@contextlib.contextmanager
def workers_of(
    workers: Workers, worker: Worker[Point]
) -> Iterator[tuple[Mapping[str, Any], Submit]]:
    """Yield the machine that all workers of a run have, and the function that gives them points.

    The function takes the arguments of :meth:`Worker.visit`, and raises a BrokenExecutor if the
    executor takes no points. Local workers end afterwards, the caller's executor does not.

    Raises:
        InputError: the executor has another type, it cannot run convtime, or something that is
            timed cannot be sent to it.
    """
    if workers is None:
        yield machine_of(worker.device), functools.partial(_call_here, worker.visit)
        return
    _check_parts(worker)
    sent = _pickle(worker.visit, "this run")
    with _executor_of(workers, worker.axes.options.get("device"), sent) as executor:
        yield executor


@contextlib.contextmanager
def _executor_of(
    workers: Executor | int | Literal["gpus"],
    requested: torch.device | str | int | None,
    sent: bytes,
) -> Iterator[tuple[Mapping[str, Any], Submit]]:
    """Yield the machine of an executor, and what submits calls of a pickled function to it."""
    run = secrets.token_hex(8)
    executor = workers
    if not isinstance(executor, Executor):
        executor = LocalPool(worker_resources(workers, requested))
    with contextlib.nullcontext() if executor is workers else executor:
        machine = _machine(executor, requested, run)
        yield (
            machine,
            functools.partial(_submit_call, executor, call, sent, run, requested, machine),
        )


def call_in_workers(
    workers: Executor | int | Literal["gpus"],
    requested: torch.device | str | int | None,
    function: Callable[[Item], object],
    items: Sequence[Item],
) -> Iterator[tuple[int, Future[Any]]]:
    """Call a function with each item, one at a time in each worker.

    Args:
        workers: the processes that call it.
        requested: the device that the calls use; None for the default.
        function: a function that other processes can import.
        items: its arguments.

    Yields:
        The position of an item and its future, when that is done. If the executor does not take a
        call, those of items that no worker has begun have its BrokenExecutor.

    Raises:
        InputError: as for :func:`workers_of`.
    """
    sent = _pickle(function, "this call")
    with _executor_of(workers, requested, sent) as (_, submit):
        futures: list[Future[Any]] = []
        try:
            try:
                for item in items:
                    futures.append(submit(item))  # noqa: PERF401 (stays if the next raises)
            except BrokenExecutor as error:
                refused: Future[Any] = Future()
                refused.set_exception(error)
                futures = [refused if future.cancel() else future for future in futures]
                futures += [refused] * (len(items) - len(futures))
            waiting = {*futures}
            while waiting:
                done = wait_aloud(waiting, ANSWER_SECONDS)
                waiting -= done
                for position, future in enumerate(futures):
                    if future in done:
                        yield position, future
        finally:
            for future in futures:
                future.cancel()


def wait_aloud(futures: Collection[Future[Any]], seconds: float) -> set[Future[Any]]:
    """Wait until any of the futures is done, and return those that are.

    A warning says that none is after so many seconds: an executor without workers never answers.
    """
    done, _ = wait(futures, seconds, FIRST_COMPLETED)
    if not done:
        warnings.warn(
            f"no worker has answered for {seconds:g} s: check that the executor has workers that "
            "run; the wait goes on until one answers, or until Ctrl-C",
            stacklevel=2,
        )
        done, _ = wait(futures, return_when=FIRST_COMPLETED)
    return done


def _machine(
    executor: Executor, requested: torch.device | str | int | None, run: str
) -> dict[str, Any]:
    """Return the machine of the worker that answers first, which has the versions used here."""
    try:
        described = executor.submit(describe, requested, run)
        wait_aloud([described], _FIRST_ANSWER_SECONDS)
        name, machine = described.result()
    except InputError:
        raise
    except BrokenExecutor as error:
        raise InputError(f"executor broke: {one_line(error)}") from error
    except Exception as error:
        raise InputError(
            f"executor must run convtime, but its first call failed ({first_line(error)})"
        ) from error
    ours = machine_of(torch.device("cpu"))
    check_alike(name, machine, ours, ("convtime", "torch"), "in this process")
    return machine


class _Pickler(pickle.Pickler):
    """Also rejects functions of an interactive session, which pickle sends as a mere name."""

    def reducer_override(self, obj: Any) -> Any:
        is_interactive = not hasattr(sys.modules["__main__"], "__file__")
        is_named = isinstance(obj, types.FunctionType | type)
        if is_interactive and is_named and obj.__module__ == "__main__":
            raise pickle.PicklingError(f"{obj.__qualname__} is defined interactively")
        return NotImplemented


def _pickle(value: object, what: str) -> bytes:
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:  # whatever the value's own methods raise
        raise InputError(
            f"executor sends {what} to other processes, which is impossible ({first_line(error)}); "
            "define its functions at the top level of a module"
        ) from error
    return buffer.getvalue()


def _check_parts(worker: Worker[Any]) -> None:
    """Require that everything that workers need can be pickled; an error names the part."""
    stream = worker.axes.options.get("stream")
    require(
        stream is None,
        f"stream must be left out with executor, whose processes do not have it, got {stream!r}",
    )
    parts = {repr(name): application.make for name, application in worker.applications.items()}
    for axis, values in worker.axes.values.items():
        parts |= {f"the value {label!r} of axis {axis!r}": value for label, value in values.items()}
    parts |= {f"option {option}": value for option, value in worker.axes.options.items()}
    for what, value in parts.items():
        _pickle(value, what)
