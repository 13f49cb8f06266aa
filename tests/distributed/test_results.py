"""What the ranks' times amount to: waiting, transfer, bandwidth, hidden work and slow devices."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from convtime.device.clock_trace import ClockReading
from convtime.distributed.collectives import _nbytes
from convtime.distributed.results import (
    _all_wait,
    _arrivals_reason,
    _bandwidth,
    _communication,
    _divide_calls,
    _slower,
)
from convtime.timing.activity import DeviceActivity
from convtime.timing.ranks import Collective, RankTimes
from tests.helpers.measurements import make

micros = st.floats(1, 1000)


@given(st.integers(2, 16))
def test_bus_bandwidths_are_those_of_nccl_tests(ranks: int) -> None:
    """By doc/PERFORMANCE.md of nccl-tests: the traffic of each link over the bytes of a rank."""
    share = (ranks - 1) / ranks
    factors = dict.fromkeys(("reduce_scatter", "all_gather", "all_to_all"), share)
    factors |= dict.fromkeys(("broadcast", "reduce", "send", "recv"), 1.0)
    factors["all_reduce"] = 2 * share
    for kind, factor in factors.items():
        assert Collective(kind, 1, ranks).bus_factor == pytest.approx(factor)
    assert Collective("barrier", 1, ranks).bus_factor is None


@given(st.lists(st.tuples(micros, micros), min_size=1, max_size=20), st.integers(1, 10**9), micros)
@settings(max_examples=100)
def test_a_bandwidth_is_of_the_samples_whose_ranks_arrive_together(
    drawn: list[tuple[float, float]], nbytes: int, uncertainty: float
) -> None:
    skew, transfer = 1e-6 * np.array(drawn).T
    found, reason = _bandwidth(
        [Collective("all_reduce", nbytes, 4)], skew, transfer, 1e-9 * uncertainty
    )
    # Nor do the slow samples of late ranks make a bandwidth: one limit for all of them.
    limit = 0.1 * sorted(transfer)[len(transfer) // 2]
    if len(transfer) % 2 == 0:
        limit = 0.1 * np.mean(sorted(transfer)[len(transfer) // 2 - 1 : len(transfer) // 2 + 1])
    together = [t for s, t in zip(skew, transfer, strict=True) if s <= limit + 1e-9 * uncertainty]
    if len(together) < len(transfer) / 2:
        assert found is None
        assert "apart, more than 10% of the transfer time" in reason
    elif len(together) < 6:
        assert found is None
        assert "at least 6" in reason
    else:
        assert (found, reason) == (pytest.approx(nbytes / np.median(together)), "")
    assert _bandwidth([Collective("barrier", 0, 4)], skew, transfer, 0.0)[0] is None


def own_of(
    arrivals: Sequence[float], end: float, kernels: Sequence[Sequence[float]], *, stamped: bool
) -> list[dict[str, Any]]:
    return [
        {
            "times": {"arrival": [1e-6 * arrival], "end": [1e-6 * end]},
            "communicating": [1e-6 * each for each in communicating],
            "stamped": stamped,
        }
        for arrival, communicating in zip(arrivals, kernels, strict=True)
    ]


@given(
    st.sampled_from(["all_reduce", "all_gather", "broadcast", "reduce", "all_to_all"]),
    st.lists(st.tuples(micros, micros), min_size=2, max_size=4),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@settings(max_examples=100)
def test_a_call_waits_for_the_last_rank_and_then_transfers(
    kind: str, drawn: list[tuple[float, float]], recorded: bool, lost: bool, stamped: bool
) -> None:
    arrivals, kernels = zip(*drawn, strict=True)
    by_rank: list[list[float]] = [[each] if recorded else [] for each in kernels]
    if lost and recorded:  # or the call does not communicate on this rank
        by_rank[-1] = [0.0]
    own = own_of(arrivals, 2000, by_rank, stamped=stamped)
    waiting, transfer, needs_clocks = _divide_calls(own, [Collective(kind, 1024, len(own))])
    in_step = kind in ("all_reduce", "all_gather") or (kind == "all_to_all" and not stamped)
    if lost and recorded:
        assert waiting.shape == (len(own), 0)
        assert not transfer.size
    elif recorded and in_step:  # all kernels end together: no clock is needed
        shortest = min(kernels)
        assert transfer == pytest.approx([1e-6 * shortest])
        expected = [[1e-6 * (each - shortest)] for each in kernels]
        assert waiting == pytest.approx(np.array(expected), abs=1e-15)
        assert not needs_clocks
    elif stamped:
        last = max(arrivals)
        assert transfer == pytest.approx([1e-6 * (2000 - last)])
        expected = [[1e-6 * (last - each)] for each in arrivals]
        assert waiting == pytest.approx(np.array(expected), abs=1e-15)
        assert needs_clocks
    else:
        assert not transfer.size


def test_a_call_with_several_operations_or_for_some_ranks_has_no_arrivals() -> None:
    reduced, recorded = Collective("all_reduce", 1_000_000, 2), {"communicating": [1e-3] * 10}

    def reason(
        counts: Sequence[int],
        size: int = 2,
        known: bool = True,
        kind: str = "all_reduce",
        of: int = 2,
    ) -> str:
        operation = dataclasses.asdict(Collective(kind, 1_000_000, of))
        own = [{"collectives": [operation] * count} for count in counts]
        return _arrivals_reason(known, own, size)

    assert reason([1, 1]) == reason([1] * 4, 4, of=4) == reason([1] * 4, 4, of=0) == ""
    assert reason([1, 1], kind="send") == ""
    assert "do not communicate on every rank" in reason([1, 0], known=False)
    for known in (False, True):
        assert "has 1 or 2 operations" in reason([2, 1], known=known)
        assert "joins 2 of the 4 ranks" in reason([1] * 4, 4, known)
        assert "joins 2 of the 4 ranks" in reason([1] * 4, 4, known, kind="send", of=4)
    assert _all_wait([recorded, recorded], [reduced])
    # On a GPU, too: the sum of the kernels' times can be the same on ranks that wait in turn.
    assert not _all_wait([recorded, recorded], [reduced, reduced])


def activity(name: str, seconds: Sequence[float | None], stream: int) -> DeviceActivity:
    sizes = (1, 1, 1)
    return DeviceActivity("kernel", name, sizes, sizes, 1, 0, 0, tuple(seconds), streams=(stream,))


@given(st.lists(st.tuples(micros, micros, micros, micros), min_size=1, max_size=5))
def test_hidden_communication_is_what_kernels_overlap(drawn: list[tuple[float, ...]]) -> None:
    """Communication begins with two kernels one after the other, or later by some time."""
    starts, sums, first, second = np.array(drawn).T
    spans = [(start, start + each) for start, each in zip(starts, sums, strict=True)]
    pairs = [*zip(spans, first + second, strict=True)]
    busy = [max(end, work) - max(0.0, begin - work) for (begin, end), work in pairs]
    overlap = [max(0.0, min(end, work) - begin) for (begin, end), work in pairs]
    kernels = (
        activity("ncclDevKernel_AllReduce_Sum_f32_RING_LL", sums, 20),
        activity("gemm", first, 7),
        activity("gemm", second, 7),
    )
    measured = make(name="step", seconds=tuple(busy), busy_seconds=tuple(busy), activities=kernels)
    known, communicating, computing, reason = _communication(measured, True)
    assert known is not None
    assert not reason
    assert communicating == pytest.approx(list(sums))
    assert computing == pytest.approx(list(first + second))
    exposed = np.array(sums) - overlap
    assert (known.seconds, known.exposed, known.hidden) == pytest.approx(
        (np.median(sums), np.median(exposed), np.median(overlap)), abs=1e-9
    )
    several = (*kernels, activity("copy", sums, 8))
    unknown, _, _, reason = _communication(dataclasses.replace(measured, activities=several), True)
    assert unknown is None
    assert "several streams" in reason
    assert "CPU" in _communication(measured, False)[3]


def rank(number: int, computing: float, clock_hz: float = 1.98e9) -> RankTimes:
    chance = np.random.default_rng(number)
    return RankTimes(
        rank=number,
        global_rank=2 * number,
        process="process 1 on a",
        device=f"cuda:{number}",
        device_name="H200",
        gpu_uuid=None,
        seconds=(1e-3,) * 50,
        computing_seconds=tuple(computing + 1e-6 * chance.random(50)),
        state=ClockReading(0.0, clock_hz, None, None, None, ("sw_power_cap",)),
    )


def test_a_slower_gpu_is_named_with_what_differs() -> None:
    measured = make(name="step", seconds=(1e-3,) * 50)
    same = [rank(0, 5e-4), rank(1, 5e-4)]
    assert not [*_slower(same, measured)]
    (sentence,) = _slower([*same, rank(2, 6e-4, 1.5e9)], measured)
    assert sentence.startswith("rank 2 of the group (global rank 4) (cuda:2")
    assert "1500 MHz" in sentence
    assert "sw_power_cap" in sentence
    three = [rank(0, 4e-4), rank(1, 6e-4), rank(2, 6e-4)]
    assert not [*_slower(three, measured)]  # no single one


def test_a_sparse_tensor_has_the_bytes_of_its_parts() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that sparse tensors are in beta state
        identity = torch.eye(16)
        twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (16,))  # type: ignore[arg-type]
        compressed = [
            *(identity.to_sparse_csr(), identity.to_sparse_csc()),
            *(identity.to_sparse_bsr((1, 1)), identity.to_sparse_bsc((1, 1))),
        ]
    assert _nbytes(twice) == 2 * (8 + 4)
    for each in compressed:
        assert _nbytes([each, identity]) == 8 * (17 + 16) + 4 * 16 + 4 * 256
