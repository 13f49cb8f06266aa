"""The operations that are timed, and the row of each: truth, methods and other tools by turns."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import results
import torch
from common.operations import Operations
from common.peers import measure_peers
from common.running import Call
from torch.nn import functional as F

from accuracy_parts.passes import PASSES, MethodPasses, StampPasses, TruthPasses, stamps_of_spin
from accuracy_parts.rows import METHODS
from convtime.timing.options import Cache

KERNEL_PASSES = 5  # of the profiler and of method kernel, whose limit is the narrowest


def measure_op(make: Callable[[], Call], cache: Cache) -> results.Row:
    call = make()
    spin: Call = functools.partial(torch.ops.convtime.spin_ns, 5_000)
    count, rest = _plan(call)
    truth = TruthPasses(call, spin, count, cold=cache == "cold")
    ours = {method: MethodPasses(call, method, cache, count) for method in METHODS}
    # A sample of it replays five calls of a long operation, and so do capturing and warming up: as
    # many calls as the others make.
    ours["graph"] = MethodPasses(call, "graph", cache, count // 10, warmup=1)
    in_a_graph = StampPasses(call, count, cold=cache == "cold")
    every = [truth.take, *(passes.take for passes in ours.values()), in_a_graph.take]
    for take in every * PASSES + [truth.trace, ours["kernel"].take] * (KERNEL_PASSES - PASSES):
        # Each begins on a GPU as cool as the others: its clock falls within 0.1 s of load.
        time.sleep(rest)
        take()
    return {
        "calls": count,
        "truth": truth.row(),
        **{method: passes.row() for method, passes in ours.items()},
        "truth_of_graph": in_a_graph.row() | stamps_of_spin(cache == "cold"),
        "peers": measure_peers(call),
    }


def _plan(call: Call) -> tuple[int, float]:
    """How many calls a pass has, and the seconds of rest before it, from a rough duration."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(5):
        call()
    torch.cuda.synchronize()
    each = (time.perf_counter() - begin) / 5
    # No more than 50: a thousand launches fill the queue, and cannot all be held.
    count = min(50, max(20, int(0.02 / each)))
    return count, min(0.5, 0.02 + 8 * count * each)


def operations(device: torch.device) -> dict[str, Callable[[], Call]]:
    """Name -> what makes the callable and its data, which are large: one at a time."""
    half, full, brain = torch.float16, torch.float32, torch.bfloat16
    make = Operations(device)
    rand = make.rand

    def copy(count: int) -> Call:
        target = torch.empty(count, device=device, dtype=full)
        return functools.partial(target.copy_, torch.ones_like(target))

    def layer_norm() -> Call:
        return functools.partial(F.layer_norm, rand(4096, 4096, dtype=brain), (4096,))

    def bmm() -> Call:
        a, b = (rand(64, 512, 512, dtype=brain) for _ in range(2))
        return functools.partial(torch.bmm, a, b)

    def conv_backward() -> Call:
        x, grad = (
            rand(32, 64, 56, 56, dtype=half).to(memory_format=torch.channels_last) for _ in range(2)
        )
        weight = rand(64, 64, 3, 3, dtype=half).to(memory_format=torch.channels_last)
        pair = ([1, 1], [1, 1], [1, 1])
        return functools.partial(
            torch.ops.aten.convolution_backward,
            *(grad, x, weight, None, *pair, False, [0, 0], 1, [True, True, False]),
        )

    def linear_relu() -> Call:
        x, weight = rand(4096, 1024, dtype=brain), rand(1024, 1024, dtype=brain)
        return lambda: torch.relu(F.linear(x, weight))

    def cross_entropy() -> Call:
        target = torch.randint(8192, (8192,), device=device)
        return functools.partial(F.cross_entropy, rand(8192, 8192), target)

    def elementwise_chain() -> Call:
        x = rand(1 << 22)
        return lambda: (x * 2).exp().add(1)

    def rows_of(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return rand(50_000, 1024), torch.randint(50_000, (count,), device=device)

    def embedding() -> Call:
        weight, index = rows_of(16_384)
        return functools.partial(F.embedding, index, weight)

    def index_select() -> Call:
        weight, index = rows_of(2_048)
        return functools.partial(torch.index_select, weight, 0, index)

    mi = 1 << 20
    return {
        "relu 4Ki": lambda: make.relu(4096),
        "relu 1Mi": lambda: make.relu(mi),
        "relu 64Mi": lambda: make.relu(64 * mi),
        "add 16Mi": lambda: make.add(16 * mi),
        "softmax 4096x4096 bf16": lambda: make.softmax(4096, brain),
        "layer_norm 4096x4096 bf16": layer_norm,
        "sum 1Mi": lambda: make.sum(mi),
        "sum 16Mi": lambda: make.sum(16 * mi),
        "copy_ 64Mi": lambda: copy(64 * mi),
        "gelu 256Mi": lambda: functools.partial(F.gelu, rand(256 * mi)),
        "matmul 512 bf16": lambda: make.matmul(512),
        "matmul 2048 bf16": lambda: make.matmul(2048),
        "matmul 4096 bf16": lambda: make.matmul(4096),
        "matmul 8192 bf16": lambda: make.matmul(8192),
        "bmm 64x512x512 bf16": bmm,
        "conv 1x64x56x56 fp32": lambda: make.conv(1, dtype=full, layout=torch.contiguous_format),
        "conv 32x64x56x56 fp16 nhwc": lambda: make.conv(32),
        "conv backward 32x64x56x56 fp16 nhwc": conv_backward,
        "linear+relu 4096x1024 bf16": linear_relu,
        "cross_entropy 8192x8192": cross_entropy,
        "mul+exp+add 4Mi": elementwise_chain,
        "sort 1Mi": lambda: functools.partial(torch.sort, rand(mi)),
        "embedding 16384x1024": embedding,
        "index_select 2048x1024": index_select,
        # A copy is the longest: it does not draw the power at which the GPU lowers its clock.
        "copy_ 5Gi": lambda: copy(5 * 1024 * mi),
    }
