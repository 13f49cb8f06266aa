"""Which pages of memory the tensors are in that calls on the CPU allocate, told by page faults."""

from __future__ import annotations

import concurrent.futures
import contextlib
import ctypes
import functools
import gc
import resource
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import convtime
from convtime import cli
from convtime.core import cpu
from convtime.timing.options import Options, Pages
from convtime.timing.sampling.cpu import governed_pages
from convtime.timing.sampling.measure import Place, _refuse_contradictions

PAGE = resource.getpagesize()
NBYTES = 40 << 20  # more than glibc ever keeps: it maps and unmaps such blocks in each call
QUICK: dict[str, Any] = {
    "device": "cpu",
    "warmup": 2,
    "stop": "count",
    "min_samples": 6,
    "max_samples": 6,
}

without_huge_pages = pytest.mark.skipif(
    cpu.huge_pages() == "always", reason="a fault maps 2 MiB where huge pages are always used"
)


def c10(function: str, *args: object) -> int:
    """Calls a function of c10's, by its mangled name."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    called = getattr(library, function)
    called.restype = ctypes.c_void_p
    return called(*args) or 0


def allocator() -> int:
    """The address of PyTorch's present allocator for the CPU."""
    return c10("_ZN3c1015GetCPUAllocatorEv")


@contextlib.contextmanager
def other_allocator() -> Iterator[None]:
    """Another allocator of PyTorch's in the place of the default one."""
    set_allocator = "_ZN3c1015SetCPUAllocatorEPNS_9AllocatorEh"
    before = allocator()
    other = c10("_ZN3c1028GetDefaultMobileCPUAllocatorEv")
    c10(set_allocator, ctypes.c_void_p(other), ctypes.c_uint8(0))
    try:
        yield
    finally:
        c10(set_allocator, ctypes.c_void_p(before), ctypes.c_uint8(0))


