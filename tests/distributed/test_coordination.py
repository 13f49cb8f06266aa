"""How ranks agree through the store and fail together, in a group of this process alone."""

import dataclasses
import threading
import types
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist

from convtime import InputError, time_op
from convtime.distributed import calls as rank_calls
from convtime.distributed import clocks, coordination
from convtime.distributed.calls import BatchAgreement
from convtime.distributed.checks import _refusal, check_timeout
from convtime.distributed.clocks import CommonClock, Offset
from convtime.distributed.coordination import (
    Coordinator,
    _own_store,
    behind,
    groups_here,
    limiting_operations,
)
from convtime.distributed.failure import Failure, is_of_communication
from convtime.timing.options import Options
from convtime.timing.ranks import rank_name

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch has no Gloo"
)

GLOO_SECONDS = 30
NAMES = ["rank 0", "rank 1 of the group (global rank 2)"]


def begin_alone() -> None:
    store = dist.HashStore()  # type: ignore[attr-defined]
    patience = timedelta(seconds=GLOO_SECONDS)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1, timeout=patience)


@pytest.fixture
def alone() -> Iterator[Any]:
    begin_alone()
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_only_errors_of_communication_follow_from_another_ranks_failure(alone: Any) -> None:
    coordinator = Coordinator(alone, 10)
    coordinator.names = NAMES
    failure = Failure("raised", 1, "was interrupted", True)
    assert coordinator._is_consequence(RuntimeError("gloo: connection closed by peer"), failure)
    for own in (KeyboardInterrupt(), SystemExit(1), ValueError("own"), failure.error("", NAMES)):
        assert not coordinator._is_consequence(own, failure)
    coordinator._interrupted = True  # by this rank itself, to end a call
    assert coordinator._is_consequence(KeyboardInterrupt(), failure)
    assert is_of_communication(RuntimeError("[gloo/transport/tcp/pair.cc:561] Connection closed"))
    assert is_of_communication(dist.DistBackendError("NCCL error"))
    assert not is_of_communication(ValueError("gloo"))
    assert not is_of_communication(RuntimeError("shape mismatch"))


def test_failures_and_ranks_are_named_as_in_the_group_and_in_logs() -> None:
    assert [rank_name(0, 0), rank_name(1, 2)] == NAMES
    assert str(Failure("raised", 1, "raised", False).error("", NAMES)).startswith(NAMES[1])
    failure = Failure("late", None, "did not answer", True)
    assert Failure.from_json(failure.to_json()) == failure
    told = str(failure.error("aborted", NAMES))
    assert "could not be determined" in told
    assert "call destroy_process_group" in told
    assert isinstance(Failure("input", 1, "bad").error("", NAMES), InputError)


def test_measurements_are_counted_by_store_and_without_those_that_a_rank_missed(alone: Any) -> None:
    def assert_next(number: int, failure: Failure | None = None) -> None:
        store = dist.distributed_c10d._get_default_store()
        if failure is not None:
            store.set("convtime/0/2/failed", failure.to_json())
        group: Any = dist.group.WORLD
        _own_store(group)().set("entered", "")
        assert store.check([f"convtime/0/{number}/entered"])

    assert_next(0)
    assert_next(1)
    assert_next(3, Failure("absent", 0, "did not take part"))
    dist.destroy_process_group()
    begin_alone()
    assert_next(0)
    assert_next(1)
    assert_next(2, Failure("input", 1, "rank 1: an argument of every rank"))


def test_a_measurement_leaves_neither_keys_nor_a_connection(alone: Any) -> None:
    store = dist.distributed_c10d._get_default_store()
    keys = []
    for _ in range(2):
        with Coordinator(alone, 10) as coordinator:
            assert coordinator.gather("a step", {"a": 1}) == [{"a": 1}]
        coordinator._thread.join()
        assert coordinator._store is None
        keys.append(store.num_keys())
    assert keys[0] == keys[1]


def test_when_the_time_is_up_a_stopped_rank_is_named(alone: Any) -> None:
    for state, rank in (("stopped", 1), ("alive", None)):
        coordinator = Coordinator(alone, 10)
        coordinator._store = object()
        coordinator._measuring = False
        processes: Any = [types.SimpleNamespace(state=lambda: "alive")]
        processes.append(types.SimpleNamespace(state=lambda state=state: state))
        coordinator.processes = processes
        coordinator._time_is_up()
        assert coordinator._failure is not None
        assert (coordinator._failure.kind, coordinator._failure.rank) == ("late", rank)
    unconnected = Coordinator(alone, 10)
    unconnected._measuring = False
    unconnected._time_is_up()
    assert unconnected._failure is not None
    assert "no connection within timeout=10 s" in unconnected._failure.reason


