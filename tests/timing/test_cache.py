"""What a call finds in the cache: what a flush leaves there, and what of the cache it reaches."""

from __future__ import annotations

import contextlib
import csv
import ctypes
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
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


@pytest.mark.parametrize("asked", ["auto", "cold", "cold-clean"])
def test_persisting_lines_are_given_back_while_a_flush_is_to_evict_them(
    set_aside: dict[int, str], asked: Cache
) -> None:
    before = dict(set_aside)
    with cache.without_persisting_lines(asked, GPUS) as told:
        assert told == "some of cuda:0; some of cuda:2"
        assert set_aside == {}
    assert set_aside == before
    with (
        contextlib.suppress(KeyboardInterrupt),
        cache.without_persisting_lines(asked, GPUS),
    ):
        raise KeyboardInterrupt
    assert set_aside == before


@pytest.mark.parametrize("asked", ["warm", "rotate"])
def test_where_nothing_is_flushed_persisting_lines_stay(
    set_aside: dict[int, str], asked: Cache
) -> None:
    before = dict(set_aside)
    with cache.without_persisting_lines(asked, GPUS) as told:
        assert told == ""
        assert set_aside == before


def test_of_a_cpu_no_clean_cache_is_claimed() -> None:
    one = convtime.time_op(torch.relu, torch.rand(4), cache="cold-clean", warmup=1, max_samples=10)
    assert (one.cache, one.cache.requested) == ("uncontrolled", "cold-clean")
    assert one.cache.reason == "on a CPU, only cache='cold' is controlled"


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

    @pytest.mark.timing
    def test_behind_a_clean_flush_the_call_has_nothing_written_back(self, tmp_path: Path) -> None:
        """By ncu's count of what a kernel has the device write to memory and read from it."""
        written = {}
        for asked in ("cold", "cold-clean"):
            written[asked], read = dram_bytes_of_relu(asked, tmp_path / f"{asked}.csv")
            assert read > 0.9 * 4 * MEBIBYTE  # the data were not in the cache
        # What it writes itself, 4 MiB, stays in the cache, in place of lines that the flush left.
        assert written["cold"] > MEBIBYTE
        assert written["cold-clean"] < 0.25 * written["cold"]


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


_RELU = """
import sys, torch, convtime
x = torch.randn(1 << 20, device="cuda")
convtime.time_op(
    torch.relu, x, cache=sys.argv[1], method="sync", queue="none", warmup=3, stop="count",
    min_samples=5, max_samples=5,
)
"""


def dram_bytes_of_relu(asked: Cache, log: Path) -> tuple[float, float]:
    """Medians over the calls of a timing, in one pass each, which leaves the cache as it is."""
    ncu = shutil.which("ncu")
    if ncu is None:
        pytest.skip("there is no ncu")
    metrics = ("dram__bytes_write.sum", "dram__bytes_read.sum")
    command = [ncu, "--csv", "--print-units", "base", "--log-file", str(log)]
    command += ["--cache-control", "none", "--clock-control", "none", "--replay-mode", "kernel"]
    command += ["--metrics", ",".join(metrics), "--kernel-name", "regex:^vectorized_elementwise"]
    command += [sys.executable, "-c", _RELU, asked]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    told = log.read_text(encoding="utf-8") if log.exists() else ""
    everything = told + run.stdout + run.stderr
    for refusal in ("ERR_NVGPUCTRPERM", "Failed to initialize the profiler"):
        if refusal in everything:
            pytest.skip(f"ncu cannot read the GPU's counters here: {refusal}")
    assert run.returncode == 0, everything
    lines = told.splitlines()
    passes = [line for line in lines if line.startswith("==PROF== Profiling")]
    assert all(line.rstrip().endswith(" 1 pass") for line in passes), everything
    rows = list(csv.DictReader(line for line in lines if line.startswith('"')))
    assert rows, everything
    values = {
        metric: [
            float(row["Metric Value"].replace(",", ""))
            for row in rows
            if row["Metric Name"] == metric
        ]
        for metric in metrics
    }
    written, read = (float(torch.tensor(values[metric]).median()) for metric in metrics)
    return written, read
