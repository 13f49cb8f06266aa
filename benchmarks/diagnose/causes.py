"""The planted causes, written down before the rules that are to find them; and the controls."""

import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common.graphs import capture
from common.operations import mapped
from common.planting import (
    NOTHING,
    Draw,
    Plant,
    Planted,
    Plants,
    additions,
    built_once,
    python_turns,
)
from torch.nn import functional as F

from diagnose.neighbours import process_neighbour, thread_neighbour

MIB = 1 << 20
_FLOATS = ("float32", "float16", "bfloat16")


def random_tensor(*shape: int, dtype: str = "float32") -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def new_stream() -> Any:
    make: Any = torch.cuda.Stream  # which is not typed
    return make()


def _large(draw: Draw, low: int = 24, high: int = 64) -> torch.Tensor:
    """Numbers that a kernel takes some 30 to 150 µs for, none of them in the cache."""
    return random_tensor(draw.whole("Mi numbers", low, high) * MIB)


def host_sleep(draw: Draw) -> Planted:
    x, seconds = _large(draw), draw.seconds("sleep", 0.5e-3, 4e-3)

    def call() -> torch.Tensor:
        time.sleep(seconds)
        return torch.relu(x)

    return Planted(call)


def host_between(draw: Draw) -> Planted:
    """Small pieces of work on the host between several kernels."""
    x, parts = _large(draw, 8, 16), draw.whole("parts", 3, 8)
    turns = draw.whole("turns", 8_000, 30_000)

    def call() -> torch.Tensor:
        y = x
        for _ in range(parts):
            sum(range(turns))
            y = torch.relu(y)
        return y

    return Planted(call)


def tiny_kernels(draw: Draw) -> Planted:
    x = random_tensor(draw.whole("numbers", 256, 16_384))
    return additions(x, draw.whole("kernels", 20, 80))


def tiny_optimizer(draw: Draw) -> Planted:
    count, size = draw.whole("parameters", 20, 60), draw.whole("size", 64, 4096)
    pairs = [(random_tensor(size), random_tensor(size)) for _ in range(count)]

    def call() -> None:
        for parameter, gradient in pairs:
            parameter.add_(gradient, alpha=-1e-9)

    return Planted(call)


def tiny_training(draw: Draw) -> Planted:
    width, layers = draw.whole("width", 32, 128), draw.whole("layers", 2, 5)
    modules = [(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers)]
    net = torch.nn.Sequential(*itertools.chain.from_iterable(modules)).cuda()
    x = random_tensor(draw.whole("batch", 16, 256), width)

    def call() -> None:
        net.zero_grad(set_to_none=True)
        net(x).square().mean().backward()

    return Planted(call)


def item(draw: Draw) -> Planted:
    x, times = random_tensor(draw.whole("Ki numbers", 256, 2048) * 1024), draw.whole("times", 3, 8)

    def call() -> float:
        total = 0.0
        for _ in range(times):
            total += x.sum().item()
        return total

    return Planted(call)


def synchronize(draw: Draw) -> Planted:
    x, times = _large(draw, 1, 4), draw.whole("times", 3, 8)

    def call() -> torch.Tensor:
        y = x
        for _ in range(times):
            y = torch.relu(y)
            torch.cuda.synchronize()
        return y

    return Planted(call)


def mask(draw: Draw) -> Planted:
    """How many numbers a mask selects, only the GPU knows."""
    x, times = random_tensor(draw.whole("Ki numbers", 256, 2048) * 1024), draw.whole("times", 2, 6)

    def call() -> torch.Tensor:
        y = x
        for _ in range(times):
            y = x[x > 0.5]
        return y

    return Planted(call)


def unwaited_result(draw: Draw) -> Planted:
    """The current stream reads what another one is still making."""
    x, side = _large(draw), new_stream()
    steps = draw.whole("steps", 2, 6)

    def call() -> torch.Tensor:
        with torch.cuda.stream(side):
            y = x
            for _ in range(steps):
                y = y * 1.01
        return y + 1.0

    return Planted(call)


def unwaited_input(draw: Draw) -> Planted:
    """Another stream reads what the current one is still making, and is waited for at the end."""
    x, side = _large(draw), new_stream()
    steps = draw.whole("steps", 2, 6)

    def call() -> torch.Tensor:
        y = x
        for _ in range(steps):
            y = y * 1.01
        with torch.cuda.stream(side):
            z = y + 1.0
        torch.cuda.current_stream().wait_stream(side)
        return z

    return Planted(call)


