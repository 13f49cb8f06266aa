"""What diagnose.py plants, draws and makes of its rows, without a GPU."""

import sys
from pathlib import Path
from typing import get_args

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import diagnose  # noqa: E402
import results  # noqa: E402
from diagnose_parts.causes import CAUSES  # noqa: E402
from diagnose_parts.controls import CONTROLS  # noqa: E402
from diagnose_parts.planting import NOTHING, Draw  # noqa: E402

from convtime.results.diagnosis import CauseCode  # noqa: E402

GOALS = results.load_goals()["diagnose"]


def row(key, cause, first, without=None):
    causes = [] if first == NOTHING else [{"code": first, "effect": 0.5, "confidence": 0.9}]
    return {
        "key": key,
        "cause": cause,
        "first": first,
        "first_without_counters": first if without is None else without,
        "causes": causes,
        "drawn": {"MiB": 5},
        "seconds": 9.0,
    }


def test_there_are_as_many_cases_as_the_goals_ask_for():
    assert results.meets(len(CAUSES), GOALS["planted"])
    assert results.meets(len(CONTROLS), GOALS["controls"])
    assert {plant.cause for plant in CAUSES.values()} <= set(get_args(CauseCode))
    assert {plant.cause for plant in CONTROLS.values()} == {NOTHING}
    assert not set(CAUSES) & set(CONTROLS)


def test_what_is_drawn_follows_from_the_commit_and_the_case():
    def drawn(commit, key):
        draw = Draw(commit, key)
        draw.whole("size", 0, 1 << 40)
        draw.seconds("sleep", 0.1, 0.2)
        draw.one_of("dtype", "float16", "float32")
        return draw.drawn

    assert drawn("a", "x") == drawn("a", "x")
    assert drawn("a", "x") != drawn("b", "x")
    assert drawn("a", "x") != drawn("a", "y")
    assert 0.1 <= drawn("a", "x")["sleep"] <= 0.2
    assert list(drawn("a", "x")) == ["size", "sleep", "dtype"]


def test_the_summary_has_a_value_for_each_goal():
    rows = [
        row("a", "cache", "cache", without=NOTHING),
        row("b", "clock", "cache"),
        row("c", NOTHING, NOTHING),
        row("d", NOTHING, "cache"),
    ]
    summary = diagnose.summarise(rows)
    assert set(summary) == set(GOALS)
    assert summary == {
        "planted": 2,
        "named_first": 0.5,
        "named_first_without_counters": 0,
        "controls": 2,
        "controls_clean": 0.5,
    }
    assert len(diagnose.table(rows).splitlines()) == 2 + len(rows)
    assert diagnose.summarise([]) == {"planted": 0, "controls": 0}


def test_without_a_history_the_commit_has_to_be_given(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "HERE", tmp_path / "benchmarks")
    with pytest.raises(SystemExit, match="give the commit that froze the rules by --rules"):
        diagnose.find_rules()
