"""What pool.py makes of its rows, without a GPU."""

import pool
import pytest
import results

GOALS = results.load_goals()["pool"]


def row(which, convtime, copy=18e-6, eager=150e-6, compiled=40e-6):
    seconds = {"copy": copy, "convtime": convtime, "eager": eager, "compiled": compiled}
    return {
        "key": f"{which} {convtime}",
        "direction": which,
        "window": "3×3/2",
        "dtype": "fp16",
        "layout": "nchw",
        "bytes": 64_000_000,
        "seconds": seconds,
    }


def test_the_summary_has_the_worst_case_of_each():
    rows = [
        row("forward", 20e-6),
        row("forward", 10e-6, copy=9.5e-6),
        row("backward", 30e-6, copy=24e-6, eager=240e-6),
        row("backward", 20e-6, eager=50e-6),
    ]
    summary = pool.summarise(rows)
    assert set(summary) == set(GOALS)
    assert summary == {
        "share_of_copy_bandwidth_min": pytest.approx(0.8),
        "speedup_over_eager_min": pytest.approx(7.5),
        "speedup_over_compile_min": pytest.approx(2.0),
        "speedup_over_compile_geomean": pytest.approx(8**0.5),
        "backward_speedup_over_eager_min": pytest.approx(2.5),
    }


def test_what_was_not_measured_is_not_summed_up():
    assert pool.summarise([]) == {}
    assert "speedup_over_eager_min" not in pool.summarise([row("backward", 20e-6)])
    assert "backward_speedup_over_eager_min" not in pool.summarise([row("forward", 20e-6)])


def test_the_backward_pass_reads_a_byte_an_output_more():
    assert pool.bytes_of("forward", 400, 100, 50) == 500
    assert pool.bytes_of("backward", 400, 100, 50) == 550
