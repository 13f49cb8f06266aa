"""What is planted on a CPU: calls of which convtime.diagnose is to name one thing first.

Sizes and durations are drawn. Each call is diagnosed in a fresh process.
"""

import contextlib
import functools
import math
import mmap
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from common import planting
from common.planting import Draw, Makes, Plant, Planted, Plants

from cpu.load import planted_load

KIB, MIB = 1 << 10, 1 << 20
_ALWAYS, _NEVER = 1e3, 1e-3  # seconds of a load that does not pause
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_SECONDS = 0.1


def _small(draw: Draw) -> torch.Tensor:
    return torch.randn(draw.whole("Ki numbers", 16, 64) * KIB)


def _behind(work: Callable[[], object], x: torch.Tensor, kept: object = None) -> Planted:
    def call() -> torch.Tensor:
        work()
        return x + 1

    return Planted(call, kept=kept)


def sleep(draw: Draw) -> Planted:
    x, seconds = _small(draw), draw.seconds("sleep", 0.3e-3, 4e-3)
    return _behind(functools.partial(time.sleep, seconds), x)


def sleep_beside_threads(draw: Draw) -> Planted:
    """Where all threads compute for about as long as the calling one sleeps."""
    x = torch.randn(draw.whole("size", 700, 1000), 1000)
    weight, seconds = torch.randn(1000, 1000), draw.seconds("sleep", 4e-3, 8e-3)

    def call() -> torch.Tensor:
        time.sleep(seconds)
        return x @ weight

    return Planted(call)


def written_file(draw: Draw) -> Planted:
    x, size = _small(draw), draw.whole("KiB", 16, 256) * KIB
    file = tempfile.TemporaryFile(dir=Path.home())  # noqa: SIM115  # lives as long as the call
    content = os.urandom(size)

    def write() -> None:
        os.pwrite(file.fileno(), content, 0)
        os.fsync(file.fileno())

    return _behind(write, x, kept=file)


def answer_of_a_process(draw: Draw) -> Planted:
    """Through a pipe, from a process that sleeps before it answers."""
    x, seconds = _small(draw), draw.seconds("answer", 0.5e-3, 3e-3)
    program = (
        "import sys, time\n"
        f"for line in sys.stdin.buffer: time.sleep({seconds}); "
        "sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
    )
    other = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    ask, answer = other.stdin, other.stdout
    assert ask is not None
    assert answer is not None

    def wait() -> None:
        ask.write(b"\n")
        ask.flush()
        answer.readline()

    return _behind(wait, x, kept=other)


def lock(draw: Draw) -> Planted:
    """Of another thread, which holds it while it sleeps."""
    x, seconds = _small(draw), draw.seconds("held", 0.5e-3, 3e-3)
    asked: queue.Queue[None] = queue.Queue()
    done: queue.Queue[None] = queue.Queue()

    def serve() -> None:
        while True:
            asked.get()
            time.sleep(seconds)
            done.put(None)

    threading.Thread(target=serve, daemon=True).start()

    def wait() -> None:
        asked.put(None)
        done.get()

    return _behind(wait, x)


def started_process(draw: Draw) -> Planted:
    x, command = _small(draw), draw.one_of("command", "/bin/true", "/bin/pwd")
    run = functools.partial(subprocess.run, [command], stdout=subprocess.DEVNULL, check=True)
    return _behind(run, x)


def fresh_results(draw: Draw) -> Planted:
    """So large that the C library maps and unmaps them each time."""
    x = torch.randn(draw.whole("Mi numbers", 10, 24) * MIB)
    return Planted(getattr(torch, draw.one_of("operation", "relu", "neg", "abs")), (x,))


def own_buffer(draw: Draw) -> Planted:
    """Mapped by the call itself, and not by PyTorch's allocator."""
    x, size = _small(draw), draw.whole("MiB", 8, 32) * MIB

    def fill() -> None:
        with mmap.mmap(-1, size) as memory:
            view = torch.frombuffer(memory, dtype=torch.uint8)
            view[:: mmap.PAGESIZE].fill_(1)
            del view

    return _behind(fill, x)


def grown_list(draw: Draw) -> Planted:
    """Results that are kept until the end of the call, and freed together."""
    x, count = torch.randn(draw.whole("Mi numbers", 1, 3) * MIB), draw.whole("results", 12, 24)
    return Planted(lambda: [x + 1 for _ in range(count)])


def _matmul(draw: Draw) -> Planted:
    size = draw.whole("size", 400, 900)
    return Planted(torch.mm, (torch.randn(size, size), torch.randn(size, size)))


def others_on_all_cores(draw: Draw) -> Planted:
    planted = _matmul(draw)

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for number in range(len(os.sched_getaffinity(0))):
                stack.enter_context(planted_load(str(number), _ALWAYS, _NEVER))
            yield

    return Planted(planted.fn, planted.args, around)


def others_now_and_then(draw: Draw) -> Planted:
    """On one core, for most of the time, while the call computes with all threads."""
    planted = _matmul(draw)
    on, off = draw.seconds("on", 0.1, 0.4), draw.seconds("off", 0.02, 0.08)
    return Planted(planted.fn, planted.args, lambda: planted_load("1", on, off))


def others_on_its_core(draw: Draw) -> Planted:
    """Of a call with one thread that is bound to a core."""
    planted = _matmul(draw)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return Planted(planted.fn, planted.args, lambda: planted_load("1", _ALWAYS, _NEVER))


def too_many_threads(draw: Draw) -> Planted:
    torch.set_num_threads(len(os.sched_getaffinity(0)) * draw.whole("threads per core", 4, 8))
    return Planted(torch.softmax, (torch.randn(draw.whole("Ki rows", 2, 8) * KIB, 256), 1))


