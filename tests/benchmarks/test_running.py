"""What benchmarks share: running their cases, compiling, and capturing calls in CUDA graphs."""

import argparse
import gc
import sys
import weakref

import pytest
import results
import torch
from common import cuda, running, summaries


@pytest.fixture
def run_on(tmp_path, monkeypatch):
    """Runs cases in a process of their own, as far as the GPU is concerned."""
    monkeypatch.setattr(sys, "argv", ["mlp.py"])
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(results, "summary_of", lambda benchmark, rows: [])
    options = argparse.Namespace(output=tmp_path, shard=None, commit="abc", seconds=60.0)
    called: list[str] = []

    def run(cases):
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        called.clear()

        def measure(key):
            called.append(key)
            if cases[key] == "loses the GPU":
                monkeypatch.setattr(torch.cuda, "synchronize", fail)
            if cases[key] != "fine":
                fail()
            return {}

        file = results.ResultFile("mlp", options, {})
        measures = {key: lambda key=key: measure(key) for key in cases}
        code: object = 0
        try:
            running.measure_pending(file, measures)
        except SystemExit as exit:
            code = exit.code
        return code, "".join(called)

    return run


def fail():
    raise RuntimeError("device-side assert triggered")


def test_where_a_case_cannot_be_had_the_others_still_are(run_on):
    cases = {"a": "fine", "b": "fails", "c": "fine"}
    assert run_on(cases) == ("error: not measured: b", "abc")
    assert run_on(cases) == ("error: not measured: b", "b")


def test_a_case_that_loses_the_gpu_is_taken_last(run_on):
    cases = {"a": "loses the GPU", "b": "fine", "c": "loses the GPU", "d": "fails"}
    assert run_on(cases) == (running.RUN_AGAIN, "a")
    assert run_on(cases) == (running.RUN_AGAIN, "bc")
    assert run_on(cases) == ("error: not measured: d, a, c", "da")
    assert run_on(dict.fromkeys(cases, "fine")) == (0, "dac")
    assert run_on(cases) == (0, "")


@pytest.mark.cuda
def test_a_graph_has_its_calls_tensors_as_long_as_it_is_replayed():
    def make():
        counter = torch.zeros(1000, device="cuda")
        return cuda.capture(lambda: counter.add_(1)), weakref.ref(counter)

    replay, counter = make()
    gc.collect()
    assert counter() is not None
    before = counter().clone()
    replay()
    assert torch.equal(counter(), before + 1)


def test_a_midmean_is_finer_than_a_tick_and_leaves_outliers_alone():
    assert summaries.midmean([32, 32, 32, 64, 64, 64, 64, 1000]) == 56
    assert summaries.midmean([1.0]) == 1.0
    assert summaries.midmean([1, 2, 6]) == 3
