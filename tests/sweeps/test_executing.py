"""Sweeps and comparisons whose points are measured by an executor, which these tests play."""

import json
import math
import pickle
import random
import sys
import threading
import types
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime import ComparisonTable, Sweep, cli
from convtime.core.errors import InputError
from convtime.sweeps import executing, scheduler, worker
from convtime.sweeps.local_pool import Resources
from tests.helpers import swept

QUICK: dict[str, Any] = {
    "stop": "count", "min_samples": 3, "max_samples": 3, "warmup": 1, "device": "cpu"
}  # fmt: skip
SIZES: dict[str, Any] = {"size": range(1, 11)}


class Pickling(Executor):
    """Makes calls at once, with what arrives in another process."""

    def __init__(self, *_: object) -> None:
        self.submitted = 0
        self.is_shut_down = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.submitted += 1
        fn, args, kwargs = pickle.loads(pickle.dumps((fn, args, kwargs)))
        future: Future[Any] = Future()
        try:
            future.set_result(pickle.loads(pickle.dumps(fn(*args, **kwargs))))
        except Exception as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_shut_down = True


class Late(Pickling):
    """Holds the result of the first point until a number of points was submitted."""

    def __init__(self, points: int) -> None:
        super().__init__()
        self._points = points

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        made = super().submit(fn, *args, **kwargs)
        point = self.submitted - 1  # behind the call that describes the worker
        if point == 1:
            self._held: tuple[Future[Any], Future[Any]] = (Future(), made)
            return self._held[0]
        if point == self._points:
            self._held[0].set_result(self._held[1].result())
        return made


class Failing(Pickling):
    """Has futures that end otherwise."""

    def __init__(self, *at: int, end: Callable[[Future[Any]], object]) -> None:
        super().__init__()
        self._at = at
        self._end = end

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.submitted not in self._at:
            return super().submit(fn, *args, **kwargs)
        self.submitted += 1
        future: Future[Any] = Future()
        self._end(future)
        return future


def visits_in(file: Path) -> list[dict[str, Any]]:
    """The visits in a file, without those of the control."""
    lines = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    return [line for line in lines if not line["control"]]


def sizes_in(file: Path) -> list[int]:
    return [visit["values"]["size"] for visit in visits_in(file)]


def test_points_are_written_as_they_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    found = convtime.sweep(
        swept.relu, SIZES, executor=Late(10), file=file, seed=3, progress=True, **QUICK
    )
    order = [*SIZES["size"]]
    random.Random(3).shuffle(order)
    assert sizes_in(file)[:8] == order[1:9]
    visits = [visit["visit"] for visit in visits_in(file)]
    assert visits == sorted(visits)
    assert not found.missing
    assert " 8/10" in capsys.readouterr().err  # and then the last two at once


@pytest.mark.parametrize(
    "end",
    [
        lambda future: future.set_exception(BrokenExecutor("it died")),
        lambda future: (future.cancel(), future.set_running_or_notify_cancel()),
    ],
)
def test_a_broken_executor_ends_the_run_which_resumes(
    tmp_path: Path, end: Callable[[Future[Any]], object]
) -> None:
    file = tmp_path / "a.jsonl"
    given: dict[str, Any] = {"fn": swept.relu, "axes": SIZES, "file": file, "seed": 1, **QUICK}
    executor = Failing(5, end=end)
    with pytest.raises(BrokenExecutor, match="broke before 6 of 10 points were measured") as broken:
        convtime.sweep(executor=executor, **given)
    assert "\n" not in str(broken.value)
    assert not executor.is_shut_down
    assert len(sizes_in(file)) == 4
    assert not convtime.sweep(executor=Pickling(), **given).missing
    assert sorted(sizes_in(file)) == [*SIZES["size"]]
    with pytest.raises(BrokenExecutor, match="give file= to keep the others"):
        convtime.sweep(**{**given, "file": None}, executor=Failing(5, end=end))


def lose(future: Future[Any]) -> None:
    future.set_exception(OSError("worker lost\nhere"))


def test_what_an_executor_loses_is_tried_without_the_control_and_then_fails() -> None:
    found = convtime.sweep(swept.relu, SIZES, executor=Failing(5, 6, end=lose), **QUICK)
    assert [point.error for point in found.failed] == ["OSError: worker lost"]
    assert len(found.controls) == 3
    table = convtime.compare([swept.relu, swept.double], {"size": [1, 2]},
                             executor=Failing(2, 3, end=lose), **QUICK)  # fmt: skip
    (point,) = table.failed
    assert point.errors == dict.fromkeys(("relu", "double"), "OSError: worker lost")
    found = convtime.sweep(swept.relu, SIZES, executor=Failing(1, end=lose), **QUICK)
    assert not found.failed
    assert len(found.measurements) == 10
    assert [point.error for point in found.controls] == ["OSError: worker lost"]
    assert "drift is unknown: the control is relu size=6, and it failed: OSError" in str(found)


