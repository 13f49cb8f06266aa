from __future__ import annotations

import dataclasses
import json
import math
import statistics
from typing import Any

import numpy as np
import pytest
import torch.utils.benchmark

from convtime.core.units import format_seconds
from convtime.timing.measurement import Ceilings, Measurement
from tests.helpers.measurements import changed, make
from tests.helpers.texts import flat


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.5, "1.500 s"),
        (0.0123456, "12.35 ms"),
        (999.94e-6, "999.9 µs"),
        (1.234e-6, "1.234 µs"),
        (32e-9, "32.00 ns"),
        (12345.0, "12345 s"),
        (0.0, "0.000 ns"),
        (float("nan"), "nan s"),
        (999.94e-9, "999.9 ns"),
        (999.96e-9, "1.000 µs"),
        (-999.96e-9, "-1.000 µs"),
        (0.99999, "1.000 s"),
        (9.9996e-6, "10.00 µs"),
    ],
)
def test_format_seconds_picks_the_unit(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


def test_statistics_are_those_of_numpy_and_the_standard_library() -> None:
    seconds = tuple(np.random.default_rng(0).lognormal(-11, 0.2, size=37))
    one = make(seconds=seconds)
    assert one.median == pytest.approx(statistics.median(seconds), rel=1e-15)
    assert one.mean == pytest.approx(np.mean(seconds), rel=1e-12)
    assert one.stdev == pytest.approx(statistics.stdev(seconds), rel=1e-12)
    assert (one.min, one.max) == (min(seconds), max(seconds))
    assert one.iqr == pytest.approx(np.subtract(*np.quantile(seconds, [0.75, 0.25])), rel=1e-12)
    assert one.quantile(0.9) == pytest.approx(np.quantile(seconds, 0.9), rel=1e-12)
    low, high = one.median_interval
    assert low < one.median < high
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        one.quantile(1.5)


def test_reads_what_older_minor_versions_lack_and_newer_ones_add() -> None:
    one = make()
    fields = dataclasses.fields(Measurement)
    optional = {field.name for field in fields if field.default is not dataclasses.MISSING}
    older = {name: value for name, value in one.to_dict().items() if name not in optional}
    plain: dict[str, Any] = {
        field.name: field.default for field in fields if field.name in optional
    }
    assert Measurement.from_dict(older) == dataclasses.replace(one, **plain)
    assert Measurement.from_dict({**one.to_dict(), "schema": "6.99", "speed": 1}) == one


def test_others_that_timed_meanwhile_are_told() -> None:
    assert "disturbed" not in flat(make())
    waited = flat(make(exclusive=True, exclusive_requested=True, waited_seconds=1.25))
    assert "waited: 1.250 s for other timings" in waited
    assert "disturbed" not in waited
    disturbed = make(exclusive_requested=True, exclusive_reason="another was still timing")
    assert "maybe disturbed: another was still timing" in flat(disturbed)
    assert "disturbed" not in flat(make(exclusive_reason="another was still timing"))


def test_is_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        make().name = "other"  # type: ignore[misc]


def test_round_trips_through_json() -> None:
    one = make()
    again = Measurement.from_dict(json.loads(one.to_json()))
    assert again == one
    assert again.to_dict() == one.to_dict()  # with what was requested, and why


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 3}, "a Measurement of schema 3 cannot be read, only of schema 6.x"),
        ({"schema": "7.0"}, "a Measurement of schema '7.0' cannot be read"),
        ({"type": "Comparison"}, "cannot be read from JSON of type 'Comparison'"),
        ({"schema": None}, "schema None cannot be read"),
        ({"seconds": ["a"]}, r"Expected `float`, got `str` - at `\$.seconds\[0\]`"),
        ({"schema": 4}, "schema 4 cannot be read"),
        ({"schema": nested(10_000)}, r"schema \[\[.* cannot be read"),
        ({"seconds": []}, r"length >= 1 - at `\$.seconds`"),
        ({"name": 1}, r"Expected `str`, got `int` - at `\$.name`"),
        ({"ceilings": {"bytes_per_second": 0.0}}, r"> 0.0 - at `\$.ceilings.bytes_per_second`"),
        ({"provenance": "x"}, r"at `\$.provenance`"),
    ],
)
def test_from_dict_refuses_other_schemas_and_types(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Measurement.from_dict({**make().to_dict(), **changes})


def test_from_dict_names_what_is_missing() -> None:
    data = {name: value for name, value in make().to_dict().items() if name != "queue"}
    with pytest.raises(ValueError, match="missing required field `queue`"):
        Measurement.from_dict(data)
    others: tuple[Any, ...] = ([], None, "text")
    for document in others:
        with pytest.raises(ValueError, match="cannot be read"):
            Measurement.from_dict(document)


def test_types_of_other_libraries_become_pythons_own() -> None:
    class Version(str):
        pass

    measured = make(provenance={"torch": Version("2.15")}, overhead=np.float64(1e-6))
    assert json.loads(measured.to_json())["provenance"] == {"torch": "2.15"}


@pytest.mark.parametrize("provenance", [{}, {"load_average": "high", "governor": None, "cpu": 3}])
def test_an_odd_provenance_is_shown(provenance: dict[str, Any]) -> None:
    measured = make(provenance=provenance, device="cpu")
    assert "load average unknown" in flat(measured)
    assert "load average unknown" in measured._repr_html_()


def test_details_tell_the_median_in_its_unit_and_what_was_replaced() -> None:
    text = flat(make())
    assert "median: 2.500 µs" in text
    assert "method: event (asked for auto: the work is on a GPU)" in text
    assert "queue: sleep cache:" in text
    assert "4 (1 discarded)" in text
    assert "span: 3.500 µs" in text
    assert "busy: 2.500 µs" in flat(make())
    assert "some are concurrent" not in text
    assert "some are concurrent" in flat(make(sum_seconds=(5e-6, 2e-6, 4e-6, 3e-6)))
    assert "span" not in flat(make(busy_seconds=(), span_seconds=(), sum_seconds=(), activities=()))


def test_what_became_of_the_cache_is_told_where_it_is_as_asked_for() -> None:
    assert "cache: cold placement:" in flat(make())
    told = "4 bytes of the L2 cache of cuda:0 are set aside"
    assert f"cache: cold ({told})" in flat(make(cache_reason=told))


def test_files_from_before_inputs_were_looked_at_can_be_read() -> None:
    older = {key: value for key, value in make().to_dict().items() if key != "inputs"}
    assert Measurement.from_dict({**older, "schema": "6.0"}).inputs == ()


def test_what_was_taken_off_is_told_with_its_uncertainty() -> None:
    one = make(overhead=2.7e-6, overhead_uncertainty=12e-9)
    assert "method's own cost: 2.700 µs ± 12.00 ns, subtracted" in flat(one)
    assert "own cost" not in flat(make())
    unknown = make(overhead_reason="CUPTI is taken")
    assert "method's own cost: not subtracted: CUPTI is taken" in flat(unknown)


def test_the_uncertainty_of_what_was_taken_off_widens_the_interval() -> None:
    seconds = tuple(1e-6 * (10 + step) for step in range(10))
    low, high = make(seconds=seconds).median_interval
    assert (low, high) == pytest.approx((11e-6, 18e-6))
    wide = make(seconds=seconds, overhead=3e-6, overhead_uncertainty=0.5e-6)
    assert wide.median_interval == pytest.approx((10.5e-6, 18.5e-6))
    assert wide.median == make(seconds=seconds).median


def test_few_samples_claim_no_interval() -> None:
    few = make(seconds=(1e-6,) * 5)
    assert few.median_interval == (-math.inf, math.inf)
    assert "95 % interval: none: requires at least six samples" in flat(few)
    assert "95 % interval: 1.000 µs .. 1.000 µs" in flat(make(seconds=(1e-6,) * 6))


def test_an_interval_says_what_it_is_over() -> None:
    seconds = tuple(1e-6 * (10 + step % 4) for step in range(40))
    alone = make(seconds=seconds)
    assert (alone.interval_over, alone.interval_count) == ("samples", 40)
    batched = make(seconds=seconds, batches=(3,) * 20 + (5,) * 20)
    assert (batched.interval_over, batched.interval_count) == ("batches", 2)
    placed = make(seconds=seconds, places=(*range(20),) * 2, batches=(3,) * 20 + (5,) * 20)
    assert (placed.interval_over, placed.interval_count) == ("placements", 20)
    assert "(over 20 placements)" in flat(placed)
    with pytest.raises(ValueError, match="places must be .* all samples .*, got 3"):
        _ = make(seconds=seconds, places=(0, 1, 2)).median_interval


def test_batches_that_differ_as_much_as_samples_do_have_a_wide_interval() -> None:
    seconds = tuple(1e-6 * (10 + step // 10) for step in range(100))
    drifting = make(seconds=seconds, batches=tuple(step // 10 for step in range(100)))
    low, high = drifting.median_interval
    assert low < 11e-6
    assert high > 18e-6
    assert "(over 10 batches)" in flat(drifting)


def test_no_interval_is_narrower_than_the_clock_tells() -> None:
    seconds = (2.048e-6,) * 100
    assert make(seconds=seconds).median_interval == (2.048e-6, 2.048e-6)
    ticking = make(seconds=seconds, clock_tick=32e-9)
    unseen = (1 - 0.025 ** (1 / 100)) * 32e-9  # of a tick that none of so many showed
    assert ticking.median_interval == pytest.approx(
        (2.048e-6 - unseen, 2.048e-6 + unseen), rel=1e-4
    )


def test_a_call_without_gpu_work_says_so() -> None:
    idle = make(method="kernel", seconds=(0.0,) * 10, activities=())
    assert idle.no_gpu_work
    assert "median: no GPU work" in flat(idle)
    assert not make(method="kernel").no_gpu_work
    assert not make(method="event", seconds=(0.0,) * 10).no_gpu_work


def test_throttled_samples_are_flagged_and_counted_and_stay() -> None:
    one = make()
    assert one.throttled == (False, False, True, False)
    assert len(one.seconds) == 4
    assert "SM clock: 1500 .. 1980 MHz of 1980; 1 samples below 95% of that" in flat(one)
    assert make(sm_clocks_hz=(), max_sm_clock_hz=None).throttled == ()


def test_rates_are_set_against_the_devices_ceilings() -> None:
    one = make(flops=1e9, nbytes=2e6, ceilings=Ceilings(4e12, 8e14, "bfloat16"))
    assert one.flops_per_second == pytest.approx(4e14)
    assert one.bytes_per_second == pytest.approx(8e11)
    assert "400 TFLOP/s (50.0% of this device's bfloat16 matmul)" in flat(one)
    assert "800 GB/s (20.0% of this device's copy)" in flat(one)
    assert Measurement.from_dict(json.loads(one.to_json())) == one
    assert (make().flops_per_second, make().bytes_per_second) == (None, None)


def test_details_tell_how_the_warm_up_ended() -> None:
    assert "warm-up: 3 calls in 100.0 ms, steady; the first took 50.00 ms" in flat(make())
    assert "not steady; the first" in flat(make(steady=False))
    assert "100.0 ms; the first" in flat(make(steady=None, warmup_requested=3))


def test_html_is_escaped() -> None:
    text = make(name="<script>")._repr_html_()
    assert "&lt;script&gt;" in text
    assert "<script>" not in text
    assert "2.500 µs" in text


def test_to_frame_holds_every_sample() -> None:
    frame = make().to_frame()
    assert list(frame["seconds"]) == [4e-6, 1e-6, 3e-6, 2e-6, 9e-6]
    assert list(frame["discarded"]) == [False] * 4 + [True]


def test_to_torch_works_with_torchs_compare() -> None:
    slow = make(name="slow", seconds=(2e-3,) * 5).to_torch(label="ops", description="convtime")
    fast = make(name="fast", seconds=(1e-3,) * 5).to_torch(label="ops", description="convtime")
    assert slow.median == 2e-3
    text = str(torch.utils.benchmark.Compare([slow, fast]))
    assert "slow" in text
    assert "fast" in text
    assert "2" in text


def test_cycles_are_seconds_times_the_clock() -> None:
    one = make()
    assert one.cycles[1] is None
    assert [one.cycles[index] for index in (0, 2, 3)] == pytest.approx([7920, 4500, 3900])
    assert one.median_cycles == pytest.approx(4500)
    assert (make(sm_clocks_hz=()).cycles, make(sm_clocks_hz=()).median_cycles) == ((), None)


def at_clocks(clocks: list[float], fixed: float, cycles: float) -> Measurement:
    """Samples that take exactly what a part that is fixed and one that scales make of a clock."""
    seconds = tuple(fixed + cycles / clock for clock in clocks)
    return make(seconds=seconds, sm_clocks_hz=tuple(clocks), span_seconds=())


TWO_CLOCKS = [1.98e9] * 12 + [1.4e9] * 10


@pytest.mark.parametrize(("fixed", "cycles"), [(20e-6, 200e3), (0.0, 300e3), (50e-6, 0.0)])
def test_only_what_scales_is_scaled(fixed: float, cycles: float) -> None:
    scaled = at_clocks(TWO_CLOCKS, fixed, cycles).at_clock(1700)
    assert scaled.seconds == pytest.approx(fixed + cycles / 1.7e9, rel=1e-9)
    assert scaled.fixed_seconds == pytest.approx(fixed, abs=1e-12)
    assert scaled.cycles == pytest.approx(cycles, abs=1e-3)
    assert scaled.measured_mhz == pytest.approx((1400, 1980))
    assert "samples of this measurement at 1400 and 1980 MHz" in str(scaled)


def test_another_measurement_can_bring_the_other_clock() -> None:
    fast, slow = (at_clocks([clock] * 10, 20e-6, 200e3) for clock in (1.98e9, 1.5e9))
    for scaled in (fast.at_clock(1700, other=slow), slow.at_clock(1700, other=fast)):
        assert scaled.seconds == pytest.approx(20e-6 + 200e3 / 1.7e9)
        assert scaled.source == "this measurement and another"
    with pytest.raises(ValueError, match="not available: cache is 'cold' here and 'warm' in the"):
        fast.at_clock(1700, other=changed(slow, cache="warm"))


def test_noise_makes_no_part_negative() -> None:
    faster_when_slow = make(
        seconds=(10e-6,) * 10 + (11e-6,) * 10, sm_clocks_hz=(1.5e9,) * 10 + (1.9e9,) * 10
    )
    scaled = faster_when_slow.at_clock(1000)
    assert (scaled.cycles, scaled.seconds) == (0, pytest.approx(10.5e-6))
    more_than_all = make(
        seconds=(20e-6,) * 10 + (10e-6,) * 10, sm_clocks_hz=(1.5e9,) * 10 + (1.9e9,) * 10
    )
    scaled = more_than_all.at_clock(1900)
    assert scaled.fixed_seconds == 0
    assert scaled.cycles == pytest.approx((20e-6 * 1.5e9 + 10e-6 * 1.9e9) / 2)


@pytest.mark.parametrize(
    ("clocks", "message"),
    [
        ([1.9e9] * 30, "not available: .* taken at 1900 and 1900 MHz, less than 5% apart"),
        ([1.9e9] * 29 + [1.4e9], "not available: .* taken at 1900 and 1900 MHz"),
        ([1.4e9] * 6 + [1.9e9] * 6, "not available: one of the two clocks has 4 samples"),
        ([1.4e9, 1.9e9], "not available: one of the two clocks has 0 samples"),
        ([], "not available: .* has 0 samples"),
    ],
)
def test_one_clock_says_nothing_of_others(clocks: list[float], message: str) -> None:
    one = at_clocks(clocks, 0.0, 1e5) if clocks else make(sm_clocks_hz=())
    with pytest.raises(ValueError, match=message):
        one.at_clock(1700)


@pytest.mark.parametrize("clock_mhz", [0, -5, float("nan"), float("inf")])
def test_a_clock_is_a_positive_number(clock_mhz: float) -> None:
    with pytest.raises(ValueError, match="clock_mhz must be a positive number, got"):
        at_clocks(TWO_CLOCKS, 0.0, 1e5).at_clock(clock_mhz)
