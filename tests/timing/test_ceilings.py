"""The rates that a device reaches, and what operations' own are set against."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import convtime
import convtime.timing.ceilings
from convtime.timing import ceilings as module
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Ceilings
from tests.helpers.texts import flat

QUICK: dict[str, Any] = {"warmup": 1, "min_samples": 1, "max_samples": 5}


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What the copy and the matmul are called with, in place of timing them."""
    calls: list[dict[str, Any]] = []

    def look(candidate: Candidate, device: torch.device, exclusive: bool) -> float:
        result = candidate.fn(*candidate.args)
        assert isinstance(result, torch.Tensor)
        calls.append(
            {
                "name": candidate.name,
                "device": result.device.type,
                "dtype": result.dtype,
                "real": type(result) is torch.Tensor,
                "inference": result.is_inference(),
                "threads": torch.get_num_threads(),
            }
        )
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
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise AssertionError(f"{func} was intercepted")


def test_the_callers_modes_have_no_part_in_it(seen: list[dict[str, Any]]) -> None:
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
    copy, matmul = seen
    assert (copy["name"], copy["dtype"]) == ("copy", torch.uint8)
    assert (matmul["name"], matmul["dtype"]) == ("matmul", torch.float32)
    for call in seen:
        assert (call["device"], call["real"], call["inference"]) == ("cpu", True, False)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_they_are_measured_once_for_each_number_of_threads(seen: list[dict[str, Any]]) -> None:
    before = torch.get_num_threads()
    first = convtime.ceilings("cpu")
    assert convtime.ceilings("cpu") is first
    try:
        torch.set_num_threads(before + 1)
        assert convtime.ceilings("cpu") is not first
    finally:
        torch.set_num_threads(before)
    assert convtime.ceilings("cpu") is first
    assert [call["threads"] for call in seen] == [before] * 2 + [before + 1] * 2


def test_they_are_measured_after_the_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    found = Ceilings(1.0, 1.0, "float32")

    def measured(device: torch.device, exclusive: bool) -> Ceilings:
        log.append(f"ceilings of {device}")
        return found

    monkeypatch.setattr(module, "ceilings", measured)
    one = convtime.time_op(lambda: log.append("call"), flops=1, device="cpu", **QUICK)
    assert one.ceilings is found
    assert log.index("ceilings of cpu") == len(log) - 1 > 0


def test_a_result_is_not_lost_where_memory_for_them_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exhausted(device: torch.device, exclusive: bool) -> Ceilings:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB.\nMore.")

    monkeypatch.setattr(convtime.timing.ceilings, "ceilings", exhausted)
    one = convtime.time_op(math.sqrt, 2.0, flops=7, device="cpu", **QUICK)
    assert one.flops == 7
    assert one.ceilings is None
    assert one.ceilings_reason == (
        "they could not be measured on cpu "
        "(OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB.)"
    )
    assert "ceilings: unknown: they could not be measured on cpu" in flat(one)
