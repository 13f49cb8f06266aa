"""Sweeps and comparisons whose points are measured by the processes of an executor."""

from __future__ import annotations

import dataclasses
import json
import math
import multiprocessing
import os
import pickle
import random
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sweep_scaling
import torch

import convtime
from convtime import ComparisonTable, Sweep, SweepPoint, cli
from convtime.core import cpu
from convtime.core.errors import InputError
from convtime.sweeps import executing, local_pool, visiting, worker
from convtime.sweeps.axes import Axes
from convtime.sweeps.drift import Controls
from convtime.sweeps.local_pool import LocalPool, Place
from tests.helpers import swept
from tests.helpers.measurements import make
from tests.helpers.waiting import wait_until

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
        self.most_pending = 0

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


def running(pool: LocalPool, count: int) -> list[int]:
    """The processes of a pool, once there are so many: others are being started."""
    return wait_until(lambda: pids if len(pids := pool.pids) >= count else [])


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    cpus = sorted(os.sched_getaffinity(0))
    with LocalPool([Place(frozenset({each}), gpu="7") for each in (cpus[0], cpus[-1])]) as opened:
        yield opened
        pids = running(opened, 2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_the_processes_of_a_pool_share_the_points(pool: LocalPool, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    found = convtime.sweep(swept.relu, SIZES, executor=pool, file=file, **QUICK)
    assert sorted(sizes_in(file)) == [*SIZES["size"]]
    assert not found.missing
    assert not found.failed
    assert [point.visit for point in found.controls] == sorted(
        point.visit for point in found.controls
    )
    allowed = {f"CPU {each}" for each in os.sched_getaffinity(0)}
    workers = {point.worker for point in found.points}
    assert {" ".join(each.split()[1:]) for each in workers} <= allowed
    for name in workers:  # each visits the control before its first point
        assert [point for point in found.controls if point.worker == name]
    assert {row["worker"] for row in found.to_rows()} == workers
    assert Sweep.from_dict(json.loads(found.to_json())) == found
    assert convtime.sweep(swept.relu, SIZES, executor=pool, file=file, **QUICK) == found


def test_a_process_sees_its_gpu_and_runs_on_its_cpus(pool: LocalPool) -> None:
    assert pool.submit(os.getenv, "CUDA_VISIBLE_DEVICES").result() == "7"
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != "7"
    assert len(pool.submit(os.sched_getaffinity, 0).result()) == 1
    assert pool.submit(torch.get_num_threads).result() == 1
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result()


def test_any_exception_of_a_call_is_its_error_and_ends_no_process(pool: LocalPool) -> None:
    before = running(pool, 2)
    with pytest.raises(RuntimeError, match="^SystemExit: 7$"):
        pool.submit(sys.exit, 7).result()
    assert pool.pids == before


def test_an_error_that_cannot_be_sent_is_told_in_one_line(pool: LocalPool) -> None:
    with pytest.raises(RuntimeError, match="^UnsendableError: it failed$"):
        pool.submit(swept.raise_unsendable).result()


def test_a_point_that_kills_its_processes_fails_and_the_others_stand(
    pool: LocalPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_pool, "_MOST_DEATHS", 1)
    found = convtime.sweep(swept.deadly, {"size": [3, 1, 2, 4, 5]}, executor=pool, **QUICK)
    (failed,) = found.failed
    assert failed.values == {"size": 3}
    assert "1 worker process ended while measuring it, the last by SIGKILL" in failed.error
    assert len(found.measurements) == 4


def test_points_of_killed_processes_go_to_others(pool: LocalPool, tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    chance = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID", "0"))

    def kill() -> None:
        time.sleep(chance.uniform(0, 0.1))
        os.kill(chance.choice(running(pool, 1)), 9)

    killer = threading.Thread(target=kill)
    killer.start()
    sizes = {"size": range(1, 31)}
    found = convtime.sweep(swept.relu, sizes, executor=pool, file=file, **QUICK)
    killer.join()
    assert sorted(sizes_in(file)) == [*sizes["size"]]
    assert len(found.measurements) == 30


def test_a_broken_pool_of_processes_keeps_its_points(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    spawn = multiprocessing.get_context("spawn")
    given: dict[str, Any] = {"axes": {"size": [1, 2, 3, 4]}, "file": file, "seed": 1, **QUICK}
    said = "executor broke before [1-4] of 4 "
    with (
        ProcessPoolExecutor(1, mp_context=spawn) as processes,
        pytest.raises(BrokenExecutor, match=said) as broken,
    ):
        convtime.sweep({"relu": swept.deadly}, executor=processes, **given)
    assert f"{file} has the others, and the same call continues there" in str(broken.value)
    assert 3 not in sizes_in(file)


def test_dask_measures_points(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed")
    dask = pytest.importorskip("dask")
    file = tmp_path / "a.jsonl"
    over: dict[str, Any] = {"size": [1, 2, 4, 8]}
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "120 s"}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=None, memory_limit=0
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        found = convtime.sweep(
            {"relu": swept.relu, "double": swept.double}, over, executor=client.get_executor(),
            file=file, **QUICK
        )  # fmt: skip
        assert client.submit(os.getpid).result() != os.getpid()  # it still works
    assert sorted(sizes_in(file)) == sorted(2 * over["size"])
    assert len(found.measurements) == 8
    assert all(point.worker for point in found.points)


def test_points_are_written_as_they_come(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.jsonl"
    found = convtime.sweep(
        swept.relu, SIZES, executor=Late(10), file=file, seed=3, progress=True, **QUICK
    )
    order = [*SIZES["size"]]
    random.Random(3).shuffle(order)
    assert sizes_in(file) == [*order[1:], order[0]] or sizes_in(file) == [
        *order[1:-1], order[0], order[-1]
    ]  # fmt: skip
    assert [visit["visit"] for visit in visits_in(file)] == sorted(
        visit["visit"] for visit in visits_in(file)
    )
    assert not found.missing
    assert "| 8/10 [" in capsys.readouterr().err  # and then the last two at once


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


def test_a_worker_that_an_executor_loses_fails_its_point(tmp_path: Path) -> None:
    def lose(future: Future[Any]) -> None:
        future.set_exception(OSError("worker lost\nhere"))

    found = convtime.sweep(swept.relu, SIZES, executor=Failing(5, 6, end=lose), **QUICK)
    assert [point.error for point in found.failed] == ["OSError: worker lost"]
    assert len(found.controls) == 3  # the point is tried again without it
    table = convtime.compare([swept.relu, swept.double], {"size": [1, 2]},
                             executor=Failing(2, 3, end=lose), **QUICK)  # fmt: skip
    (point,) = table.failed
    assert point.errors == dict.fromkeys(("relu", "double"), "OSError: worker lost")


def test_a_control_that_an_executor_loses_is_left_out(tmp_path: Path) -> None:
    def lose(future: Future[Any]) -> None:
        future.set_exception(OSError("worker lost"))

    found = convtime.sweep(swept.relu, SIZES, executor=Failing(1, end=lose), **QUICK)
    assert len(found.measurements) == 10
    assert [point.error for point in found.controls] == ["OSError: worker lost"]
    assert "drift is unknown: the control is relu size=6, and it failed: OSError" in str(found)


class LosesTheFirstTwo(Pickling):
    """Loses the first point when it has the second, and that one after the first's second try."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, Future[Any]] = {}

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        made = super().submit(fn, *args, **kwargs)
        number = self.submitted - 1  # behind the call that describes the worker
        if number in (1, 2):
            made = self._kept[number] = Future()
        if number in (2, 4):
            self._kept[number // 2].set_exception(OSError("worker lost"))
        return made


def test_each_point_that_was_lost_with_the_control_is_tried_without_it() -> None:
    found = convtime.sweep(swept.relu, SIZES, executor=LosesTheFirstTwo(), **QUICK)
    assert not found.failed
    assert len(found.measurements) == 10
    assert [point.error for point in found.controls] == ["OSError: worker lost"]


class TakesOnePoint(Pickling):
    """Has measured its first point when it refuses the second."""

    made: Future[Any]
    kept: Future[Any]

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.submitted == 0:  # the call that describes the worker
            return super().submit(fn, *args, **kwargs)
        if self.submitted == 1:
            self.made = super().submit(fn, *args, **kwargs)
            self.kept = Future()
            return self.kept
        self.kept.set_result(self.made.result())
        raise self._error


def test_an_executor_that_takes_no_more_points_keeps_those_that_are_done(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    given: dict[str, Any] = {"fn": swept.relu, "axes": SIZES, "file": file, "seed": 1, **QUICK}
    ended = TakesOnePoint(RuntimeError("cannot schedule new futures\nafter shutdown"))
    with pytest.raises(BrokenExecutor) as broken:
        convtime.sweep(executor=ended, **given)
    assert str(broken.value) == (
        "executor broke before 9 of 10 points were measured (BrokenExecutor: submit raised "
        f"RuntimeError: cannot schedule new futures); {file} has the others, and the same call "
        "continues there"
    )
    assert len(sizes_in(file)) == 1
    with pytest.raises(InputError, match="^no$"):
        convtime.sweep(executor=TakesOnePoint(InputError("no")), **given)
    assert len(sizes_in(file)) == 2


def test_errors_of_this_process_are_not_those_of_an_executor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise OSError("no device")

    monkeypatch.setattr(torch.cuda, "empty_cache", fail)
    with pytest.raises(OSError, match="^no device$"):
        convtime.sweep(swept.relu, SIZES, **QUICK)


def test_an_interrupt_ends_our_processes_and_cancels_those_of_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting: list[Future[Any]] = []
    pools: list[Pickling] = []

    class Ours(Failing):
        def __init__(self, _: Sequence[Place]) -> None:
            super().__init__(2, end=waiting.append)
            pools.append(self)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(executing, "LocalPool", Ours)
    monkeypatch.setattr(visiting, "wait", interrupt)
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
        (swept.relu, {"size": [1]}, {"executor": "local"}, "got 'local'"),
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
    made = executing.call_in_workers(2, "cpu", math.sqrt, [1.0, -1.0, 9.0])
    ended = {place: future.exception() or future.result() for place, future in made}
    assert (ended[0], ended[2]) == (1.0, 3.0)
    assert isinstance(ended[1], ValueError)
    given = Pickling()
    made = executing.call_in_workers(given, None, math.sqrt, [4.0])
    assert [future.result() for _place, future in made] == [2.0]
    assert not given.is_shut_down
    with pytest.raises(InputError, match="define its functions at the top level"):
        next(executing.call_in_workers(given, None, lambda item: item, [1]))


class BreaksAtTheFourthCall(Pickling):
    """Describes itself, makes a call, keeps the next one, and then takes none."""

    kept: Future[Any]

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.submitted < 2:
            return super().submit(fn, *args, **kwargs)
        self.submitted += 1
        if self.submitted == 4:
            raise self._error
        self.kept = Future()
        return self.kept


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
    executor = BreaksAtTheFourthCall(error)
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
    with pytest.warns(UserWarning, match=r"no worker has answered for 0\.1 s") as told:
        made = [*executing.call_in_workers(Slow(warned), None, math.sqrt, [4.0])]
    assert [future.result() for _place, future in made] == [2.0]
    assert len([each for each in told if "no worker" in str(each.message)]) == 1
    warned.clear()
    monkeypatch.setattr(visiting, "ANSWER_SECONDS", 0.1)
    with pytest.warns(UserWarning, match="no worker has answered"):
        swept_late = convtime.sweep(swept.relu, {"size": [64]}, executor=Slow(warned), **QUICK)
    assert all(point.measurement is not None for point in swept_late.points)


def test_a_process_measures_one_point_at_a_time() -> None:
    executor = Pickling()
    with worker._busy, pytest.raises(InputError, match="one point at a time in each process"):
        convtime.sweep(swept.relu, SIZES, executor=executor, **QUICK)
    assert executor.submitted == 2  # the description of the worker, and a point


def test_workers_that_lack_what_is_timed_are_refused() -> None:
    with pytest.raises(InputError, match="must be able to import what they time, got EOF"):
        worker._loaded(b"")
    nothing = Failing(0, end=lambda future: future.set_exception(ImportError("No convtime")))
    with pytest.raises(InputError, match="its first call failed \\(ImportError: No convtime"):
        convtime.sweep(swept.relu, SIZES, executor=nothing, **QUICK)


@pytest.mark.parametrize(
    ("seconds", "control_seconds", "expected"),
    [(1, 1, 8), (100, 1, 2), (100, 100, 8), (200, 30, 2)],
)
def test_a_worker_visits_the_control_again_after_points_or_minutes(
    monkeypatch: pytest.MonkeyPatch, seconds: float, control_seconds: float, expected: int
) -> None:
    now = 0.0
    plan = convtime.sweep(swept.relu, {"size": [1]}, **QUICK).plan

    @dataclasses.dataclass(frozen=True)
    class Made(worker.Maker[SweepPoint]):
        def make(self, point: SweepPoint) -> SweepPoint:
            nonlocal now
            now += control_seconds if point.control else seconds
            return point

    monkeypatch.setattr(time, "monotonic", lambda: now)
    measuring = worker.Worker(Made({}, Axes({}, {"device": "cpu"})))
    (point,) = plan.points()
    visits = [measuring.visit(point, plan.control, is_last=False).visits for _ in range(20)]
    places = [place for place, those in enumerate(visits) if len(those) == 2]
    assert places[:3] == [0, expected, 2 * expected]
    assert [each.control for each in measuring.visit(point, plan.control, is_last=True).visits][-1]


def test_runs_that_share_a_process_visit_the_control_as_often_as_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @dataclasses.dataclass(frozen=True)
    class Made(worker.Maker[SweepPoint]):
        def make(self, point: SweepPoint) -> SweepPoint:
            return point

    monkeypatch.setattr(worker, "_workers", {})
    monkeypatch.setattr(worker, "_loaded", lambda _: Made({}, Axes({}, {"device": "cpu"})))
    machine = worker.machine_of(torch.device("cpu"))
    (point,) = PLAN.points()

    def visits(run: str) -> int:
        made = worker.visit(b"", run, machine, point, PLAN.control, is_last=False)
        return len(made.visits)

    assert [visits(run) for run in "abab"] == [2, 2, 1, 1]
    assert [visits(run) for run in "cdaefa"] == [2, 2, 1, 2, 2, 1]
    assert [*worker._workers] == ["d", "e", "f", "a"]  # the others are forgotten


def controls_of(**factors: Sequence[float]) -> Controls:
    visits = [
        (name, make(seconds=tuple(factor * (1e-6 + n * 1e-11) for n in range(200))), "")
        for name, series in factors.items()
        for factor in series
    ]
    return Controls.of("relu", visits)


def test_a_worker_that_is_slower_than_its_siblings_is_named() -> None:
    controls = controls_of(a=(1, 1), b=(1.1, 1.1), c=(1.001,))
    verdicts = {name: change.verdict for name, change in controls.workers().items()}
    assert verdicts == {"a": "same", "b": "slower"}
    assert controls.typical_worker == "c"
    assert controls.ratios()["b"] == pytest.approx(1.1, rel=0.01)
    told = [*controls.sentences({"b": 5})]
    assert told[1].startswith("WARNING: worker b took 1.09")
    assert "it is slower by more than 3%, and so are the times of its 5 points" in told[1]
    assert len(told) == 2
    equal = [*controls_of(a=(1, 1.2), b=(1.0,)).sentences({})]
    assert "drift: relu on worker a ran at 1.2" in equal[0]
    assert controls_of(a=(1,)).workers() == {} == controls_of(a=(1,)).ratios()
    told = [*controls_of(a=(1, 1), b=(1.001, 1.0)).sentences({})]
    assert told[1] == "2 workers took equally long for the control, within 3%"
    assert "WARNING: worker b" in str(
        Sweep.of_visits(PLAN, [dataclasses.replace(PLAN.control, worker=name, measurement=visits[0])
                               for name, visits in controls.by_worker.items()])
    )  # fmt: skip


PLAN = convtime.sweep(swept.relu, {"size": [1]}, **QUICK).plan


def test_places_of_workers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3, 8, 9, 10, 11})
    siblings = {0: "0,8", 1: "1,9", 2: "2,10", 3: "3,11"}
    for first, text in siblings.items():
        for each in (first, first + 8):
            (tmp_path / f"cpu{each}" / "topology").mkdir(parents=True)
            (tmp_path / f"cpu{each}" / "topology" / "thread_siblings_list").write_text(text)
    assert cpu.by_core([0, 1, 8, 9, 20], tmp_path) == [0, 8, 1, 9, 20]
    monkeypatch.setattr(local_pool, "by_core", lambda cpus: cpu.by_core(cpus, tmp_path))
    shares = [place.cpus for place in local_pool.places(3, "cpu")]
    assert shares == [{0, 8}, {1, 9}, {2, 10}]
    assert cpu.written_cpus([8, 0, 1, 2]) == "0-2,8"
    monkeypatch.setattr(local_pool, "resolve_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a, GPU-b")
    assert local_pool.places("gpus", "cuda") == [Place(gpu="GPU-a"), Place(gpu="GPU-b")]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert local_pool.places(1, "cuda") == [Place(gpu="0")]
    with pytest.raises(InputError, match="at most 2, the number of GPUs, got 3"):
        local_pool.places(3, "cuda")
    with pytest.raises(InputError, match="one GPU each, got 'cuda:1'; use 'cuda'"):
        local_pool.places(1, "cuda:1")


@pytest.mark.cuda
def test_each_gpu_has_a_worker() -> None:
    found = convtime.sweep(swept.relu, SIZES, executor="gpus", stop="count", max_samples=3,
                           min_samples=3)  # fmt: skip
    assert all("GPU-" in point.worker for point in found.points)
    assert len({point.worker for point in found.points}) <= torch.cuda.device_count()


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


def test_the_benchmark_counts_points_that_are_lost_or_twice(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    axes = {"row": [0, 1], "column": [1]}
    convtime.sweep(sweep_scaling.relu, axes, file=file, **QUICK)
    assert sorted(sweep_scaling.points_in(file)) == [(0, 1), (1, 1)]
    file.write_text(file.read_text() + file.read_text().splitlines()[2] + "\n")
    assert len([*sweep_scaling.points_in(file)]) == 3
    scaling = {"key": "scaling", "one_s": [2.0, 4.0, 9.0], "two_s": [1.0, 2.0, 3.0]}
    kills = {"key": "kills", "lost": 1, "failed": 2, "twice": 4}
    assert sweep_scaling.summarise([scaling]) == {"two_gpus": 2.0}
    assert sweep_scaling.summarise([kills]) == {"points_lost": 3, "points_twice": 4}
