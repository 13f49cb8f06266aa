"""Ranks of a process group measure together, agree on each decision, and fail together."""

import fcntl
import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.helpers import TESTS

CASES = TESTS / "helpers" / "rank_cases.py"
PATIENCE = 600

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(
        not (dist.is_available() and dist.is_gloo_available()), reason="torch has no Gloo"
    ),
]

Found = dict[str, list[dict[str, Any]]]
Both = list[dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What came of each rank, by case; processes that share the tests run the cases once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # of all workers
    told = folder / "ranks.txt"
    with (folder / "ranks.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            told.write_text(printed_by(str(CASES)))
    return dict(map(json.loads, told.read_text().splitlines()))


def printed_by(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def both(found: Found) -> Both:
    """What two ranks measured."""
    assert [each["text"] for each in found["measures"]] == ["", ""]
    return [each["value"] for each in found["measures"]]


def assert_near(found: list[float], expected: float, allowed: float) -> None:
    """Require a tenth of the times to be as expected: others may delay the rest."""
    assert np.quantile(np.abs(np.array(found) - expected), 0.1) < allowed


def test_ranks_make_the_same_calls_and_have_the_same_samples(both: Both) -> None:
    assert both[0]["calls"] == both[1]["calls"] > 10
    for name in ("all_reduce", "late", "ddp"):
        assert both[0][name]["seconds"] == both[1][name]["seconds"]
        first, second = (each[name]["ranks"] for each in both)
        assert {**first, "rank": 1} == second
        own = [each["seconds"] for each in first["ranks"]]
        assert np.max(own, axis=0).tolist() == both[0][name]["seconds"]
    compared = both[0]["compared"]
    assert compared == both[1]["compared"]
    assert compared["operations"] == [1, 2]
    assert "agreed" in compared["same_result"]
    assert "agreed" in compared["interference"]
    assert all(each["local"] and each["only one"] and each["afterwards"] for each in both)


def test_a_late_rank_is_seen_and_named(both: Both) -> None:
    late = both[0]["late"]["ranks"]
    # Other processes delay ranks, too; benchmarks/ranks.py measures how exact it is.
    assert_near(late["skew_seconds"], 500e-6, 100e-6)
    first, second = (np.median(each["waiting_seconds"]) for each in late["ranks"])
    assert first > second
    slow = both[0]["slow"]["ranks"]
    usual, slower = (np.median(each["computing_seconds"]) for each in slow["ranks"])
    assert slower - usual > 4e-3
    assert bool(slow["slower"]) == ("slower" in both[0]["slow"]["printed"])
    # The last arrival and not the first begins the transfer.
    whole = np.array(both[0]["slow"]["seconds"])
    assert np.median(whole - slow["transfer_seconds"]) > 4e-3
    assert "arrived" in slow["bandwidth_reason"]
    assert slow["bus_bandwidth"] is None


def test_calls_and_results_are_described(both: Both) -> None:
    sizes = {
        "all_reduce": 262144,
        "functional all_gather": 8192,
        "all_gather": 8192,
        "reduce_scatter": 4096,
        "broadcast": 4096,
        "send": 4096,
        "all_to_all": 2048,
        "ddp": 4 * (64 * 64 + 64),
        "backward": 4 * (64 * 64 + 64),
    }
    for name, nbytes in sizes.items():
        (collective,) = both[0][name]["ranks"]["collectives"]
        kind = "all_reduce" if name in ("ddp", "backward") else name.split()[-1]
        assert collective == {"kind": kind, "nbytes": nbytes, "ranks": 2}
        assert both[0][name]["again"]
    # After the first of two operations, ranks wait and compute again.
    for name in ("twice", "slow twice"):
        twice = both[0][name]["ranks"]
        assert "2 operations" in twice["arrivals_reason"]
        assert not any(twice[what] for what in ("skew_seconds", "transfer_seconds", "slower"))
    for each in both[0]["slow twice"]["ranks"]["ranks"]:
        assert not each["waiting_seconds"]
        assert not each["computing_seconds"]
    assert "barrier" in both[0]["barrier"]["ranks"]["bandwidth_reason"]
    details = both[0]["all_reduce"]["details"]
    assert all(word in details for word in ("arrival skew", "transfer", "rank 1:", "one machine"))


def test_bad_input_is_one_sentence_on_every_rank(both: Both, found: Found) -> None:
    first, second = (each["refused"] for each in both)
    said = {
        **dict.fromkeys(("quick", "warmup", "verdict", "over", "timeout"), ""),
        "options": "budget, got '1' on rank 0 and '2' on rank 1",
        "pin": "pin must be",
        "unfinished": "must wait for its communication",
        "unfinished tensor": "must wait for its communication",
    }
    for name, words in said.items():
        assert first[name] == second[name]
        assert first[name][0] in ("InputError", "ValueError")
        assert words in first[name][1]
    assert "CollectiveRefused" in first["race"][1]
    assert "rank 1" in first["one rank"][1]
    for each in (first, second):
        assert "budget must be" in each["one rank"][1]


def test_the_group_is_that_of_the_call(found: Found) -> None:
    first, outside, last = (each["value"] for each in found["subgroup"])
    assert first["seconds"] == last["seconds"]
    assert [each["global_rank"] for each in first["ranks"]["ranks"]] == [0, 2]
    assert "global rank 2" in first["details"]
    assert outside["outside"][0] == "InputError"
    assert "without rank 1" in outside["outside"][1]


def test_clocks_of_machines_are_compared_through_the_store(found: Found) -> None:
    ranks = found["other clock"]
    if ranks[0]["error"] == "OSError":
        if os.environ.get("FAIL_WITHOUT_UNSHARE") == "1":
            pytest.fail(ranks[0]["text"])
        pytest.skip("no permission for a time namespace")
    first, second = (each["value"] for each in ranks)  # whose clocks are 1000 s apart
    seen = first["ranks"]
    assert 1e-7 < seen["clock_uncertainty"] < 0.01
    assert "exchanged" in seen["clock_reason"]
    assert_near(seen["skew_seconds"], 500e-6, 100e-6 + 2 * seen["clock_uncertainty"])
    assert first["seconds"] == second["seconds"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("raise at 1", "rank 1 raised ValueError: planted"),
        ("exit at 20", "rank 1 exited with code 7"),
        ("kill at 20", "ended without a word"),
        ("hang at 20", "rank 1 did not come as far"),
    ],
)
def test_a_failure_ends_the_measurement_everywhere_and_names_the_rank(
    found: Found, case: str, reason: str
) -> None:
    first, second = found[case]
    kind, text, seconds, usual = first["value"]
    assert kind == "RankError"
    assert text.startswith("rank 1 ")
    assert reason in text
    assert "destroy_process_group" in text
    assert float(seconds) < 15
    if case == "hang at 20":
        assert "slow in call 20, before an operation" in text
    assert usual == "0:00:30"  # Gloo's timeout is again as it was
    if case == "raise at 1":
        assert second["value"][:2] == ["ValueError", "planted"]
    if case == "exit at 20":
        assert second["error"] == "SystemExit"
    if "hang" in case:  # it was sleeping, and is woken
        assert second["value"][:2] == [kind, text]


def test_ranks_that_raise_are_absent_or_lose_the_store(found: Found) -> None:
    for rank, each in enumerate(found["raise both at 20"]):
        assert each["value"][:2] == ["ValueError", f"planted {rank}"]
    first, second = (each["value"] for each in found["absent"])
    kind, text, *later = first
    assert kind == "RankError"
    assert "rank 1 did not take part within timeout=4 s" in text
    assert later == second[2:] == ["", ""]  # both take part in the same measurement again
    kind, text, seconds = found["without store"][1]["value"]
    assert kind == "RankError"
    assert text.startswith("rank 0 ended together with the store that the ranks agree through")
    assert float(seconds) < 5  # of the 30 s for which torch tries to connect


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")
def test_two_gpus_measure_an_all_reduce_as_nccl_takes() -> None:
    run = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    told = json.loads(printed_by(*run, str(CASES.parent / "gpu_ranks.py")).splitlines()[-1])
    for nbytes, (transfer, events, bus, uncertainty) in told["all_reduce"].items():
        assert transfer == pytest.approx(events, rel=0.1, abs=5e-6 + uncertainty), nbytes
        assert bus == pytest.approx(int(nbytes) / transfer, rel=0.05)
    assert told["communication"]["seconds"] > 0
    assert told["skew"] == pytest.approx(1e-3, rel=0.05, abs=2 * told["uncertainty"])
    assert len(set(told["uuids"])) == 2