def test_operations_of_every_group_are_limited_for_the_time_of_a_measurement(alone: Any) -> None:
    other: Any = dist.new_group([0], timeout=timedelta(seconds=GLOO_SECONDS))
    assert set(groups_here()) == {alone, other}
    options = [each._get_backend(torch.device("cpu")).options for each in (alone, other)]
    with limiting_operations(groups_here()) as limit:
        limit(1.5)
        assert [each._timeout.total_seconds() for each in options] == [1.5, 1.5]
    assert [each._timeout.total_seconds() for each in options] == [GLOO_SECONDS, GLOO_SECONDS]


def test_the_rank_that_is_behind_is_found_in_steps_calls_and_collectives() -> None:
    assert "before a step" in behind((3, 9, 9), (4, 9, 9))
    assert "in call 9, which others have ended" in behind((4, 8, 9), (4, 9, 9))
    assert "before an operation" in behind((4, 9, 9), (4, 9, 10))
    assert not behind((4, 9, 9), (4, 9, 9))


def test_timeouts_fit_the_timer_and_a_group_is_one_of_torch() -> None:
    check_timeout(threading.TIMEOUT_MAX)
    with pytest.raises(InputError, match="timeout and budget must be less than 9.22e"):
        check_timeout(1e10)
    with pytest.raises(InputError, match="torchrun"):
        time_op(torch.relu, torch.ones(1), group=object())  # type: ignore[arg-type]


def test_options_by_which_a_rank_would_decide_alone_are_refused() -> None:
    accepted: list[dict[str, Any]] = [{}, {"warmup": 3}, {"warmup": "steady"}, {"queue": "gate"}]
    for given in accepted:
        assert not _refusal(Options(**given))
    refused: list[dict[str, Any]] = [
        *({"warmup": 0.1}, {"queue": "sleep"}, {"quick": True}, {"method": "graph"}),
        *({"cache": "rotate"}, {"placement": "aligned"}, {"regime": "burst"}),
    ]
    for given in refused:
        (value,) = given.values()
        told = _refusal(Options(**given))
        assert all(word in told for word in (*given, f"{value!r}", "each rank"))


def test_a_process_has_ended_if_another_one_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    this = coordination.this_process()
    assert this.state() == "alive"
    for started in (this.started - 1, this.started + 1):
        assert dataclasses.replace(this, started=started).state() == "ended"
    assert dataclasses.replace(this, pids="of another machine").state() == "unknown"
    states = {"R": "alive", "S": "alive", "T": "stopped", "t": "stopped", "Z": "ended"}
    for letter, state in {**states, "X": "ended"}.items():
        monkeypatch.setattr(coordination, "_stat", lambda _, found=(letter, this.started): found)
        assert this.state() == state
    monkeypatch.setattr(coordination, "_stat", lambda _: None)
    assert this.state() == "ended"


@pytest.mark.parametrize("aligned", [False, True])
def test_ranks_agree_on_an_instant_rounds_and_the_longest_samples(
    aligned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = {"seconds": [[1.0, 4.0]], "fault": "", "held": True, "hold_given_up": False}
    batch |= {"unordered": False, "elapsed_seconds": 5.0, "time_is_up": False}
    other = {"seconds": [[3.0, 2.0]], "fault": "odd", "held": False, "hold_given_up": True}
    other |= {"unordered": True, "elapsed_seconds": 4.0, "time_is_up": True}
    theirs = {  # with the instant when it is sent, and how late the last answer came
        "the sampling begins": 2e-9,
        "a batch begins": [[5, [2e-3, 1e-3]], 9_000, 1e-3],
        "the queues are released": [None, 2_000, 0.0],
        "a batch ends": other,
    }
    seen: dict[str, Any] = {}
    coordinator: Any = types.SimpleNamespace(seconds_left=10.0)
    coordinator.gather = lambda label, own: [own, theirs[label]]
    calls: Any = types.SimpleNamespace(costs=lambda: [1e-3, 3e-3], take=list)
    calls.begin = lambda instant, costs: seen.update(instant=instant, costs=costs)
    for where in (rank_calls, clocks):
        monkeypatch.setattr(where, "now", lambda: 5_000)
    monkeypatch.setattr(rank_calls, "wait_until", lambda at: seen.update(released=at))
    clock, limits = CommonClock(Offset(0, 1_000, 0.0)), list[float]()
    agreed = BatchAgreement(coordinator, clock, calls, limits.append, aligned=aligned, timeout=20)
    assert agreed.begin(1e-9) == 2e-9
    assert agreed.rounds(8) == 5
    agreed.release()
    # After the last rank has sent: twice the time in which the latest one learns of it.
    assert seen.pop("instant") == (pytest.approx(9_000 + 2_000_000 - 1_000) if aligned else None)
    assert seen.pop("released") == pytest.approx(6_000 + 200_000 - 1_000)
    assert seen == {"costs": [2e-3, 3e-3]}
    assert limits == [9]
    assert agreed.share(batch) == {**other, "seconds": [[3.0, 4.0]], "elapsed_seconds": 5.0}
    assert [each.seconds for each in agreed.batches] == [[[1.0, 4.0]]]
