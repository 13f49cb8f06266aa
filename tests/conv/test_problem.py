"""A convolution's sizes and parameters, and layers of it."""

import json
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from convtime.conv.problem import ConvLayer, ConvProblem, distinct
from convtime.core import codec
from convtime.core.errors import InputError


def problem(**changes):
    fields: dict[str, Any] = {
        "batch": 2,
        "in_channels": 4,
        "size": (9, 11),
        "out_channels": 6,
        "kernel_size": (3, 5),
    }
    return ConvProblem(**(fields | changes))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stride": (2, 3), "padding": (1, 2)},
        {"dilation": (2, 1), "groups": 2},
        {"padding": "same"},
        {"padding": "same", "kernel_size": (2, 4), "dilation": (1, 3)},
        {"padding": (2, 1), "padding_mode": "reflect", "bias": True},
    ],
)
def test_output_size_is_pytorchs(changes):
    made = problem(**changes)
    output = module(made, padding_mode=made.padding_mode)(torch.zeros(made.input_shape))
    assert made.output_size == tuple(output.shape[2:])


def module(made, **options):
    if made.transposed:
        options["output_padding"] = made.output_padding
    return getattr(torch.nn, made.kind.layer)(
        made.in_channels,
        made.out_channels,
        made.kernel_size,
        stride=made.stride,
        padding=made.padding,
        dilation=made.dilation,
        groups=made.groups,
        bias=made.bias,
        **options,
    )


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"stride": (2, 1, 3)},
        {"groups": 2, "padding": (1, 2, 0)},
        {"bias": True, "dilation": (1, 2, 3)},
        {
            "transposed": True,
            "stride": (2, 3, 1),
            "dilation": (1, 1, 2),
            "output_padding": (1, 2, 1),
        },
    ],
)
def test_every_kind_has_pytorchs_shapes_and_flops(rank, transposed, changes):
    changes = {"transposed": transposed} | changes
    sizes = {"size": (9, 11, 8), "kernel_size": (3, 5, 2)}
    made = problem(
        **{
            name: value[:rank] if isinstance(value, tuple) else value
            for name, value in (sizes | changes).items()
        }
    )
    theirs = module(made)
    with FlopCounterMode(display=False) as counter:
        output = theirs(torch.zeros(made.input_shape))
    assert made.flops == counter.get_total_flops()
    assert made.output_shape == output.shape
    assert made.weight_shape == theirs.weight.shape
    assert through_json(made) == made


def through_json(made):
    return codec.decode(type(made), json.loads(json.dumps(codec.encode(made))))


def test_a_layer_survives_json():
    layer = ConvLayer(("a", "b"), problem(padding="same", bias=True, padding_mode="circular"))
    assert through_json(layer) == layer


def test_what_is_read_is_checked():
    fields = codec.encode(ConvLayer(("a",), problem()))
    fields["problem"]["groups"] = 3
    with pytest.raises(ValueError, match=r"in_channels \(4\) is not a multiple .*\.problem"):
        codec.decode(ConvLayer, fields)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": -1}, "batch is -1"),
        ({"in_channels": -4}, "in_channels is -4"),
        ({"size": (9, 2**31)}, "width is 2147483648"),
        ({"size": (1, 2, 3, 4)}, r"size is \(1, 2, 3, 4\), but must be one, two or three"),
        ({"size": (9,), "kernel_size": (3,), "stride": (0,)}, r"stride \(length\) is 0"),
        ({"stride": (1, 1, 1)}, r"stride is \(1, 1, 1\), but must be 2 number\(s\)"),
        ({"output_padding": (1, 0)}, "needs a transposed convolution"),
        ({"transposed": True, "padding": "same"}, "only padding with zeros"),
        ({"transposed": True, "padding_mode": "reflect"}, "only padding with zeros"),
        ({"transposed": True, "output_padding": (0, 1)}, r"output_padding is \(0, 1\), but must"),
        ({"transposed": True, "padding": (6, 0)}, "leaves nothing of the output's height"),
        ({"stride": (1, 0)}, r"stride \(width\) is 0"),
        ({"dilation": (0, 1)}, r"dilation \(height\) is 0"),
        ({"padding": (-1, 0)}, r"padding \(height\) is -1"),
        ({"padding": "valid"}, "padding is 'valid'"),
        ({"padding": "same", "stride": (2, 2)}, "needs stride 1"),
        ({"padding_mode": "ones"}, "padding_mode is 'ones'"),
        ({"groups": 3}, r"in_channels \(4\) is not a multiple of groups \(3\)"),
        ({"groups": 4}, r"out_channels \(6\) is not a multiple of groups \(4\)"),
        ({"kernel_size": (10, 5)}, "spans 10 pixels of height, more than the 9"),
        ({"dilation": (1, 3)}, "spans 13 pixels of width, more than the 11"),
    ],
)
def test_wrong_numbers_are_refused(changes, says):
    with pytest.raises(InputError, match=says):
        problem(**changes)


@pytest.mark.parametrize(
    ("names", "batch", "says"), [((), 2, "at least one name"), (("a",), 0, "batch is 0")]
)
def test_wrong_layers_are_refused(names, batch, says):
    with pytest.raises(InputError, match=says):
        ConvLayer(names, problem(batch=batch))


def test_label_tells_problems_apart():
    assert problem().label == "2×4×9×11 → 6, 3×5"
    rest = problem(stride=(2, 2), padding=(0, 1), groups=2, bias=True, padding_mode="circular")
    assert rest.label == "2×4×9×11 → 6, 3×5 s2 p0×1 g2 circular bias"
    grown = problem(
        size=(9,), kernel_size=(3,), stride=(2,), transposed=True, output_padding=(1,), padding=(1,)
    )
    assert grown.label == "2×4×9 → 6, 3 transposed s2 p1 o1"


def test_distinct_keeps_each_problem_once_with_all_names():
    small, large = problem(), problem(batch=3)
    found = distinct(
        [ConvLayer(("a",), small), ConvLayer(("b",), large), ConvLayer(("c", "d"), small)]
    )
    assert found == [ConvLayer(("a", "c", "d"), small), ConvLayer(("b",), large)]
    assert [layer.count for layer in found] == [3, 1]
    assert [layer.name for layer in found] == ["a", "b"]
