"""What a call finds in the cache: what a flush leaves there, and what of the cache it reaches."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]

import convtime
from convtime.core.load import _C
from convtime.timing.options import Cache, Method
from convtime.timing.sampling import cache

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
    with cache.without_persisting_lines(asked, GPUS) as told:
        assert told == ("some of cuda:0; some of cuda:2" if is_flushed else "")
        assert set_aside == ({} if is_flushed else before)
    assert set_aside == before
    with (
        contextlib.suppress(KeyboardInterrupt),
        cache.without_persisting_lines(asked, GPUS),
    ):
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
    @pytest.mark.parametrize("asked", ["cold", "cold-clean"])
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
            assert set(seen) == {0}
            assert current() == before
            assert one.cache == asked
            assert one.cache.reason == ""

            def fail() -> None:
                raise KeyboardInterrupt

            with pytest.raises(KeyboardInterrupt):
                convtime.time_op(fail, device="cuda", cache=asked)
            assert current() == before
        assert convtime.time_op(torch.relu, x, cache=asked, max_samples=20).cache.reason == ""

    def test_a_warm_cache_keeps_what_is_set_aside(self) -> None:
        x = torch.rand(MEBIBYTE, device="cuda")
        with l2_set_aside(4 * MEBIBYTE) as current:
            seen = []
            one = convtime.time_op(
                lambda: seen.append(current()) or x.relu(),  # type: ignore[func-returns-value]
                cache="warm",
                max_samples=20,
            )
            assert set(seen) == {current()} != {0}
            assert one.cache.reason == ""

    @pytest.mark.timing
    @pytest.mark.parametrize("method", ["kernel", "event", "graph"])
    def test_every_method_sees_a_clean_cache(self, method: Method) -> None:
        """By each, relu takes what torch.profiler has after a flush that reads."""
        x = torch.randn(4 * MEBIBYTE, device="cuda")
        clean = convtime.time_op(torch.relu, x, method=method, cache="cold-clean")
        assert (clean.method, clean.cache, clean.cache.reason) == (method, "cold-clean", "")
        expected = profiled_seconds(x, clean=True)
        assert clean.median == pytest.approx(
            expected, abs=max(0.5e-6, clean.overhead_uncertainty), rel=0.03
        )
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


def profiled_seconds(x: torch.Tensor, *, clean: bool) -> float:
    """Median of relu's kernel after flushes, by torch.profiler."""
    x.relu()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        torch.ops.convtime.spin_ns(20_000_000)
        for _ in range(50):
            torch.ops.convtime.flush_l2(clean=clean)
            x.relu()
        torch.cuda.synchronize()
    kernels = [
        event.device_time
        for event in profile.events()
        if event.device_type == DeviceType.CUDA and "elementwise" in event.name
    ]
    assert len(kernels) == 50
    return 1e-6 * float(torch.tensor(kernels).median())
