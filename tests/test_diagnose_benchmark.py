"""What diagnose.py plants, draws and makes of its rows, without a GPU."""

import json
import sys
from pathlib import Path
from typing import get_args

import pytest
import torch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import diagnose  # noqa: E402
import results  # noqa: E402
from common.mapped import mapped  # noqa: E402
from common.planting import NOTHING, Draw  # noqa: E402
from diagnose_parts import causes, neighbours  # noqa: E402
from diagnose_parts.causes import CAUSES  # noqa: E402
from diagnose_parts.controls import CONTROLS  # noqa: E402

import convtime  # noqa: E402
from convtime.core import codec  # noqa: E402
from convtime.diagnosis.diagnosis import CauseCode  # noqa: E402
from convtime.diagnosis.evidence import Evidence  # noqa: E402
from convtime.exchange.upgrade import renewed  # noqa: E402
from convtime.timing.sampling.placement import is_mapped  # noqa: E402

GOALS = results.load_goals()["diagnose"]
ROWS = json.loads((BENCHMARKS / "results" / "diagnose.json").read_text(encoding="utf-8"))["rows"]
EVIDENCE = next(row["evidence"] for row in ROWS if row["key"] == "cache: negation")


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


@pytest.mark.parametrize("key", ["cache: negation", "cache: addition"])
def test_what_is_to_stay_in_the_cache_fits_in_half_of_it(key, monkeypatch):
    sizes = []

    def sized(*shape, dtype="float32"):
        made = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        sizes.append(made.nbytes)
        return made

    monkeypatch.setattr(causes, "random_tensor", sized)
    monkeypatch.setattr(causes, "_replayed", lambda work: None)
    for commit in map(str, range(50)):
        sizes.clear()
        CAUSES[key].make(Draw(commit, key))
        assert 15 << 20 < sum(sizes) < 30 << 20


@pytest.mark.parametrize("case", ROWS, ids=[row["key"] for row in ROWS])
def test_the_rules_judge_what_was_seen_on_a_gpu_as_it_is_published(case):
    published = {name: case[name] for name in ("first", "first_without_counters", "causes")}
    assert diagnose.judged(codec.decode(Evidence, renewed(case["evidence"]))) == published


def test_what_is_published_names_what_was_planted():
    assert {row["key"] for row in ROWS} <= {*CAUSES, *CONTROLS}
    wrong = {row["key"]: row["causes"] for row in ROWS if row["first"] != row["cause"]}
    found = results.make_summary(ROWS, diagnose.summarise, GOALS)
    assert all(entry["met"] for entry in found), wrong


def test_evidence_in_result_files_is_judged_again_without_a_gpu(tmp_path, monkeypatch, capsys):
    rows = [
        row("a", "cache", NOTHING) | {"evidence": EVIDENCE},
        row("b", "clock", NOTHING) | {"evidence": EVIDENCE},
    ]
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    for file, one in zip(files, rows, strict=True):
        file.write_text(json.dumps({"rows": [one]}))
    monkeypatch.setattr(sys, "argv", ["diagnose.py", "--judge", *map(str, files)])
    diagnose.main()
    printed = capsys.readouterr().out
    effect = diagnose.judged(codec.decode(Evidence, EVIDENCE))["causes"][0]["effect"]
    assert f"a: right: cache ({effect:.3f}" in printed
    assert "b: MISSED clock: cache" in printed
    assert "named_first = 0.5" in printed
    assert json.loads(files[0].read_text()) == {"rows": [rows[0]]}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_neighbour_that_cannot_begin_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: "no such device")
    with (
        pytest.raises(RuntimeError, match="the neighbour's thread did not begin"),
        neighbours.thread_neighbour("bandwidth", 1),
    ):
        pass


def test_without_a_history_the_commit_has_to_be_given(monkeypatch, tmp_path):
    monkeypatch.setattr(results, "HERE", tmp_path / "benchmarks")
    with pytest.raises(SystemExit, match="give the commit that froze the rules by --rules"):
        diagnose.find_rules()


@pytest.mark.cuda
def test_on_a_gpu_the_hosts_memory_is_told_from_its_own():
    there = mapped(torch.randn(1 << 22).pin_memory(), "cuda")
    assert is_mapped(there.data_ptr())
    assert not is_mapped(torch.ones(9, device="cuda").data_ptr())
    assert "in host memory" in convtime.time_op(torch.relu, there, budget=0.1).placement.reason
    assert convtime.diagnose(torch.relu, there, budget=5).first == "transfer"
