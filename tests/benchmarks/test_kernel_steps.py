"""What kernel_steps.py makes of its rows, and what of its measuring needs no GPU."""

import kernel_steps
import pytest
import results
import torch

GOALS = results.load_goals()["kernel_steps"]
FACTS = {"registers": 32, "local_bytes": 0, "occupancy": 0.75}

POOL: results.Row = {
    "key": "pool fp16 nchw",
    "subject": "pool",
    "dtype": "fp16",
    "layout": "nchw",
    "bytes": 64_000_000,
    "seconds": {
        "copy": 18e-6,
        "naive/plain": 180e-6,
        "naive/max_registers": 200e-6,
        "convtime": 20e-6,
        "eager": 150e-6,
    },
    "facts": {
        "naive/plain": FACTS,
        "naive/max_registers": {"registers": 24, "local_bytes": 8, "occupancy": 1.0},
    },
    "differ": [],
}
ACTIVATION: results.Row = {
    "key": "gelu gradient fp32",
    "subject": "activation",
    "function": "gelu",
    "direction": "gradient",
    "dtype": "fp32",
    "seconds": {"copy": 10e-6, "naive/plain": 12e-6, "naive/fast_math": 11e-6, "pytorch": 12e-6},
    "errors": {"naive/plain": 1e-7, "naive/fast_math": 1e-3, "pytorch": 1e-7},
}
COUNTERS: results.Row = {
    "key": "counters fp16 nchw",
    "subject": "counters",
    "dtype": "fp16",
    "layout": "nchw",
    "totals": {
        "naive": {
            "dram_read": 51e6,
            "dram_written": 12.8e6,
            "load_sectors": 3200,
            "load_requests": 100,
            "bank_conflicts": None,
            "instructions": 5e6,
        }
    },
    "reason": "",
}
CONVOLUTION: results.Row = {
    "key": "convolution 64 channels",
    "subject": "convolution",
    "label": "64 channels",
    "flops": 7e9,
    "seconds": {"fp32": 200e-6},
    "errors": {"fp32": 2e-7},
    "largest_errors": {"fp32": 1e-6},
}
ROWS: list[results.Row] = [POOL, ACTIVATION, COUNTERS, CONVOLUTION]


def test_the_summary_counts_kernels_and_what_is_wrong() -> None:
    wrong = {**POOL, "differ": ["naive/plain"]}
    inexact = {**ACTIVATION, "errors": {**ACTIVATION["errors"], "naive/plain": 0.25}}
    summary = kernel_steps.summarise([*ROWS, wrong, inexact])
    assert summary == {
        "pool_kernels": 4,
        "pool_results_that_differ": 1,
        "activation_error_max": 0.25,  # fast math's is no claim
    }
    assert set(summary) == set(GOALS)
    assert kernel_steps.summarise([COUNTERS]) == {}


def test_counters_that_may_not_be_read_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_steps, "SHAPE", (1, 2, 8, 8))
    if torch.cuda.is_available():
        pytest.skip("here they may be read")
    row = kernel_steps.measure_counters("fp32", "nchw", torch.device("cpu"))
    assert row["totals"] == {}
    assert "GPU" in row["reason"]
    assert kernel_steps.tell(row) == row["reason"]
