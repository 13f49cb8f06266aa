"""A measurement: its statistics, its JSON, what it tells, and its times at other clocks."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.timing.measurement import Ceilings, Measurement
from tests.helpers.measurements import make
from tests.helpers.texts import flat


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

    provenance = {"torch": Version("2.15")}
    one = make(provenance=provenance, overhead=np.float64(1e-6), ceilings=Ceilings(4e12, 8e14, "x"))
    again = Measurement.from_dict(json.loads(one.to_json()))
    assert again == one
    assert again.to_dict() == one.to_dict()  # with what was requested, and why


def test_reads_what_older_minor_versions_lack_and_newer_ones_add() -> None:
    one = make()
    fields = dataclasses.fields(Measurement)
    optional = {field.name for field in fields if field.default is not dataclasses.MISSING}
    older = {name: value for name, value in one.to_dict().items() if name not in optional}
    plain: Any = {field.name: field.default for field in fields if field.name in optional}
    assert Measurement.from_dict(older) == dataclasses.replace(one, **plain)
    assert Measurement.from_dict({**one.to_dict(), "schema": "6.99", "speed": 1}) == one


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": 3}, "a Measurement of schema 3 cannot be read, only of schema 6.x"),
        ({"schema": "7.0"}, "a Measurement of schema '7.0' cannot be read"),
        ({"type": "Comparison"}, "cannot be read from JSON of type 'Comparison'"),
        ({"seconds": ["a"]}, r"Expected `float`, got `str` - at `\$.seconds\[0\]`"),
        ({"seconds": []}, r"length >= 1 - at `\$.seconds`"),
        ({"ceilings": {"bytes_per_second": 0.0}}, r"> 0.0 - at `\$.ceilings.bytes_per_second`"),
    ],
)
def test_from_dict_refuses_other_schemas_and_types(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Measurement.from_dict({**make().to_dict(), **changes})
    others: tuple[Any, ...] = ({}, [], None, "text")
    for document in others:
        with pytest.raises(ValueError, match=r"cannot be read|missing required field"):
            Measurement.from_dict(document)


TOLD: list[tuple[dict[str, Any], str, bool]] = [
    ({}, "median: 2.500 µs", True),
    ({}, "method: event (asked for auto: the work is on a GPU)", True),
    ({}, "queue: sleep cache: cold placement:", True),
    ({}, "4 (1 discarded)", True),
    ({}, "busy: 2.500 µs", True),
    ({}, "span: 3.500 µs", True),
    ({"busy_seconds": (), "span_seconds": (), "sum_seconds": (), "activities": ()}, "span", False),
    ({}, "some are concurrent", False),
    ({"sum_seconds": (5e-6, 2e-6, 4e-6, 3e-6)}, "some are concurrent", True),
    ({}, "own cost", False),
    (
        {"overhead": 2.7e-6, "overhead_uncertainty": 12e-9},
        "method's own cost: 2.700 µs ± 12.00 ns, subtracted",
        True,
    ),
    ({"overhead_reason": "CUPTI"}, "method's own cost: not subtracted: CUPTI", True),
    ({"cache_reason": "4 bytes are set aside"}, "cache: cold (4 bytes are set aside)", True),
    ({}, "warm-up: 3 calls in 100.0 ms, steady; the first took 50.00 ms", True),
    ({"steady": False}, "not steady; the first", True),
    ({"steady": None, "warmup_requested": 3}, "100.0 ms; the first", True),
    ({"method": "kernel", "seconds": (0.0,) * 9, "activities": ()}, "median: no GPU work", True),
    ({"method": "kernel"}, "no GPU work", False),
    ({"seconds": (0.0,) * 9}, "no GPU work", False),
    ({}, "disturbed", False),
    ({"exclusive": True, "waited_seconds": 1.25}, "waited: 1.250 s for other timings", True),
    ({"exclusive": True, "exclusive_requested": True}, "disturbed", False),
    (
        {"exclusive_requested": True, "exclusive_reason": "another timed"},
        "maybe disturbed: another timed",
        True,
    ),
    ({"exclusive_reason": "another timed"}, "disturbed", False),
]


def test_details_tell_what_is_worth_a_word() -> None:
    for changes, said, is_told in TOLD:
        assert (said in flat(make(**changes))) == is_told, said
    html = make(name="<script>")._repr_html_()
    assert "&lt;script&gt;" in html
    assert "<script>" not in html


def test_an_interval_says_what_it_is_over() -> None:
    seconds = tuple(1e-6 * (10 + step // 4) for step in range(40))
    batches = {"batches": tuple(step // 4 for step in range(40))}
    places = {"places": (*range(20),) * 2, **batches}
    given: list[dict[str, Any]] = [{}, batches, places]
    alone, batched, placed = (make(seconds=seconds, **each) for each in given)
    assert (alone.interval_over, alone.interval_count) == ("samples", 40)
    assert (batched.interval_over, batched.interval_count) == ("batches", 10)
    assert (placed.interval_over, placed.interval_count) == ("placements", 20)
    assert "(over 20 placements)" in flat(placed)
    low, high = batched.median_interval  # wide, since batches differ as much as samples
    assert (low < 12e-6, high > 17e-6) == (True, True)
    same = (2.048e-6,) * 100
    assert make(seconds=same).median_interval == (2.048e-6, 2.048e-6)
    unseen = (1 - 0.025 ** (1 / 100)) * 32e-9  # of a tick that none of so many showed
    ticking = make(seconds=same, clock_tick=32e-9).median_interval
    assert ticking == pytest.approx((2.048e-6 - unseen, 2.048e-6 + unseen), rel=1e-4)
    with pytest.raises(ValueError, match="places must be .* all samples .*, got 3"):
        _ = make(seconds=seconds, places=(0, 1, 2)).median_interval


def test_to_frame_holds_every_sample() -> None:
    frame = make().to_frame()
    assert list(frame["seconds"]) == [4e-6, 1e-6, 3e-6, 2e-6, 9e-6]
    assert list(frame["discarded"]) == [False] * 4 + [True]
