"""Ranks of a process group measure together, agree on each decision, and fail together."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import subprocess
import sys
import threading
import types
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import convtime
from convtime import Candidate, InputError, time_op
from convtime.core.load import _C
from convtime.distributed.calls import Calls
from convtime.distributed.checks import refuse_timeout
from convtime.distributed.clocks import CommonClock, Offset, bounded
from convtime.distributed.collectives import _nbytes
from convtime.distributed.failure import Failure, is_of_communication
from convtime.distributed.marks import EventMarks
from convtime.distributed.meeting import Meeting, _own_store, behind, groups_here, limited
from convtime.distributed.results import (
    _all_wait,
    _arrivals_reason,
    _bandwidth,
    _communication,
    _divided,
    _slower,
)
from convtime.timing.activity import DeviceActivity
from convtime.timing.ranks import Collective, RankTimes, rank_name
from tests.helpers import TESTS
from tests.helpers.measurements import make

CASES = TESTS / "helpers" / "rank_cases.py"
PATIENCE = 600

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch has no Gloo"
)

GLOO_SECONDS = 30
NAMES = ["rank 0", "rank 1 of the group (global rank 2)"]

Found = dict[str, list[dict[str, Any]]]


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
            told.write_text(run_cases())
    return dict(map(json.loads, told.read_text().splitlines()))


def run_cases() -> str:
    done = subprocess.run(
        [sys.executable, str(CASES)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def both(found: Found) -> list[dict[str, Any]]:
    """What two ranks measured."""
    assert [each["text"] for each in found["measures"]] == ["", ""]
    return [each["value"] for each in found["measures"]]


@pytest.fixture
def alone() -> Iterator[Any]:
    """A process group of this process alone."""
    begin_alone(dist.HashStore())  # type: ignore[attr-defined]
    yield dist.group.WORLD
    dist.destroy_process_group()


def assert_near(found: list[float], expected: float, allowed: float) -> None:
    """Require a tenth of the times to be as expected: others may delay the rest."""
    assert np.quantile(np.abs(np.array(found) - expected), 0.1) < allowed


def begin_alone(store: Any) -> None:
    patience = timedelta(seconds=GLOO_SECONDS)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=patience)


def test_ranks_make_the_same_calls_and_have_the_same_samples(both) -> None:
    assert both[0]["calls"] == both[1]["calls"] > 10
    for name in ("all_reduce", "late", "ddp"):
        assert both[0][name]["seconds"] == both[1][name]["seconds"]
        first, second = (each[name]["ranks"] for each in both)
        assert {**first, "rank": 1} == second
        own = [each["seconds"] for each in first["ranks"]]
        assert np.max(own, axis=0).tolist() == both[0][name]["seconds"]
    assert both[0]["compared"] == both[1]["compared"]
    assert both[0]["compared"]["operations"] == [1, 2]
    assert "agreed" in both[0]["compared"]["same_result"]
    assert "agreed" in both[0]["compared"]["interference"]


def test_a_late_rank_is_seen_and_named(both) -> None:
    late = both[0]["late"]["ranks"]
    # Other processes delay ranks, too; benchmarks/ranks.py measures how exact it is.
    assert_near(late["skew_seconds"], 500e-6, 100e-6)
    assert np.median(late["ranks"][0]["waiting_seconds"]) > np.median(
        late["ranks"][1]["waiting_seconds"]
    )
    slow = both[0]["slow"]["ranks"]
    usual, slower = (np.median(each["computing_seconds"]) for each in slow["ranks"])
    assert slower - usual > 4e-3
    assert bool(slow["slower"]) == ("slower" in both[0]["slow"]["printed"])
    # The last arrival and not the first begins the transfer.
    whole = np.array(both[0]["slow"]["seconds"])
    assert np.median(whole - slow["transfer_seconds"]) > 4e-3
    assert "arrived" in slow["bandwidth_reason"]
    assert slow["bus_bandwidth"] is None


def test_calls_and_results_are_described(both) -> None:
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
    assert "2 operations" in both[0]["twice"]["ranks"]["arrivals_reason"]
    assert not both[0]["twice"]["ranks"]["transfer_seconds"]
    # After the first operation, ranks wait and compute again.
    twice = both[0]["slow twice"]["ranks"]
    assert "2 operations" in twice["arrivals_reason"]
    assert not any(twice[what] for what in ("skew_seconds", "transfer_seconds", "slower"))
    for each in twice["ranks"]:
        assert not each["waiting_seconds"]
        assert not each["computing_seconds"]
    assert "barrier" in both[0]["barrier"]["ranks"]["bandwidth_reason"]
    details = both[0]["all_reduce"]["details"]
    assert all(word in details for word in ("arrival skew", "transfer", "rank 1:", "one machine"))


def test_calls_without_communication_are_of_one_rank(both) -> None:
    assert all(each["local"] and each["only one"] and each["afterwards"] for each in both)


def test_bad_input_is_one_sentence_on_every_rank(both, found: Found) -> None:
    first, second = (each["refused"] for each in both)
    for name in ("quick", "warmup", "regime", "verdict", "over", "options", "names", "samples"):
        assert first[name] == second[name]
        assert first[name][0] in ("InputError", "ValueError")
    assert first["timeout"] == second["timeout"]
    assert first["timeout"][0] == "InputError"
    assert first["samples"][1].endswith("max_samples must be at least min_samples (10), got 5")
    for name, said in (("pin", "pin must be"), ("metric", "metric 'span' needs")):
        assert first[name] == second[name]
        assert first[name][0] == "InputError"
        assert said in first[name][1]
    assert "CollectiveRefused" in first["race"][1]
    assert "budget, got '1' on rank 0 and '2' on rank 1" in first["options"][1]
    for name in ("unfinished", "unfinished in a dict", "unfinished tensor"):
        assert first[name] == second[name]
        assert first[name][0] == "InputError"
        assert "must wait for its communication" in first[name][1]
    assert "candidates" in first["names"][1]
    assert "rank 1" in first["one rank"][1]
    assert "budget must be" in first["one rank"][1]
    assert "budget must be" in second["one rank"][1]
    outside = found["subgroup"][1]["value"]["outside"]
    assert outside[0] == "InputError"
    assert "without rank 1" in outside[1]
    with pytest.raises(InputError, match="torchrun"):
        time_op(torch.relu, torch.ones(1), group=object())  # type: ignore[arg-type]


def test_the_group_is_that_of_the_call(found: Found) -> None:
    first, _, last = (each["value"] for each in found["subgroup"])
    assert first["seconds"] == last["seconds"]
    assert [each["global_rank"] for each in first["ranks"]["ranks"]] == [0, 2]
    assert "global rank 2" in first["details"]


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
    allowed = 100e-6 + 2 * seen["clock_uncertainty"]
    assert_near(seen["skew_seconds"], 500e-6, allowed)
    assert first["seconds"] == second["seconds"]


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("raise at 1", "rank 1 raised ValueError: planted"),
        ("exit at 20", "rank 1 exited with code 7"),
        ("kill at 20", "ended without a word"),
        ("hang at 20", "rank 1 did not come as far"),
        ("hang elsewhere at 1", "rank 1 did not come as far"),  # in another group of both ranks
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


def test_each_rank_that_raises_keeps_its_exception(found: Found) -> None:
    for rank, each in enumerate(found["raise both at 20"]):
        assert each["value"][:2] == ["ValueError", f"planted {rank}"]


def test_only_errors_of_communication_follow_from_another_ranks_failure(alone) -> None:
    meeting = Meeting(alone, 10)
    meeting.names = NAMES
    failure = Failure("raised", 1, "was interrupted", True)
    assert meeting._is_consequence(RuntimeError("gloo: connection closed by peer"), failure)
    for own in (KeyboardInterrupt(), SystemExit(1), ValueError("own"), failure.error("", NAMES)):
        assert not meeting._is_consequence(own, failure)
    meeting._interrupted = True  # by this rank itself, to end a call
    assert meeting._is_consequence(KeyboardInterrupt(), failure)


def test_a_rank_that_does_not_take_part_is_named(found: Found) -> None:
    first, second = (each["value"] for each in found["absent"])
    kind, text, *later = first
    assert kind == "RankError"
    assert "rank 1 did not take part within timeout=4 s" in text
    assert later == second[2:] == ["", ""]  # both take part in the same measurement again


def test_measurements_are_counted_by_store_and_without_those_that_a_rank_missed(alone) -> None:
    def assert_next(number: int, failure: Failure | None = None) -> None:
        store = dist.distributed_c10d._get_default_store()
        if failure is not None:
            store.set("convtime/0/2/failed", failure.to_json())
        _own_store(dist.group.WORLD)().set("entered", "")
        assert store.check([f"convtime/0/{number}/entered"])

    assert_next(0)
    assert_next(1)
    assert_next(3, Failure("absent", 0, "did not take part"))
    dist.destroy_process_group()
    begin_alone(dist.HashStore())  # type: ignore[attr-defined]
    assert_next(0)
    assert_next(1)
    assert_next(2, Failure("input", 1, "rank 1: an argument of every rank"))


def test_a_measurement_leaves_neither_keys_nor_a_connection(alone) -> None:
    store = dist.distributed_c10d._get_default_store()
    keys = []
    for _ in range(2):
        with Meeting(alone, 10) as meeting:
            meeting.gather("a step", None)
        meeting._thread.join()
        assert meeting._connected is None
        keys.append(store.num_keys())
    assert keys[0] == keys[1]


def test_nobody_waits_for_a_rank_that_cannot_know_of_the_failure(
    alone, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting = Meeting(alone, 10)
    meeting.size = 3
    meeting._failure = Failure("absent", 1, "did not take part")
    asked: list[int] = []

    def is_done(rank: int) -> bool:
        asked.append(rank)
        return True

    monkeypatch.setattr(meeting, "_is_done", is_done)
    meeting._let_others_know()
    assert asked == [2]
    monkeypatch.undo()
    stopped: Any = types.SimpleNamespace(state=lambda: "stopped")
    meeting.processes = [stopped]
    assert meeting._is_done(0)
    meeting._began -= 20  # the time is up
    meeting._connected = None  # and the store is not asked
    meeting.processes = []
    meeting._let_others_know()


def test_the_end_of_the_time_waits_for_a_judgement_in_progress(alone) -> None:
    meeting = Meeting(alone, 10)
    meeting._judging = True
    failure = Failure("late", 0, "hangs")
    judge = threading.Timer(0.01, meeting._set, [failure])
    judge.start()
    meeting._measuring = False
    meeting._period = 30
    meeting._time_is_up()
    assert meeting._failure == failure


def test_ranks_are_named_as_in_the_group_and_in_logs() -> None:
    assert [rank_name(0, 0), rank_name(1, 2)] == NAMES
    assert str(Failure("raised", 1, "raised", False).error("", NAMES)).startswith(NAMES[1])


def test_operations_of_every_group_are_limited_for_the_time_of_a_measurement(alone) -> None:
    other: Any = dist.new_group([0], timeout=timedelta(seconds=GLOO_SECONDS))
    assert set(groups_here()) == {alone, other}
    options = [each._get_backend(torch.device("cpu")).options for each in (alone, other)]
    with limited(groups_here()) as limit:
        limit(1.5)
        assert [each._timeout.total_seconds() for each in options] == [1.5, 1.5]
    assert [each._timeout.total_seconds() for each in options] == [GLOO_SECONDS, GLOO_SECONDS]


def test_timeouts_fit_the_timer() -> None:
    refuse_timeout(threading.TIMEOUT_MAX)
    with pytest.raises(InputError, match="timeout and budget must be less than 9.22e"):
        refuse_timeout(1e10)


def test_a_store_that_is_gone_ends_the_measurement_in_time(found: Found) -> None:
    kind, text, seconds = found["without store"][1]["value"]
    assert kind == "RankError"
    assert text.startswith("rank 0 ended together with the store that the ranks agree through")
    assert float(seconds) < 5  # of the 30 s for which torch tries to connect


def test_round_trips_bound_an_offset_from_both_sides() -> None:
    # The other clock is 1000 ahead; its stamp is early in one trip, late in the other.
    offset = bounded([(0, 400, 1010), (1000, 1400, 2390)])
    assert offset.nanoseconds == 1000
    assert offset.uncertainty == pytest.approx(10e-9, abs=2e-7)
    clock = CommonClock(Offset(0, 100.0, 1e-6), Offset(1000, 200.0, 3e-6))
    assert clock.common(500) == 650
    assert clock.uncertainty == 3e-6


def test_errors_of_communication_may_be_of_another_rank() -> None:
    assert is_of_communication(RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed"))
    assert is_of_communication(dist.DistBackendError("NCCL error"))
    assert not is_of_communication(ValueError("gloo"))
    assert not is_of_communication(RuntimeError("shape mismatch"))
    failure = Failure("late", None, "did not answer", True)
    assert Failure.from_json(failure.to_json()) == failure
    assert "could not be determined" in str(failure.error("aborted", NAMES))


def test_the_rank_that_is_behind_is_found_in_steps_calls_and_collectives() -> None:
    assert "before a step" in behind((3, 9, 9), (4, 9, 9))
    assert "in call 9, which others have ended" in behind((4, 8, 9), (4, 9, 9))
    assert "before an operation" in behind((4, 9, 9), (4, 9, 10))
    assert not behind((4, 9, 9), (4, 9, 9))


def test_bandwidths_are_those_of_nccl_tests() -> None:
    # doc/PERFORMANCE.md of nccl-tests, for 4 ranks.
    factors = {
        "all_reduce": 1.5,
        "reduce_scatter": 0.75,
        "all_gather": 0.75,
        "all_to_all": 0.75,
        "broadcast": 1,
        "reduce": 1,
        "send": 1,
        "recv": 1,
        "barrier": None,
    }
    for kind, factor in factors.items():
        assert Collective(kind, 1, 4).bus_factor == factor
    skew, transfer = np.full(10, 1e-6), np.full(10, 1e-3)
    reduced = [Collective("all_reduce", 1_000_000, 4)]
    assert _bandwidth(reduced, skew, transfer, 0.0) == (pytest.approx(1e9), "")
    late, reason = _bandwidth(reduced, np.full(10, 2e-4), transfer, 0.0)
    assert late is None
    assert "200.0 µs apart" in reason
    # Nor do the slow samples of late ranks make a bandwidth.
    transfer = np.array([1e-3] * 12 + [1e-2] * 8)
    slow, reason = _bandwidth(reduced, np.full(20, 1.5e-4), transfer, 0.0)
    assert slow is None
    assert "150.0 µs apart" in reason
    few, reason = _bandwidth(reduced, np.full(5, 1e-6), transfer[:5], 0.0)
    assert few is None
    assert "at least 6" in reason


def test_a_sparse_tensor_has_the_bytes_of_its_parts() -> None:
    identity = torch.eye(16)
    twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (16,))  # type: ignore[arg-type]
    assert _nbytes(twice) == 2 * (8 + 4)
    for compressed in (
        identity.to_sparse_csr(),
        identity.to_sparse_csc(),
        identity.to_sparse_bsr((1, 1)),
        identity.to_sparse_bsc((1, 1)),
    ):
        assert _nbytes([compressed, identity]) == 8 * (17 + 16) + 4 * 16 + 4 * 256


def test_a_call_with_several_operations_has_no_arrivals() -> None:
    reduced, recorded = Collective("all_reduce", 1_000_000, 2), {"communicating": [1e-3] * 10}

    def rank(operations: int) -> dict[str, Any]:
        return {"collectives": [dataclasses.asdict(reduced)] * operations}

    assert _arrivals_reason(True, [rank(1), rank(1)], 2) == ""
    assert "do not communicate on every rank" in _arrivals_reason(False, [rank(1), rank(0)], 2)
    for known in (False, True):
        assert "has 1 or 2 operations" in _arrivals_reason(known, [rank(2), rank(1)], 2)
    assert _all_wait([recorded, recorded], [reduced])
    # On a GPU, too: the sum of the kernels' times can be the same on ranks that wait in turn.
    assert not _all_wait([recorded, recorded], [reduced, reduced])


def test_an_operation_of_some_ranks_has_no_arrivals() -> None:
    def reason(kind: str, ranks: int, size: int, known: bool = True) -> str:
        operation = dataclasses.asdict(Collective(kind, 1_000_000, ranks))
        return _arrivals_reason(known, [{"collectives": [operation]}] * size, size)

    for known in (False, True):
        assert "joins 2 of the 4 ranks" in reason("all_reduce", 2, 4, known)
        assert "joins 2 of the 4 ranks" in reason("send", 4, 4, known)
    assert not reason("all_reduce", 4, 4)
    assert not reason("all_reduce", 0, 4)  # unknown
    assert not reason("send", 2, 2)


def activity(name: str, seconds: float, stream: int) -> DeviceActivity:
    return DeviceActivity(
        kind="kernel",
        name=name,
        grid=(1, 1, 1),
        block=(1, 1, 1),
        registers_per_thread=1,
        shared_memory_bytes=0,
        bytes=0,
        seconds=(seconds,) * 10,
        streams=(stream,),
    )


def test_hidden_communication_is_what_kernels_overlap() -> None:
    kernels = (
        activity("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 5e-3, 20),
        activity("gemm", 3e-3, 7),
        activity("gemm", 4e-3, 7),
    )
    # 12 ms of work took 9 ms: 3 ms of it ran at the same time.
    nine = (9e-3,) * 10
    measured = make(name="step", seconds=nine, busy_seconds=nine, activities=kernels)
    known, communicating, computing, reason = _communication(measured, True)
    assert known is not None
    assert communicating == pytest.approx([5e-3] * 10)
    assert (known.seconds, known.exposed, known.hidden) == pytest.approx((5e-3, 2e-3, 3e-3))
    assert computing == pytest.approx([7e-3] * 10)
    assert not reason
    several = (*kernels, activity("copy", 1e-3, 8))
    measured = make(name="step", seconds=nine, busy_seconds=nine, activities=several)
    known, _, _, reason = _communication(measured, True)
    assert known is None
    assert "several streams" in reason
    assert "CPU" in _communication(measured, False)[3]


def test_a_slower_gpu_is_named_with_what_differs() -> None:
    def rank(number: int, computing: float, clock_hz: float) -> RankTimes:
        random = np.random.default_rng(number)
        return RankTimes(
            rank=number,
            global_rank=2 * number,
            process="process 1 on a",
            device=f"cuda:{number}",
            device_name="H200",
            gpu_uuid=None,
            seconds=(1e-3,) * 50,
            computing_seconds=tuple(computing + 1e-6 * random.random(50)),
            state=convtime.ClockReading(0.0, clock_hz, None, None, None, ("sw_power_cap",)),
        )

    measured = make(name="step", seconds=(1e-3,) * 50)
    same = [rank(0, 5e-4, 1.98e9), rank(1, 5e-4, 1.98e9)]
    assert not _slower(same, measured)
    (sentence,) = _slower([*same, rank(2, 6e-4, 1.5e9)], measured)
    assert sentence.startswith("rank 2 of the group (global rank 4) (cuda:2")
    assert "1500 MHz" in sentence
    assert "sw_power_cap" in sentence


class FakeEvent:
    """An event of a device whose clock is the test's."""

    clock = 0.0

    def record(self) -> None:
        self.milliseconds = 1e3 * FakeEvent.clock

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, other: FakeEvent) -> float:
        return other.milliseconds - self.milliseconds


