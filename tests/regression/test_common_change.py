import statistics

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from convtime.regression.changes import Change, common_change
from convtime.regression.compare_runs import compare_runs
from convtime.timing.verdict import Ratio, Verdict
from tests.helpers.runs import process


@example([(1.08, 0.02)] * 5)
@example([(1.08, 0.02)] * 4)
@example([(1.04, 0.02)] * 3 + [(1.06, 0.02)] * 3)  # of which only half are slower
@example([(1.04, 0.02)] * 3 + [(1.06, 0.02)] * 4)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.9, 1.0, 1.04, 1.06, 1.08, 1.1]), st.floats(0.001, 0.02)),
        min_size=1,
        max_size=10,
    )
)
def test_a_common_change_is_one_that_four_of_five_tests_agree_with(
    drawn: list[tuple[float, float]],
) -> None:
    changes = []
    for number, (value, half) in enumerate(drawn):
        verdict: Verdict = "slower" if value > 1.05 else "faster" if value < 0.95 else "same"
        ratio = Ratio(value, value - half, value + half)
        changes.append(Change(str(number), verdict, 1.0, value, ratio, 0.01))
    unjudged = Change("unjudged", "uncertain", 1.0, 3.0, Ratio(3.0, 2.9, 3.1))
    found = common_change([*changes, unjudged])
    center = statistics.median(value for value, _ in drawn)
    apart = [max(0.0, abs(value - center) - half) for value, half in drawn]
    alike = [distance <= 0.25 * abs(center - 1) + 1e-12 for distance in apart]
    which = "slower" if center > 1 else "faster"
    names = [each.name for each, one in zip(changes, alike, strict=True) if one]
    names = [name for name in names if changes[int(name)].verdict == which]
    enough = len(drawn) >= 5 and sum(alike) >= 0.8 * len(drawn) and len(names) > len(drawn) / 2
    assert (found is not None) == enough
    if found is not None:
        values = [drawn[int(name)][0] for name in names]
        assert (found.verdict, found.ratio, found.names) == (which, center, tuple(names))
        assert (found.low, found.high, found.compared) == (min(values), max(values), len(drawn))


def test_a_change_that_all_tests_have_in_common_is_one_finding() -> None:
    rng = np.random.default_rng(8)
    names = [f"test {number}" for number in range(10)]
    before = {name: process(rng, spread=0.001) for name in names}
    factors = dict.fromkeys(names, 1.08) | {"test 3": 1.5}
    after = {name: process(rng, 1e-5 * factors[name], 0.001) for name in names}
    changes = compare_runs(before, after)
    common = changes.common
    assert common is not None
    assert (len(common.names), common.verdict) == (9, "slower")
    assert common.ratio == pytest.approx(1.08, rel=0.01)
    rows = [line for line in changes.to_markdown("slower").splitlines() if "| slower" in line]
    assert len(rows) == 1
    assert "test 3" in rows[0]
    assert changes.to_markdown("slower").startswith("**failed: 9 of 10 tests are slower alike")
    assert changes.exit_code() == 1
    few = {name: after[name] if name < "test 3" else before[name] for name in names}
    assert compare_runs(before, few).common is None
    mixed = {name: after[name] if number % 2 else before[name] for number, name in enumerate(names)}
    assert compare_runs(before, mixed).common is None