def faults_of(call: Callable[[], object]) -> int:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def ones(nbytes: int = NBYTES) -> torch.Tensor:
    return torch.ones(nbytes // 4)


def faults_per_call(pages: Pages, call: Callable[[], object]) -> tuple[list[int], Any]:
    faults: list[int] = []
    measured = convtime.time_op(lambda: faults.append(faults_of(call)), pages=pages, **QUICK)
    return sorted(faults[2:]), measured


@without_huge_pages
def test_fresh_pages_are_mapped_in_each_call() -> None:
    for nbytes in (NBYTES, 64 * PAGE):
        x = ones(nbytes)
        faults, measured = faults_per_call("fresh", functools.partial(torch.neg, x))
        assert faults[0] == pytest.approx(nbytes / PAGE, abs=4)
        assert (measured.pages, measured.pages.requested) == ("fresh", "fresh")
        assert measured.pages.reason == ""
    # Blocks of a page and a half that shared pages would keep some of them.
    small = ones(3 * PAGE // 2)
    faults, _ = faults_per_call("fresh", lambda: [torch.neg(small) for _ in range(20)])
    assert faults == [pytest.approx(40, abs=1)] * len(faults)


@pytest.mark.parametrize("pages", ["retained", "auto"])
def test_retained_pages_are_not_mapped_again(pages: Pages) -> None:
    tensors = [ones(nbytes << 20) for nbytes in (1, 9, 2, 5)]

    def several() -> torch.Tensor:
        kept = [torch.neg(x) for x in tensors]
        return torch.cat([torch.neg(x) for x in kept])

    for call in (functools.partial(torch.neg, ones(64 * PAGE)), several):
        faults, measured = faults_per_call(pages, call)
        assert faults[len(faults) // 2] <= 2
        assert (measured.pages, measured.pages.requested) == ("retained", pages)
        assert bool(measured.pages.reason) == (pages == "auto")


@without_huge_pages
def test_as_is_leaves_the_allocator_alone() -> None:
    x, before = ones(), allocator()
    seen: list[int] = []

    def call() -> None:
        seen.append(allocator())
        torch.neg(x)

    faults, measured = faults_per_call("as-is", call)
    assert set(seen) == {before}
    assert faults[0] == pytest.approx(NBYTES / PAGE, abs=16)
    assert (measured.pages, measured.pages.requested) == ("as-is", "as-is")


def test_the_allocator_is_restored_however_a_timing_ends() -> None:
    before = allocator()
    seen = []

    def call() -> None:
        seen.append(allocator())
        if len(seen) > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convtime.time_op(call, pages="retained", **QUICK)
    assert seen[0] != before
    assert allocator() == before


def test_memory_is_bounded_and_goes_back_to_the_system() -> None:
    """At most twice the memory is taken that calls use at once."""
    sizes = [NBYTES // 4 >> shift for shift in (0, 2, 4, 6)]
    ones()
    before = resident_bytes()
    with governed_pages("retained", on_gpu=False):
        for size in sizes + sizes[::-1]:
            kept = [torch.ones(size) for _ in range(sizes[0] // size)]
            del kept
        assert resident_bytes() < before + 2.2 * NBYTES
    assert resident_bytes() < before + NBYTES // 2


@pytest.mark.parametrize("pages", ["fresh", "retained"])
def test_tensors_outlive_the_timing(pages: Pages) -> None:
    before = resident_bytes()
    with governed_pages(pages, on_gpu=False):
        kept = torch.arange(NBYTES // 4, dtype=torch.int32)
        del_later = torch.arange(5000)
    assert torch.equal(kept[::100_000], torch.arange(0, NBYTES // 4, 100_000, dtype=torch.int32))
    del_later.resize_(500_000).fill_(3)  # by the allocator that a tensor remembers
    assert int(del_later.sum()) == 1_500_000
    storage = weakref.ref(kept)
    del kept
    gc.collect()
    assert storage() is None
    assert resident_bytes() < before + NBYTES // 2
    with governed_pages(pages, on_gpu=False):
        kept = ones()
    with governed_pages("fresh", on_gpu=False):
        del kept  # of an earlier timing
        again = torch.full((NBYTES // 4,), 2.0)
        assert float(again[::1000].sum()) == 2.0 * len(again[::1000])


@pytest.mark.thorough
@pytest.mark.parametrize("pages", ["fresh", "retained"])
def test_threads_allocate_and_free_at_once(pages: Pages) -> None:
    def work(number: int) -> torch.Tensor:
        x = torch.full((300, 300), float(number), requires_grad=True)
        for _ in range(20):
            (x * x).sum().backward()  # on autograd's thread, and freed here
        assert x.grad is not None
        return x.grad

    with governed_pages(pages, on_gpu=False), concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(8)))
    for number, grad in enumerate(found):
        assert torch.equal(grad, torch.full((300, 300), 40.0 * number))


@pytest.mark.parametrize(("inner", "used"), [("retained", "retained"), ("fresh", "as-is")])
def test_a_nested_timing_does_not_end_the_outer_one(inner: Pages, used: str) -> None:
    before = allocator()
    with governed_pages("retained", on_gpu=False) as outer:
        governs = allocator()
        with governed_pages(inner, on_gpu=False) as nested:
            told = nested()
        assert allocator() == governs != before
        assert outer() == "retained"
    assert allocator() == before
    assert told == used
    assert bool(told.reason) == (used == "as-is")


def test_an_allocator_of_somebody_elses_stays() -> None:
    with other_allocator():
        theirs, seen = allocator(), set()
        measured = convtime.time_op(lambda: seen.add(allocator()), pages="retained", **QUICK)
        assert seen == {theirs}
    assert measured.pages == "as-is"
    assert "replaced" in measured.pages.reason
    assert "pages as-is where retained was asked for" in str(measured)
    with governed_pages("retained", on_gpu=False) as outcome, other_allocator():
        told = outcome()
    assert told == "as-is"
    assert "replaced" in told.reason


def test_pages_are_for_work_on_the_cpu() -> None:
    gpu = Place(torch.device("cuda", 0), (), "")
    for pages in ("fresh", "retained"):
        with pytest.raises(ValueError, match=f"{pages}.*CPU.*cuda:0.*as-is"):
            _refuse_contradictions([], Options(pages=pages), gpu)
    for unaffected in ("auto", "as-is"):
        _refuse_contradictions([], Options(pages=unaffected), gpu)
        with governed_pages(unaffected, on_gpu=True) as outcome:
            assert outcome() == "as-is"


def test_the_command_line_takes_pages(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["time", "torch.neg(x)", "--setup", "x = torch.ones(8)", "--device", "cpu"]
    for pages, used in (("auto", "retained"), ("fresh", "fresh")):
        assert cli.main([*command, "--max-samples", "10", "--verbose", "--pages", pages]) == 0
        assert f"pages: {used}" in " ".join(capsys.readouterr().out.split())


def test_huge_pages_are_part_of_the_provenance(tmp_path: Path) -> None:
    setting = tmp_path / "enabled"
    assert cpu.huge_pages(setting) is None
    for chosen, text in {
        "always": "[always] madvise never",
        "never": "always madvise [never]",
    }.items():
        setting.write_text(text + "\n")
        assert cpu.huge_pages(setting) == chosen
    measured = convtime.time_op(torch.neg, ones(PAGE), **QUICK)
    assert measured.provenance["huge_pages"] == cpu.huge_pages()
