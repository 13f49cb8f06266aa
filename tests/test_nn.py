from __future__ import annotations

import copy
import inspect
import pickle
from typing import Any

import pytest
import torch

import convtime


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"stride": 2, "padding": 1, "bias": False},
        {"padding": "same", "dilation": 2},
        {"groups": 2},
        *({"padding": (1, 2), "padding_mode": m} for m in ("reflect", "replicate", "circular")),
        {"padding": "same", "padding_mode": "circular"},
    ],
)
def test_conv2d_is_a_drop_in(kwargs: dict[str, Any], device: torch.device) -> None:
    torch.manual_seed(0)
    theirs = torch.nn.Conv2d(4, 6, 3, **kwargs, device=device)
    ours = convtime.nn.Conv2d(4, 6, 3, **kwargs, device=device)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 4, 9, 10, device=device)
    assert torch.equal(ours(x), theirs(x))
    assert torch.equal(ours(x[0]), theirs(x[0]))
    ours(x).sum().backward()
    theirs(x).sum().backward()
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)


def test_conv2d_takes_torchs_arguments() -> None:
    signatures = [inspect.signature(m.__init__) for m in (convtime.nn.Conv2d, torch.nn.Conv2d)]
    assert signatures[0] == signatures[1]
    assert repr(convtime.nn.Conv2d(1, 2, 3)) == repr(torch.nn.Conv2d(1, 2, 3))
    assert isinstance(convtime.nn.Conv2d(1, 2, 3), torch.nn.Conv2d)


def test_conv2d_can_be_copied_and_pickled() -> None:
    layer = convtime.nn.Conv2d(1, 2, 3)
    x = torch.randn(1, 1, 5, 5)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert isinstance(twin, convtime.nn.Conv2d)
        assert torch.equal(twin(x), layer(x))


def test_the_policy_is_an_attribute_and_no_state() -> None:
    layer = convtime.nn.Conv2d(1, 2, 3)
    assert layer.policy is None
    layer.policy = "benchmark"
    assert layer.state_dict().keys() == torch.nn.Conv2d(1, 2, 3).state_dict().keys()
    assert pickle.loads(pickle.dumps(layer)).policy == "benchmark"
    x = torch.randn(1, 1, 5, 5)
    assert torch.equal(layer(x), torch.nn.functional.conv2d(x, layer.weight, layer.bias))
    layer.policy = "fastest"
    with pytest.raises(RuntimeError, match="policy must be .* got 'fastest'"):
        layer(x)


def test_conv2d_really_calls_convtimes_op(device: torch.device) -> None:
    layer = convtime.nn.Conv2d(4, 6, 3, device=device)
    with torch.profiler.profile() as profiler:
        layer(torch.randn(2, 4, 9, 9, device=device))
    assert "convtime::conv2d" in {event.name for event in profiler.events()}
