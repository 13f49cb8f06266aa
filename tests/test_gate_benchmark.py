"""What gate.py makes of its rows, and one pair of runs on a CPU."""

from __future__ import annotations

from typing import Any

import gate
import results

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
    assert set(gate.summarise(rows())) == set(GOALS)
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
