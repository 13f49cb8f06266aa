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
from common.planting import NOTHING, Draw, Planted, Plants
from common.running import beside

from cpu.load import planted_load

KIB, MIB = 1 << 10, 1 << 20
CAUSES, CONTROLS = Plants(), Plants()
_ALWAYS, _NEVER = 1e3, 1e-3  # seconds of a load that does not pause
_CGROUPS = Path("/sys/fs/cgroup")
_PERIOD_SECONDS = 0.1


def numbers(name: str, low: int, high: int, unit: int = 1) -> Callable[[Draw], torch.Tensor]:
    return lambda draw: torch.randn(draw.number(name, low, high) * unit)


_small = numbers("Ki numbers", 16, 64, KIB)


def _behind(work: Callable[[], object], x: torch.Tensor, kept: object = None) -> Planted:
    def call() -> torch.Tensor:
        work()
        return x + 1

    return Planted(call, kept=kept)


@CAUSES.call("blocking: sleep", "blocking", _small, ("sleep", 0.3e-3, 4e-3))
def sleep(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return x + 1


@CAUSES.make("blocking: sleep beside threads", "blocking")
def sleep_beside_threads(draw: Draw) -> Planted:
    """Where all threads compute for about as long as the calling one sleeps."""
    x = torch.randn(draw.number("size", 700, 1000), 1000)
    weight, seconds = torch.randn(1000, 1000), draw.number("sleep", 4e-3, 8e-3)

    def call() -> torch.Tensor:
        time.sleep(seconds)
        return x @ weight

    return Planted(call)


@CAUSES.make("blocking: written file", "blocking")
def written_file(draw: Draw) -> Planted:
    x, size = _small(draw), draw.number("KiB", 16, 256) * KIB
    file = tempfile.TemporaryFile(dir=Path.home())  # noqa: SIM115  # lives as long as the call
    content = os.urandom(size)

    def write() -> None:
        os.pwrite(file.fileno(), content, 0)
        os.fsync(file.fileno())

    return _behind(write, x, kept=file)


@CAUSES.make("blocking: answer of a process", "blocking")
def answer_of_a_process(draw: Draw) -> Planted:
    """Through a pipe, from a process that sleeps before it answers."""
    x, seconds = _small(draw), draw.number("answer", 0.5e-3, 3e-3)
    program = (
        "import sys, time\n"
        f"for line in sys.stdin.buffer: time.sleep({seconds}); "
        "sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
    )
    other = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def wait() -> None:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdin.write(b"\n")
        other.stdin.flush()
        other.stdout.readline()

    return _behind(wait, x, kept=other)


@CAUSES.make("blocking: lock", "blocking")
def lock(draw: Draw) -> Planted:
    """Of another thread, which holds it while it sleeps."""
    x, seconds = _small(draw), draw.number("held", 0.5e-3, 3e-3)
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


@CAUSES.make("blocking: started process", "blocking")
def started_process(draw: Draw) -> Planted:
    x, command = _small(draw), draw.one_of("command", "/bin/true", "/bin/pwd")
    run = functools.partial(subprocess.run, [command], stdout=subprocess.DEVNULL, check=True)
    return _behind(run, x)


@CAUSES.make("page-faults: fresh results", "page-faults")
def fresh_results(draw: Draw) -> Planted:
    """So large that the C library maps and unmaps them each time."""
    x = torch.randn(draw.number("Mi numbers", 10, 24) * MIB)
    return Planted(getattr(torch, draw.one_of("operation", "relu", "neg", "abs")), (x,))


@CAUSES.call("page-faults: own buffer", "page-faults", _small, ("MiB", 8, 32))
def own_buffer(x: torch.Tensor, mebibytes: int) -> torch.Tensor:
    """Mapped by the call itself, and not by PyTorch's allocator."""
    with mmap.mmap(-1, mebibytes * MIB) as memory:
        view = torch.frombuffer(memory, dtype=torch.uint8)
        view[:: mmap.PAGESIZE].fill_(1)
        del view
    return x + 1


@CAUSES.call(
    "page-faults: grown list", "page-faults", numbers("Mi numbers", 1, 3, MIB), ("results", 12, 24)
)
def grown_list(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Results that are kept until the end of the call, and freed together."""
    return [x + 1 for _ in range(count)]


def _matmul(draw: Draw) -> Planted:
    size = draw.number("size", 400, 900)
    return Planted(torch.mm, (torch.randn(size, size), torch.randn(size, size)))


@CAUSES.make("contention: others on all cores", "contention")
def others_on_all_cores(draw: Draw) -> Planted:
    planted = _matmul(draw)

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for number in range(len(os.sched_getaffinity(0))):
                stack.enter_context(planted_load(str(number), _ALWAYS, _NEVER))
            yield

    return Planted(planted.fn, planted.args, around)


@CAUSES.make("contention: others now and then", "contention")
def others_now_and_then(draw: Draw) -> Planted:
    """On one core, for most of the time, while the call computes with all threads."""
    planted = _matmul(draw)
    on, off = draw.number("on", 0.1, 0.4), draw.number("off", 0.02, 0.08)
    return Planted(planted.fn, planted.args, lambda: planted_load("1", on, off))


@CAUSES.make("contention: others on its core", "contention")
def others_on_its_core(draw: Draw) -> Planted:
    """Of a call with one thread that is bound to a core."""
    planted = _matmul(draw)
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    return Planted(planted.fn, planted.args, lambda: planted_load("1", _ALWAYS, _NEVER))


@CAUSES.make("threads: too many threads", "threads")
def too_many_threads(draw: Draw) -> Planted:
    torch.set_num_threads(len(os.sched_getaffinity(0)) * draw.number("threads per core", 4, 8))
    return Planted(torch.softmax, (torch.randn(draw.number("Ki rows", 2, 8) * KIB, 256), 1))


@CAUSES.make("threads: python thread", "threads")
def python_thread(draw: Draw) -> Planted:
    """Another thread of this process that computes, and takes turns with the call."""
    x, operators = _small(draw), draw.number("operators", 20, 60)

    def compute(ended: threading.Event) -> None:
        while not ended.is_set():
            sum(range(1000))

    return Planted(lambda: planting.additions(x, operators), around=lambda: beside(compute))


@CAUSES.make("python-overhead: small net", "python-overhead")
def small_net(draw: Draw) -> Planted:
    width = draw.number("width", 4, 16)
    layers = [torch.nn.Linear(width, width) for _ in range(draw.number("layers", 4, 12))]
    x = torch.randn(draw.number("rows", 1, 8), width)
    return Planted(torch.nn.Sequential(*layers), (x,))


@CAUSES.make("cache: cached", "cache")
def cached(draw: Draw) -> Planted:
    """What the caches hold, and memory gives slowly; written in place."""
    x = torch.randn(draw.number("KiB", 256, 1024) * KIB // 4)
    return Planted(torch.add, (x, x), kept=x) if draw.number("sum", 0, 1) else Planted(x.sum)


@CAUSES.make("layout: strided", "layout")
def strided(draw: Draw) -> Planted:
    size = draw.number("size", 1024, 2048)
    x, out = torch.randn(size, size), torch.empty(size, size)
    return Planted(functools.partial(torch.add, out=out), (x.t(), x))


@CAUSES.make("quota: quota", "quota")
def quota(draw: Draw) -> Planted:
    """Of a cgroup of version 1 or 2, which only root may make."""
    planted, share = _matmul(draw), draw.number("share of the cores", 0.2, 0.6)

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


@CAUSES.make("denormals: denormals", "denormals")
def denormals(draw: Draw) -> Planted:
    size = draw.number("size", 200, 400)
    x, out = torch.full((size, size), draw.number("times 1e-40", 1, 9) * 1e-40), torch.empty(0)
    return Planted(functools.partial(torch.div, out=out), (x, torch.rand(size, size) + 0.5))


def _multiplied(multiply: Callable[..., torch.Tensor], *shape: int) -> Planted:
    x, y, out = (torch.randn(shape) for _ in range(3))
    return Planted(functools.partial(multiply, out=out), (x, y))


def batched_matmul(draw: Draw) -> Planted:
    size, batch = 16 * draw.number("16 rows", 12, 20), draw.number("batch", 8, 16)
    return _multiplied(torch.bmm, batch, size, size)


def _large(operation: Callable[..., torch.Tensor], numbers: int, *more: float) -> Planted:
    """Of more than the caches hold, into memory that is there."""
    x = torch.randn(numbers * MIB)
    return Planted(functools.partial(operation, out=torch.empty_like(x)), (x, *more))


CAUSES.call("python-overhead: python loop", "python-overhead", _small, ("turns", 10_000, 100_000))(
    planting.python_turns
)
CAUSES.call(
    "python-overhead: small operators",
    "python-overhead",
    numbers("numbers", 1, 64),
    ("operators", 20, 200),
)(planting.additions)
CAUSES.call("first-call: built at first", "first-call", _small, planting.slow_scale, first=True)(
    planting.scaled
)


for _name, _make in {
    "matmul": lambda draw: _multiplied(torch.mm, *[draw.number("size", 600, 1200)] * 2),
    "batched matmul": batched_matmul,
    "large relu": lambda draw: _large(torch.clamp_min, draw.number("Mi numbers", 48, 64), 0.0),
    "large sum": lambda draw: Planted(torch.sum, (numbers("Mi numbers", 48, 96, MIB)(draw),)),
    "sigmoids": lambda draw: _large(torch.sigmoid, draw.number("Mi numbers", 32, 64)),
    "arc tangents": lambda draw: _large(torch.atan, draw.number("Mi numbers", 16, 48)),
}.items():
    CONTROLS.make(f"control: {_name}", NOTHING)(_make)