class Refusing(Pickling):
    """Keeps the future of a call, and refuses the next one; before, it has or has not ended."""

    def __init__(self, kept: int, error: Exception, *, ended: bool) -> None:
        super().__init__()
        self.kept, self._made = Future[Any](), Future[Any]()
        self._number, self._error, self._ended = kept, error, ended

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.submitted > self._number:
            self.submitted += 1
            if self._ended:
                self.kept.set_result(self._made.result())
            raise self._error
        self._made = super().submit(fn, *args, **kwargs)
        return self._made if self.submitted <= self._number else self.kept


def test_an_executor_that_takes_no_more_points_keeps_those_that_are_done(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    given: dict[str, Any] = {"fn": swept.relu, "axes": SIZES, "file": file, "seed": 1, **QUICK}
    ended = Refusing(1, RuntimeError("cannot schedule new futures\nafter shutdown"), ended=True)
    with pytest.raises(BrokenExecutor) as broken:
        convtime.sweep(executor=ended, **given)
    assert str(broken.value) == (
        "executor broke before 9 of 10 points were measured (BrokenExecutor: submit raised "
        f"RuntimeError: cannot schedule new futures); {file} has the others, and the same call "
        "continues there"
    )
    assert len(sizes_in(file)) == 1
    with pytest.raises(InputError, match="^no$"):
        convtime.sweep(executor=Refusing(1, InputError("no"), ended=True), **given)
    assert len(sizes_in(file)) == 2


def test_an_interrupt_ends_our_processes_and_cancels_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting: list[Future[Any]] = []
    pools: list[Pickling] = []

    class Ours(Failing):
        def __init__(self, _: Sequence[Resources]) -> None:
            super().__init__(2, end=waiting.append)
            pools.append(self)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(executing, "LocalPool", Ours)
    monkeypatch.setattr(scheduler, "wait", interrupt)
    for given in (1, Failing(1, end=waiting.append)):
        with pytest.raises(KeyboardInterrupt):
            convtime.sweep(swept.relu, SIZES, executor=given, **QUICK)
    assert pools[0].is_shut_down
    (future,) = waiting
    assert future.cancelled()


def local(size: int) -> Callable[[], object]:
    return swept.relu(size)


@pytest.mark.parametrize(
    ("fn", "axes", "options", "said"),
    [
        ({"a": lambda size: size}, {"size": [1]}, {}, "sends 'a' to other processes, which is"),
        (swept.relu, {"size": {"a": lambda: 1}}, {}, "sends the value 'a' of axis 'size' to"),
        (swept.relu, {"size": [1]}, {"log": lambda line: None}, "sends option log to other"),
        (swept.relu, {"size": [1]}, {"executor": 0}, "'gpus' or a concurrent.futures.Executor, go"),
        (swept.relu, {"size": [1]}, {"executor": True}, "must be a number of local workers, 'gp"),
        (swept.relu, {"size": [1]}, {"executor": 10**6}, "the number of CPUs, got 1000000"),
        (swept.relu, {"size": [1]}, {"executor": "gpus"}, "a number of workers if the device is"),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    fn: Any, axes: Any, options: dict[str, Any], said: str
) -> None:
    executor = Pickling()
    with pytest.raises(InputError) as refused:
        convtime.sweep(fn, axes, **{"executor": executor, **QUICK, **options})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
    assert executor.submitted == 0


def test_functions_of_an_interactive_session_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    main.local = local  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(local, "__module__", "__main__")
    with pytest.raises(InputError, match="local is defined interactively\\); define its functions"):
        convtime.sweep({"relu": local}, {"size": [1]}, executor=Pickling(), **QUICK)
    main.__file__ = "script.py"
    assert convtime.sweep({"relu": local}, {"size": [1]}, executor=Pickling(), **QUICK).measurements


def test_workers_must_be_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = worker.machine_of(torch.device("cpu")) | {"torch": "2.9"}
    given: Any = {"fn": swept.relu, "axes": SIZES, **QUICK}
    other = machine | {"torch": "9.9"}
    monkeypatch.setattr(worker, "machine_of", lambda _: machine)
    monkeypatch.setattr(executing, "machine_of", lambda _: other)
    said = f"same torch, got {machine['torch']} on worker .* and 9.9 in this process"
    with pytest.raises(InputError, match=said):
        convtime.sweep(**given, executor=Pickling())
    monkeypatch.setattr(executing, "machine_of", lambda _: machine)
    found = iter([machine, other])  # of the first worker, and of the one that gets a point
    monkeypatch.setattr(worker, "machine_of", lambda _: next(found))
    said = f"got 9.9 on worker .* and {machine['torch']} on the first worker"
    with pytest.raises(InputError, match=said):
        convtime.sweep(**given, executor=Pickling())


def test_a_function_is_called_with_each_item_in_workers() -> None:
    given = Pickling()
    made = executing.call_in_workers(given, None, math.sqrt, [1.0, -1.0, 9.0])
    ended = {place: future.exception() or future.result() for place, future in made}
    assert (ended[0], ended[2]) == (1.0, 3.0)
    assert isinstance(ended[1], ValueError)
    assert not given.is_shut_down
    with pytest.raises(InputError, match="define its functions at the top level"):
        next(executing.call_in_workers(given, None, lambda item: item, [1]))


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (BrokenExecutor("all of its processes ended"), "^all of its processes ended$"),
        (OSError("it ended\nhere"), "^submit raised OSError: it ended$"),
    ],
)
def test_calls_that_no_worker_began_end_where_an_executor_breaks(
    error: Exception, said: str
) -> None:
    executor = Refusing(2, error, ended=False)
    items = [1.0, 4.0, 9.0, 16.0]
    made = dict(executing.call_in_workers(executor, None, math.sqrt, items))
    assert executor.kept.cancelled()
    assert executor.submitted == 4
    assert made[0].result() == 1.0
    for place in (1, 2, 3):
        with pytest.raises(BrokenExecutor, match=said):
            made[place].result()


