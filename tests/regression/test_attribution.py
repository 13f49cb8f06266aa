import dataclasses
from typing import Any

import pytest

from convtime.regression.attribution import attribute
from convtime.timing.activity import DeviceActivity
from convtime.timing.measurement import HostReading
from convtime.timing.verdict import Ratio
from tests.helpers.runs import OTHER_COMMIT as CODE
from tests.helpers.runs import PROVENANCE, of

SLOWER = Ratio(1.1, 1.09, 1.11)


def kernels(*labels: str) -> tuple[DeviceActivity, ...]:
    shape = ((8, 1, 1), (128, 1, 1), 32, 0, 0)
    return tuple(DeviceActivity("kernel", label, *shape, (1e-5,) * 200) for label in labels)


def host(instructions: float, cycles: float = 2e6, **more: Any) -> dict[str, Any]:
    return {
        "host": (HostReading(200, 1e-3, 1e-3, instructions=instructions, cycles=cycles, **more),)
    }


def waited(seconds: float) -> dict[str, Any]:
    return host(1e6, longest_wait_seconds=seconds)


def clock(hertz: float) -> dict[str, Any]:
    return {"sm_clocks_hz": (hertz,) * 200}


HARDWARE = "hardware or clocks"
DISTURBED: dict[str, Any] = {"disturbance": "was preempted"}


@pytest.mark.parametrize(
    ("before", "after", "provenance", "cause", "evidence"),
    [
        ({}, {}, CODE, "code", "commit: aaa"),
        ({}, {}, {"torch": "2.16"}, "code", "torch: 2.15.0 → 2.16"),
        ({"activities": kernels("a")}, {"activities": kernels("b")}, {}, "code", "a, grid 8×1×1"),
        # In any order; and what only one of the runs recorded is no difference.
        ({"activities": kernels(*"ab")}, {"activities": kernels(*"ba")}, CODE, "code", "commit"),
        ({"activities": kernels("a")}, {}, CODE, "code", "commit"),
        ({}, {"activities": kernels("a")}, CODE, "code", "commit"),
        (host(1e6), host(1.1e6), {}, "code", "1.1× the instructions"),
        ({}, {"queue": "none"}, CODE, "method", "queue: gate → none"),
        ({}, {}, CODE | {"convtime": "0.2"}, "method", "convtime: 0.1 → 0.2"),
        ({}, {}, CODE | {"gpu_uuid": "GPU-2"}, "code", "commit"),
        ({}, {}, CODE | {"driver": "590"}, HARDWARE, "driver: 580.1 → 590"),
        (clock(1.98e9), clock(1.8e9), CODE, HARDWARE, "1980 → 1800 MHz, explains 100%"),
        (clock(1.98e9), clock(1.95e9), CODE, "code", "commit"),  # accounts for 1.5 of 10 %
        (host(1e6, 2.2e6), host(1e6, 2.0e6), CODE, HARDWARE, "2200 → 2000 MHz"),
        (host(1e6), host(1.009e6), CODE, "code", "commit"),
        (host(1e6), host(0.98e6), {}, "code", "0.98× the instructions"),
        # Half of 10 %, as logarithms, is 4.88 %.
        (host(1e6, 2.1e6), host(1e6, 2.0e6), CODE, HARDWARE, "explains 51% of it"),
        ({}, {}, {"gpu": "NVIDIA B200"}, HARDWARE, "NVIDIA H200 → NVIDIA B200"),
        # From 1 % of the time.
        (waited(1e-5), waited(3.1e-5), CODE, "noise", "waited for a core for 3% of the later run"),
        (waited(1e-5), waited(2.9e-5), CODE, "code", "commit"),
        ({}, {"other_launches": 3}, {}, "noise", "others launched 3 kernels during the later"),
        ({"other_launches": 1}, {"other_launches": 3}, CODE, "code", "commit"),
        ({}, {}, {}, "noise", "the commit is the same"),
        ({}, DISTURBED, {}, "noise", "later run was preempted"),
        (host(1e6), host(1e6) | DISTURBED, CODE, "noise", "was preempted"),
        ({}, DISTURBED, CODE, "code", "commit"),  # whether it computes more is unknown
        (DISTURBED, DISTURBED, {"git": None}, "code", "unknown"),
        ({}, {}, {"load_average": 9.0}, "noise", "load average: 1.0 → 9.0"),
    ],
)
def test_a_change_has_the_cause_that_the_evidence_points_to(
    before: dict[str, Any],
    after: dict[str, Any],
    provenance: dict[str, Any],
    cause: str,
    evidence: str,
) -> None:
    known = {**PROVENANCE, "convtime": "0.1"}
    pair = (
        of([1e-5] * 200, known, queue="gate", **before),
        of([1.1e-5] * 200, known | provenance, **{"queue": "gate"} | after),
    )
    found = attribute(*pair, SLOWER)
    assert found.cause == cause
    assert evidence in found.evidence


def test_what_all_tests_have_in_common_points_to_the_machine() -> None:
    pair = (of([1e-5] * 20), of([1.1e-5] * 20, PROVENANCE | CODE))
    found = attribute(*pair, SLOWER, others_alike="9 of 9 tests alike")
    assert (found.cause, found.evidence) == ("hardware or clocks", "9 of 9 tests alike")
    others = dataclasses.replace(pair[1], activities=kernels("new"))
    was = dataclasses.replace(pair[0], activities=kernels("old"))
    assert attribute(was, others, SLOWER, others_alike="9 of 9").cause == "code"


def test_what_disturbed_the_slower_run_of_the_two_counts() -> None:
    disturbed, quiet = of([1e-5] * 20, **DISTURBED), of([1e-5] * 20)
    faster = Ratio(0.9, 0.89, 0.91)
    assert attribute(disturbed, quiet, faster).evidence == "the earlier run was preempted"
    assert attribute(disturbed, quiet, SLOWER).evidence.startswith("the commit is the same")
    busy = of([1e-5] * 20, PROVENANCE | {"load_average": 9.0})
    assert attribute(quiet, busy, faster).evidence.startswith("the commit is the same")
    assert attribute(busy, quiet, faster).evidence == "load average: 9.0 → 1.0"


def test_another_gpu_of_the_model_is_a_cause_where_the_very_same_is_asked_for() -> None:
    other = of([1.1e-5] * 20, PROVENANCE | CODE | {"gpu_uuid": "GPU-2"})
    assert attribute(of([1e-5] * 20), other, SLOWER, "uuid").cause == "hardware or clocks"
    assert attribute(of([1e-5] * 20), other, SLOWER).cause == "code"
