"""The call of a problem, which a layer with that problem makes."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from convtime.conv.binding import call_of, convolutions_of, prepare
from convtime.conv.call import LAYOUTS
from convtime.conv.problem import ConvProblem
from convtime.layers.compare import build_layers
from tests.helpers.convolutions import problems

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None)
@given(
    problem=problems(),
    dtype=st.sampled_from(["float32", "float64"]),
    layout=st.sampled_from(LAYOUTS),
)
def test_a_problem_is_the_call_that_its_layer_makes(
    device: str, problem: ConvProblem, dtype: str, layout: str
) -> None:
    _, layer, x = build_layers(problem, torch.device(device), dtype, layout, seed=0)
    (called,) = convolutions_of(lambda: layer(x))
    assert prepare(called)[1] == call_of(problem, dtype, layout, x.device)
