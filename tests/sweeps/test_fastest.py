"""Which candidates are fastest, of simulated comparisons with known times; and the words for it."""

import random
from collections.abc import Mapping
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from convtime import Comparison
from convtime.sweeps.fastest import JudgedTable, Outcome, verdict_along
from convtime.timing.verdict import Judgement
from tests.helpers.measurements import make


def simulated(
    chance: random.Random, medians: Mapping[str, float], noise: float = 0.02, rounds: int = 60
) -> Comparison:
    """A comparison whose rounds have independent noise around known times, on a GPU."""
    return Comparison(
        {
            name: make(
                name=name,
                seconds=tuple(median * chance.lognormvariate(0, noise) for _ in range(rounds)),
                activities=(),
                sm_clocks_hz=(),
                discarded=(),
            )
            for name, median in medians.items()
        }
    )


def outcome_of(medians: Mapping[str, float], noise: float) -> Outcome:
    compared = simulated(random.Random(1), medians, noise)
    return JudgedTable({"x": (compared, [*medians])}).outcomes["x"]


@given(st.lists(st.sampled_from([1.0, 1.001, 1.03, 1.05, 1.2]), min_size=1, max_size=4))
@settings(max_examples=30)
def test_the_leaders_are_those_within_the_margin_of_the_fastest(medians: list[float]) -> None:
    named = dict(zip("abcd", medians, strict=False))
    found = outcome_of(named, 1e-4)
    leaders = tuple(name for name, each in named.items() if each / min(medians) < 1.01)
    kind = "alone" if len(named) == 1 else "winner" if len(leaders) == 1 else "tie"
    assert (found.kind, found.leaders) == (kind, leaders)
    assert found.fastest in leaders


def test_leaders_that_noise_hides_are_undecided() -> None:
    found = outcome_of({"a": 1.012, "b": 1.0, "c": 2.0}, 0.02)
    assert (found.kind, found.leaders) == ("undecided", ("a", "b"))


def judgements_of(compared: Mapping[str, Comparison]) -> list[Judgement]:
    table = JudgedTable({name: (each, ("a", "b")) for name, each in compared.items()})
    return [table.judge(name, "a", "b") for name in compared]


def test_false_discoveries_are_controlled_over_the_table() -> None:
    """Without differences beyond the margin, rows judged alone find some, and the table none."""
    chance = random.Random(7)
    compared = {
        str(row): simulated(chance, {"a": 1.01, "b": 1.0}, 0.03, rounds=400) for row in range(600)
    }
    alone = [each.verdict("a", "b") for each in compared.values()]
    judged = judgements_of(compared)
    assert alone.count("slower") >= 3
    assert not [each for each in judged if each.verdict == "slower"]
    assert [each.reason for each in judged].count("one-of-many") == alone.count("slower")
    tens = [dict([*compared.items()][start : start + 10]) for start in range(0, 600, 10)]
    in_tens = [judged.verdict for those in tens for judged in judgements_of(those)]
    assert in_tens.count("slower") <= 1  # at most 5 % of the tables would have one
    (alone_in_table,) = judgements_of({"0": simulated(chance, {"a": 1.03, "b": 1.0}, 0.01)})
    assert alone_in_table.verdict == "slower"


SDPA = Outcome("winner", "sdpa", ("sdpa",))
TIE = Outcome("tie", "flash", ("flash", "sdpa"))


@pytest.mark.parametrize(
    ("values", "outcomes", "ordered", "said"),
    [
        ([1, 16, 32, 64], [SDPA, SDPA, TIE, TIE], True,
         "sdpa is fastest up to batch 16; from 32 on flash and sdpa tie"),
        ([1, 8], [SDPA, SDPA], True, "sdpa is fastest at every batch from 1 to 8"),
        ([8], [SDPA], True, "sdpa is fastest at batch 8"),
        ([1, 2, 3, 4, 5], [SDPA, TIE, TIE, None, SDPA], True,
         "sdpa is fastest at batch 1; from 2 to 3 flash and sdpa tie; at 4 nothing is known; "
         "at 5 sdpa is fastest"),
        (["x", "y", "z"], [SDPA, Outcome("undecided", "a", ("a", "b", "c")), SDPA], False,
         "sdpa is fastest at batch x and z; a, b and c are too close to call at batch y"),
        (["x", "y"], [TIE, TIE], False, "flash and sdpa tie at every batch"),
        (["x"], [Outcome("alone", "a", ("a",))], False, "only a could be timed at batch x"),
    ],
)  # fmt: skip
def test_the_verdict_in_words(
    values: list[Any], outcomes: list[Outcome | None], *, ordered: bool, said: str
) -> None:
    assert verdict_along("batch", values, outcomes, ordered=ordered) == said
