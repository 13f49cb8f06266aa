"""What gate.py makes of its rows, and one pair of runs on a CPU."""

from __future__ import annotations

from typing import Any

import gate
import pytest
import results
from gate_parts import causes as attribution
from gate_parts import simulation

GOALS = results.load_goals()["gate"]
NAMES = ("relu", "conv", "norm", "mm", "cpu")


def rows(verdict_of_slower="slower", verdict_of_equal="same", planted=1.05):
    """Eight pairs, of which the first has other verdicts than are true where they are given."""
    plants = {name: {"size": 2, "ratio": planted if name == "relu" else 1.05} for name in NAMES}
    made: list[dict[str, Any]] = [{"key": gate.PLANTS, "plants": plants}]
    for number in range(1, gate.PAIRS + 1):
        slower = [name for index, name in enumerate(NAMES) if (index + number) % 2]
        verdicts = (verdict_of_slower, verdict_of_equal) if number == 1 else ("slower", "same")
        found = {
            name: {"verdict": verdicts[name not in slower], "ratio": {"value": 1.05}}
            for name in NAMES
        }
        made.append({"key": f"pair {number}", "slower": slower, "found": found, "seconds": 9.0})
    return made


def test_the_summary_counts_what_is_found_of_half_of_all():
    assert gate.summarise(rows()) == {"pairs": 40, "false_alarms": 0, "found_of_20": 20}
    slower = len(rows()[1]["slower"])
    missed = gate.summarise(rows(verdict_of_slower="uncertain"))
    assert missed["found_of_20"] == 20 - slower
    for verdict in ("slower", "faster"):
        assert gate.summarise(rows(verdict_of_equal=verdict))["false_alarms"] == 5 - slower
    assert gate.summarise(rows(verdict_of_equal="uncertain"))["false_alarms"] == 0


def test_what_was_not_5_percent_slower_is_not_found():
    assert gate.summarise(rows(planted=1.06))["found_of_20"] == 16
    assert gate.summarise(rows()[1:])["found_of_20"] == 0
    assert gate.summarise(rows()[:1]) == {}


def test_a_calibrated_gate_meets_its_goals_with_recorded_processes():
    simulated = simulation.simulate(simulation.recorded(), calibrations=40)
    causes = attribution.attribute_planted(each=100)
    made = [*rows(), {"key": gate.SIMULATION, **simulated}, {"key": gate.CAUSES, **causes}]
    found = gate.summarise(made)
    assert set(found) == set(GOALS)
    assert found["simulated_runs"] == 40 * simulation.RUNS
    for name in set(GOALS) - {"simulated_runs"}:
        assert results.meets(found[name], GOALS[name]), name


def test_false_alarms_are_counted_per_thousand_unchanged_tests():
    pool = [simulation.Process(1e-5 * (1 + 1e-4 * n), 0.99e-5, 1.01e-5, 200) for n in range(10)]
    calm = simulation.simulate({"calm": pool}, calibrations=5)
    assert calm["false"] == 0
    assert calm["margins"]["calm"] < 0.01
    assert gate.summarise([{"key": gate.SIMULATION, **calm, "false": calm["equal"]}])[
        "false_alarms_per_1000_test_runs"
    ] == pytest.approx(1000)


def test_causes_that_are_mistaken_count():
    mistaken = {"causes": {"code": {"code": 3, "noise": 1}, "noise": {"code": 4}}}
    assert attribution.right(mistaken) == 3 / 8
