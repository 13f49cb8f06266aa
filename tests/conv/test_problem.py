"""A convolution's sizes and parameters, layers of it, and one line that can be pasted back."""

import contextlib
import json
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from convtime.conv.call import DTYPES, LAYOUTS
from convtime.conv.problem import ConvLayer, ConvProblem, distinct
from convtime.conv.problem_line import EXAMPLE, ProblemLine
from convtime.core import codec
from convtime.core.errors import InputError
from tests.helpers.convolutions import layer_of, problems


def problem(**changes: Any) -> ConvProblem:
    fields: dict[str, Any] = {
        "batch": 2,
        "in_channels": 4,
        "size": (9, 11),
        "out_channels": 6,
        "kernel_size": (3, 5),
    }
    return ConvProblem(**(fields | changes))


@settings(max_examples=50)
@given(problems())
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_shapes_and_flops_are_those_of_pytorchs_layer(made: ConvProblem) -> None:
    layer: Any = layer_of(made, device="meta")
    with FlopCounterMode(display=False) as counter:
        output = layer(torch.zeros(made.input_shape, device="meta"))
    assert made.flops == counter.get_total_flops()
    assert made.output_shape == output.shape
    assert made.output_size == output.shape[2:]
    assert made.weight_shape == layer.weight.shape
    told = ConvLayer(("a", "b"), made)
    assert codec.decode(ConvLayer, json.loads(json.dumps(codec.encode(told)))) == told


