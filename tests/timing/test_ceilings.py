"""The rates that a device reaches, what operations' own are set against, and rooflines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import convtime
from convtime.timing import time_op as module
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Ceilings, Measurement
from convtime.timing.roofline import rooflines
from tests.helpers.figures import table
from tests.helpers.measurements import make
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"warmup": 1, "min_samples": 1, "max_samples": 5}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, ...]]]:
    """What the copy and the matmul are called with, in place of timing them."""
    calls: list[tuple[Any, ...]] = []

    def look(candidate: Candidate, device: torch.device, exclusive: bool) -> float:
        result: Any = candidate.fn(*candidate.args)
        assert (type(result), result.device.type) == (torch.Tensor, "cpu")
        assert not result.is_inference()
        calls.append((candidate.name, result.dtype, torch.get_num_threads()))
        return 1.0

    monkeypatch.setattr(module, "_median", look)
    module._measured.cache_clear()
    yield calls
    module._measured.cache_clear()


def test_rates_of_a_cpu_are_set_against_its_own_ceilings() -> None:
    ceilings = convtime.ceilings("cpu")
    assert 1e8 < ceilings.bytes_per_second < 1e13
    assert 1e8 < ceilings.flops_per_second < 1e15
    assert ceilings.matmul_dtype == "float32"
    x = torch.randn(256, 256)
    one = convtime.time_op(torch.mm, x, x, flops=2 * 256**3, nbytes=3 * x.nbytes, **QUICK)
    assert one.ceilings == ceilings
    assert one.flops_per_second == pytest.approx(2 * 256**3 / one.median)
    assert "of this device's float32 matmul" in flat(one)


class Recording(TorchDispatchMode):
    __torch_dispatch__ = pytest.fail  # type: ignore[assignment]


def test_the_callers_modes_have_no_part_in_it(seen: list[tuple[Any, ...]]) -> None:
    random_state = torch.get_rng_state()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.autocast("cpu", dtype=torch.bfloat16),
            torch.device("meta"),
            torch.inference_mode(),
            Recording(),
        ):
            convtime.ceilings("cpu")
    finally:
        torch.set_default_dtype(before)
    assert [each[:2] for each in seen] == [("copy", torch.uint8), ("matmul", torch.float32)]
    assert torch.equal(torch.get_rng_state(), random_state)


def test_they_are_measured_once_for_each_number_of_threads(seen: list[tuple[Any, ...]]) -> None:
    before = torch.get_num_threads()
    first = convtime.ceilings("cpu")
    assert convtime.ceilings("cpu") is first
    try:
        torch.set_num_threads(before + 1)
        assert convtime.ceilings("cpu") is not first
    finally:
        torch.set_num_threads(before)
    assert convtime.ceilings("cpu") is first
    assert [threads for *_, threads in seen] == [before] * 2 + [before + 1] * 2


def test_they_are_measured_after_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is not lost where memory for them is short."""
    log: list[str] = []
    found = Ceilings(1.0, 1.0, "float32")

    def measured(device: torch.device, exclusive: bool) -> Ceilings:
        log.append(f"ceilings of {device}")
        return found

    monkeypatch.setattr(module, "ceilings", measured)
    one = convtime.time_op(lambda: log.append("call"), flops=1, device="cpu", **QUICK)
    assert one.ceilings is found
    assert log.index("ceilings of cpu") == len(log) - 1 > 0

    def exhausted(device: torch.device, exclusive: bool) -> Ceilings:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.\nMore.")

    monkeypatch.setattr(module, "ceilings", exhausted)
    one = convtime.time_op(math.sqrt, 2.0, flops=7, device="cpu", **QUICK)
    assert (one.flops, one.ceilings) == (7, None)
    why = "they could not be measured on cpu (OutOfMemoryError: CUDA out of memory. Tried to"
    assert one.ceilings_reason == f"{why} allocate 1 GiB.)"
    assert f"ceilings: unknown: {why}" in flat(one)


AMOUNTS = st.floats(1e7, 1e9)


def measured(flops: float | None, nbytes: float | None, ceilings: Ceilings) -> Measurement:
    seconds = tuple(1e-6 * (10 + step) for step in range(10))
    return make(seconds=seconds, flops=flops, nbytes=nbytes, ceilings=ceilings)


@settings(max_examples=20)
@given(st.lists(st.tuples(AMOUNTS, AMOUNTS), min_size=1, max_size=3), AMOUNTS, AMOUNTS)
def test_points_and_roof_follow_from_flops_bytes_and_ceilings(
    amounts: list[tuple[float, float]], bandwidth_scale: float, peak_scale: float
) -> None:
    bandwidth, peak = 1e4 * bandwidth_scale, 1e6 * peak_scale
    ceilings = Ceilings(bandwidth, peak, "bfloat16")
    each = [measured(flops, nbytes, ceilings) for flops, nbytes in amounts]
    named = [(f"s{index}", f"l{index}", one) for index, one in enumerate(each)]
    (figure,) = rooflines("ops", named)
    roof, dots = table(figure, "roof"), table(figure, "label")
    flops, nbytes = np.transpose(amounts)
    # Of ten samples, the second and the ninth are the ends of the interval.
    for field, seconds in (("rate", 14.5e-6), ("low", 18e-6), ("high", 11e-6)):
        assert dots[field] == pytest.approx(list(flops / seconds / 1e12), rel=1e-3)
    assert dots["intensity"] == pytest.approx(list(flops / nbytes), rel=1e-3)
    ridge = peak / bandwidth
    ends = [0.5 * min(ridge, *(flops / nbytes)), ridge, 2 * max(ridge, *(flops / nbytes))]
    assert roof["intensity"] == pytest.approx(ends, rel=1e-3)
    attainable = np.minimum(peak, np.multiply(ends, bandwidth)) / 1e12
    assert roof["rate"] == pytest.approx(list(attainable), rel=1e-3)


def test_a_roofline_needs_flops_bytes_and_a_time() -> None:
    ceilings = Ceilings(1e12, 1e14, "bfloat16")
    for one in (
        measured(None, 1e6, ceilings),
        measured(1e9, None, ceilings),
        make(flops=1e9, nbytes=1e6, ceilings=None),
        make(flops=1e9, nbytes=1e6, ceilings=ceilings, seconds=(0.0,) * 6),
    ):
        assert list(rooflines("op", [("s", "l", one)])) == []
    few = make(flops=1e9, nbytes=1e6, ceilings=ceilings, seconds=(1e-6,) * 3)
    (figure,) = rooflines("op", [("s", "l", few)])
    dots = table(figure, "label")
    assert (dots["low"], dots["high"]) == ([None], [None])
