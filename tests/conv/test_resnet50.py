"""ResNet-50's convolutions."""

import math

import pytest

from convtime.conv.sources.model import from_model, load_model
from convtime.conv.sources.resnet50 import resnet50


def test_resnet50_has_23_distinct_and_53_convolutions() -> None:
    layers = resnet50(batch=1)
    assert len(layers) == len({layer.problem for layer in layers}) == 23
    assert sum(layer.count for layer in layers) == 53
    # 4.09 GMACs is the literature's number for v1.5 (v1 has 3.86); 2.05 M of them are in the
    # last layer, which is no convolution.
    macs = sum(layer.count * layer.problem.flops for layer in layers) / 2
    assert macs + 2048 * 1000 == pytest.approx(4.09e9, rel=1e-3)
    # Parameters of torchvision's resnet50, less batch normalisations' and the last layer's.
    weights = sum(layer.count * math.prod(layer.problem.weight_shape) for layer in layers)
    assert weights == 25_557_032 - 2 * 26_560 - (2048 * 1000 + 1000)


def test_resnet50_is_torchvisions() -> None:
    pytest.importorskip("torchvision")
    found = from_model(load_model("torchvision.models:resnet50", (2, 3, 224, 224))).layers
    # A block's downsample runs after its convolutions but is equal to them in ours too.
    theirs, ours = (
        {layer.problem: sorted(layer.names) for layer in layers}
        for layers in (found, resnet50(batch=2))
    )
    assert theirs == ours
