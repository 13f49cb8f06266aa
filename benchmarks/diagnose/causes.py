"""The planted causes, written down before the rules that are to find them; and the controls."""

import functools
import itertools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import planting
from common.cuda import capture, mapped, seconds_per_call
from common.planting import NOTHING, Draw, Planted, Plants
from torch.nn import functional as F

from diagnose.neighbours import process_neighbour, thread_neighbour

MIB = 1 << 20
CAUSES, CONTROLS = Plants(), Plants()
_FLOATS = ("float32", "float16", "bfloat16")
_HALVES = _FLOATS[1:]


def random_tensor(*shape: int, dtype: str = "float32") -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(getattr(torch, dtype))


def new_stream(_: Draw | None = None) -> Any:
    make: Any = torch.cuda.Stream  # which is not typed
    return make()


def numbers(name: str, low: int, high: int, unit: int = 1) -> Callable[[Draw], torch.Tensor]:
    return lambda draw: random_tensor(unit * draw.number(name, low, high))


def large(low: int = 24, high: int = 64) -> Callable[[Draw], torch.Tensor]:
    """By default, a kernel takes some 30 to 150 µs for them, and none of them are in the cache."""
    return numbers("Mi numbers", low, high, MIB)


def on_host(low: int, high: int) -> Callable[[Draw], torch.Tensor]:
    return lambda draw: torch.randn(draw.number("MiB", low, high) * MIB // 4)


CAUSES.call("host: Python", "host-bound", large(), ("turns", 20_000, 100_000))(
    planting.python_turns
)
CAUSES.call(
    "launch: tiny kernels", "launch-bound", numbers("numbers", 256, 16_384), ("kernels", 20, 80)
)(planting.additions)
CAUSES.call("first call: built", "first-call", large(), planting.slow_scale, first=True)(
    planting.scaled
)


@CAUSES.call("host: sleep", "host-bound", large(), ("sleep", 0.5e-3, 4e-3))
def host_sleep(x: torch.Tensor, seconds: float) -> torch.Tensor:
    time.sleep(seconds)
    return torch.relu(x)


@CAUSES.call(
    "host: between kernels", "host-bound", large(8, 16), ("parts", 3, 8), ("turns", 8_000, 30_000)
)
def host_between(y: torch.Tensor, parts: int, turns: int) -> torch.Tensor:
    """Small pieces of work on the host between several kernels."""
    for _ in range(parts):
        sum(range(turns))
        y = torch.relu(y)
    return y


def _pairs(draw: Draw) -> list[tuple[torch.Tensor, torch.Tensor]]:
    count, size = draw.number("parameters", 20, 60), draw.number("size", 64, 4096)
    return [(random_tensor(size), random_tensor(size)) for _ in range(count)]


@CAUSES.call("launch: tiny optimizer", "launch-bound", _pairs)
def tiny_optimizer(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for parameter, gradient in pairs:
        parameter.add_(gradient, alpha=-1e-9)


def _net(draw: Draw) -> tuple[torch.nn.Module, torch.Tensor]:
    width, layers = draw.number("width", 32, 128), draw.number("layers", 2, 5)
    modules = [(torch.nn.Linear(width, width), torch.nn.ReLU()) for _ in range(layers)]
    net = torch.nn.Sequential(*itertools.chain.from_iterable(modules)).cuda()
    return net, random_tensor(draw.number("batch", 16, 256), width)


@CAUSES.call("launch: tiny training", "launch-bound", _net)
def tiny_training(given: tuple[torch.nn.Module, torch.Tensor]) -> None:
    net, x = given
    net.zero_grad(set_to_none=True)
    net(x).square().mean().backward()


_some = numbers("Ki numbers", 256, 2048, 1024)


@CAUSES.call("synchronisation: item", "synchronisation", _some, ("times", 3, 8))
def item(x: torch.Tensor, times: int) -> float:
    return sum(x.sum().item() for _ in range(times))


@CAUSES.call("synchronisation: synchronize", "synchronisation", large(1, 4), ("times", 3, 8))
def synchronize(y: torch.Tensor, times: int) -> torch.Tensor:
    for _ in range(times):
        y = torch.relu(y)
        torch.cuda.synchronize()
    return y


@CAUSES.call("synchronisation: mask", "synchronisation", _some, ("times", 2, 6))
def mask(x: torch.Tensor, times: int) -> torch.Tensor:
    """How many numbers a mask selects, only the GPU knows."""
    y = x
    for _ in range(times):
        y = x[x > 0.5]
    return y


@CAUSES.call("missing wait: for a result", "missing-wait", large(), new_stream, ("steps", 2, 6))
def unwaited_result(y: torch.Tensor, side: Any, steps: int) -> torch.Tensor:
    """The current stream reads what another one is still making."""
    with torch.cuda.stream(side):
        for _ in range(steps):
            y = y * 1.01
    return y + 1.0


@CAUSES.call("missing wait: for an input", "missing-wait", large(), new_stream, ("steps", 2, 6))
def unwaited_input(y: torch.Tensor, side: Any, steps: int) -> torch.Tensor:
    """Another stream reads what the current one is still making, and is waited for at the end."""
    for _ in range(steps):
        y = y * 1.01
    with torch.cuda.stream(side):
        z = y + 1.0
    torch.cuda.current_stream().wait_stream(side)
    return z


@CAUSES.call("allocation: emptied cache", "allocation", ("Mi numbers", 8, 64))
def emptied_cache(mi_numbers: int) -> torch.Tensor:
    torch.cuda.empty_cache()
    return torch.ones(mi_numbers * MIB, device="cuda")


@CAUSES.make("allocation: growing", "allocation")
def growing(draw: Draw) -> Planted:
    """Each call needs a block that is larger than any before."""
    first = draw.number("MiB at first", 32, 64)
    sizes = itertools.cycle(range(first, first + 256, 2))

    def call() -> torch.Tensor:
        size = next(sizes)
        if size == first:
            torch.cuda.empty_cache()
        return torch.zeros(size * MIB, dtype=torch.uint8, device="cuda")

    return Planted(call)


def _jitted(code: str) -> Any:
    from torch.cuda.jiterator import _create_jit_fn

    return _create_jit_fn(f"template <typename T> T planted(T x) {{ T y = x; {code} return y; }}")


@CAUSES.make("first call: compiled", "first-call")
def compiled_at_first(draw: Draw) -> Planted:
    os.environ["USE_PYTORCH_KERNEL_CACHE"] = "0"  # or the disk may have it from an earlier run
    terms = draw.number("terms", 40, 120)
    compiled = _jitted(" ".join(f"y = y * T({1 + term / 1e4}) + x;" for term in range(terms)))
    x = large()(draw)
    return Planted(lambda: compiled(x), calls_before=0)


def _images_and_weight(batch: int, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = random_tensor(batch, channels, 56, 56, dtype="float16")
    return x, random_tensor(channels, channels, 3, 3, dtype="float16")


@CAUSES.make("first call: searched", "first-call")
def searched_at_first(draw: Draw) -> Planted:
    torch.backends.cudnn.benchmark = True
    channels = 16 * draw.number("16 channels", 4, 12)
    data = _images_and_weight(draw.number("batch", 32, 64), channels)
    last = tuple(tensor.to(memory_format=torch.channels_last) for tensor in data)
    return Planted(functools.partial(F.conv2d, padding=1), last, calls_before=0)


def _replayed(work: Any) -> Planted:
    """As one launch, so that what it does on the GPU counts, and not what it takes to issue it."""
    replay = capture(work)
    return Planted(replay.graph.replay, kept=replay)


# What is to stay in the cache takes 16 to 30 MiB: less than half of an H200's, since what lies in
# one half may be held in the other one, too.
@CAUSES.make("cache: negation", "cache")
def cached_negation(draw: Draw) -> Planted:
    count, size = draw.number("tensors", 8, 9), draw.number("Ki numbers", 640, 840) * 1024
    tensors = [random_tensor(size) for _ in range(count)]
    return _replayed(lambda: [torch.neg(x, out=x) for x in tensors])


@CAUSES.make("cache: addition", "cache")
def cached_addition(draw: Draw) -> Planted:
    pairs, dtype = draw.number("pairs", 2, 3), draw.one_of("dtype", *_FLOATS)
    size = draw.number("KiB", 4096, 4800) * 1024 // getattr(torch, dtype).itemsize
    tensors = [[random_tensor(size, dtype=dtype) for _ in "xy"] for _ in range(pairs)]
    return _replayed(lambda: [torch.add(x, y, alpha=1e-3, out=x) for x, y in tensors])


@CAUSES.make("clock: matmul", "clock")
def hot_matmul(draw: Draw) -> Planted:
    side, dtype = 512 * draw.number("512 rows", 8, 14), draw.one_of("dtype", *_HALVES)
    return Planted(torch.mm, tuple(random_tensor(side, side, dtype=dtype) for _ in "ab"))


@CAUSES.make("clock: batched matmul", "clock")
def hot_batch(draw: Draw) -> Planted:
    side, batch = 256 * draw.number("256 rows", 6, 10), draw.number("batch", 8, 16)
    dtype = draw.one_of("dtype", *_HALVES)
    return Planted(torch.bmm, tuple(random_tensor(batch, side, side, dtype=dtype) for _ in "ab"))


@CAUSES.make("placement: misaligned", "placement")
def misaligned(draw: Draw) -> Planted:
    """A byte off, so that no load can be a wide one."""
    size = draw.number("Mi numbers", 96, 256) * MIB
    x = torch.randint(0, 100, (size + 1,), device="cuda", dtype=torch.uint8)[1:]
    return Planted(torch.bitwise_not, (x,))


@CAUSES.make("placement: unlucky", "placement")
def unlucky(draw: Draw) -> Planted:
    """The slowest of many choices of addresses, of a size that they matter to."""
    # Of 1024 rows, those at multiples of 2 MiB are among the slowest on an H200.
    sides = [1024, *(128 * draw.number(name, 7, 10) for name in ("128 rows", "or"))]
    _, pair = max((_slowest_place(side, draw) for side in sides), key=lambda found: found[0])
    draw.drawn["taken"] = pair[0].size(0)
    return Planted(torch.mm, pair)


def _slowest_place(side: int, draw: Draw) -> tuple[float, tuple[torch.Tensor, torch.Tensor]]:
    """How many times as long as usual a product takes, and the two matrices where they lie so."""
    a, b = random_tensor(side, side), random_tensor(side, side)

    def moved(x: torch.Tensor, offset: int) -> torch.Tensor:
        room = torch.empty(x.numel() + 4 * MIB, device="cuda")  # at a multiple of 2 MiB
        return room[offset : offset + x.numel()].view_as(x).copy_(x)

    offsets = [[128 * draw.number("offset", 0, 4096) for _ in "ab"] for _ in range(48)]
    places = [(moved(a, here), moved(b, there)) for here, there in ([0, 0], *offsets)]

    rounds = [
        [seconds_per_call(functools.partial(torch.mm, *pair), 20) for pair in places]
        for _ in range(7)
    ]
    found = [statistics.median(times) for times in zip(*rounds, strict=True)]
    return max(found) / statistics.median(found), places[found.index(max(found))]


def _beside(neighbour: Callable[..., Any], eats: str, draw: Draw) -> Planted:
    """A ReLU beside others' work."""
    sizes = ("neighbour MiB", 256, 512) if eats == "bandwidth" else ("µs", 100, 400)
    around = functools.partial(neighbour, eats, draw.number(*sizes))
    return Planted(torch.relu, (large()(draw),), around)


for _whose, _neighbour in (("thread", thread_neighbour), ("process", process_neighbour)):
    for _eats in ("bandwidth", "multiprocessors"):
        CAUSES.make(f"contention: {_whose}, {_eats}", "contention")(
            functools.partial(_beside, _neighbour, _eats)
        )


@CAUSES.make("layout: transposed", "layout")
def transposed(draw: Draw) -> Planted:
    side = 256 * draw.number("256 rows", 12, 28)
    x = random_tensor(side, side, dtype=draw.one_of("dtype", *_FLOATS))
    return Planted(torch.add, (x.t(), torch.empty_like(x).normal_()))


@CAUSES.make("layout: strided", "layout")
def strided(draw: Draw) -> Planted:
    step = draw.number("step", 3, 8)
    return Planted(
        torch.relu, (random_tensor(draw.number("Mi numbers", 16, 32) * MIB, step)[:, 0],)
    )


@CAUSES.make("layout: NCHW", "layout")
def nchw(draw: Draw) -> Planted:
    channels = 32 * draw.number("32 channels", 2, 4)
    data = _images_and_weight(draw.number("batch", 48, 96), channels)
    return Planted(functools.partial(F.conv2d, padding=1), data)


@CAUSES.call("transfer: pageable, in", "transfer", on_host(4, 64))
def pageable_in(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x.to("cuda"))


@CAUSES.call("transfer: pageable, out", "transfer", lambda draw: on_host(4, 64)(draw).cuda())
def pageable_out(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x).cpu()


@CAUSES.call("transfer: pinned, in", "transfer", lambda draw: on_host(16, 64)(draw).pin_memory())
def pinned_in(x: torch.Tensor) -> torch.Tensor:
    """A copy that could run beside other work, and does not."""
    return torch.relu(x.to("cuda", non_blocking=True))


@CAUSES.make("transfer: mapped, in", "transfer")
def mapped_in(draw: Draw) -> Planted:
    """The kernel reads the host's memory as it runs."""
    return Planted(torch.relu, (mapped(on_host(16, 64)(draw).pin_memory(), "cuda"),))


@CAUSES.make("data: zeros", "data")
def zeros(draw: Draw) -> Planted:
    side = 512 * draw.number("512 rows", 12, 16)
    of = {"device": "cuda", "dtype": getattr(torch, draw.one_of("dtype", *_HALVES))}
    return Planted(torch.mm, (torch.zeros(side, side, **of), torch.zeros(side, side, **of)))


@CAUSES.make("data: turns by value", "data")
def turns_by_value(draw: Draw) -> Planted:
    """Each number says how long its thread works on it."""
    most = draw.number("turns", 64, 256)
    work = _jitted("int n = int(x); for (int i = 0; i < n; ++i) y = y * T(0.999) + T(0.5);")
    return Planted(
        work, (torch.rand(draw.number("Mi numbers", 4, 16) * MIB, device="cuda") * most,)
    )


@CONTROLS.make("control: add", NOTHING)
def add(draw: Draw) -> Planted:
    x = large(64, 128)(draw)
    return Planted(torch.add, (x, torch.randn_like(x)))


@CONTROLS.make("control: layer_norm", NOTHING)
def layer_norm(draw: Draw) -> Planted:
    x = random_tensor(1024 * draw.number("1024 rows", 16, 48), 4096, dtype="bfloat16")
    return Planted(functools.partial(F.layer_norm, normalized_shape=(4096,)), (x,))


@CONTROLS.make("control: gather", NOTHING)
def gather(draw: Draw) -> Planted:
    """Of whole rows, from a table that no cache holds."""
    table = random_tensor(draw.number("Ki rows", 512, 1024) * 1024, 256)
    index = torch.randint(0, len(table), (256 * 1024,), device="cuda")
    return Planted(torch.index_select, (table, 0, index))


@CONTROLS.make("control: overlapped copy", NOTHING)
def overlapped(draw: Draw) -> Planted:
    """A copy that is shorter than the work that it runs beside."""
    host = on_host(1, 2)(draw).pin_memory()
    landed, side = torch.empty_like(host, device="cuda"), new_stream()
    x = large(128, 192)(draw)

    def call() -> torch.Tensor:
        main = torch.cuda.current_stream()
        side.wait_stream(main)
        with torch.cuda.stream(side):
            landed.copy_(host, non_blocking=True)
        y = torch.relu(x)
        main.wait_stream(side)
        return y

    return Planted(call)


@CONTROLS.call("control: two streams", NOTHING, large(64, 128), new_stream)
def waited(x: torch.Tensor, side: Any) -> torch.Tensor:
    """Two streams, each of which waits for what it reads."""
    main = torch.cuda.current_stream()
    y = torch.relu(x)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        z = y * 2.0
    main.wait_stream(side)
    return z + 1.0


for _name, _make in {
    "relu": lambda draw: Planted(torch.relu, (large(64, 192)(draw),)),
    "sum": lambda draw: Planted(torch.sum, (large(96, 256)(draw),)),
    "softmax": lambda draw: Planted(
        torch.softmax, (random_tensor(1024 * draw.number("1024 rows", 16, 32), 4096), 1)
    ),
}.items():
    CONTROLS.make(f"control: {_name}", NOTHING)(_make)
