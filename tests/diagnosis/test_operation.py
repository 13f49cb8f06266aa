"""Calls with other tensors, and traces of a few calls, of events that are drawn or by hand."""

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

from convtime.diagnosis import contrasts, tracing
from convtime.diagnosis.operation import Operation, copy_elsewhere
from convtime.diagnosis.tracing import RANGE, Event, read_trace
from convtime.timing.candidate import Candidate
from convtime.timing.sampling.measure import find_devices


def operation_of(fn: Any, *args: Any, **options: Any) -> Operation:
    candidate = Candidate(fn, *args, **options)
    return Operation(candidate, find_devices([candidate], None).device)


@given(st.lists(st.integers(1, 4), max_size=3), st.integers(1, 2), st.permutations([0, 1, 2]))
def test_copies_have_the_layout_and_lie_at_multiples_of_512_bytes(
    shape: list[int], step: int, order: list[int]
) -> None:
    given_ = torch.randn(*shape, 2 * step)[..., ::step]
    given_ = given_.permute([each for each in order if each < given_.dim()][: given_.dim()]
                            + list(range(3, given_.dim())))  # fmt: skip
    copy = copy_elsewhere(given_)
    assert torch.equal(copy, given_)
    assert copy.stride() == given_.stride()
    assert copy.data_ptr() != given_.data_ptr()
    assert copy.storage_offset() * copy.itemsize % 512 == 0


def test_copies_lie_where_chance_has_it() -> None:
    """The allocator would put those of large tensors at multiples of 2 MiB alone."""
    for given_ in (torch.ones(3), torch.ones(()), torch.ones(0, 4)):
        assert len({copy_elsewhere(given_).storage_offset() for _ in range(20)}) > 1
    expanded = torch.ones(1, 4).expand(3, 4)
    assert copy_elsewhere(expanded) is expanded


def test_variables_parameters_and_repeated_tensors_are_others_there() -> None:
    x = torch.ones(3)
    changed = operation_of(torch.add, x, x).with_tensors(copy_elsewhere, "moved")
    assert changed.args[0] is changed.args[1]
    assert changed.args[0] is not x
    moved_call: Any = operation_of(lambda: (x,)).with_tensors(torch.zeros_like, "zeros")
    assert torch.equal(moved_call.fn()[0], torch.zeros(3))

    def last(each: torch.Tensor) -> torch.Tensor:
        return each.to(memory_format=torch.channels_last) if each.dim() == 4 else each

    layer = torch.nn.Conv2d(2, 2, 3)
    fn: Any = operation_of(layer, torch.ones(1, 2, 4, 4)).with_tensors(last, "channels_last").fn
    assert isinstance(fn.weight, torch.nn.Parameter)
    assert fn.weight.requires_grad
    assert fn.weight.is_contiguous(memory_format=torch.channels_last)
    assert fn.bias is layer.bias
    assert layer.weight.is_contiguous()


def test_random_numbers_are_spread_like_the_given() -> None:
    torch.manual_seed(0)
    made = contrasts._random(3 + 2 * torch.randn(10_000))
    assert (made.mean(), made.std()) == pytest.approx((3, 2), abs=0.2)
    assert contrasts._random(torch.zeros(1000)).std() == pytest.approx(1, abs=0.2)
    whole = torch.arange(3)
    assert contrasts._random(whole) is whole


KERNEL, COPY, SET = "relu", "Memcpy HtoD (Pageable -> Device)", "Memset (Device)"
PINNED = "Memcpy DtoH (Device -> Pinned)"


def event(name: str, start: int, end: int, **options: Any) -> Event:
    """An event in whole microseconds."""
    return Event(name, 1000 * start, 1000 * end, options.pop("on_device", False), **options)


@st.composite
def works(draw: Any) -> tuple[str, int, int, bool]:
    start = draw(st.integers(0, 190))
    end = start + draw(st.integers(0, 60))
    return draw(st.sampled_from([KERNEL, COPY, PINNED, SET])), start, end, draw(st.booleans())


