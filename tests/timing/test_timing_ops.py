"""The ops that timings are tested with, and what a call finds in the cache after a flush."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import DeviceType  # type: ignore[attr-defined]

import convtime
from convtime.core.load import _C
from convtime.timing.options import Cache, Method
from convtime.timing.sampling import calls as calls_module

OPS = torch.ops.convtime


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_they_say_that_they_need_one() -> None:
    plain: list[tuple[Any, ...]] = [(OPS.spin_ns, 1), (OPS.sleep_cycles, 1), (OPS.read_clocks,)]
    flushes: list[tuple[Any, ...]] = [(OPS.flush_l2,), (OPS.flush_l2, True)]
    for op, *arguments in (*plain, *flushes, (OPS.copy_stamped, torch.zeros(4))):
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
    for op, arguments, message in (
        (OPS.spin_ns, (-1,), "spin_ns: nanoseconds must be between 0 and 10000000000, got -"),
        (OPS.spin_ns, (1, 0), "spin_ns: blocks must be between 1 and 65535, got 0"),
        (OPS.spin_ns, (1, 1, 2000), "spin_ns: threads must be between 1 and 1024, got 2000"),
        (OPS.sleep_cycles, (1 << 60,), "sleep_cycles: cycles must be between 0 and"),
        (OPS.copy_stamped, (torch.zeros(4),), "copy_stamped: input must be a contiguous CUDA"),
        (OPS.copy_stamped, (torch.zeros(5, device="cuda"),), "multiples of 16 bytes"),
    ):
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
    x = torch.zeros(100_000, dtype=torch.uint8, device="cuda")
    for op, arguments in (
        (OPS.spin_ns, (100, 3)),
        (OPS.sleep_cycles, (100,)),
        (OPS.flush_l2, (True,)),
        (OPS.read_clocks, ()),
        (OPS.copy_stamped, (x,)),
    ):
        utils = ("test_schema", "test_faketensor")
        torch.library.opcheck(op.default, arguments, test_utils=utils)


GPUS = [torch.device("cuda", index) for index in range(3)]
MEBIBYTE = 1 << 20


@pytest.fixture
def set_aside(monkeypatch: pytest.MonkeyPatch) -> dict[int, str]:
    """Stands in for the core: what is set aside on which GPU, as long as it is."""
    aside = {0: "some of cuda:0", 2: "some of cuda:2"}

    class Without:
        def __init__(self, device: int) -> None:
            self._device = device

        def __enter__(self) -> str:
            self._told = aside.pop(self._device, "")
            return self._told

        def __exit__(self, *_: object) -> None:
            if self._told:
                aside[self._device] = self._told

    monkeypatch.setattr(_C, "WithoutPersistingL2", Without, raising=False)
    return aside


@pytest.mark.parametrize("asked", ["auto", "cold", "cold-clean", "warm", "rotate"])
def test_persisting_lines_are_given_back_while_a_flush_is_to_evict_them(
    set_aside: dict[int, str], asked: Cache
) -> None:
    before = dict(set_aside)
    is_flushed = asked not in ("warm", "rotate")
    with calls_module.without_persisting_lines(asked, GPUS) as told:
        assert told == ("some of cuda:0; some of cuda:2" if is_flushed else "")
        assert set_aside == ({} if is_flushed else before)
    assert set_aside == before
    interrupted = contextlib.suppress(KeyboardInterrupt)
    with interrupted, calls_module.without_persisting_lines(asked, GPUS):
        raise KeyboardInterrupt
    assert set_aside == before


@contextlib.contextmanager
def l2_set_aside(size: int) -> Iterator[Any]:
    """Some of the L2 cache set aside for persisting accesses; gives what asks how much is."""
    major = str(torch.version.cuda).partition(".")[0]
    cudart = ctypes.CDLL(f"libcudart.so.{major}")  # the one that torch loaded
    limit = 6  # cudaLimitPersistingL2CacheSize

    def current() -> int:
        value = ctypes.c_size_t()
        assert cudart.cudaDeviceGetLimit(ctypes.byref(value), limit) == 0
        return value.value

    torch.cuda.init()
    assert cudart.cudaDeviceSetLimit(limit, ctypes.c_size_t(size)) == 0
    try:
        yield current
    finally:
        assert cudart.cudaDeviceSetLimit(limit, ctypes.c_size_t(0)) == 0


@pytest.mark.cuda
class TestOnAGpu:
    @pytest.mark.parametrize("asked", ["cold", "cold-clean", "warm"])
    def test_what_is_set_aside_is_again_afterwards(self, asked: Cache) -> None:
        x = torch.rand(MEBIBYTE, device="cuda")
        seen = []
        with l2_set_aside(4 * MEBIBYTE) as current:
            before = current()
            assert before > 0

            def call() -> torch.Tensor:
                seen.append(current())
                return x.relu()

            one = convtime.time_op(call, cache=asked, warmup=1, max_samples=20)
            assert set(seen) == {before if asked == "warm" else 0}
            assert current() == before
            assert (one.cache, one.cache.reason) == (asked, "")

            def fail() -> None:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                convtime.time_op(fail, device="cuda", cache=asked)
            assert current() == before
        assert convtime.time_op(torch.relu, x, cache=asked, max_samples=20).cache.reason == ""

    @pytest.mark.timing
    @pytest.mark.parametrize("method", ["kernel", "event", "graph"])
    def test_every_method_sees_a_clean_cache(self, method: Method) -> None:
        """By each, relu takes what torch.profiler has after a flush that reads."""
        x = torch.randn(4 * MEBIBYTE, device="cuda")
        clean = convtime.time_op(torch.relu, x, method=method, cache="cold-clean")
        assert (clean.method, clean.cache, clean.cache.reason) == (method, "cold-clean", "")
        uncertainty = max(0.5e-6, clean.overhead_uncertainty)
        assert clean.median == pytest.approx(profiled_seconds(x), abs=uncertainty, rel=0.03)
        assert len(clean.activities) == (method == "kernel")  # the flush is none of the call's

    @pytest.mark.timing
    def test_nothing_to_write_back_makes_a_kernel_faster(self) -> None:
        x = torch.randn(MEBIBYTE, device="cuda")
        times = {
            asked: convtime.time_op(torch.relu, x, cache=asked).median
            for asked in ("warm", "cold-clean", "cold")
        }
        assert times["warm"] < 0.9 * times["cold-clean"]
        assert times["cold-clean"] < 0.95 * times["cold"]


def profiled_seconds(x: torch.Tensor) -> float:
    """Median of relu's kernel after flushes that read, by torch.profiler."""
    x.relu()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.ops.convtime.spin_ns(20_000_000)
        for _ in range(50):
            torch.ops.convtime.flush_l2(clean=True)
            x.relu()
        torch.cuda.synchronize()
    kernels = [
        event.device_time
        for event in profile.events()
        if event.device_type == DeviceType.CUDA and "elementwise" in event.name
    ]
    assert len(kernels) == 50
    return 1e-6 * float(torch.tensor(kernels).median())
