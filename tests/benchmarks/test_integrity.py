"""What integrity.py makes of its rows."""

import integrity
import pytest
import results
from integrity_parts.rows import read_report

TIMING = {"method": "event", "reason": "a profiler is active", "incomplete": 0}


def interleaving(**changes):
    row = {"kind": "interleaving", "key": "both", "launched": 100, "in_profile": 100}
    row |= {"launched_in_control": 100, "in_control": 100, "exit": 0, "control_exit": 0}
    return row | {"timings": [TIMING, TIMING]} | changes


def records(**changes):
    row = {"kind": "records", "key": "records by the way", "records": 1000, "shortest": 1e-6}
    return row | {"method": "kernel", "incomplete": 0, "faulty_batches": 1} | changes


PLANTED = {
    "kind": "planted",
    "key": "planted losses",
    "tests": {
        "Of/PlantedLoss.CostsTheBatchesThatHaveIt/KernelLost": True,
        "Of/PlantedLoss.EndsInEventsWhereItLasts/KernelLost": True,
        "Of/PlantedLoss.CostsTheBatchesThatHaveIt/Reversed": True,
        "Of/PlantedLoss.EndsInEventsWhereItLasts/Reversed": False,
        "PlantedLoss.OfAFullPoolOfBuffersEndsInEvents": True,
    },
}


def test_the_summary_has_a_value_for_each_goal():
    summary = integrity.summarise([interleaving(), records(), records(), PLANTED])
    assert set(summary) == set(results.load_goals()["integrity"])
    assert summary == {
        "profiler_interleavings": 1,
        "kernels_lost_from_profiler": 0,
        "crashes": 0,
        "records": 2000,
        "planted_losses": 3,
        "planted_losses_detected": pytest.approx(2 / 3),
    }


@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ({"in_profile": 97}, 3),
        ({"in_profile": 97, "in_control": 98}, 1),
        ({"in_profile": 97, "in_control": 90}, 0),
        ({"launched": 500, "in_profile": 500}, 0),
        ({"launched": 500, "in_profile": 100}, 400),
    ],
)
def test_lost_is_what_a_profile_lacks_beyond_the_controls(changes, lost):
    summary = integrity.summarise([interleaving(**changes)])
    assert summary["kernels_lost_from_profiler"] == lost


def test_a_crash_loses_all_kernels_and_counts_where_the_control_survived():
    crashed = interleaving(exit=-11)
    del crashed["in_profile"], crashed["launched"], crashed["timings"]
    summary = integrity.summarise([crashed])
    assert (summary["crashes"], summary["kernels_lost_from_profiler"]) == (1, 100)
    assert integrity.summarise([crashed | {"control_exit": -11}])["crashes"] == 0
    assert "ended with -11, the control with 0" in integrity.table([crashed])


@pytest.mark.parametrize("changes", [{"incomplete": 1}, {"method": "event"}, {"shortest": 0.0}])
def test_records_count_only_where_all_of_them_are_sound(changes):
    assert integrity.summarise([records(), records(**changes)])["records"] == 0


def test_records_count_only_where_no_interleaved_timing_lacks_one():
    lacking = interleaving(timings=[TIMING, TIMING | {"incomplete": 1}])
    assert integrity.summarise([interleaving(), records()])["records"] == 1000
    assert integrity.summarise([lacking, records()])["records"] == 0


def test_goals_are_missed_without_rows_of_a_kind():
    summary = integrity.summarise([interleaving()])
    assert summary["records"] == 0
    assert "planted_losses_detected" not in summary


def test_a_report_of_the_tests_says_why_they_failed():
    tests = [
        {"classname": "Of/PlantedLoss", "name": "A", "result": "COMPLETED"},
        {"classname": "PlantedLoss", "name": "B", "result": "COMPLETED",
         "failures": [{"failure": "no batch was thrown away"}]},
        {"classname": "PlantedLoss", "name": "C", "result": "SKIPPED"},
        {"classname": "Buffers", "name": "D", "result": "COMPLETED"},
    ]  # fmt: skip
    assert read_report({"testsuites": [{"testsuite": tests}]}) == {
        "tests": {"Of/PlantedLoss.A": True, "PlantedLoss.B": False, "PlantedLoss.C": False},
        "failures": {"PlantedLoss.B": ["no batch was thrown away"]},
    }