def python_thread(draw: Draw) -> Planted:
    """Another thread of this process that computes, and takes turns with the call."""
    planted = planting.additions(_small(draw), draw.whole("operators", 20, 60))

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        ended = threading.Event()

        def compute() -> None:
            while not ended.is_set():
                sum(range(1000))

        thread = threading.Thread(target=compute)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    return Planted(planted.fn, around=around)


def small_net(draw: Draw) -> Planted:
    width = draw.whole("width", 4, 16)
    layers = [torch.nn.Linear(width, width) for _ in range(draw.whole("layers", 4, 12))]
    x = torch.randn(draw.whole("rows", 1, 8), width)
    return Planted(torch.nn.Sequential(*layers), (x,))


def cached(draw: Draw) -> Planted:
    """What the caches hold, and memory gives slowly; written in place."""
    x = torch.randn(draw.whole("KiB", 256, 1024) * KIB // 4)
    return Planted(torch.add, (x, x), kept=x) if draw.whole("sum", 0, 1) else Planted(x.sum)


def strided(draw: Draw) -> Planted:
    size = draw.whole("size", 1024, 2048)
    x, out = torch.randn(size, size), torch.empty(size, size)
    return Planted(functools.partial(torch.add, out=out), (x.t(), x))


def quota(draw: Draw) -> Planted:
    """Of a cgroup of version 1 or 2, which only root may make."""
    planted, share = _matmul(draw), draw.seconds("share of the cores", 0.2, 0.6)

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        unified = (_CGROUPS / "cgroup.controllers").exists()
        parent = _CGROUPS if unified else _CGROUPS / "cpu"
        group = parent / f"convtime-{os.getpid()}"
        group.mkdir()
        period = round(1e6 * _PERIOD_SECONDS)
        microseconds = math.ceil(share * len(os.sched_getaffinity(0)) * period)
        try:
            if unified:
                (group / "cpu.max").write_text(f"{microseconds} {period}")
            else:
                (group / "cpu.cfs_period_us").write_text(str(period))
                (group / "cpu.cfs_quota_us").write_text(str(microseconds))
            (group / "cgroup.procs").write_text(str(os.getpid()))
            yield
        finally:
            (parent / "cgroup.procs").write_text(str(os.getpid()))
            group.rmdir()

    return Planted(planted.fn, planted.args, around)


def may_plant_quotas() -> bool:
    for parent in (_CGROUPS, _CGROUPS / "cpu"):
        if (parent / "cpu.stat").exists() or (parent / "cpu.cfs_quota_us").exists():
            return os.access(parent, os.W_OK)
    return False


def denormals(draw: Draw) -> Planted:
    size = draw.whole("size", 200, 400)
    x, out = torch.full((size, size), draw.whole("times 1e-40", 1, 9) * 1e-40), torch.empty(0)
    return Planted(functools.partial(torch.div, out=out), (x, torch.rand(size, size) + 0.5))


def _multiplied(multiply: Callable[..., torch.Tensor], *shape: int) -> Planted:
    x, y, out = (torch.randn(shape) for _ in range(3))
    return Planted(functools.partial(multiply, out=out), (x, y))


def batched_matmul(draw: Draw) -> Planted:
    size, batch = 16 * draw.whole("16 rows", 12, 20), draw.whole("batch", 8, 16)
    return _multiplied(torch.bmm, batch, size, size)


def _large(operation: Callable[..., torch.Tensor], numbers: int, *more: float) -> Planted:
    """Of more than the caches hold, into memory that is there."""
    x = torch.randn(numbers * MIB)
    return Planted(functools.partial(operation, out=torch.empty_like(x)), (x, *more))


def python_loop(draw: Draw) -> Planted:
    return planting.python_turns(_small(draw), draw.whole("turns", 10_000, 100_000))


def small_operators(draw: Draw) -> Planted:
    x = torch.randn(draw.whole("numbers", 1, 64))
    return planting.additions(x, draw.whole("operators", 20, 200))


def built_at_first(draw: Draw) -> Planted:
    return planting.built_once(_small(draw), draw.seconds("build", 0.3, 1.5))


_BLOCKING = (sleep, sleep_beside_threads, written_file, answer_of_a_process, lock, started_process)
CAUSES: Plants = {
    f"{cause}: {make.__name__.replace('_', ' ')}": Plant(cause, make)
    for cause, makes in {
        "blocking": _BLOCKING,
        "page-faults": (fresh_results, own_buffer, grown_list),
        "contention": (others_on_all_cores, others_now_and_then, others_on_its_core),
        "threads": (too_many_threads, python_thread),
        "python-overhead": (python_loop, small_operators, small_net),
        "first-call": (built_at_first,),
        "cache": (cached,),
        "layout": (strided,),
        "quota": (quota,),
        "denormals": (denormals,),
    }.items()
    for make in makes
}
_CONTROLS: Makes = {
    "matmul": lambda draw: _multiplied(torch.mm, *[draw.whole("size", 600, 1200)] * 2),
    "batched matmul": batched_matmul,
    "large relu": lambda draw: _large(torch.clamp_min, draw.whole("Mi numbers", 48, 64), 0.0),
    "large sum": lambda draw: Planted(
        torch.sum, (torch.randn(draw.whole("Mi numbers", 48, 96) * MIB),)
    ),
    "sigmoids": lambda draw: _large(torch.sigmoid, draw.whole("Mi numbers", 32, 64)),
    "arc tangents": lambda draw: _large(torch.atan, draw.whole("Mi numbers", 16, 48)),
}
CONTROLS: Plants = {
    f"control: {name}": Plant(planting.NOTHING, make) for name, make in _CONTROLS.items()
}