def test_events_are_related_to_the_hosts_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter(range(100_000, 10_000_000, 4_000))
    monkeypatch.setattr("convtime.distributed.marks.now", lambda: next(times))
    marks = EventMarks(FakeEvent, spin_on_fake_device)
    marks.begin()
    FakeEvent.clock += 1e-3
    (found,) = marks.times([marks.mark()])
    # Each reading took 4 µs: the first event is 2 µs after the host's first time.
    assert found == pytest.approx(102_000 + 1e6)
    assert marks.uncertainty == pytest.approx(2e-6 + 0.5e-6)


def spin_on_fake_device(nanoseconds: int) -> None:
    """A kernel, with gaps of 4 µs around it."""
    FakeEvent.clock += 1e-9 * nanoseconds + 4e-6


def test_gaps_around_the_work_between_two_events_are_not_part_of_it() -> None:
    marks = EventMarks(FakeEvent, spin_on_fake_device)
    candidates = [Candidate(spin_on_fake_device, 25_000), Candidate(int)]
    calls = Calls(candidates, marks, _C.CollectiveStamps(), on_gpu=True)
    calls.begin(None, [0.0, 0.0])
    assert marks.excess == pytest.approx(4_000)
    for candidate in calls.candidates:
        candidate.fn(*candidate.args)
    assert calls.progress()[0] == 4  # with the first call of each, which was only watched
    (spin,), (nothing,) = (
        [end - begin for begin, end in zip(each.begin, each.end, strict=True)]
        for each in calls.take()
    )
    assert spin == pytest.approx(25_000)
    assert nothing == 0


