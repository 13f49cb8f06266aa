"""Effects, confidences and shares of variance of drawn times, against independent computations."""

import dataclasses
import itertools
import re
import statistics
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from convtime.diagnosis.effects import (
    LEAST_EFFECT,
    LEAST_EFFECT_ON_CPU,
    LIKELY,
    POSSIBLE,
    SURE,
    account_of,
    by_change,
    confidence_in,
    effect_of,
    variance_shares,
)
from convtime.diagnosis.evidence import Timing
from convtime.diagnosis.rules import judge
from tests.helpers import ROOT
from tests.helpers.clean_evidence import CLEAN, US, but, timing

QUARTILES_APART = 2 * statistics.NormalDist().inv_cdf(0.75)
microseconds = st.floats(1, 1000)
clocks = st.none() | st.floats(800, 2000)


@st.composite
def timings(draw: Any) -> Timing:
    made = timing(draw(microseconds), draw(clocks), width=draw(st.floats(0.001, 0.3)))
    if draw(st.booleans()):
        return made
    low, high = draw(st.sampled_from([(None, None), (made.low, None), (None, made.high)]))
    return dataclasses.replace(made, low=low, high=high)


@given(timings(), timings(), microseconds, st.booleans())
@settings(max_examples=100)
def test_an_effect_is_the_saved_share_of_a_call_at_one_clock(
    slower: Timing, faster: Timing, loop: float, in_cycles: bool
) -> None:
    account = account_of(but(calls={"loop": timing(loop)}, trace=None))
    saved = slower.median - faster.median
    if in_cycles and slower.clock_hz and faster.clock_hz:
        # The faster condition at the slower one's clock.
        at_one_clock = faster.median * faster.clock_hz / slower.clock_hz
        saved = min(saved, slower.median - at_one_clock)
    expected = np.clip(saved / slower.median, 0, 1) * min(slower.median, loop * US) / (loop * US)
    found = effect_of(slower, faster, account, in_cycles=in_cycles)
    assert found == pytest.approx(expected, abs=1e-12)


@given(microseconds, st.floats(0.1, 0.9), st.floats(0, 1), st.floats(0, 1))
@settings(max_examples=100)
def test_a_difference_is_as_sure_as_its_intervals_are_apart(
    median: float, saved: float, below: float, above: float
) -> None:
    """The ends of intervals that face each other are at shares of the difference."""
    slower = Timing(median, low=median * (1 - saved * below))
    faster = Timing(median * (1 - saved), high=median * (1 - saved * (1 - above)))
    apart = 1 - below - above
    expected = 0.0 if apart <= 0 else SURE if apart > 0.5 else LIKELY
    if min(abs(apart), abs(apart - 0.5)) > 1e-9:
        assert confidence_in(slower, faster) == expected
    assert confidence_in(dataclasses.replace(slower, low=None), faster) == POSSIBLE
    assert confidence_in(slower, dataclasses.replace(faster, high=None)) == POSSIBLE


@given(st.dictionaries(st.sampled_from(["as-is", "a", "b", "c"]), timings(), max_size=4))
def test_the_fastest_change_is_the_cause_if_it_is_faster(times: dict[str, Timing]) -> None:
    account = account_of(CLEAN)
    seen = CLEAN.with_contrast("layout", times)
    found = by_change("layout", "{name}", ("told",), seen, account, "layout")
    here = times.get("as-is")
    others = {name: each for name, each in times.items() if name != "as-is"}
    best = min(others, key=lambda name: others[name].median, default=None)
    if here is None or best is None or others[best].median >= here.median:
        assert found is None
    else:
        assert found is not None
        assert (found.sentence, found.evidence) == (best, ("told",))
        assert found.effect == effect_of(here, others[best], account)
        assert found.confidence == confidence_in(here, others[best])


VARIED = {"cache": "cache", "clock": "regime", "layout": "layout", "data": "data"}


@given(
    st.dictionaries(
        st.sampled_from([*VARIED]), st.lists(microseconds, min_size=1, max_size=3, unique=True)
    ),
    st.floats(0.001, 0.5),
)
def test_shares_of_the_variance_are_those_of_independent_conditions(
    contrasts: dict[str, list[float]], spread: float
) -> None:
    """As if a call met each condition of a contrast as often as the other extreme one."""
    made = {
        VARIED[code]: {str(number): timing(each) for number, each in enumerate(medians)}
        for code, medians in contrasts.items()
    }
    loop = dataclasses.replace(CLEAN.calls.loop, spread=spread)
    seen = dataclasses.replace(
        CLEAN, contrasts=made, calls=dataclasses.replace(CLEAN.calls, loop=loop)
    )
    ends = {
        code: np.log([min(those), max(those)])
        for code, those in contrasts.items()
        if len(those) > 1
    }
    all_met = [sum(each) for each in itertools.product(*ends.values())]
    whole = np.var(all_met) + (spread / QUARTILES_APART) ** 2
    expected = {code: np.var(those) / whole for code, those in ends.items()}
    assert variance_shares(seen) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("on_gpu", "limits"), [(True, LEAST_EFFECT), (False, LEAST_EFFECT_ON_CPU)])
def test_a_cause_is_reported_from_its_documented_effect_on(
    on_gpu: bool, limits: dict[str, float]
) -> None:
    least = limits["cache"]
    for share, expected in ((least - 0.005, []), (least + 0.005, ["cache"])):
        times = {"cold": timing(200, width=0.001), "warm": timing(200 * (1 - share), width=0.001)}
        bare = dataclasses.replace(CLEAN, on_gpu=on_gpu, contrasts={}, trace=None)
        assert [each.code for each in judge(but(bare, {"cache": times}))] == expected
    text = (ROOT / "docs/reference/causes.md").read_text("utf-8")
    before, after = text.split("On a CPU, `diagnose` names")
    rows = re.findall(r"^\| (`[^|]+) \|.* \| ([\d.]+) % \|$", before if on_gpu else after, re.M)
    said = {
        code: float(share) / 100 for codes, share in rows for code in re.findall(r"`(.+?)`", codes)
    }
    assert said == {code: limits[code] for code in said}
    assert len(said) >= 9
