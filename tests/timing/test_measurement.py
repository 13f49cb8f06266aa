from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch.utils.benchmark
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.core.units import format_seconds
from convtime.timing.measurement import Ceilings, Measurement
from tests.helpers.measurements import make
from tests.helpers.texts import flat


def test_format_seconds_picks_the_unit() -> None:
    for seconds, text in {
        12345.0: "12345 s",
        0.99999: "1.000 s",
        0.0123456: "12.35 ms",
        999.94e-6: "999.9 µs",
        9.9996e-6: "10.00 µs",
        -999.96e-9: "-1.000 µs",
        999.94e-9: "999.9 ns",
        0.0: "0.000 ns",
        math.nan: "nan s",
    }.items():
        assert format_seconds(seconds) == text


@settings(max_examples=40)
@given(st.integers(2, 39), st.integers(0, 99), st.floats(0, 1), st.floats(0, 1))
def test_statistics_are_those_of_numpy(count: int, seed: int, q: float, uncertainty: float) -> None:
    random = np.random.default_rng(seed)
    seconds = random.lognormal(0, 0.2, count)
    clocks_hz = random.uniform(1e9, 2e9, count)
    known = random.uniform(size=count) < 0.8
    one = make(
        seconds=tuple(seconds),
        sm_clocks_hz=tuple(np.where(known, clocks_hz, None)),
        overhead_uncertainty=uncertainty,
        max_sm_clock_hz=2e9,
        flops=4e14,
        nbytes=2e12,
        ceilings=Ceilings(4e12, 8e14, "bfloat16"),
    )
    assert one.median == pytest.approx(np.median(seconds))
    assert one.mean == pytest.approx(np.mean(seconds))
    assert one.stdev == pytest.approx(np.std(seconds, ddof=1))
    assert (one.min, one.max) == (seconds.min(), seconds.max())
    assert one.iqr == pytest.approx(np.subtract(*np.quantile(seconds, [0.75, 0.25])))
    assert one.quantile(q) == pytest.approx(np.quantile(seconds, q))
    # The sign test: each sample is below the median with probability 1/2.
    tails = np.cumsum([math.comb(count, k) for k in range(count)]) / 2.0**count
    outside = int(np.sum(tails <= 0.025))
    ordered = np.sort(seconds)
    ends = (ordered[outside - 1], ordered[-outside]) if outside else (-math.inf, math.inf)
    low, high = ends[0] - uncertainty, ends[1] + uncertainty
    assert one.median_interval == pytest.approx((low if low == -math.inf else max(0, low), high))
    assert ("none: requires at least six samples" in flat(one)) == (count < 6)
    cycles = [each for each in one.cycles if each is not None]
    assert cycles == pytest.approx((seconds * clocks_hz)[known])
    if cycles:
        assert one.median_cycles == pytest.approx(np.median(cycles))
    slow = known & (clocks_hz < 0.95 * 2e9)
    assert one.throttled == tuple(slow)
    assert f"; {slow.sum()} samples below 95% of that" in flat(one) or not slow.any()
    assert one.flops_per_second == pytest.approx(4e14 / np.median(seconds))
    assert one.bytes_per_second == pytest.approx(2e12 / np.median(seconds))
    assert f"({4e14 / one.median / 8e14:.1%} of this device's bfloat16 matmul)" in flat(one)
    assert f"({2e12 / one.median / 4e12:.1%} of this device's copy)" in flat(one)


def test_what_is_unknown_gives_no_numbers() -> None:
    one = make(sm_clocks_hz=(), max_sm_clock_hz=None)
    assert (one.cycles, one.median_cycles, one.throttled) == ((), None, ())
    assert (one.flops_per_second, one.bytes_per_second) == (None, None)
    with pytest.raises(ValueError, match=r"between 0 and 1, got 1\.5"):
        one.quantile(1.5)


def test_round_trips_through_json() -> None:
    class Version(str):
        pass

    one = make(
        provenance={"torch": Version("2.15")},
        overhead=np.float64(1e-6),
        ceilings=Ceilings(4e12, 8e14, "bfloat16"),
    )
    again = Measurement.from_dict(json.loads(one.to_json()))
    assert again == one
    assert again.to_dict() == one.to_dict()  # with what was requested, and why


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
        ({"seconds": ["a"]}, r"Expected `float`, got `str` - at `\$.seconds\[0\]`"),
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


def test_details_tell_the_median_in_its_unit_and_what_was_replaced() -> None:
    text = flat(make())
    assert "median: 2.500 µs" in text
    assert "method: event (asked for auto: the work is on a GPU)" in text
    assert "queue: sleep cache:" in text
    assert "4 (1 discarded)" in text
    assert "span: 3.500 µs" in text
    assert "busy: 2.500 µs" in text
    assert "some are concurrent" not in text
    assert "some are concurrent" in flat(make(sum_seconds=(5e-6, 2e-6, 4e-6, 3e-6)))
    assert "span" not in flat(make(busy_seconds=(), span_seconds=(), sum_seconds=(), activities=()))
    assert "own cost" not in text
    subtracted = flat(make(overhead=2.7e-6, overhead_uncertainty=12e-9))
    assert "method's own cost: 2.700 µs ± 12.00 ns, subtracted" in subtracted
    unknown = make(overhead_reason="CUPTI is taken")
    assert "method's own cost: not subtracted: CUPTI is taken" in flat(unknown)
    assert "cache: cold placement:" in text
    told = "4 bytes of the L2 cache of cuda:0 are set aside"
    assert f"cache: cold ({told})" in flat(make(cache_reason=told))
    html = make(name="<script>")._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


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


def test_details_tell_how_the_warm_up_ended() -> None:
    assert "warm-up: 3 calls in 100.0 ms, steady; the first took 50.00 ms" in flat(make())
    assert "not steady; the first" in flat(make(steady=False))
    assert "100.0 ms; the first" in flat(make(steady=None, warmup_requested=3))


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
