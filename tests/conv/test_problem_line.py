"""Convolutions as one line that can be pasted back."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.conv.layouts import DTYPES, LAYOUTS
from convtime.conv.problem import ConvProblem
from convtime.conv.problem_line import EXAMPLE, ProblemLine
from convtime.core.errors import InputError
from tests.helpers.convolutions import problems


def test_each_kind_is_written_and_read() -> None:
    lines = {
        EXAMPLE: ProblemLine(
            ConvProblem(64, 64, (56, 56), 64, (3, 3), padding=(1, 1)), "float16", "nhwc"
        ),
        "conv1d:n1c2w9k4s3": ProblemLine(ConvProblem(1, 2, (9,), 4, (3,))),
        "conv2d:n8c32h9w7k64r3s1p1x0stride2x1dilation1x2groups32:bias": ProblemLine(
            ConvProblem(8, 32, (9, 7), 64, (3, 1), (2, 1), (1, 0), (1, 2), 32, True)
        ),
        "conv_transpose3d:n1c2d4h5w6k4t2r3s4stride2output_padding1": ProblemLine(
            ConvProblem(
                *(1, 2, (4, 5, 6), 4, (2, 3, 4)),
                stride=(2,),
                transposed=True,
                output_padding=(1,),
            )
        ),
    }
    for line, parsed in lines.items():
        assert str(parsed) == line
        assert ProblemLine.parse(line) == parsed


def test_any_order_will_do() -> None:
    assert ProblemLine.parse(" conv2d:p1s3r3k4w9h9c2n1:nchw:reflect:float64:bias\n") == ProblemLine(
        ConvProblem(1, 2, (9, 9), 4, (3, 3), padding=(1,), bias=True, padding_mode="reflect"),
        "float64",
        "nchw",
    )


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
        ("conv4d:n1", "it must begin with one of conv1d, conv2d"),
        ("conv2d", "it must begin with one of"),
        ("conv2d:", "h is missing"),
        (good[:-2], "s is missing"),
        ("conv2d:n1c2d9h9w9k4r3s3", "'d9h9w9k4r3s3' must be one of n, c, k, groups, h, w, r, s, p"),
        (f"{good}q", "'q' must be one of"),
        (f"{good}s3", "s is given more than once"),
        ("conv2d:n1c2h9x9w9k4r3s3", "h is '9x9', but must be one number"),
        ("conv2d:nsamec2h9w9k4r3s3", "n is 'same', but must be one number"),
        (f"{good}p1x1x1", "padding is (1, 1, 1), but must be 2 number(s)"),
        (f"{good}stridesame", "stride is 'same', but must be 2 number(s)"),
        ("conv2d:n99999999999c2h9w9k4r3s3", "n must be at most 2147483647, got 99999999999"),
        (f"{good}p1x12345678901", "p must be at most 2147483647, got 1x12345678901"),
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