@given(st.lists(works(), max_size=12))
@settings(max_examples=100)
def test_work_is_counted_once_and_only_if_a_call_launched_it(
    made: list[tuple[str, int, int, bool]],
) -> None:
    """By marking each microsecond in which something ran; two calls have two ranges."""
    events = [event(RANGE, 0, 100), event(RANGE, 120, 200), event(RANGE, 0, 250, on_device=True)]
    ran = {name: np.zeros(300, bool) for name in (KERNEL, COPY, PINNED, SET)}
    total = dict.fromkeys(ran, 0)
    launched = 0
    for number, (name, start, end, is_ours) in enumerate(made, start=1):
        at = 130 if is_ours else 110  # between the calls
        call = "cudaMemcpyAsync" if name.startswith("Memcpy") else "cudaLaunchKernel"
        events += [
            event(call, at, at, correlation=number),
            event(name, start, end, on_device=True, correlation=number),
        ]
        if is_ours:
            ran[name][start:end] = True
            total[name] += end - start
            launched += 1
    found = read_trace(events)
    moving = ran[COPY] | ran[PINNED]
    expected = {
        "busy": ran[KERNEL] | moving | ran[SET],
        "kernels": ran[KERNEL],
        "copies": moving,
        "hidden_copies": ran[KERNEL] & moving,
    }
    for name, marks in expected.items():
        assert getattr(found, name) == pytest.approx(1e-6 * marks.sum() / 2, abs=1e-12), name
    assert (found.pageable, found.pinned) == pytest.approx(
        (1e-6 * total[COPY] / 2, 1e-6 * total[PINNED] / 2)
    )
    assert (found.calls, found.launches) == (2, launched / 2)


def test_the_host_issues_while_it_neither_waits_nor_allocates_nor_copies() -> None:
    found = read_trace(
        [
            event(RANGE, 0, 100),
            event("cudaLaunchKernel", 10, 15),
            event("cudaMemcpyAsync", 20, 30),
            event("cudaStreamSynchronize", 30, 90),
            event("cudaMalloc", 91, 95),
            event("cudaFree", 101, 110),  # after the call
            event(RANGE, 200, 300),
        ]
    )
    assert (found.waits, found.allocations) == (0.5, 0.5)
    times = (found.waiting, found.allocating, found.copying, found.issuing)
    assert times == pytest.approx((30e-6, 2e-6, 5e-6, (200 - 60 - 4 - 10) / 2 * 1e-6))
    with pytest.raises(ValueError, match="the profiler recorded no call"):
        read_trace([])


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("allocations", ("cudaMalloc", "cudaFree", "cudaHostAlloc", "cuMemCreate")),
        ("waits", ("cudaEventSynchronize", "cuCtxSynchronize", "cudaDeviceSynchronize")),
        ("launches", ("cuLaunchKernelEx", "cudaGraphLaunch", "cuMemcpyHtoDAsync_v2")),
        (None, ("cudaFreeAsync", "cudaMallocAsync", "cudaEventRecord")),
    ],
)
def test_calls_of_cuda_by_what_they_are(kind: str | None, names: tuple[str, ...]) -> None:
    for name in names:
        trace = read_trace([event(RANGE, 0, 10), event(name, 1, 2)])
        counts = {each: getattr(trace, each) for each in ("allocations", "waits", "launches")}
        assert counts == {each: int(each == kind) for each in counts}, name


@pytest.mark.cuda
def test_on_a_gpu_a_trace_has_waits_and_copies() -> None:
    x = torch.randn(1 << 22)
    candidate = Candidate(lambda: x.cuda().sum().item())
    seen = tracing.trace(Operation(candidate, find_devices([candidate], "cuda").device), 5)
    assert seen.waits >= 1
    assert seen.pageable > 0
    assert seen.launches >= 2
