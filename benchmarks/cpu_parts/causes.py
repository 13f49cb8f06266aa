"""What is planted on a CPU: calls of which convtime.diagnose is to name one thing first.

Sizes and durations are drawn. Each call is diagnosed in a fresh process.
"""

from __future__ import annotations

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
from collections.abc import Iterator
from pathlib import Path

import torch
from common.planting import (
    NOTHING,
    Draw,
    Plant,
    Planted,
    Plants,
    built_once,
    python_turns,
)

from cpu_parts.load import planted_load

KIB, MIB = 1 << 10, 1 << 20
_ALWAYS, _NEVER = 1e3, 1e-3  # seconds of a load that does not pause
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_SECONDS = 0.1


def _small(draw: Draw) -> torch.Tensor:
    return torch.randn(draw.whole("Ki numbers", 16, 64) * KIB)


def sleep(draw: Draw) -> Planted:
    x, seconds = _small(draw), draw.seconds("sleep", 0.3e-3, 4e-3)

    def call() -> torch.Tensor:
        time.sleep(seconds)
        return x + 1

    return Planted(call)


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

    def call() -> torch.Tensor:
        os.pwrite(file.fileno(), content, 0)
        os.fsync(file.fileno())
        return x + 1

    return Planted(call, kept=file)


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
    assert other.stdin is not None
    assert other.stdout is not None
    ask, answer = other.stdin, other.stdout

    def call() -> torch.Tensor:
        ask.write(b"\n")
        ask.flush()
        answer.readline()
        return x + 1

    return Planted(call, kept=other)


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

    def call() -> torch.Tensor:
        asked.put(None)
        done.get()
        return x + 1

    return Planted(call)


def started_process(draw: Draw) -> Planted:
    x, command = _small(draw), draw.one_of("command", "/bin/true", "/bin/pwd")

    def call() -> torch.Tensor:
        subprocess.run([command], stdout=subprocess.DEVNULL, check=True)
        return x + 1

    return Planted(call)


def fresh_results(draw: Draw) -> Planted:
    """So large that the C library maps and unmaps them each time."""
    x = torch.randn(draw.whole("Mi numbers", 10, 24) * MIB)
    name = draw.one_of("operation", "relu", "neg", "abs")
    return Planted(getattr(torch, name), (x,))


def own_buffer(draw: Draw) -> Planted:
    """Mapped by the call itself, and not by PyTorch's allocator."""
    x, size = _small(draw), draw.whole("MiB", 8, 32) * MIB

    def call() -> torch.Tensor:
        with mmap.mmap(-1, size) as memory:
            view = torch.frombuffer(memory, dtype=torch.uint8)
            view[:: mmap.PAGESIZE].fill_(1)
            del view
        return x + 1

    return Planted(call)


def grown_list(draw: Draw) -> Planted:
    """Results that are kept until the end of the call, and freed together."""
    x, count = torch.randn(draw.whole("Mi numbers", 1, 3) * MIB), draw.whole("results", 12, 24)

    def call() -> list[torch.Tensor]:
        return [x + 1 for _ in range(count)]

    return Planted(call)


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
    cores = len(os.sched_getaffinity(0))
    torch.set_num_threads(cores * draw.whole("threads per core", 4, 8))
    x = torch.randn(draw.whole("Ki rows", 2, 8) * KIB, 256)
    return Planted(torch.softmax, (x, 1))


def python_thread(draw: Draw) -> Planted:
    """Another thread of this process that computes, and takes turns with the call."""
    x, count = _small(draw), draw.whole("operators", 20, 60)

    def call() -> torch.Tensor:
        y = x
        for _ in range(count):
            y = y + 1
        return y

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

    return Planted(call, around=around)


def python_loop(draw: Draw) -> Planted:
    return python_turns(_small(draw), draw.whole("turns", 10_000, 100_000))


def small_operators(draw: Draw) -> Planted:
    x, count = torch.randn(draw.whole("numbers", 1, 64)), draw.whole("operators", 20, 200)

    def call() -> torch.Tensor:
        y = x
        for _ in range(count):
            y = y + 1
        return y

    return Planted(call)


def small_net(draw: Draw) -> Planted:
    width = draw.whole("width", 4, 16)
    layers = [torch.nn.Linear(width, width) for _ in range(draw.whole("layers", 4, 12))]
    net = torch.nn.Sequential(*layers)
    return Planted(net, (torch.randn(draw.whole("rows", 1, 8), width),))


def built_at_first(draw: Draw) -> Planted:
    return built_once(_small(draw), draw.seconds("build", 0.3, 1.5))


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
        cores = len(os.sched_getaffinity(0))
        period = round(1e6 * _PERIOD_SECONDS)
        microseconds = math.ceil(share * cores * period)
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
    """Whether this process may make a cgroup with a quota."""
    for parent in (_CGROUPS, _CGROUPS / "cpu"):
        if (parent / "cpu.stat").exists() or (parent / "cpu.cfs_quota_us").exists():
            return os.access(parent, os.W_OK)
    return False


def denormals(draw: Draw) -> Planted:
    size = draw.whole("size", 200, 400)
    x, out = torch.full((size, size), draw.whole("times 1e-40", 1, 9) * 1e-40), torch.empty(0)
    return Planted(functools.partial(torch.div, out=out), (x, torch.rand(size, size) + 0.5))


def matmul(draw: Draw) -> Planted:
    size = draw.whole("size", 600, 1200)
    x, y, out = (torch.randn(size, size) for _ in range(3))
    return Planted(functools.partial(torch.mm, out=out), (x, y))


def batched_matmul(draw: Draw) -> Planted:
    size, batch = 16 * draw.whole("16 rows", 12, 20), draw.whole("batch", 8, 16)
    x, y, out = (torch.randn(batch, size, size) for _ in range(3))
    return Planted(functools.partial(torch.bmm, out=out), (x, y))


def large_relu(draw: Draw) -> Planted:
    """Of more than the caches hold, into memory that is there."""
    x = torch.randn(draw.whole("Mi numbers", 48, 64) * MIB)
    return Planted(functools.partial(torch.clamp_min, out=torch.empty_like(x)), (x, 0.0))


def large_sum(draw: Draw) -> Planted:
    return Planted(torch.sum, (torch.randn(draw.whole("Mi numbers", 48, 96) * MIB),))


def sigmoids(draw: Draw) -> Planted:
    x = torch.randn(draw.whole("Mi numbers", 32, 64) * MIB)
    return Planted(functools.partial(torch.sigmoid, out=torch.empty_like(x)), (x,))


def arc_tangents(draw: Draw) -> Planted:
    x = torch.randn(draw.whole("Mi numbers", 16, 48) * MIB)
    return Planted(functools.partial(torch.atan, out=torch.empty_like(x)), (x,))


CAUSES: Plants = {
    f"{code}: {make.__name__.replace('_', ' ')}": Plant(code, make)
    for code, makes in {
        "blocking": (
            sleep,
            sleep_beside_threads,
            written_file,
            answer_of_a_process,
            lock,
            started_process,
        ),
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

CONTROLS: Plants = {
    f"control: {make.__name__.replace('_', ' ')}": Plant(NOTHING, make)
    for make in (matmul, batched_matmul, large_relu, large_sum, sigmoids, arc_tangents)
}
