"""Sweeps: their axes, order, file, and what fails; the table and the picture of them."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import fcntl
import functools
import io
import json
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import convtime
from convtime import Counters, CountersUnavailable, KernelCounters, Sweep, SweepPoint
from convtime.core.errors import InputError
from convtime.core.provenance import provenance
from convtime.sweeps import application, journal, worker
from convtime.sweeps import files as sweeps
from convtime.sweeps import sweep as running
from convtime.sweeps.plan import SweepPlan
from tests.helpers.figures import check_drawn, encodings, of_series, parts, table, tables
from tests.helpers.measurements import make
from tests.helpers.texts import flat

COUNTED: dict[str, Any] = {"stop": "count", "min_samples": 3, "max_samples": 3}
QUICK: dict[str, Any] = {**COUNTED, "warmup": 1}
SIZES: dict[str, Any] = {"size": [1, 2, 4], "dtype": [torch.float32, torch.float64]}


class Recorder:
    """A factory that notes what it was called with; of some values it raises."""

    def __init__(self, raising: Callable[[int], BaseException | None] = lambda _: None) -> None:
        self.made: list[tuple[int, torch.dtype]] = []
        self._raising = raising

    def __call__(self, size: int, dtype: torch.dtype = torch.float32) -> Callable[[], object]:
        error = self._raising(size)
        if error is not None:
            raise error
        self.made.append((size, dtype))
        x = torch.ones(size, dtype=dtype)
        return lambda: torch.relu(x)


def nothing() -> None:
    pass


def test_every_combination_is_measured_and_the_control_in_between() -> None:
    factory = Recorder()
    axes: dict[str, Any] = {"size": [1, 2, 3, 4, 5], "dtype": [torch.float32, torch.float64]}
    swept = convtime.sweep({"relu": factory}, axes, seed=1, **QUICK)
    wanted = [(size, dtype) for size in axes["size"] for dtype in axes["dtype"]]
    control = wanted[5]
    first, *middle, last = factory.made
    assert first == last == control
    assert middle.pop(8) == control
    assert sorted(middle, key=str) == sorted(wanted, key=str)
    assert middle != wanted
    names = [f"relu size={size} dtype={str(dtype)[6:]}" for size, dtype in wanted]
    assert list(swept.measurements) == names
    assert [point.visit for point in swept.controls] == [0, 9, 12]
    assert all(len(each.seconds) == 3 for each in swept.measurements.values())
    again = Recorder()
    convtime.sweep({"relu": again}, axes, seed=1, **QUICK)
    assert again.made == factory.made


def test_the_seed_is_drawn_and_kept() -> None:
    seeds = {convtime.sweep(nothing, {"warmup": [1]}, **COUNTED).plan.seed}
    seeds |= {convtime.sweep(nothing, {"warmup": [1]}, **COUNTED).plan.seed}
    assert len(seeds) == 2


def test_iterations_are_all_the_calls_of_a_run_but_the_one_that_loads() -> None:
    calls = 0

    def call() -> None:
        nonlocal calls
        calls += 1

    swept = convtime.sweep(call, {"iterations": [1, 10, 100]}, rest=0)
    counts = [len(each.seconds) for each in swept.measurements.values()]
    assert counts == [1, 10, 100]
    assert calls == sum(counts) + 10 + 10 + len(swept.points) + len(swept.controls)
    assert swept.plan.rest == 0
    for measured in swept.measurements.values():
        assert (measured.cache.requested, measured.placement.requested) == ("warm", "as-is")
        assert (measured.regime.requested, measured.queue.requested) == ("as-is", "none")


@pytest.mark.cuda
def test_iterations_on_a_gpu_have_kernels_and_clocks() -> None:
    x = torch.randn(1 << 16, device="cuda")
    swept = convtime.sweep(
        lambda: torch.relu(x), {"iterations": [1, 10, 100]}, method="kernel", counters="dram"
    )
    for point in swept.points:
        measured = point.measurement
        assert measured is not None
        assert len(measured.seconds) == len(measured.sm_clocks_hz) == point.values["iterations"]
        assert (measured.cache, measured.placement, measured.discarded) == ("warm", "as-is", ())
        assert bool(point.counters_reason) == (point.counters is None)
    assert len(swept.kernels) == 1
    if swept.metrics:  # else nobody may read counters here
        with pytest.raises(InputError, match=r"'dram__bytes_raed\.sum'.*dram__bytes_read"):
            convtime.sweep(nothing, {"warmup": [1]}, counters="dram__bytes_raed.sum")


def test_iterations_begin_behind_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("convtime.sweeps.sweep.time.sleep", slept.append)
    convtime.sweep(nothing, {"iterations": [1]}, cache="auto")
    convtime.sweep(nothing, {"warmup": [1]}, **COUNTED)
    assert slept == [0.3] * 3 + [0.0] * 3


def test_options_of_time_op_are_axes() -> None:
    axes: dict[str, Any] = {"max_samples": [3, 5], "placement": ["as-is", "auto"]}
    swept = convtime.sweep(nothing, axes, stop="count", min_samples=1, warmup=1)
    found = [(len(each.seconds), each.placement.requested) for each in swept.measurements.values()]
    assert found == [(3, "as-is"), (3, "auto"), (5, "as-is"), (5, "auto")]


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([torch.float16, torch.channels_last], ("float16", "channels_last")),
        ([(3, 3), [5, 5]], ("(3, 3)", "(5, 5)")),
        ([np.int64(3), np.float32(0.5)], (3, 0.5)),
        ({"relu": torch.relu, 2: torch.abs}, ("relu", 2)),
        (range(2), (0, 1)),
        ([None, True, "a"], (None, True, "a")),
        ([float("inf")], ("inf",)),
    ],
)
def test_values_are_written_down_and_given_as_they_are(values: Any, labels: tuple[Any]) -> None:
    given = []

    def factory(value: object) -> Callable[[], None]:
        given.append(value)
        return nothing

    swept = convtime.sweep(factory, {"value": values}, **QUICK)
    assert swept.plan.axes == {"value": labels}
    expected = values.values() if isinstance(values, dict) else values
    assert all(any(each is value for each in given) for value in expected if value is not None)
    assert Sweep.from_dict(json.loads(json.dumps(swept.to_dict()))) == swept


def test_what_is_timed_may_be_a_candidate_or_what_a_factory_makes_one() -> None:
    x = torch.ones(4)
    made = convtime.sweep(
        lambda size: convtime.Candidate(torch.relu, torch.ones(size)), {"size": [2]}, **QUICK
    )
    given = convtime.sweep(convtime.Candidate(torch.relu, x), {"warmup": [1]}, **COUNTED)
    bound = convtime.sweep(functools.partial(torch.relu, x), {"warmup": [1]}, **COUNTED)
    assert list(made.measurements) == ["<lambda> size=2"]
    assert list(given.measurements) == list(bound.measurements) == ["relu warmup=1"]


@pytest.mark.parametrize(
    ("fn", "axes", "options", "said"),
    [
        (nothing, {}, {}, "axes must be a mapping of names to values"),
        (nothing, [1], {}, "axes must be a mapping of names to values"),
        (nothing, {"warmup": []}, {}, "axis 'warmup' must have at least one value"),
        (nothing, {"warmup": 3}, {}, "axis 'warmup' must have a sequence of values, got 3"),
        (nothing, {"regime": "burst"}, {}, "must have a sequence of values, got 'burst'"),
        (nothing, {"warmup": [1, 2, 1]}, {}, "axis 'warmup' has the value 1 more than once"),
        (nothing, {"warmup": [1, 1.0]}, {}, "axis 'warmup' has the value 1.0 more than once"),
        (
            lambda a, b: a,
            {"a": ["1 b=2", "1"], "b": ["3", "2 b=3"]},
            {},
            "got 2 points named '<lambda> a=1 b=2 b=3'; give",
        ),
        (nothing, {"a b": [1]}, {}, "must be a parameter or an option, got 'a b'"),
        (lambda mean: mean, {"mean": [1]}, {}, "must not be a column of the table, got 'mean'"),
        (
            lambda a: a,
            {"a": [object()]},
            {},
            "integers of 64 bits, got one of type object",
        ),
        (nothing, {"size": [1]}, {}, "or a parameter of 'nothing', which takes none"),
        (lambda a, b: a, {"a": [1]}, {}, "'<lambda>' needs 'b', which no axis gives"),
        (lambda a: a, {"warmup": [1]}, {}, "no axis is a parameter"),
        (lambda cache, a: a, {"a": [1]}, {}, "'cache', which is an option of time_op"),
        (nothing, {"method": ["kernel", "x"]}, {}, "axis 'method': method must be one of"),
        (nothing, {"warmup": [1]}, {"warmup": 2}, "warmup must be either an axis or an option"),
        (
            nothing,
            {"stop": ["count"]},
            {"stop": "interval"},
            "stop must be either an axis or an option",
        ),
        (nothing, {"iterations": [1]}, {"stop": "interval"}, "remove stop or the axis"),
        (nothing, {"warmup": [1]}, {"cache": "x"}, "cache must be one of"),
        (nothing, {"warmup": [1]}, {"stop": "verdict"}, "stop of a sweep must not be 'verdict'"),
        (nothing, {"iterations": [0]}, {}, "integers of at least 1, got 0"),
        (nothing, {"iterations": [1]}, {"budget": 1.0}, "remove budget or the axis"),
        (nothing, {"iterations": [1]}, {"method": "graph"}, "method 'graph' times many at once"),
        (nothing, {"warmup": [1]}, {"rest": -1}, "rest must be a number of seconds from 0 to"),
        (nothing, {"warmup": [1]}, {"rest": 1e300}, "from 0 to 86400 (a day), got 1e+300"),
        (nothing, {"warmup": [1]}, {"file": 5}, "file must be a path, got 5"),
        (nothing, {"warmup": [1]}, {"min_samples": 20_000}, "max_samples must be at least min_"),
        (
            nothing,
            {"min_samples": [5, 30], "max_samples": [20, 40]},
            {},
            (
                "at min_samples=30, max_samples=20: max_samples must be at least min_samples (30), "
                "got 20"
            ),
        ),
        (nothing, {"budget": [1.0, 0.0]}, {}, "at budget=0.0: budget must be more than 0 seconds"),
        (nothing, {"warmup": [1]}, {"tolerance": -1.0}, "tolerance must be 0 or more, got -1"),
        (lambda a: a, {"a": {object(): 1}}, {}, "of type object; use a string as name"),
        (nothing, {"pin": [10**6]}, {}, "at pin=1000000: pin must be one of the"),
        (nothing, {"warmup": [1]}, {"seed": 0.5}, "seed must be an integer, got 0.5"),
        ({}, {"warmup": [1]}, {}, "at least one application, got none"),
        ({"a": 3}, {"warmup": [1]}, {}, "'a' must be callable, or a Candidate, got int"),
        ({"": nothing}, {"warmup": [1]}, {}, "name must be a non-empty string, got ''"),
        (3, {"warmup": [1]}, {}, "must be a callable, a Candidate, or a mapping"),
        (
            convtime.Candidate(nothing),
            {"size": [1]},
            {},
            "is a Candidate, which takes no parameters",
        ),
    ],
)
def test_what_does_not_fit_is_one_sentence_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, fn: Any, axes: Any, options: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr(running, "time_op", lambda *_, **__: pytest.fail("it was timed"))
    with pytest.raises(ValueError, match=".") as refused:
        convtime.sweep(fn, axes, **options)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_options_fit_each_other_at_each_point() -> None:
    swept = convtime.sweep(nothing, {"min_samples": [1, 2]}, max_samples=3, stop="count")
    assert [len(each.seconds) for each in swept.measurements.values()] == [3, 3]


def test_labels_of_values_are_written_as_values_are() -> None:
    values = {torch.float16: "half", (1, 2): "pair", "text": "text", None: "none"}
    swept = convtime.sweep(lambda a: nothing, {"a": values}, **COUNTED)
    assert swept.plan.axes["a"] == ("float16", "(1, 2)", "text", None)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(
        TypeError, match="sweep has no option 'colour'; there are method, metric, queue"
    ):
        convtime.sweep(nothing, {"warmup": [1]}, colour="red")  # type: ignore[call-arg]


def test_a_point_that_fails_is_marked_and_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    broken = True

    def raising(size: int) -> BaseException | None:
        if size == 4:
            return SystemExit("enough")
        return MemoryError("no room\nat all") if size == 2 and broken else None

    factory = Recorder(raising)
    swept = convtime.sweep({"r": factory}, {"size": [1, 2, 3, 4]}, file=file, **QUICK)
    errors = [point.error for point in swept.points]
    assert errors == ["", "MemoryError: no room", "", "SystemExit: enough"]
    assert list(swept.measurements) == ["r size=1", "r size=3"]
    assert "r size=2 failed: MemoryError: no room" in str(swept)
    assert "failed" in str(swept).splitlines()[3]
    broken = False
    factory.made.clear()
    again = convtime.sweep({"r": factory}, {"size": [1, 2, 3, 4]}, file=file, **QUICK)
    assert {size for size, _ in factory.made} == {2, 3}  # 3 is the control
    assert [point.name for point in again.failed] == ["r size=4"]


def test_a_factory_that_gives_nothing_to_time_is_told_what_it_must_give() -> None:
    swept = convtime.sweep({"relu": lambda size: torch.ones(size)}, {"size": [1]}, **QUICK)
    assert swept.points[0].error == (
        "a factory must return a callable or a convtime.Candidate, got Tensor; "
        "return a function that does the work"
    )
    assert "drift is unknown: the control is relu size=1, and it failed" in str(swept)


def interrupted_at(visit: int) -> Callable[[int], BaseException | None]:
    visits = iter(range(1, 100))
    return lambda _: KeyboardInterrupt() if next(visits) == visit else None


@pytest.mark.parametrize("torn", [b"", b'{"application": "relu", "val'])
def test_an_interrupted_sweep_goes_on(tmp_path: Path, torn: bytes) -> None:
    file = tmp_path / "a.jsonl"
    factory = Recorder(interrupted_at(5))
    with pytest.raises(KeyboardInterrupt):
        convtime.sweep({"relu": factory}, SIZES, file=file, **QUICK)
    before = convtime.read_measurements(file)
    assert len(before) == 3
    with file.open("ab") as opened:
        opened.write(torn)
    partial = sweeps.read(io.BytesIO(file.read_bytes()), "a").result
    assert len(partial.missing) == 3
    assert "not measured: the run was interrupted" in str(partial)
    factory.made.clear()
    swept = convtime.sweep({"relu": factory}, SIZES, file=file, **QUICK)
    assert len(factory.made) == 1 + 3 + 1
    assert swept.measurements.items() >= before.items()
    assert len(swept.measurements) == 6
    assert not swept.missing
    assert len(swept.controls) == 3
    assert sweeps.read(io.BytesIO(file.read_bytes()), "a").result == swept
    factory.made.clear()
    assert convtime.sweep({"relu": factory}, SIZES, file=file, **QUICK) == swept
    assert factory.made == []


def test_a_file_with_the_line_ends_of_windows_is_resumed(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    factory = Recorder(interrupted_at(5))
    with pytest.raises(KeyboardInterrupt):
        convtime.sweep({"relu": factory}, SIZES, file=file, **QUICK)
    whole = file.read_bytes().replace(b"\n", b"\r\n")
    file.write_bytes(whole + b'{"application": "relu", "val')
    before = convtime.read_measurements(file)
    swept = convtime.sweep({"relu": factory}, SIZES, file=file, **QUICK)
    assert swept.measurements.items() >= before.items()
    assert file.read_bytes().startswith(whole + b"{")
    content = file.read_bytes()
    assert convtime.sweep({"relu": factory}, SIZES, file=file, **QUICK) == swept
    assert file.read_bytes() == content


def test_a_file_is_read_without_copies_of_it(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    measured = make(seconds=tuple(1e-6 * (1 + n / 1e3) for n in range(2000)), activities=())
    point = dataclasses.replace(PLAN.points()[0], measurement=measured)
    file.write_text(sweeps.first_line(PLAN) + sweeps.visit_line(point) * 50)
    size = file.stat().st_size
    tracemalloc.start()
    with journal.opened(file, PLAN, seed_given=False) as opened:
        retained, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(opened.visits) == 50
    assert peak - retained < size / 4


def test_an_empty_file_is_begun_and_one_that_ends_in_its_first_line_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.touch()
    convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    whole = file.read_text()
    file.write_text(whole[:100])
    with pytest.raises(InputError, match="ends in its first line"):
        convtime.read_measurements(file)


def other(size: int, dtype: torch.dtype) -> Callable[[], object]:
    return lambda: (size, dtype)


def one_more(size: int, dtype: torch.dtype) -> Callable[[], object]:
    return lambda: (size, dtype, 1)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"axes": {**SIZES, "size": [1, 2]}}, "axis size is 1, 2, 4 in the file, 1, 2 here"),
        ({"axes": dict(reversed(SIZES.items()))}, "axes in the order size, dtype in the file"),
        ({"axes": {"size": [1]}, "fn": {"a": Recorder()}}, "axis dtype is only in the file"),
        ({"fn": {"a": one_more}}, "application a is "),
        (
            {"fn": {"b": other}},
            "application a is only in the file; application b is not in the file",
        ),
        ({"warmup": 2}, "option warmup is 1 in the file, 2 here"),
        ({"warmup": 1.0}, "option warmup is 1 in the file, 1.0 here"),
        ({"cache": "cold"}, "option cache is not in the file"),
        ({"counters": "dram"}, "counters none in the file, dram here"),
        ({"rest": 0.5}, "rest 0.0 in the file, 0.5 here"),
        ({"seed": 2}, "seed 1 in the file, 2 here"),
    ],
)
def test_the_file_of_another_sweep_is_refused_and_stays(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    file = tmp_path / "a.jsonl"
    given: dict[str, Any] = {"fn": {"a": other}, "axes": SIZES, "file": file, "seed": 1, **QUICK}
    convtime.sweep(**given)
    content = file.read_bytes()
    with pytest.raises(InputError, match="a.jsonl: belongs to a different run: ") as refused:
        convtime.sweep(**{**given, **changes})
    assert said in str(refused.value)
    assert file.read_bytes() == content


def test_the_file_of_another_machine_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a.jsonl"
    convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    another = provenance(torch.device("cpu")) | {"torch": "9.9"}
    monkeypatch.setattr(worker, "provenance", lambda _: another)
    with pytest.raises(InputError, match=r"machine's torch is .* in the file, 9\.9 here"):
        convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: "print('mine')\n", "is not the file of a sweep or comparison (unchanged)"),
        (lambda text: text.replace('"schema": "6.', '"schema": "9.', 1), "of schema '9.0' cannot"),
        (lambda text: text.replace("\n", "\nnonsense\n", 1), "line 2: is not valid JSON"),
        (lambda text: text.replace('"visit": 0', '"visit": "x"', 1), "line 2: a SweepPoint cannot"),
        (lambda text: text.replace('{"warmup": 1}', '{"warmup": 2}', 1), "not in the file's plan"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_and_stays(
    tmp_path: Path, edit: Callable[[str], str], said: str
) -> None:
    file = tmp_path / "a.jsonl"
    convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    file.write_text(edit(file.read_text()))
    content = file.read_bytes()
    with pytest.raises(InputError, match="a.jsonl") as refused:
        convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    assert said in str(refused.value)
    assert file.read_bytes() == content


def test_two_sweeps_do_not_write_to_one_file(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another sweep or comparison is writing"):
            convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)


def test_of_sweeps_that_start_together_one_has_the_new_file(tmp_path: Path) -> None:
    together = threading.Barrier(4)

    def has(file: Path) -> bool:
        together.wait()
        with contextlib.ExitStack() as held:
            with contextlib.suppress(InputError):
                held.enter_context(journal.opened(file, PLAN, seed_given=False))
                together.wait()
                return True
            together.wait()
            return False

    with ThreadPoolExecutor(4) as pool:
        for number in range(20):
            assert sum(pool.map(has, [tmp_path / f"{number}.jsonl"] * 4)) == 1


def test_a_full_disk_ends_it_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("convtime.sweeps.journal.os.fsync", full)
    file = tmp_path / "a.jsonl"
    with pytest.raises(InputError, match="cannot be written \\(No space left on device\\)"):
        convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file)
    assert file.read_bytes() == b""
    monkeypatch.undo()
    assert not convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, file=file).missing


def test_code_is_known_again_wherever_it_stands() -> None:
    def function_of(source: str, *, file: str = "a.py") -> Callable[..., object]:
        namespace: dict[str, Any] = {"__name__": "m"}
        exec(compile(source, file, "exec"), namespace)
        found: Callable[..., object] = namespace["f"]
        return found

    source = "def f(a):\n    return lambda: a in {1, 2, 'x'}\n"
    one = application.described(function_of(source))
    assert one.startswith("m.f (")
    assert application.described(function_of("\n\n" + source, file="b.py")) == one
    assert application.described(function_of(source.replace("'x'", "'y'"))) != one
    decorated = [
        function_of("import torch\n@torch.no_grad()\n" + source.replace("'x'", letter))
        for letter in ("'x'", "'y'")
    ]
    assert application.described(decorated[0]) == one != application.described(decorated[1])
    x = torch.ones(2, 3, dtype=torch.float16)
    named = application.described(convtime.Candidate(torch.relu, x, kwargs={"n": 1}))
    assert named.endswith("relu(float16[2×3], n=1)")
    assert application.described(functools.partial(torch.abs, x)).endswith("(float16[2×3], …)")
    assert application.described(Recorder()).startswith(f"{__name__}.Recorder (")


PLAN = SweepPlan(
    {"PyTorch": "a", "<b>": "c"}, {"iterations": (1, 10, 100), "layout": ("x",)}, seed=7
)


def counters_of(**samples: Sequence[float | None]) -> Counters:
    kernel = KernelCounters("relu_kernel", 1, {name: each[0] for name, each in samples.items()})
    return Counters(
        name="relu", kernels=(kernel,), samples={name: (*each,) for name, each in samples.items()},
        totals={name: each[0] for name, each in samples.items()},
        units=dict.fromkeys(samples, "byte"), descriptions=dict.fromkeys(samples, ""),
        method="range profiler", replay="call", passes=1, cache="cold", device="cuda:0",
    )  # fmt: skip


def measured_at(microseconds: float, **changes: Any) -> convtime.Measurement:
    """Thirty samples around a time, a tenth of a per cent apart, on a CPU."""
    seconds = tuple(1e-6 * microseconds * (1 + 1e-3 * (index % 3 - 1)) for index in range(30))
    return make(
        seconds=seconds, activities=(), sm_clocks_hz=(), discarded=(), method="cpu",
        method_requested="cpu", device="cpu", **changes,
    )  # fmt: skip


def swept_of(controls: Sequence[float] = (2, 2, 2), **changes: Any) -> Sweep:
    """PyTorch takes 1, 2 and 3 µs, and the other 3, 4 and 5."""
    visits = [
        dataclasses.replace(point, visit=number, measurement=measured_at(time), **changes)
        for number, (point, time) in enumerate(zip(PLAN.points(), (1, 2, 3, 3, 4, 5), strict=True))
    ]
    visits += [
        dataclasses.replace(PLAN.control, visit=10 + number, measurement=measured_at(time))
        for number, time in enumerate(controls)
    ]
    return Sweep.of_visits(PLAN, visits)


@pytest.mark.parametrize(
    ("controls", "verdict", "said"),
    [
        ((2, 9, 2.01), "same", "the machine was stable within 3%"),
        (
            (2, 2.3),
            "slower",
            "WARNING: the machine became slower during the run, by more than 3%",
        ),
        ((2, 2.06), "uncertain", "the machine's stability is uncertain"),
    ],
)
def test_drift_is_the_last_control_over_the_first(
    controls: Sequence[float], verdict: str, said: str
) -> None:
    swept = swept_of(controls)
    drift = swept.drift()
    assert drift is not None
    assert drift.ratio is not None
    assert drift.ratio.value == pytest.approx(controls[-1] / controls[0])
    assert drift.verdict == verdict
    assert said in str(swept)
    assert swept.drift(margin=0.5).verdict == "same"


def test_one_control_shows_no_drift() -> None:
    swept = swept_of(controls=(2,))
    assert swept.drift() is None
    assert "drift is unknown: the control is PyTorch iterations=10 layout=x, and" in str(swept)
    idle = swept_of(controls=(0, 0))
    assert "layout=x, and its median before is 0 s, so there is no ratio" in str(idle)
    assert "drift" not in repr(idle)


def test_the_table_has_a_row_for_each_point_and_quantity() -> None:
    counted = counters_of(written=(7.0, 9.0, None, 8.5), none=(None,))
    swept = swept_of(counters=counted)
    rows = swept.to_rows()
    assert len(rows) == 6 * 3
    time, written, none = rows[9:12]
    assert (time["application"], time["iterations"], time["layout"]) == ("<b>", 1, "x")
    seconds = swept["<b> iterations=1 layout=x"].measurement.seconds
    assert (time["quantity"], time["unit"], time["count"]) == ("time", "s", 30)
    for name in ("mean", "min", "max", "median"):
        assert time[name] == pytest.approx(getattr(np, name)(seconds))
    assert time["median_low"] < time["median"] < time["median_high"]
    assert (time["method_used"], time["device_used"]) == ("cpu", "cpu")
    assert (written["quantity"], written["unit"], written["count"]) == ("written", "byte", 3)
    assert (written["min"], written["max"], written["median"]) == (7.0, 9.0, 8.5)
    assert written["mean"] == pytest.approx(24.5 / 3)
    assert "mean" not in none
    read = list(csv.DictReader(io.StringIO(swept.to_csv())))
    assert [row["quantity"] for row in read] == ["time", "written", "none"] * 6
    assert [float(row["mean"]) for row in read[::3]] == [row["mean"] for row in rows[::3]]
    frame = swept.to_frame()
    assert list(frame["quantity"][:3]) == ["time", "written", "none"]
    assert list(frame.columns)[:4] == ["application", "iterations", "layout", "quantity"]


def test_the_table_has_kernels_where_they_are_asked_for() -> None:
    point = dataclasses.replace(
        PLAN.points()[0], measurement=make(), counters=counters_of(written=(7.0, 9.0))
    )
    swept = Sweep(PLAN, (point,))
    rows = swept.to_rows(kernels=True)
    assert [(row["quantity"], row["kernel"]) for row in rows] == [
        ("time", ""),
        ("time", "relu_kernel"),
        ("written", ""),
        ("written", "relu_kernel"),
    ]
    assert (rows[1]["count"], rows[1]["median"], rows[3]["median"]) == (3, 2e-6, 7.0)
    assert swept.kernels == ("relu_kernel",)


def test_a_failed_point_has_a_row_with_its_error() -> None:
    point = dataclasses.replace(PLAN.points()[1], error="ValueError: x")
    (row,) = Sweep(PLAN, (point,)).to_rows()
    assert row == {
        "application": "PyTorch", "iterations": 10, "layout": "x", "error": "ValueError: x"
    }  # fmt: skip


def test_a_sweep_shows_itself() -> None:
    swept = swept_of(counters=counters_of(written=(7.0, 9.0)))
    assert str(swept).splitlines()[:4] == [
        "         iterations  layout            median [95 %]      mean            min .. max",
        "─" * 84,
        "PyTorch           1       x  1.000 µs [0.999, 1.001]  1.000 µs  999.0 ns .. 1.001 µs",
        "PyTorch          10       x  2.000 µs [1.999, 2.001]  2.000 µs  1.998 µs .. 2.002 µs",
    ]
    assert repr(swept).startswith(
        "<convtime.Sweep PyTorch, <b>: 3 iterations × 1 layout, 6 points measured, drift 1.0000 ["
    )
    for fact in ("8 byte (7 .. 9)", "seed: 7,", "application <b>: c", "control: median"):
        assert fact in flat(swept)
    assert "&lt;b&gt;" in swept._repr_html_()
    assert "<b>" not in swept._repr_html_()
    assert str(swept.points[0]).startswith("relu: 1.000 µs")
    assert str(dataclasses.replace(PLAN.points()[0], error="E: x")).endswith("layout=x: E: x")
    with pytest.raises(KeyError, match="'x' is not a visited point; the first point is 'P"):
        swept["x"]


def test_what_is_true_of_many_points_is_said_once() -> None:
    swept = swept_of(counters_reason="set this")
    assert str(swept).count("counters were not read at 6 points: set this") == 1
    failed = Sweep(PLAN, tuple(dataclasses.replace(each, error="E") for each in PLAN.points()[:2]))
    said = "PyTorch iterations=1 layout=x, PyTorch iterations=10 layout=x failed: E"
    assert said in str(failed)


def test_the_picture_has_a_line_and_a_band_for_each_application() -> None:
    swept = swept_of(counters=counters_of(written=(7.0, 9.0)))
    figure = swept.plot()
    time, written = tables(figure, "middle")
    colors = encodings(figure, "series")[0]["scale"]
    assert dict(zip(colors["domain"], colors["range"], strict=True)) == {
        "PyTorch": "#D55E00",
        "<b>": "#0072B2",
    }
    assert of_series(time, "PyTorch", "x") == [1, 10, 100]
    assert of_series(time, "<b>", "middle") == pytest.approx([3, 4, 5])
    assert encodings(figure, "x")[0]["scale"]["type"] == "log"
    ends = [
        1e6 * point.measurement.median_interval[1]
        for point in swept.points[:3]
        if point.measurement is not None
    ]
    assert of_series(time, "PyTorch", "high") == pytest.approx(ends)
    titles = {each["title"] for each in encodings(figure, "middle")}
    assert "written (byte): median, min to max" in titles
    assert of_series(written, "PyTorch", "middle") == [8.0] * 3
    assert len(tables(swept.plot(quantities=["time"]), "middle")) == 1
    by_layout = swept.plot(x="layout", quantities=["time"])
    assert "iterations=1" in [part.get("title") for part in parts(by_layout.spec)]
    kernels = Sweep(PLAN, (dataclasses.replace(PLAN.points()[0], measurement=make()),))
    assert table(kernels.plot(kernel="relu_kernel"), "middle")["middle"] == [2.0]
    for each in (figure, by_layout):
        check_drawn(each)
    wrong: Any
    for wrong, said in (
        ({"x": "y"}, "x must be one of"),
        ({"quantities": ["y"]}, "quantities must be from time"),
        ({"kernel": "y"}, "kernel must be one of relu_kernel"),
    ):
        with pytest.raises(InputError, match=said):
            swept.plot(**wrong)
    with pytest.raises(InputError, match="at least one measurement"):
        Sweep(PLAN, ()).plot()


def test_a_file_and_a_document_hold_the_same(tmp_path: Path) -> None:
    lines, document = tmp_path / "a.jsonl", tmp_path / "a.json"
    swept = swept_of(counters=counters_of(written=(7.0, None)))
    visits = [*swept.points, *swept.controls]
    lines.write_text(sweeps.first_line(PLAN) + "".join(map(sweeps.visit_line, visits)))
    convtime.write_measurements(swept, document)
    assert Sweep.from_dict(json.loads(document.read_text())) == swept
    assert sweeps.read(io.BytesIO(lines.read_bytes()), "a").result == swept
    for path in (lines, document):
        assert convtime.read_measurements(path) == swept.measurements
    with pytest.raises(ValueError, match="of schema '2.0' cannot be read"):
        Sweep.from_dict({**swept.to_dict(), "schema": "2.0"})


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"applications": {}}, "from 1 to 1,000,000 points, got 0"),
        ({"axes": {"iterations": []}}, "from 1 to 1,000,000 points, got 0"),
        ({"axes": {axis: [*range(50)] for axis in "abcd"}}, "1,000,000 points, got 12,500,000"),
        ({"axes": {f"a{number}": [1, 2] for number in range(2000)}}, "got more than 10^18"),
        ({"axes": {}}, "must be a point of the sweep's plan"),
        ({"axes": {"layout": ["x"], "iterations": [1, 10, 100]}}, "must be a point of the"),
        ({"axes": {"iterations": [1, 10], "layout": ["x"]}}, "'PyTorch iterations=100 layout=x'"),
    ],
)
def test_a_plan_must_have_the_points_that_there_are(
    tmp_path: Path, plan: dict[str, Any], said: str
) -> None:
    document = swept_of().to_dict()
    document["plan"] = document["plan"] | plan
    file = tmp_path / "a.json"
    file.write_text(json.dumps(document))
    with pytest.raises(InputError) as refused:
        convtime.read_measurements(file)
    assert said in str(refused.value)
    assert len(str(refused.value)) < len(str(file)) + 200
    with pytest.raises(ValueError, match="each point must occur once"):
        Sweep(PLAN, swept_of().points * 2)
    with pytest.raises(InputError, match="got 10,000,000"):
        convtime.sweep(lambda **_: nothing, {axis: [*range(10)] for axis in "abcdefg"})


def test_a_bar_is_shown_where_it_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for progress, shown in ((None, False), (False, False), (True, True)):
        convtime.sweep(nothing, {"warmup": [1]}, **COUNTED, progress=progress)
        assert ("nothing warmup=1" in capsys.readouterr().err) == shown


def test_a_line_may_have_any_letters(tmp_path: Path) -> None:
    name = "a\u2028b\nc"
    swept = convtime.sweep({name: nothing}, {"warmup": [1]}, **COUNTED, file=tmp_path / "a")
    assert list(convtime.read_measurements(tmp_path / "a")) == [f"{name} warmup=1"]
    assert "a\\u2028b\\nc" in str(swept)


def test_an_error_may_have_half_a_letter(tmp_path: Path) -> None:
    factory = Recorder(lambda _: ValueError("\udcff is no size"))
    convtime.sweep({"relu": factory}, {"size": [1]}, **QUICK, file=tmp_path / "a")
    convtime.sweep({"relu": Recorder()}, {"size": [1]}, **QUICK, file=tmp_path / "a")
    assert list(convtime.read_measurements(tmp_path / "a")) == ["relu size=1"]


def test_counters_that_cannot_be_read_are_said_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unavailable(*_: object, **__: object) -> Counters:
        raise CountersUnavailable("set NVreg_RestrictProfilingToAdminUsers=0")

    monkeypatch.setattr(running, "read_counters", unavailable)
    swept = convtime.sweep(nothing, {"warmup": [1, 2]}, **COUNTED, counters="dram")
    assert len(swept.measurements) == 2
    assert swept.metrics == ()
    said = "warmup=1, nothing warmup=2: set NVreg_RestrictProfilingToAdminUsers=0"
    assert said in str(swept)


def test_counters_are_read_at_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def read(candidate: Any, metrics: object, repeats: int = 1, **__: object) -> Counters:
        asked.append((candidate.fn, metrics, repeats))
        return counters_of(written=(1.0, 3.0))

    monkeypatch.setattr(running, "read_counters", read)
    swept = convtime.sweep(nothing, {"iterations": [2, 9]}, rest=0, counters="dram, l2")
    assert sorted(asked, key=lambda each: each[2]) == [
        (nothing, ("dram", "l2"), 2),
        (nothing, ("dram", "l2"), 5),
    ]
    assert swept.metrics == ("written",)
    assert [row["mean"] for row in swept.to_rows() if row["quantity"] == "written"] == [2.0, 2.0]


def test_a_metric_that_there_is_not_is_refused_before_anything_runs() -> None:
    with pytest.raises(InputError, match="'dramm'.*dram"):
        convtime.sweep(lambda: pytest.fail("it ran"), {"warmup": [1]}, counters="dramm")


def test_old_names_of_metrics_stand_for_what_they_are_of() -> None:
    old = {"written": {"a": 32.0, "b": 1.0}}
    counted = dataclasses.replace(
        counters_of(a=(1.0, None, 2.0), b=(5.0, 6.0, 7.0), c=(4.0,)), translated=old
    )
    swept = swept_of(counters=counted)
    assert swept.metrics == ("written", "c")
    row = next(row for row in swept.to_rows() if row["quantity"] == "written")
    assert (row["count"], row["min"], row["max"], row["unit"]) == (2, 37.0, 71.0, "byte")


def test_points_are_of_their_plan() -> None:
    assert PLAN.control == dataclasses.replace(PLAN.points()[1], control=True)
    assert [point.name for point in PLAN.points()][::5] == [
        "PyTorch iterations=1 layout=x", "<b> iterations=100 layout=x"
    ]  # fmt: skip
    assert isinstance(PLAN.points()[0], SweepPoint)
