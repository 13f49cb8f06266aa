"""What kernel_steps.py makes of its rows, and what of its measuring needs no GPU."""

from types import SimpleNamespace

import kernel_steps
import pytest
import results
import torch

import convtime

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


def test_the_steps_have_rate_share_and_what_they_take() -> None:
    assert kernel_steps.table(ROWS).splitlines()[2:] == [
        "| fp16 | nchw | naive | 180.00 | 0.36 | 10 % | 32 | 75 % |",
        "| fp16 | nchw | convtime | 20.00 | 3.20 | 90 % | – | – |",
        "| fp16 | nchw | eager | 150.00 | 0.43 | 12 % | – | – |",
    ]


def test_the_builds_stand_side_by_side() -> None:
    lines = kernel_steps.builds_table(ROWS).splitlines()
    assert lines[0] == "| dtype | layout | step | plain | max_registers |"
    assert lines[2] == "| fp16 | nchw | naive | 180.00 (32) | 200.00 (24 + 8 B) |"


def test_counters_are_per_load_and_may_be_unknown() -> None:
    assert kernel_steps.counters_table(ROWS).splitlines()[2:] == [
        "| fp16 | nchw | naive | 51.0 | 12.8 | 32.0 | – | 5.00 |"
    ]
    unavailable = {**COUNTERS, "totals": {}, "reason": "the driver reserves them"}
    assert kernel_steps.counters_table([unavailable]) == "Not counted: the driver reserves them."


def test_activations_and_convolutions_have_their_errors() -> None:
    lines = kernel_steps.activations_table(ROWS).splitlines()
    assert lines[2] == (
        "| gelu, gradient | fp32 | 10.00 | 12.00 (1.0e-07) | 11.00 (1.0e-03) | 12.00 (1.0e-07) |"
    )
    lines = kernel_steps.convolutions_table(ROWS).splitlines()
    assert lines[2] == "| 64 channels | fp32 | 200.00 | 35.0 | 2.0e-07 | 1.0e-06 |"


def test_there_is_a_case_for_each_subject() -> None:
    cases = kernel_steps.make_cases(torch.device("cpu"))
    assert len(cases) == 4 + 4 + 12 + 2
    assert {"pool fp16 nchw", "counters fp32 nhwc", "gelu_tanh gradient fp16"} < set(cases)


def test_counters_that_may_not_be_read_say_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_steps, "SHAPE", (1, 2, 8, 8))
    if torch.cuda.is_available():
        pytest.skip("here they may be read")
    row = kernel_steps.measure_counters("fp32", "nchw", torch.device("cpu"))
    assert row["totals"] == {}
    assert "GPU" in row["reason"]
    assert kernel_steps.tell(row) == row["reason"]


def test_each_step_is_counted_behind_a_clean_cache_and_never_repeated_by_cupti(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kernel_steps, "SHAPE", (1, 2, 8, 8))
    asked: list[tuple[str, str]] = []

    def count(call: object, *, metrics: tuple[str, ...], **options: str) -> dict[str, float]:
        asked.append((options["replay"], options["cache"]))
        if len(asked) > 2:
            raise convtime.CountersUnavailable("they went away")
        return dict.fromkeys(metrics, 1.0)

    monkeypatch.setattr(convtime, "counters", count)
    row = kernel_steps.measure_counters("fp16", "nhwc", torch.device("cpu"))
    assert set(asked) == {("call", "cold-clean")}
    assert len(row["totals"]) == 2
    assert row["reason"] == "they went away"


def test_fewer_bits_are_further_from_64(monkeypatch: pytest.MonkeyPatch) -> None:
    def untimed(calls: dict[str, object]) -> SimpleNamespace:
        return SimpleNamespace(measurements={name: SimpleNamespace(median=1e-6) for name in calls})

    monkeypatch.setattr(kernel_steps, "compared", untimed)
    monkeypatch.setitem(kernel_steps.CONVOLUTIONS, "64 channels", (1, 16, 16, 8))
    row = kernel_steps.measure_convolution("64 channels", torch.device("cpu"))
    errors = row["errors"]
    assert errors["fp32"] < 1e-5 < errors["fp16"] < errors["bf16"] < 0.1
    assert row["flops"] == 2 * 16 * 16 * 8 * 8 * 9