class Slow(Pickling):
    """Answers after it was warned that no worker does."""

    def __init__(self, warned: threading.Event) -> None:
        super().__init__()
        self._warned = warned

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        made = super().submit(fn, *args, **kwargs)
        late: Future[Any] = Future()

        def answer() -> None:
            self._warned.wait(30)
            late.set_result(made.result())

        threading.Thread(target=answer, daemon=True).start()
        return late


def test_that_no_worker_answers_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    warned, warn = threading.Event(), warnings.warn

    def warn_and_tell(*args: Any, **kwargs: Any) -> None:
        warn(*args, **kwargs)
        warned.set()

    monkeypatch.setattr(warnings, "warn", warn_and_tell)
    monkeypatch.setattr(executing, "_FIRST_ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(scheduler, "ANSWER_SECONDS", 0.1)
    with pytest.warns(UserWarning, match=r"no worker has answered for 0\.1 s"):
        found = convtime.sweep(swept.relu, {"size": [64]}, executor=Slow(warned), **QUICK)
    assert not found.failed


def test_workers_that_are_busy_or_lack_what_is_timed_are_refused() -> None:
    executor = Pickling()
    with worker._busy, pytest.raises(InputError, match="one point at a time in each process"):
        convtime.sweep(swept.relu, SIZES, executor=executor, **QUICK)
    assert executor.submitted == 2  # the description of the worker, and a point
    with pytest.raises(InputError, match="must be able to import what they time, got EOF"):
        worker._unpickle(b"")
    nothing = Failing(0, end=lambda future: future.set_exception(ImportError("No convtime")))
    with pytest.raises(InputError, match="its first call failed \\(ImportError: No convtime"):
        convtime.sweep(swept.relu, SIZES, executor=nothing, **QUICK)


@pytest.mark.parametrize("command", [["sweep", "-a"], ["compare", "torch.neg(x)", "--over"]])
def test_the_command_line_has_workers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    monkeypatch.setattr(executing, "LocalPool", Pickling)
    options = ["--device", "cpu", "--stop", "count", "--min-samples", "3", "--max-samples", "3"]
    given = [command[0], "torch.relu(x)", *command[1:], "n=1,2", "-s", "x = torch.ones(n)"]
    assert cli.main([*given, *options, "--workers", "1", "--json", "-"]) == 0
    kind = Sweep if command[0] == "sweep" else ComparisonTable
    assert len(kind.from_dict(json.loads(capsys.readouterr().out)).points) == 2
    assert cli.main([*given, *options, "--workers", "x"]) == 2
    assert "got 'x', but it must be gpus, or a whole number of 1 or more" in capsys.readouterr().err