def divided(
    kind: str, communicating: Sequence[Sequence[float]] = ((4.7e-6,), (4.2e-6,)), *, stamped: bool
) -> tuple[Any, Any, bool]:
    """Of one call, whose marks have rank 1 arrive 5 µs late, and whose kernels 0.5 µs."""
    own = [
        {
            "times": {"arrival": [1e-6 * arrival], "end": [20e-6]},
            "communicating": kernels,
            "stamped": stamped,
        }
        for arrival, kernels in zip((10, 15), communicating, strict=True)
    ]
    return _divided(own, [Collective(kind, 1024, 2)])


@pytest.mark.parametrize("stamped", [True, False])
def test_kernels_that_end_together_need_no_clocks(stamped: bool) -> None:
    waiting, transfer, needs_clocks = divided("all_reduce", stamped=stamped)
    assert transfer == pytest.approx([4.2e-6])
    assert waiting == pytest.approx(np.array([[0.5e-6], [0.0]]))
    assert not needs_clocks


@pytest.mark.parametrize(
    ("kind", "recorded"), [("broadcast", True), ("all_reduce", False), ("all_to_all", True)]
)
def test_other_operations_are_divided_by_their_marks(kind: str, recorded: bool) -> None:
    records = {} if recorded else {"communicating": ((), ())}
    waiting, transfer, needs_clocks = divided(kind, **records, stamped=True)
    assert transfer == pytest.approx([5e-6])
    assert waiting == pytest.approx(np.array([[5e-6], [0.0]]))
    assert needs_clocks


