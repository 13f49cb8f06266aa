"""Others that use the GPU while a call is diagnosed: a thread of the process, or another one."""

import contextlib
import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_AT_ONCE = 16  # pieces of work between two looks at whether to end
_BEGUN = "begun"
_MIB = 1 << 20


@contextlib.contextmanager
def thread_neighbour(eats: str, amount: int) -> Iterator[None]:
    """A thread that keeps another stream of this process busy.

    It eats "bandwidth" by copies of so many MiB, or "multiprocessors" by kernels that keep all of
    them for so many microseconds.
    """
    ended, begun = threading.Event(), threading.Event()
    device = torch.cuda.current_device()  # which is that of a thread, and 0 in a new one

    def work() -> None:
        make: Any = torch.cuda.Stream  # which is not typed
        with torch.cuda.device(device), torch.cuda.stream(make()):
            _work(eats, amount, begun.set, ended.is_set)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while not begun.wait(timeout=0.1):
        if not thread.is_alive():
            raise RuntimeError("the neighbour's thread did not begin")
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def process_neighbour(eats: str, amount: int) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, __file__, eats, str(amount), str(torch.cuda.current_device())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        if process.stdout.readline().strip() != _BEGUN:
            raise RuntimeError("the neighbour's process did not begin")
        try:
            yield
        finally:
            process.stdin.close()  # it ends when it finds its input closed


def _work(eats: str, amount: int, begin: Callable[[], object], ended: Callable[[], bool]) -> None:
    event: Any = torch.cuda.Event
    done = event()
    piece: Callable[[], object]
    if eats == "bandwidth":
        source = torch.empty(amount * _MIB, dtype=torch.uint8, device="cuda")
        piece = functools.partial(torch.empty_like(source).copy_, source)
    else:
        import convtime  # noqa: F401  # registers the op

        count = torch.cuda.get_device_properties().multi_processor_count
        spin = torch.ops.convtime.spin_ns
        piece = functools.partial(spin, 1000 * amount, blocks=2 * count, threads=1024)
    while not ended():
        for _ in range(_AT_ONCE):
            piece()
        done.synchronize()  # of the pieces before: the GPU has some to do meanwhile
        done.record()
        begin()


def main() -> None:
    eats, amount, device = sys.argv[1:]
    torch.cuda.set_device(int(device))
    closed = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    # Cached, so that it prints once.
    begin = functools.cache(functools.partial(print, _BEGUN, flush=True))
    _work(eats, int(amount), begin, closed.is_set)


if __name__ == "__main__":
    main()
