import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.regression.noise import (
    Noise,
    Repeats,
    calibrated,
    calibrated_log_median,
    log_median,
    standard_error,
)
from convtime.regression.significance import LogMedian
from tests.helpers.runs import ON_CPU, of
from tests.helpers.student import student_limit

REPEATS = Repeats((1.0e-5, 1.01e-5, 0.99e-5, 1.5e-5), (0.001,) * 4)  # the last one is outlying
CENTER = math.log(1.0e-5 * 1.01e-5 * 0.99e-5) / 3


@settings(max_examples=15)
@given(st.integers(0, 1000), st.integers(8, 60), st.floats(0.0, 0.02), st.booleans())
def test_a_median_varies_within_its_process_and_between_processes(
    seed: int, count: int, spread: float, on_host: bool
) -> None:
    samples = 1e-5 * (1 + 0.02 * np.random.default_rng(seed).standard_normal(count))
    measured = of(samples, **(ON_CPU if on_host else {}))
    found = log_median(measured, spread=spread)
    assumed = max(0.005 if on_host else 0.003, spread)
    assert found.value == pytest.approx(math.log(measured.median))
    assert (found.between_processes, found.processes) == (assumed, math.inf)
    low, high = measured.median_interval
    degrees = min(measured.interval_count - 1, 19)
    if degrees >= 4:
        error = (math.log(high / low) / 2) / student_limit(0.025, degrees)
        assert found.error == pytest.approx(error, rel=0.01)
        assert standard_error(measured) == pytest.approx(error, rel=0.01)
    several = log_median(measured, REPEATS, spread)
    assert several.value == pytest.approx(CENTER)
    assert several.between_processes == pytest.approx(assumed / math.sqrt(3))
    assert (several.below, several.above) == (found.below, found.above)


def test_a_variation_between_runs_that_was_measured_replaces_the_assumed_one() -> None:
    measured = of(np.linspace(0.99e-5, 1.01e-5, 40), between_runs=0.02, **ON_CPU)
    without = dataclasses.replace(measured, between_runs=0.0)
    assert log_median(measured).between_processes == 0.0
    assert log_median(measured, spread=0.01).between_processes == 0.01
    assert log_median(measured).error > log_median(without).error
    assert standard_error(measured) == standard_error(without)


@given(st.floats(0.0, 0.02), st.floats(0.0, 0.02), st.floats(0.0, 0.005), st.floats(0.001, 0.02))
def test_calibrated_noise_includes_the_usual_error_of_a_process(
    below: float, above: float, within: float, between: float
) -> None:
    noise = Noise(12, within, between, 0.03)
    own = LogMedian(0.5, below, above, 9, 0.1)
    alone = calibrated(own, None, noise)
    assert (alone.value, alone.degrees_of_freedom, alone.processes) == (0.5, 9, 12)
    for found, error in ((alone.below, below), (alone.above, above)):
        assert found**2 == pytest.approx(max(0.0, error**2 - 4 * within**2), abs=1e-15)
    assert alone.between_processes == pytest.approx(math.hypot(within, between))
    several = calibrated(own, REPEATS, noise)
    assert several.value == pytest.approx(CENTER)
    assert (several.below, several.above, several.processes) == (0.0, 0.0, 12)
    assert several.between_processes == pytest.approx(math.hypot(within, between) / math.sqrt(3))


def test_a_measurement_is_calibrated_without_assumed_variation() -> None:
    measured = of(np.linspace(0.9e-5, 1.1e-5, 40), between_runs=0.05, **ON_CPU)
    found = calibrated_log_median(measured, None, Noise(12, 0.0, 0.01, 0.03))
    assert found.error == pytest.approx(standard_error(measured))
    assert found.between_processes == 0.01