def emptied_cache(draw: Draw) -> Planted:
    numbers = draw.whole("Mi numbers", 8, 64) * MIB

    def call() -> torch.Tensor:
        torch.cuda.empty_cache()
        return torch.ones(numbers, device="cuda")

    return Planted(call)


def growing(draw: Draw) -> Planted:
    """Each call needs a block that is larger than any before."""
    first = draw.whole("MiB at first", 32, 64)
    sizes = itertools.cycle(range(first, first + 256, 2))

    def call() -> torch.Tensor:
        size = next(sizes)
        if size == first:
            torch.cuda.empty_cache()
        return torch.zeros(size * MIB, dtype=torch.uint8, device="cuda")

    return Planted(call)


def compiled_at_first(draw: Draw) -> Planted:
    from torch.cuda.jiterator import _create_jit_fn

    os.environ["USE_PYTORCH_KERNEL_CACHE"] = "0"  # or the disk may have it from an earlier run
    terms = draw.whole("terms", 40, 120)
    body = " ".join(f"y = y * T({1 + term / 1e4}) + x;" for term in range(terms))
    compiled = _create_jit_fn(
        f"template <typename T> T planted(T x) {{ T y = x; {body} return y; }}"
    )
    x = _large(draw)
    return Planted(lambda: compiled(x), calls_before=0)


def searched_at_first(draw: Draw) -> Planted:
    torch.backends.cudnn.benchmark = True
    channels = 16 * draw.whole("16 channels", 4, 12)
    x, weight = (
        tensor.to(memory_format=torch.channels_last)
        for tensor in _images_and_weight(draw.whole("batch", 32, 64), channels)
    )
    return Planted(functools.partial(F.conv2d, padding=1), (x, weight), calls_before=0)


