"""Others that use the GPU while a call is diagnosed: a thread of the process, or another one."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common.running import beside

import convtime  # noqa: F401  # registers the op
from convtime.core.child import Child, job

_AT_ONCE = 16  # pieces of work between two looks at whether to end
_MIB = 1 << 20


@contextlib.contextmanager
def thread_neighbour(eats: str, amount: int) -> Iterator[None]:
    """A thread that keeps another stream of this process busy.

    It eats "bandwidth" by copies of so many MiB, or "multiprocessors" by kernels that keep all of
    them for so many microseconds.
    """
    device = torch.cuda.current_device()  # which is that of a thread, and 0 in a new one
    begun = threading.Event()

    def work(ended: threading.Event) -> None:
        make: Any = torch.cuda.Stream  # which is not typed
        with torch.cuda.device(device), torch.cuda.stream(make()):
            _work(eats, amount, begun, ended)

    with beside(work) as thread:
        _await(begun, thread)
        yield


@contextlib.contextmanager
def process_neighbour(eats: str, amount: int) -> Iterator[None]:
    with Child(job(_begin, eats, amount, torch.cuda.current_device())) as process:
        process.await_start()
        yield


def _begin(eats: str, amount: int, device: int) -> None:
    """Works in a thread, until this process ends."""
    begun = threading.Event()

    def work() -> None:
        with torch.cuda.device(device):
            _work(eats, amount, begun, threading.Event())

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    _await(begun, thread)


def _await(begun: threading.Event, thread: threading.Thread) -> None:
    while not begun.wait(timeout=0.1):
        if not thread.is_alive():
            raise RuntimeError("the neighbour did not begin")


def _work(eats: str, amount: int, begun: threading.Event, ended: threading.Event) -> None:
    event: Any = torch.cuda.Event
    done = event()
    piece: Callable[[], object]
    if eats == "bandwidth":
        source = torch.empty(amount * _MIB, dtype=torch.uint8, device="cuda")
        piece = functools.partial(torch.empty_like(source).copy_, source)
    else:
        count = torch.cuda.get_device_properties().multi_processor_count
        spin = torch.ops.convtime.spin_ns
        piece = functools.partial(spin, 1000 * amount, blocks=2 * count, threads=1024)
    while not ended.is_set():
        for _ in range(_AT_ONCE):
            piece()
        done.synchronize()  # of the pieces before: the GPU has some to do meanwhile
        done.record()
        begun.set()
