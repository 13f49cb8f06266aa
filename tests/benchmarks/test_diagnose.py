"""What diagnose.py plants, draws and makes of its rows, without a GPU."""

import json
from typing import get_args

import diagnose
import pytest
import results
import torch
from common.mapped import mapped
from common.planting import NOTHING, Draw
from diagnose_parts.causes import CAUSES
from diagnose_parts.controls import CONTROLS

import convtime
from convtime.core import codec
from convtime.diagnosis.diagnosis import CauseCode
from convtime.diagnosis.evidence import Evidence
from convtime.exchange.upgrade import renewed
from convtime.timing.sampling.placement import is_mapped
from tests.helpers import BENCHMARKS

GOALS = results.load_goals()["diagnose"]
ROWS = json.loads((BENCHMARKS / "results" / "diagnose.json").read_text(encoding="utf-8"))["rows"]


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
    assert diagnose.summarise([]) == {"planted": 0, "controls": 0}


@pytest.mark.parametrize("case", ROWS, ids=[row["key"] for row in ROWS])
def test_the_rules_judge_what_was_seen_on_a_gpu_as_it_is_published(case):
    published = {name: case[name] for name in ("first", "first_without_counters", "causes")}
    assert diagnose.judged(codec.decode(Evidence, renewed(case["evidence"]))) == published


def test_what_is_published_names_what_was_planted():
    assert {row["key"] for row in ROWS} <= {*CAUSES, *CONTROLS}
    wrong = {row["key"]: row["causes"] for row in ROWS if row["first"] != row["cause"]}
    found = results.make_summary(ROWS, diagnose.summarise, GOALS)
    assert all(entry["met"] for entry in found), wrong


@pytest.mark.cuda
@pytest.mark.timing  # other processes would be the first cause
def test_on_a_gpu_the_hosts_memory_is_told_from_its_own():
    there = mapped(torch.randn(1 << 22).pin_memory(), "cuda")
    assert is_mapped(there.data_ptr())
    assert not is_mapped(torch.ones(9, device="cuda").data_ptr())
    assert "in host memory" in convtime.time_op(torch.relu, there, budget=0.1).placement.reason
    assert convtime.diagnose(torch.relu, there, budget=5).first == "transfer"
