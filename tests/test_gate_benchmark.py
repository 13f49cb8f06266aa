"""What gate.py makes of its rows, and one pair of runs on a CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import gate
import pytest
import results

from tests.helpers import BENCHMARKS

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


def test_what_is_planted_is_not_what_noise_made_of_it(monkeypatch):
    """A first look has two sizes of a linear operation at 5 %; at one of them, by mistake."""
    torch = pytest.importorskip("torch")
    from gate_parts import truth

    looked = set()

    def look(_name, _device, size):
        is_first = size not in looked
        looked.add(size)
        return 1.05 if is_first and size == 110 else size / 100

    monkeypatch.setattr(truth, "LARGER", {"relu": range(101, 113)})
    monkeypatch.setattr(truth, "_ratio", look)
    monkeypatch.setattr(truth, "names_on", lambda _device: ("relu",))
    plant = truth.find_plants(torch.device("cpu"))["plants"]["relu"]
    assert (plant["size"], plant["ratio"]) == (105, pytest.approx(1.05))
    assert dict(zip(plant["sizes_again"], plant["ratios_again"], strict=True))[110] == 1.1


def test_the_table_has_a_line_for_each_operation():
    lines = gate.table(rows()).splitlines()
    assert lines[2] == ("| relu | 1.0500 | 1.0500 to 1.0500 | 4 of 4 | 1.0500 to 1.0500 | 0 of 4 |")
    assert len(lines) == 2 + len(NAMES)
    assert len(gate.table([]).splitlines()) == 2


def test_a_pair_is_measured_on_any_machine(tmp_path):
    """As a shard that has to find out by itself what to plant."""
    pytest.importorskip("convtime")
    command = [
        *(sys.executable, BENCHMARKS / "gate.py", "--output", tmp_path, "--commit", "abc"),
        *("--device", "cpu", "--shard", f"2/{gate.PAIRS + 1}"),
    ]
    subprocess.run(command, check=True, timeout=300)
    (path,) = tmp_path.iterdir()
    (row,) = json.loads(path.read_text())["rows"]
    assert row["key"] == "pair 1"
    (name,) = row["found"]
    assert name == "logcumsumexp 8192 on the CPU"
    assert row["slower"] == [name]
    assert row["found"][name]["verdict"] in ("slower", "same", "uncertain", "faster")
    assert row["found"][name]["ratio"]["value"] > 0
