"""The ops that timings are tested with: kernels of a known duration, clocks and flushes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import convtime  # noqa: F401  (registers the ops)

OPS = torch.ops.convtime


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_they_say_that_they_need_one() -> None:
    calls: list[tuple[Any, ...]] = [
        (OPS.spin_ns, 1),
        (OPS.sleep_cycles, 1),
        (OPS.flush_l2,),
        (OPS.flush_l2, True),
        (OPS.read_clocks,),
        (OPS.copy_stamped, torch.zeros(4)),
    ]
    for op, *arguments in calls:
        with pytest.raises(RuntimeError, match="needs a CUDA device, but"):
            op(*arguments)


def test_fakes_know_the_results() -> None:
    with FakeTensorMode():
        stamps = OPS.spin_ns(1000, 7)
        assert (stamps.shape, stamps.dtype, stamps.device.type) == ((7, 2), torch.int64, "cuda")
        assert OPS.read_clocks().shape == (3,)
        assert (OPS.sleep_cycles(1), OPS.flush_l2(), OPS.flush_l2(clean=True)) == (None,) * 3
        output, stamps = OPS.copy_stamped(torch.empty(100_000, dtype=torch.uint8, device="cuda"))
        assert output.shape == (100_000,)
        assert stamps.shape == (4, 2)


@pytest.mark.timing
@pytest.mark.cuda
@pytest.mark.parametrize("nanoseconds", [0, 1000, 100_000])
def test_spin_stamps_what_it_spun(nanoseconds: int) -> None:
    for blocks in (1, 132):
        stamps = OPS.spin_ns(nanoseconds, blocks)
        assert stamps.shape == (blocks, 2)
        spun = stamps[:, 1] - stamps[:, 0]
        assert (spun >= nanoseconds).all()
        assert (spun <= nanoseconds + 20_000).all()


@pytest.mark.cuda
def test_clocks_go_on() -> None:
    first = OPS.read_clocks()
    OPS.sleep_cycles(2_000_000)
    second = OPS.read_clocks()
    nanoseconds, cycles, _ = (second - first).tolist()
    assert nanoseconds > 500_000
    if first[2] == second[2]:
        assert cycles >= 2_000_000
        assert 1e8 < cycles / nanoseconds * 1e9 < 5e9


@pytest.mark.cuda
def test_copy_stamped_copies() -> None:
    for size in (16, 32_768, 32_784, 10_000_000):
        x = torch.randint(0, 255, (size,), dtype=torch.uint8, device="cuda")
        y, stamps = OPS.copy_stamped(x)
        assert torch.equal(x, y)
        assert stamps.shape == (-(-size // 32_768), 2)
        assert (stamps[:, 1] >= stamps[:, 0]).all()


@pytest.mark.cuda
def test_bad_arguments_are_refused() -> None:
    calls: list[tuple[Any, tuple[Any, ...], str]] = [
        (OPS.spin_ns, (-1,), "spin_ns: nanoseconds must be between 0 and 10000000000, got -"),
        (OPS.spin_ns, (1, 0), "spin_ns: blocks must be between 1 and 65535, got 0"),
        (OPS.spin_ns, (1, 1, 2000), "spin_ns: threads must be between 1 and 1024, got 2000"),
        (OPS.sleep_cycles, (1 << 60,), "sleep_cycles: cycles must be between 0 and"),
        (OPS.copy_stamped, (torch.zeros(4),), "copy_stamped: input must be a contiguous CUDA"),
        (OPS.copy_stamped, (torch.zeros(5, device="cuda"),), "multiples of 16 bytes"),
    ]
    for op, arguments, message in calls:
        with pytest.raises(ValueError, match=message):
            op(*arguments)


@pytest.mark.cuda
def test_they_can_be_captured() -> None:
    x = torch.arange(1024, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stamps = OPS.spin_ns(5000)
        OPS.sleep_cycles(100)
        OPS.flush_l2()
        OPS.flush_l2(clean=True)
        clocks = OPS.read_clocks()
        y, _ = OPS.copy_stamped(x)
    graph.replay()
    torch.cuda.synchronize()
    first = stamps.clone()
    assert (first[0, 1] - first[0, 0]).item() >= 5000
    assert clocks[0] > stamps[0, 1]
    assert torch.equal(x, y)
    graph.replay()
    torch.cuda.synchronize()
    assert (stamps > first).all()


@pytest.mark.cuda
def test_opcheck() -> None:
    calls: list[tuple[Any, tuple[Any, ...]]] = [
        (OPS.spin_ns, (100, 3)),
        (OPS.sleep_cycles, (100,)),
        (OPS.flush_l2, (True,)),
        (OPS.read_clocks, ()),
        (OPS.copy_stamped, (torch.zeros(100_000, dtype=torch.uint8, device="cuda"),)),
    ]
    for op, arguments in calls:
        utils = ("test_schema", "test_faketensor")
        torch.library.opcheck(op.default, arguments, test_utils=utils)