@pytest.mark.parametrize(
    ("kind", "communicating", "stamped"),
    [
        ("all_reduce", ((), ()), False),
        # The call does not communicate in this sample, or its record is lost.
        ("all_reduce", ((4.7e-6,), (0.0,)), False),
        ("all_reduce", ((4.7e-6,), (0.0,)), True),
        ("broadcast", ((0.0,), (0.0,)), True),
    ],
)
def test_what_is_neither_marked_nor_on_record_is_not_divided(
    kind: str, communicating: Sequence[Sequence[float]], stamped: bool
) -> None:
    waiting, transfer, _ = divided(kind, communicating, stamped=stamped)
    assert waiting.shape == (2, 0)
    assert not transfer.size


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two CUDA devices")
def test_two_gpus_measure_an_all_reduce_as_nccl_takes() -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node=2", str(CASES.parent / "gpu_ranks.py")),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    for nbytes, (transfer, events, bus, uncertainty) in told["all_reduce"].items():
        assert transfer == pytest.approx(events, rel=0.1, abs=5e-6 + uncertainty), nbytes
        assert bus == pytest.approx(int(nbytes) / transfer, rel=0.05)
    assert told["communication"]["seconds"] > 0
    assert told["skew"] == pytest.approx(1e-3, rel=0.05, abs=2 * told["uncertainty"])
    assert len(set(told["uuids"])) == 2
