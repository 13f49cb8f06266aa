"""Measurements of torch.utils.benchmark."""

import pytest
from torch.utils import benchmark

from convtime.exchange.files import read_measurements
from convtime.timing.comparison import Comparison
from tests.helpers.foreign import assert_says_that_nothing_is_known, make


def test_measurements_and_tables_are_read() -> None:
    tasks = [benchmark.TaskSpec("x + y", "", label="add", description=of) for of in ("one", "two")]
    theirs = [
        benchmark.Measurement(10, [10 * seconds], task)
        for task in tasks
        for seconds in (1e-6, 3e-6)
    ]
    for source in (theirs, benchmark.Compare(theirs)):
        found = read_measurements(source)
        assert list(found) == ["add, one", "add, two"]
        one = found["add, one"]
        assert one.seconds == pytest.approx([1e-6, 3e-6])
        assert "mean of 10 calls" in one.method.reason
        assert one.provenance["stmt"] == "x + y"
        assert_says_that_nothing_is_known(one, "torch.utils.benchmark")
    for calls, said in ((1, ""), (2, "; each sample is the mean of 2 calls")):
        (one,) = read_measurements(benchmark.Measurement(calls, [1e-6], tasks[0])).values()
        assert one.seconds == (1e-6 / calls,)
        assert one.method.reason == f"torch.utils.benchmark does not say{said}"
    timed = benchmark.Timer("x + y", "x = y = 1").timeit(10)
    (one,) = read_measurements(timed).values()
    assert one.median == pytest.approx(timed.median)


def test_torch_and_back_loses_nothing() -> None:
    compared = Comparison({"a": make(name="a"), "b": make(name="b", seconds=(1e-6,) * 4)})
    table = benchmark.Compare(compared.to_torch(label="ops"))
    assert "ops" in str(table)
    assert read_measurements(table) == dict(compared.measurements)
