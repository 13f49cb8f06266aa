"""Drawn convolutions, PyTorch's layers of them, and results by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from hypothesis import strategies as st

from convtime import Comparison
from convtime.conv.call import Flags, TensorLayout
from convtime.conv.problem import PADDING_MODES, ConvLayer, ConvProblem
from convtime.layers.compare import LayerResult
from convtime.timing.verdict import Ratio
from tests.helpers.measurements import make

SMALL = ConvProblem(2, 4, (9, 11), 6, (3, 5), padding=(1, 2))


@st.composite
def problems(draw: st.DrawFn, *, numeric: bool = False) -> ConvProblem:
    """Draw a valid convolution, transposed or not, of one to three dimensions.

    Args:
        numeric: whether the padding is of numbers and zeros, as for a ConvCall.
    """
    rank, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    small = st.integers(1, 3)
    numbers = st.tuples(*[small] * rank)
    groups, stride = draw(small), draw(numbers)
    padding: tuple[int, ...] | str = draw(st.tuples(*[st.integers(0, 2)] * rank))
    mode = "zeros"
    if not (transposed or numeric):
        mode = draw(st.sampled_from(PADDING_MODES))
        if draw(st.booleans()):
            stride, padding = (1,) * rank, "same"
    return ConvProblem(
        batch=draw(small),
        in_channels=groups * draw(small),
        size=tuple(number + 6 for number in draw(numbers)),
        out_channels=groups * draw(small),
        kernel_size=draw(numbers),
        stride=stride,
        padding=padding,
        dilation=draw(numbers),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode=mode,
        transposed=transposed,
        output_padding=tuple(number - 1 for number in stride) if transposed else (),
    )


def layer_of(problem: ConvProblem, **options: Any) -> torch.nn.Module:
    """Return PyTorch's layer of a problem."""
    if problem.transposed:
        options["output_padding"] = problem.output_padding
    layer: torch.nn.Module = getattr(torch.nn, problem.kind.layer)(
        problem.in_channels,
        problem.out_channels,
        problem.kernel_size,
        stride=problem.stride,
        padding=problem.padding,
        dilation=problem.dilation,
        groups=problem.groups,
        bias=problem.bias,
        padding_mode=problem.padding_mode,
        **options,
    )
    return layer


def dense(*sizes: int) -> TensorLayout:
    """The layout of a contiguous tensor."""
    return TensorLayout.of(torch.empty(sizes, device="meta"))


def layer_result(problem: ConvProblem = SMALL, *names: str, **changes: Any) -> LayerResult:
    """Return a result by hand: equal times of both sides, and equal bits."""
    fields: dict[str, Any] = {
        "dtype": "float32",
        "layout": "nchw",
        "backend": "Cudnn",
        "pytorch": make(name="pytorch", activities=()),
        "convtime": make(name="convtime", activities=()),
        "ratio": Ratio(1.0, 1.0, 1.0),
        "bit_identical": True,
        "pytorch_repeats": True,
        "flags": Flags(),
    }
    return LayerResult(layer=ConvLayer(names or ("small",), problem), **(fields | changes))


def with_known_times(calls: Iterable[str], **_options: Any) -> Comparison:
    """Stand in for convtime.compare: the first call takes 10 µs, the next one 20 µs, and so on."""
    return Comparison(
        {
            name: make(name=name, seconds=(place * 1e-5,) * 9, activities=(), sm_clocks_hz=())
            for place, name in enumerate(calls, 1)
        }
    )
