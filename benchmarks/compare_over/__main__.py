"""The rows: families of candidates over an axis, compared, and timed again."""

import functools
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import results
import torch
from common.running import Measure, run
from common.truth import profile_calls
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import convtime
from convtime import Candidate

BUDGET = 0.5  # seconds a point
_EDGE = 0.005
_ROUNDS, _CALLS = 8, 20  # of each candidate, in torch.profiler
_NS_EACH = 2_000  # of a spin

Make = Callable[..., Candidate]


class Family(NamedTuple):
    axis: str
    values: Sequence[int]
    candidates: Mapping[str, Make]


def make_cases(device: torch.device) -> dict[str, Measure]:
    return {
        name: functools.partial(_measure_family, device, family)
        for name, family in make_families(device).items()
    }


def make_families(device: torch.device) -> dict[str, Family]:
    randn = functools.partial(torch.randn, device=device)

    def rows(fn: Callable[[torch.Tensor], object]) -> Make:
        return lambda width: Candidate(fn, randn(4096, width))

    def square(fn: Callable[[torch.Tensor], object]) -> Make:
        return lambda side: Candidate(fn, randn(side, side, dtype=torch.bfloat16))

    def convolution(layout: torch.memory_format) -> Make:
        def make(batch: int) -> Candidate:
            tensors = (
                randn(shape, dtype=torch.float16).to(memory_format=layout)
                for shape in ((batch, 64, 56, 56), (64, 64, 3, 3))
            )
            return Candidate(F.conv2d, *tensors, kwargs={"padding": 1})

        return make

    def attention(backend: SDPBackend) -> Make:
        def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v)

        return lambda length: Candidate(
            attend, *(randn(4, 16, length, 64, dtype=torch.float16) for _ in "qkv")
        )

    def spin(times: int) -> Candidate:
        return Candidate(torch.ops.convtime.spin_ns, _NS_EACH * times)

    widths = (512, 1024, 2048, 4096, 8192, 16384)
    known: dict[str, Make] = {
        "flat": lambda **_: spin(10),
        "twin": lambda **_: spin(10),
        "rising": spin,
    }
    softmaxes = {
        "softmax": rows(lambda x: torch.softmax(x, 1)),
        "exp of log_softmax": rows(lambda x: torch.log_softmax(x, 1).exp()),
        "by hand": rows(_softmax_by_hand),
    }
    products = {
        "mm": square(lambda x: x @ x),
        "einsum": square(lambda x: torch.einsum("ij,jk->ik", x, x)),
        "in halves": square(_product_in_halves),
    }
    sums = {
        "sum": rows(lambda x: x.sum(1)),
        "mean": rows(lambda x: x.mean(1)),
        "norm": rows(lambda x: torch.linalg.vector_norm(x, 1, 1)),
        "copy first": rows(lambda x: x.clone().sum(1)),
    }
    gelus = {
        "gelu": rows(F.gelu),
        "tanh": rows(lambda x: F.gelu(x, approximate="tanh")),
        "by hand": rows(lambda x: x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))),
    }
    layouts = {
        "contiguous": convolution(torch.contiguous_format),
        "channels last": convolution(torch.channels_last),
    }
    backends = {
        "math": attention(SDPBackend.MATH),
        "flash": attention(SDPBackend.FLASH_ATTENTION),
        "efficient": attention(SDPBackend.EFFICIENT_ATTENTION),
    }
    return {
        "known durations": Family("times", (2, 5, 10, 15, 20, 40), known),
        "softmax": Family("width", widths, softmaxes),
        "product": Family("side", (256, 384, 512, 1024, 2048, 3072), products),
        "row sums": Family("width", widths, sums),
        "gelu": Family("width", widths, gelus),
        "layout": Family("batch", (1, 2, 4, 8, 16, 32), layouts),
        "attention": Family("length", (64, 128, 256, 512, 1024, 2048), backends),
    }


def _softmax_by_hand(x: torch.Tensor) -> torch.Tensor:
    powers = torch.exp(x - x.amax(1, keepdim=True))
    return powers / powers.sum(1, keepdim=True)


def _product_in_halves(x: torch.Tensor) -> torch.Tensor:
    half = len(x) // 2
    return x[:, :half] @ x[:half] + x[:, half:] @ x[half:]


def _measure_family(device: torch.device, family: Family) -> results.Row:
    compared = convtime.compare(
        family.candidates,
        over={family.axis: family.values},
        check=None,
        budget=BUDGET,
        device=device,
        seed=0,
        progress=False,
    )
    for point in compared.points:
        if point.errors:
            raise RuntimeError(f"{point.name}: {dict(point.errors)}")
    return {
        "points": [
            {
                "name": point.name,
                "kind": compared.outcomes[point.name].kind,
                "leaders": list(compared.outcomes[point.name].leaders),
                "seconds": _time_again(family, point.values),
            }
            for point in compared.points
        ],
        "margin": compared.plan.margin,
        "edge": _EDGE,
    }


def _time_again(family: Family, values: Mapping[str, Any]) -> dict[str, float]:
    chance = random.Random(0)  # noqa: S311  # not a secret
    busy: dict[str, list[float]] = {name: [] for name in family.candidates}
    alive = []  # so that each round's tensors are elsewhere in memory
    for _ in range(_ROUNDS):
        alive.append(made := {name: make(**values) for name, make in family.candidates.items()})
        for name in chance.sample([*made], len(made)):
            one = made[name]
            call = functools.partial(one.fn, *one.args, **one.kwargs)
            busy[name].append(statistics.median(profile_calls(call, _CALLS, cold=True).busy))
    return {name: statistics.median(each) for name, each in busy.items()}


if __name__ == "__main__":
    run("compare_over", make_cases)
