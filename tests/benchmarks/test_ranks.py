"""The benchmark of ranks: its summary and its tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import ranks
from common.rank_processes import Outcome


def rows(cases: Iterable[str] = ranks.CASES) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for key in cases:
        row: dict[str, Any] = {"key": key, "backend": "nccl" if "NCCL" in key else "gloo"}
        if key.startswith("skew"):
            row |= {
                "injected_us": 50,
                "recovered_us": 51.0,
                "uncertainty_us": 0.2,
                "clocks": "shared",
                "relative": 0.02,
                "error": 0.02,
            }
        elif key.startswith("all_reduce"):
            row |= {
                "bytes": 1024,
                "transfer_us": 99.0,
                "stamped_us": 100.0,
                "skew_us": 5.0,
                "bus_gb_per_second": None,
                "error": 0.01,
            }
            if key in ranks.ON_GPUS:
                row["back_to_back_us"] = 101.5
        else:
            row |= {"runs": 30, "deadlocks": 0, "named": 60, "survivors": 60}
            row["slowest_seconds"] = 2.4
        found.append(row)
    return found


def test_the_summary_is_of_the_worst_row_and_of_all_faults() -> None:
    found = rows()
    found[0]["error"] = 0.07
    found[-1] |= {"named": 54, "deadlocks": 1}
    summary = ranks.summarise(found)
    assert summary == {
        "skew_error": 0.07,
        "all_reduce_error": 0.01,
        "faults": 120,
        "deadlocks": 1,
        "named": pytest.approx(234 / 240),
    }
    assert ranks.summarise(found[1:]).keys() == summary.keys() - {"skew_error"}
    assert ranks.summarise(found[:-1]).keys() == {"skew_error", "all_reduce_error"}


def test_the_summary_has_the_rows_of_gpus_if_there_are_some() -> None:
    found = rows([*ranks.CASES, *ranks.ON_GPUS])
    found[0]["error"] = 0.09  # of Gloo, whose planted skews are less exact
    found[len(ranks.CASES)]["error"] = 0.08
    assert ranks.summarise(found)["skew_error"] == 0.08
    assert ranks.summarise(found)["faults"] == 240
    assert "skew_error" not in ranks.summarise(found[: len(ranks.CASES) + 1])


def test_a_machine_without_time_namespaces_has_a_summary() -> None:
    found = rows(key for key in ranks.CASES if key not in ranks.IN_NAMESPACES)
    assert ranks.summarise(found)["skew_error"] == 0.02


def test_each_row_is_in_one_table() -> None:
    found = rows([*ranks.CASES, *ranks.ON_GPUS])
    tables = [ranks.table(found), ranks.transfer_table(found), ranks.fault_table(found)]
    assert sum(table.count("\n") - 1 for table in tables) == len(found)
    assert tables[1].count("| 101.5 µs |") == len(ranks.SIZES_ON_GPUS)
    assert tables[1].count("| – |") == len(ranks.SIZES)
    assert "| 60 of 60 |" in tables[2]


def test_ranks_that_failed_fail_the_row() -> None:
    with pytest.raises(RuntimeError, match="no such group"):
        ranks._value([Outcome(error="RuntimeError", text="no such group")])