@settings(max_examples=200)
@given(
    sizes=st.fixed_dictionaries(
        {
            "in_channels": st.integers(1, 4),
            "out_channels": st.integers(1, 4),
            "size": st.tuples(st.integers(1, 5)),
            "kernel_size": st.tuples(st.integers(1, 5)),
            "stride": st.tuples(st.integers(0, 3)),
            "padding": st.tuples(st.integers(-1, 2)),
            "dilation": st.tuples(st.integers(0, 3)),
            "groups": st.integers(1, 3),
        }
    ),
    output_padding=st.none() | st.tuples(st.integers(0, 3)),
)
def test_what_pytorch_refuses_is_refused(
    sizes: dict[str, Any], output_padding: tuple[int] | None
) -> None:
    shape: tuple[int, ...] | None = None
    expected: tuple[int, ...] | None = None
    transposed = output_padding is not None
    if transposed:
        sizes["output_padding"] = output_padding
    with contextlib.suppress(InputError):
        shape = ConvProblem(batch=1, transposed=transposed, **sizes).output_shape
    channels = sizes.pop("in_channels"), sizes.pop("out_channels")
    x = torch.zeros(1, channels[0], *sizes.pop("size"))
    first, second = channels if transposed else channels[::-1]
    kernel, groups = sizes.pop("kernel_size"), sizes["groups"]
    function: Any = torch.conv_transpose1d if transposed else torch.conv1d
    if not (first % groups or second % groups):
        with contextlib.suppress(RuntimeError):
            expected = function(x, torch.zeros(first, second // groups, *kernel), **sizes).shape
    assert shape == expected


def test_wrong_numbers_are_refused_in_a_sentence() -> None:
    transposed: dict[str, Any] = {"transposed": True}
    for changes, says in (
        ({"batch": -1}, "batch is -1"),
        ({"size": (9, 2**31)}, "width is 2147483648"),
        ({"size": (1, 2, 3, 4)}, r"size is \(1, 2, 3, 4\), but must be one, two or three"),
        ({"size": (9,), "kernel_size": (3,), "stride": (0,)}, r"stride \(length\) is 0"),
        ({"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\), but must be 2 number\(s\)"),
        ({"output_padding": (1, 0)}, "needs a transposed convolution"),
        (transposed | {"padding": "same"}, "only padding with zeros"),
        (transposed | {"output_padding": (0, 1)}, r"output_padding is \(0, 1\), but must"),
        (transposed | {"padding": (6, 0)}, "leaves nothing of the output's height"),
        ({"padding": "valid"}, "padding is 'valid'"),
        ({"padding": "same", "stride": (2, 2)}, "needs stride 1"),
        ({"padding_mode": "ones"}, "padding_mode is 'ones'"),
        ({"groups": 3}, r"in_channels \(4\) is not a multiple of groups \(3\)"),
        ({"dilation": (1, 3)}, "spans 13 pixels of width, more than the 11"),
    ):
        with pytest.raises(InputError, match=says):
            problem(**changes)
    with pytest.raises(InputError, match="at least one name"):
        ConvLayer((), problem())
    with pytest.raises(InputError, match="batch is 0"):
        ConvLayer(("a",), problem(batch=0))
    fields = codec.encode(ConvLayer(("a",), problem()))
    fields["problem"]["groups"] = 3
    with pytest.raises(ValueError, match=r"in_channels \(4\) is not a multiple .*\.problem"):
        codec.decode(ConvLayer, fields)


def test_label_tells_problems_apart() -> None:
    assert problem().label == "2×4×9×11 → 6, 3×5"
    rest = problem(stride=(2, 2), padding=(0, 1), groups=2, bias=True, padding_mode="circular")
    assert rest.label == "2×4×9×11 → 6, 3×5 s2 p0×1 g2 circular bias"
    grown = problem(
        size=(9,), kernel_size=(3,), stride=(2,), transposed=True, output_padding=(1,), padding=(1,)
    )
    assert grown.label == "2×4×9 → 6, 3 transposed s2 p1 o1"


def test_distinct_keeps_each_problem_once_with_all_names() -> None:
    small, large = problem(), problem(batch=3)
    found = distinct(
        [ConvLayer(("a",), small), ConvLayer(("b",), large), ConvLayer(("c", "d"), small)]
    )
    assert found == [ConvLayer(("a", "c", "d"), small), ConvLayer(("b",), large)]
    assert [(layer.name, layer.count) for layer in found] == [("a", 3), ("b", 1)]


def test_each_kind_is_written_and_read_in_any_order() -> None:
    lines = {
        EXAMPLE: ProblemLine(
            ConvProblem(64, 64, (56, 56), 64, (3, 3), padding=(1, 1)), "float16", "nhwc"
        ),
        "conv1d:n1c2w9k4s3": ProblemLine(ConvProblem(1, 2, (9,), 4, (3,))),
        "conv2d:n8c32h9w7k64r3s1p1x0stride2x1dilation1x2groups32:bias": ProblemLine(
            ConvProblem(8, 32, (9, 7), 64, (3, 1), (2, 1), (1, 0), (1, 2), 32, True)
        ),
    }
    for line, parsed in lines.items():
        assert str(parsed) == line
        assert ProblemLine.parse(line) == parsed
    problem = ConvProblem(1, 2, (9, 9), 4, (3, 3), padding=(1,), bias=True, padding_mode="reflect")
    line = " conv2d:p1s3r3k4w9h9c2n1:nchw:reflect:float64:bias\n"
    assert ProblemLine.parse(line) == ProblemLine(problem, "float64", "nchw")


@settings(max_examples=50)
@given(
    problem=problems(),
    dtype=st.sampled_from([None, *DTYPES]),
    layout=st.sampled_from([None, *LAYOUTS]),
)
def test_what_is_written_is_read_back(
    problem: ConvProblem, dtype: str | None, layout: str | None
) -> None:
    line = ProblemLine(problem, dtype, layout)
    assert ProblemLine.parse(str(line)) == line


def test_what_is_wrong_is_named() -> None:
    good = "conv2d:n1c2h9w9k4r3s3"
    for line, says in (
        ("", "it must begin with one of conv1d, conv2d"),
        ("conv2d:", "h is missing"),
        (good[:-2], "s is missing"),
        ("conv2d:n1c2d9h9w9k4r3s3", "'d9h9w9k4r3s3' must be one of n, c, k, groups, h, w, r, s, p"),
        (f"{good}s3", "s is given more than once"),
        ("conv2d:n1c2h9x9w9k4r3s3", "h is '9x9', but must be one number"),
        (f"{good}p1x1x1", "padding is (1, 1, 1), but must be 2 number(s)"),
        (f"{good}stridesame", "stride is 'same', but must be 2 number(s)"),
        ("conv2d:n99999999999c2h9w9k4r3s3", "n must be at most 2147483647, got 99999999999"),
        ("conv2d:n1c3h9w9k4r3s3groups2", "in_channels (3) is not a multiple of groups (2)"),
        (f"{good}output_padding1", "needs a transposed convolution"),
        (f"{good}:int8", "'int8' must be one of bias, zeros, reflect"),
        (f"{good}:nhwc:nchw", "'nchw' is a second layout, after 'nhwc'"),
        (f"{good}:", "'' must be one of"),
    ):
        with pytest.raises(InputError) as error:
            ProblemLine.parse(line)
        assert str(error.value).startswith(f"problem {line!r}: ")
        assert says in str(error.value)
