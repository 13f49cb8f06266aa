"""The decisions of a race, on simulated samples; and its result."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import convtime
from convtime import Comparison, Measurement, Race
from convtime.timing.comparison import Agreement
from convtime.timing.measurement import Condition
from convtime.tuning import elimination
from tests.helpers.figures import table
from tests.helpers.measurements import changed
from tests.helpers.simulated_races import KERNEL, SimulatedTimer, run


class NotingTimer(SimulatedTimer):
    """Notes when it is asked."""

    def compare(self, names: Sequence[str], seconds: float, *, last: bool) -> Comparison:
        self.asked_at = [*getattr(self, "asked_at", ()), self.now]
        return super().compare(names, seconds, last=last)


def check_decisions(raced: Race, timer: NotingTimer, planned: float) -> None:
    """Judge again, from the measurements that the race was decided by."""
    alone = {name: raced.alone[name].median for name in raced.order}
    least = min(alone.values())
    left = sorted(
        (name for name in raced.order if alone[name] <= 1.5 * least), key=alone.__getitem__
    )
    for name in {*raced.order} - {*left}:
        assert raced.dropped[name].stage == "alone"
        ratio = alone[name] / least
        assert f"took {ratio:.2f} times as long as {left[0]}" in raced.dropped[name].reason
    judged = False
    for number, (together, asked) in enumerate(zip(raced.rounds, timer.asked, strict=True), 1):
        assert not judged, "the last round is the last"
        names, seconds, last = asked
        assert names == left == [*together.measurements]
        few = len(left) <= 4
        earlier = len(raced.rounds[number - 2].measurements) if number > 1 else 0
        assert last == (few or (number > 1 and (earlier - len(left)) / earlier < 0.25))
        room = max(planned - timer.asked_at[number - 1], 0.01)
        assert seconds == pytest.approx(room if last else room / 3)
        ratios = {name: together.ratio(name).value for name in left[1:]} | {left[0]: 1.0}
        fastest = min(left, key=ratios.__getitem__)
        slower = [
            name for name in left if name != fastest and together.verdict(name, fastest) == "slower"
        ]
        for name in slower:
            assert raced.dropped[name].stage == str(number)
            more = together.ratio(name, fastest).value - 1
            assert f"{more:.2%} slower than {fastest}" in raced.dropped[name].reason
        judged = last or len(left) - len(slower) == 1
        left = sorted(set(left) - {*slower}, key=lambda name: (ratios[name], names.index(name)))
    assert {*raced.dropped} == {*raced.order} - {*left}
    assert raced.ties == tuple(name for name in raced.order if name in left)
    if raced.rounds:
        last_round = raced.rounds[-1]
        assert raced.fastest == (fastest if len(left) > 1 else left[0])
        near = [
            name
            for name in raced.ties
            if name == raced.fastest or last_round.ratio(name, raced.fastest).value <= 1.005
        ]
        assert raced.winner == near[0]
    else:
        assert raced.winner == raced.fastest == left[0]
    assert raced.seconds == timer.now


@settings(max_examples=60)
@given(
    extra=st.lists(
        st.one_of(st.floats(0, 0.03), st.floats(0, 0.2), st.floats(0, 1)), min_size=2, max_size=18
    ),
    seed=st.integers(0, 999),
    data=st.data(),
)
def test_the_winner_is_close_to_the_fastest_and_its_ties_to_it(extra, seed, data) -> None:
    true = {f"c{i}": 1e-5 * (1 + more) for i, more in enumerate(extra)}
    order = data.draw(st.permutations([*true]))
    timer = NotingTimer(true, seed)
    raced = run(timer, order=order)
    assert raced.order == tuple(order)
    check_decisions(raced, timer, 0.08 * len(true))
    least = min(true.values())
    assert true[raced.winner] <= 1.01 * least
    assert true[raced.fastest] <= 1.005 * least


def test_ties_are_won_by_the_first_in_the_inner_half_of_the_margin() -> None:
    true = {"slow": 2e-5, "first": 1.001e-5, "second": 1e-5, "third": 1.002e-5}
    for seed in range(10):
        raced = run(SimulatedTimer(true, seed))
        assert (raced.winner, raced.ties) == ("first", ("first", "second", "third"))
    raced = run(SimulatedTimer({"slower": 1.0085e-5, "faster": 1e-5}))
    assert raced.winner == raced.fastest == "faster"
    assert raced.ties == ("slower", "faster")
    assert " µs, tied with slower; 0 of 2 candidates were dropped, in 0.16 s" in str(raced)
    one = Race("a", "a", ("a",), ("a",), 0.01, {})  # which needs no timing
    assert str(one).startswith("a wins; 0 of 1 candidates were dropped, in 0.00 s\n")
    alone = run(SimulatedTimer({"a": 1e-5, "b": 5e-5}))  # at last, it needs no round
    assert (alone.winner, alone.ties, alone.rounds, alone.judge("b")) == ("a", ("a",), (), None)


def test_limits_belong_to_those_that_stay() -> None:
    unit = 2.0**-17  # so that no number is rounded
    exact: dict[str, Any] = {"noise": 0, "alone_error": 0}
    timer = SimulatedTimer({"a": unit, "b": 1.5 * unit, "c": 1.5625 * unit}, **exact)
    raced = run(timer)
    assert raced.dropped["c"].stage == "alone"
    assert raced.dropped["b"].stage == "1"
    for dropped, screenings in ((3, 1), (4, 2)):  # of 16: a quarter goes on
        true = {f"c{i}": unit * (1.25 if i < dropped else 1) for i in range(16)}
        timer = SimulatedTimer(true, **exact)
        run(timer)
        assert [last for _, _, last in timer.asked] == [False] * screenings + [True]
    timer = SimulatedTimer(dict.fromkeys("abcd", unit), **exact)
    run(timer)
    assert [last for _, _, last in timer.asked] == [True]


def test_a_failing_candidate_does_not_end_the_race() -> None:
    class Failing(SimulatedTimer):
        def time_alone(self, name: str) -> Measurement:
            if name == "bad":
                raise ValueError("no such configuration\nmore lines")
            if name == "later" and self.asked:
                raise MemoryError("out of memory")
            return super().time_alone(name)

        def compare(self, names: Sequence[str], seconds: float, *, last: bool) -> Comparison:
            compared = super().compare(names, seconds, last=last)
            if "later" in names:
                raise MemoryError("out of memory")
            return compared

    raced = run(Failing({"bad": 1e-6, "later": 0.99e-5, "a": 1e-5, "b": 1.3e-5}))
    assert (raced.winner, raced.measurement("bad")) == ("a", None)
    assert raced.dropped["bad"].reason == "it failed (ValueError: no such configuration)"
    assert "out of memory" in raced.dropped["later"].reason


def test_a_race_that_cannot_go_on_ends_with_a_sentence() -> None:
    class Failing(SimulatedTimer):
        def compare(self, names: Sequence[str], seconds: float, *, last: bool) -> Comparison:
            raise MemoryError("out of memory")

    class Broken(Failing):
        error: Exception = TypeError("it is broken")

        def time_alone(self, name: str) -> Measurement:
            raise self.error

    true = {"a": 1e-5, "b": 1e-5}
    with pytest.raises(RuntimeError, match=r"can be timed alone, but not together.*race fewer"):
        run(Failing(true))
    with pytest.raises(RuntimeError, match=r"none of .* timed: 'a': .*it is broken.*'b': "):
        run(Broken(true))
    Broken.error = elimination.UnusableError("a", "the GPU is unusable")
    with pytest.raises(elimination.UnusableError, match="unusable"):
        run(Broken(true))


def test_what_is_not_comparable_is_dropped_before_it_can_be_the_fastest() -> None:
    class OnHost(SimulatedTimer):
        def time_alone(self, name: str) -> Measurement:
            method = KERNEL if name in ("a", "wrong") else Condition("cpu", "auto")
            return changed(super().time_alone(name), method=method)

    wrong = Agreement(False, "3 of 4 numbers differ")
    true = {"empty": 1e-7, "a": 1e-5, "wrong": 1e-6}
    raced = run(OnHost(true, agreements={"wrong": wrong}))
    assert raced.winner == "a"
    assert "OTHER RESULT: 3 of 4 numbers differ" in raced.dropped["wrong"].reason
    assert raced.dropped["empty"].reason == "it issues no work to the GPU, unlike others"
    assert run(OnHost({"empty": 1e-5, "nothing": 2e-5})).winner == "empty", "all are of that kind"


def test_what_is_too_fast_is_timed_again() -> None:
    class Hasty(SimulatedTimer):
        """Its first time of `mishap`, and all of `miracle`, are too short."""

        def too_fast(self, measured: Measurement) -> str:
            first = self.timed_alone.count(measured.name) == 1
            wrong = measured.name == "miracle" or (measured.name == "mishap" and first)
            return "it reaches 900%" if wrong else ""

    timer = Hasty({"a": 1e-5, "mishap": 1e-5, "miracle": 1e-5})
    raced = run(timer)
    assert sorted(timer.timed_alone) == ["a", "miracle", "miracle", "mishap", "mishap"]
    assert raced.remarks == {"miracle": "it reaches 900%"}
    assert "note on miracle: it reaches 900%" in str(raced)


def test_a_result_is_shown_saved_and_loaded(tmp_path: Path) -> None:
    true = {f"c{i}": 1e-5 * (1 + 0.004 * i) for i in range(10)} | {"slow": 3e-5}
    raced = run(SimulatedTimer(true))
    raced.save(tmp_path / "race.json")
    assert convtime.load(tmp_path / "race.json") == raced
    rows = [line.split()[0] for line in str(raced).splitlines()[4:15]]
    assert sorted(rows) == sorted(raced.order)
    assert rows[0] == raced.winner
    assert "slow was dropped alone, after" in str(raced)
    assert repr(raced).startswith(f"<convtime.Race {raced.winner} wins with ")
    assert "round 1" in raced.details()
    (figure,) = raced.figures()
    assert {*table(figure, "middle")["row"]} > {f"{raced.winner}: baseline"}
    for name, measured in raced.rounds[-1].measurements.items():
        judged = raced.judge(name)
        assert judged is not None
        assert judged.ratio == raced.rounds[-1].ratio(name, raced.winner)
        assert raced.measurement(name) is measured
    assert raced.measurement("slow") is raced.alone["slow"]
    with pytest.raises(KeyError, match="must be one of"):
        raced.judge("unknown")
    with pytest.raises(ValueError, match="must be some of"):
        dataclasses.replace(raced, winner="unknown")
