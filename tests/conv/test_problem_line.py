"""Convolutions as one line that can be pasted back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.conv.layouts import DTYPES, LAYOUTS
from convtime.conv.problem import PADDING_MODES, ConvProblem
from convtime.conv.problem_line import EXAMPLE, ProblemLine
from convtime.core.errors import InputError


def test_the_example_is_what_it_says():
    parsed = ProblemLine.parse(EXAMPLE)
    assert parsed == ProblemLine(
        ConvProblem(64, 64, (56, 56), 64, (3, 3), padding=(1, 1)), "float16", "nhwc"
    )
    assert str(parsed) == EXAMPLE


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("conv1d:n1c2w9k4s3", ConvProblem(1, 2, (9,), 4, (3,))),
        (
            "conv2d:n8c32h9w7k64r3s1p1x0stride2x1dilation1x2groups32:bias",
            ConvProblem(8, 32, (9, 7), 64, (3, 1), (2, 1), (1, 0), (1, 2), 32, True),
        ),
        (
            "conv2d:n1c2h9w9k4r3s3psame:bias:circular",
            ConvProblem(
                1, 2, (9, 9), 4, (3, 3), padding="same", bias=True, padding_mode="circular"
            ),
        ),
        (
            "conv_transpose3d:n1c2d4h5w6k4t2r3s4stride2output_padding1",
            ConvProblem(
                1,
                2,
                (4, 5, 6),
                4,
                (2, 3, 4),
                stride=(2,),
                transposed=True,
                output_padding=(1,),
            ),
        ),
    ],
)
def test_each_kind_is_written_and_read(line, problem):
    assert str(ProblemLine(problem)) == line
    assert ProblemLine.parse(line) == ProblemLine(problem)


def test_any_order_will_do():
    assert ProblemLine.parse(" conv2d:p1s3r3k4w9h9c2n1:nchw:reflect:float64:bias\n") == ProblemLine(
        ConvProblem(1, 2, (9, 9), 4, (3, 3), padding=(1,), bias=True, padding_mode="reflect"),
        "float64",
        "nchw",
    )


@st.composite
def problems(draw):
    rank, transposed = draw(st.integers(1, 3)), draw(st.booleans())
    small = st.integers(1, 3)
    numbers = st.tuples(*[small] * rank)
    groups = draw(small)
    stride = draw(numbers)
    padding = draw(numbers)
    if not transposed and draw(st.booleans()):
        stride, padding = (1,) * rank, "same"
    return ConvProblem(
        batch=draw(small),
        in_channels=groups * draw(small),
        size=tuple(number + 12 for number in draw(numbers)),
        out_channels=groups * draw(small),
        kernel_size=draw(numbers),
        stride=stride,
        padding=padding,
        dilation=draw(numbers),
        groups=groups,
        bias=draw(st.booleans()),
        padding_mode="zeros" if transposed else draw(st.sampled_from(PADDING_MODES)),
        transposed=transposed,
        output_padding=tuple(number - 1 for number in stride) if transposed else (),
    )


@settings(deadline=None)
@given(
    problem=problems(),
    dtype=st.sampled_from([None, *DTYPES]),
    layout=st.sampled_from([None, *LAYOUTS]),
)
def test_what_is_written_is_read_back(problem, dtype, layout):
    line = ProblemLine(problem, dtype, layout)
    assert ProblemLine.parse(str(line)) == line


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "it must begin with one of conv1d, conv2d"),
        ("conv4d:n1", "it must begin with one of conv1d, conv2d"),
        ("conv2d", "it must begin with one of"),
        ("conv2d:", "h is missing"),
        ("conv2d:n1c2h9w9k4r3", "s is missing"),
        ("conv2d:n1c2d9h9w9k4r3s3", "'d9h9w9k4r3s3' must be one of n, c, k, groups, h, w, r, s, p"),
        ("conv2d:n1c2h9w9k4r3s3q", "'q' must be one of"),
        ("conv2d:n1c2h9w9k4r3s3s3", "s is given more than once"),
        ("conv2d:n1c2h9x9w9k4r3s3", "h is '9x9', but must be one number"),
        ("conv2d:nsamec2h9w9k4r3s3", "n is 'same', but must be one number"),
        ("conv2d:n1c2h9w9k4r3s3p1x1x1", "padding is (1, 1, 1), but must be 2 number(s)"),
        ("conv2d:n1c2h9w9k4r3s3stridesame", "stride is 'same', but must be 2 number(s)"),
        ("conv2d:n99999999999c2h9w9k4r3s3", "n must be at most 2147483647, got 99999999999"),
        ("conv2d:n1c2h9w9k4r3s3p1x12345678901", "p must be at most 2147483647, got 1x12345678901"),
        ("conv2d:n1c3h9w9k4r3s3groups2", "in_channels (3) is not a multiple of groups (2)"),
        ("conv2d:n1c2h9w9k4r3s3output_padding1", "needs a transposed convolution"),
        ("conv2d:n1c2h9w9k4r3s3:int8", "'int8' must be one of bias, zeros, reflect"),
        ("conv2d:n1c2h9w9k4r3s3:nhwc:nchw", "'nchw' is a second layout, after 'nhwc'"),
        ("conv2d:n1c2h9w9k4r3s3:", "'' must be one of"),
    ],
)
def test_what_is_wrong_is_named(line, says):
    with pytest.raises(InputError) as error:
        ProblemLine.parse(line)
    assert str(error.value).startswith(f"problem {line!r}: ")
    assert says in str(error.value)