def _images_and_weight(batch: int, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = random_tensor(batch, channels, 56, 56, dtype="float16")
    return x, random_tensor(channels, channels, 3, 3, dtype="float16")


def _replayed(work: Any) -> Planted:
    """As one launch, so that what it does on the GPU counts, and not what it takes to issue it."""
    replay = capture(work)
    return Planted(replay.graph.replay, kept=replay)


# What is to stay in the cache takes 16 to 30 MiB: less than half of an H200's, since what lies in
# one half may be held in the other one, too.
def cached_negation(draw: Draw) -> Planted:
    count, size = draw.whole("tensors", 8, 9), draw.whole("Ki numbers", 640, 840) * 1024
    tensors = [random_tensor(size) for _ in range(count)]

    def work() -> None:
        for x in tensors:
            torch.neg(x, out=x)

    return _replayed(work)


def cached_addition(draw: Draw) -> Planted:
    pairs, dtype = draw.whole("pairs", 2, 3), draw.one_of("dtype", *_FLOATS)
    size = draw.whole("KiB", 4096, 4800) * 1024 // getattr(torch, dtype).itemsize
    tensors = [[random_tensor(size, dtype=dtype) for _ in "xy"] for _ in range(pairs)]

    def work() -> None:
        for x, y in tensors:
            torch.add(x, y, alpha=1e-3, out=x)

    return _replayed(work)


def hot_matmul(draw: Draw) -> Planted:
    side = 512 * draw.whole("512 rows", 8, 14)
    dtype = draw.one_of("dtype", "float16", "bfloat16")
    return Planted(torch.mm, tuple(random_tensor(side, side, dtype=dtype) for _ in "ab"))


def hot_batch(draw: Draw) -> Planted:
    side, batch = 256 * draw.whole("256 rows", 6, 10), draw.whole("batch", 8, 16)
    dtype = draw.one_of("dtype", "float16", "bfloat16")
    return Planted(torch.bmm, tuple(random_tensor(batch, side, side, dtype=dtype) for _ in "ab"))


def misaligned(draw: Draw) -> Planted:
    """A byte off, so that no load can be a wide one."""
    size = draw.whole("Mi numbers", 96, 256) * MIB
    x = torch.randint(0, 100, (size + 1,), device="cuda", dtype=torch.uint8)[1:]
    return Planted(torch.bitwise_not, (x,))


def unlucky(draw: Draw) -> Planted:
    """The slowest of many choices of addresses, of a size that they matter to."""
    # Of 1024 rows, those at multiples of 2 MiB are among the slowest on an H200.
    sides = [1024, *(128 * draw.whole(name, 7, 10) for name in ("128 rows", "or"))]
    _, pair = max((_slowest_place(side, draw) for side in sides), key=lambda found: found[0])
    draw.drawn["taken"] = pair[0].size(0)
    return Planted(torch.mm, pair)


def _slowest_place(side: int, draw: Draw) -> tuple[float, tuple[torch.Tensor, torch.Tensor]]:
    """How many times as long as usual a product takes, and the two matrices where they lie so."""
    a, b = random_tensor(side, side), random_tensor(side, side)

    def moved(x: torch.Tensor, offset: int) -> torch.Tensor:
        room = torch.empty(x.numel() + 4 * MIB, device="cuda")  # at a multiple of 2 MiB
        return room[offset : offset + x.numel()].view_as(x).copy_(x)

    offsets = [[128 * draw.whole("offset", 0, 4096) for _ in "ab"] for _ in range(48)]
    places = [(moved(a, here), moved(b, there)) for here, there in ([0, 0], *offsets)]

    def seconds(pair: tuple[torch.Tensor, torch.Tensor]) -> float:
        event: Any = torch.cuda.Event
        start, end = (event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(20):
            torch.mm(*pair)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    rounds = [[seconds(pair) for pair in places] for _ in range(7)]
    found = [statistics.median(times) for times in zip(*rounds, strict=True)]
    return max(found) / statistics.median(found), places[found.index(max(found))]


def _beside(neighbour: Callable[..., Any], eats: str) -> Plant:
    """A ReLU beside others' work."""

    def make(draw: Draw) -> Planted:
        sizes = ("neighbour MiB", 256, 512) if eats == "bandwidth" else ("µs", 100, 400)
        around = functools.partial(neighbour, eats, draw.whole(*sizes))
        return Planted(torch.relu, (_large(draw),), around)

    return Plant("contention", make)


def transposed(draw: Draw) -> Planted:
    side = 256 * draw.whole("256 rows", 12, 28)
    x = random_tensor(side, side, dtype=draw.one_of("dtype", *_FLOATS))
    return Planted(torch.add, (x.t(), torch.empty_like(x).normal_()))


def strided(draw: Draw) -> Planted:
    step = draw.whole("step", 3, 8)
    x = random_tensor(draw.whole("Mi numbers", 16, 32) * MIB, step)[:, 0]
    return Planted(torch.relu, (x,))


def nchw(draw: Draw) -> Planted:
    channels = 32 * draw.whole("32 channels", 2, 4)
    data = _images_and_weight(draw.whole("batch", 48, 96), channels)
    return Planted(functools.partial(F.conv2d, padding=1), data)


def _on_host(draw: Draw, low: int, high: int) -> torch.Tensor:
    return torch.randn(draw.whole("MiB", low, high) * MIB // 4)


def pageable_in(draw: Draw) -> Planted:
    x = _on_host(draw, 4, 64)
    return Planted(lambda: torch.relu(x.to("cuda")))


def pageable_out(draw: Draw) -> Planted:
    x = _on_host(draw, 4, 64).cuda()
    return Planted(lambda: torch.relu(x).cpu())


def pinned_in(draw: Draw) -> Planted:
    """A copy that could run beside other work, and does not."""
    x = _on_host(draw, 16, 64).pin_memory()
    return Planted(lambda: torch.relu(x.to("cuda", non_blocking=True)))


def zeros(draw: Draw) -> Planted:
    side = 512 * draw.whole("512 rows", 12, 16)
    of = {"device": "cuda", "dtype": getattr(torch, draw.one_of("dtype", "float16", "bfloat16"))}
    return Planted(torch.mm, (torch.zeros(side, side, **of), torch.zeros(side, side, **of)))


def turns_by_value(draw: Draw) -> Planted:
    """Each number says how long its thread works on it."""
    from torch.cuda.jiterator import _create_jit_fn

    most = draw.whole("turns", 64, 256)
    work = _create_jit_fn(
        "template <typename T> T planted_turns(T x) { T y = x; int n = int(x); "
        "for (int i = 0; i < n; ++i) y = y * T(0.999) + T(0.5); return y; }"
    )
    x = torch.rand(draw.whole("Mi numbers", 4, 16) * MIB, device="cuda") * most
    return Planted(work, (x,))


CAUSES: Plants = {
    "host: sleep": Plant("host-bound", host_sleep),
    "host: Python": Plant(
        "host-bound",
        lambda draw: python_turns(_large(draw), draw.whole("turns", 20_000, 100_000)),
    ),
    "host: between kernels": Plant("host-bound", host_between),
    "launch: tiny kernels": Plant("launch-bound", tiny_kernels),
    "launch: tiny optimizer": Plant("launch-bound", tiny_optimizer),
    "launch: tiny training": Plant("launch-bound", tiny_training),
    "synchronisation: item": Plant("synchronisation", item),
    "synchronisation: synchronize": Plant("synchronisation", synchronize),
    "synchronisation: mask": Plant("synchronisation", mask),
    "missing wait: for a result": Plant("missing-wait", unwaited_result),
    "missing wait: for an input": Plant("missing-wait", unwaited_input),
    "allocation: emptied cache": Plant("allocation", emptied_cache),
    "allocation: growing": Plant("allocation", growing),
    "first call: compiled": Plant("first-call", compiled_at_first),
    "first call: searched": Plant("first-call", searched_at_first),
    "first call: built": Plant(
        "first-call", lambda draw: built_once(_large(draw), draw.seconds("build", 0.3, 1.5))
    ),
    "cache: negation": Plant("cache", cached_negation),
    "cache: addition": Plant("cache", cached_addition),
    "clock: matmul": Plant("clock", hot_matmul),
    "clock: batched matmul": Plant("clock", hot_batch),
    "placement: misaligned": Plant("placement", misaligned),
    "placement: unlucky": Plant("placement", unlucky),
    "contention: thread, bandwidth": _beside(thread_neighbour, "bandwidth"),
    "contention: thread, multiprocessors": _beside(thread_neighbour, "multiprocessors"),
    "contention: process, bandwidth": _beside(process_neighbour, "bandwidth"),
    "contention: process, multiprocessors": _beside(process_neighbour, "multiprocessors"),
    "layout: transposed": Plant("layout", transposed),
    "layout: strided": Plant("layout", strided),
    "layout: NCHW": Plant("layout", nchw),
    "transfer: pageable, in": Plant("transfer", pageable_in),
    "transfer: pageable, out": Plant("transfer", pageable_out),
    "transfer: pinned, in": Plant("transfer", pinned_in),
    "transfer: mapped, in": Plant(  # the kernel reads the host's memory as it runs
        "transfer",
        lambda draw: Planted(torch.relu, (mapped(_on_host(draw, 16, 64).pin_memory(), "cuda"),)),
    ),
    "data: zeros": Plant("data", zeros),
    "data: turns by value": Plant("data", turns_by_value),
}


def add(draw: Draw) -> Planted:
    x = _large(draw, 64, 128)
    return Planted(torch.add, (x, torch.randn_like(x)))


def layer_norm(draw: Draw) -> Planted:
    x = random_tensor(1024 * draw.whole("1024 rows", 16, 48), 4096, dtype="bfloat16")
    return Planted(functools.partial(F.layer_norm, normalized_shape=(4096,)), (x,))


def gather(draw: Draw) -> Planted:
    """Of whole rows, from a table that no cache holds."""
    table = random_tensor(draw.whole("Ki rows", 512, 1024) * 1024, 256)
    index = torch.randint(0, len(table), (256 * 1024,), device="cuda")
    return Planted(torch.index_select, (table, 0, index))


def overlapped(draw: Draw) -> Planted:
    """A copy that is shorter than the work that it runs beside."""
    host = torch.randn(draw.whole("MiB", 1, 2) * MIB // 4).pin_memory()
    landed, side = torch.empty_like(host, device="cuda"), new_stream()
    x = _large(draw, 128, 192)

    def call() -> torch.Tensor:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            landed.copy_(host, non_blocking=True)
        y = torch.relu(x)
        main.wait_stream(side)
        return y

    return Planted(call)


def waited(draw: Draw) -> Planted:
    """Two streams, each of which waits for what it reads."""
    x, side = _large(draw, 64, 128), new_stream()

    def call() -> torch.Tensor:
        main = torch.cuda.current_stream()
        y = torch.relu(x)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            z = y * 2.0
        main.wait_stream(side)
        return z + 1.0

    return Planted(call)


CONTROLS: Plants = {
    f"control: {name}": Plant(NOTHING, make)
    for name, make in {
        "relu": lambda draw: Planted(torch.relu, (_large(draw, 64, 192),)),
        "add": add,
        "softmax": lambda draw: Planted(
            torch.softmax, (random_tensor(1024 * draw.whole("1024 rows", 16, 32), 4096), 1)
        ),
        "layer_norm": layer_norm,
        "sum": lambda draw: Planted(torch.sum, (_large(draw, 96, 256),)),
        "gather": gather,
        "overlapped copy": overlapped,
        "two streams": waited,
    }.items()
}
