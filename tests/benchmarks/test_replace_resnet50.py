"""The training that compares a replaced ResNet-50 with PyTorch's."""

import pytest
import replace_resnet50
import results
import torch
from resnet50 import ResNet50

from convtime.conv.flags import Flags
from convtime.conv.sources.model import LoadedModel, from_model
from convtime.conv.sources.resnet50 import resnet50 as resnet50_layers

CPU = torch.device("cpu")


def test_the_model_is_torchvisions():
    with torch.device("meta"):
        model = ResNet50()
        example = torch.randn(2, 3, 224, 224)
    assert sum(parameter.numel() for parameter in model.parameters()) == 25_557_032
    found = from_model(LoadedModel("resnet50", model, example)).layers
    names, expected = (
        {layer.problem: sorted(layer.names) for layer in layers}
        for layers in (found, resnet50_layers(batch=2))
    )
    assert names == expected
    assert sum(layer.count for layer in found) == replace_resnet50.CONVOLUTIONS


def row(*steps, replaced=53):
    found = [
        {"loss": [1.5, 1.5], "same_loss": same, "different": ["fc.weight"] * count}
        for same, count in steps
    ]
    return {"key": "training", "replaced": replaced, "steps": found}


@pytest.mark.parametrize(
    ("steps", "replaced", "count"),
    [
        ([(True, 0)] * 50, 53, 50),
        ([(True, 0)] * 50, 52, 0),
        ([(True, 0), (False, 0), (True, 0)], 53, 1),
        ([(True, 0), (True, 0), (True, 1), (True, 0)], 53, 2),
        ([(False, 3)], 53, 0),
    ],
)
def test_steps_count_until_the_first_difference(steps, replaced, count):
    found = replace_resnet50.summarise([row(*steps, replaced=replaced)])
    assert found == {"bit_identical_steps": count}
    assert set(found) == set(results.load_goals()["replace_resnet50"])


def test_a_difference_is_found(monkeypatch):
    train = replace_resnet50._train
    calls = []

    def meddle(model, *rest):
        loss = train(model, *rest)
        calls.append(model)
        if len(calls) == 4:  # the second step of the second model
            model.bn1.running_var[0] *= 2
        return loss

    before = Flags.current()
    monkeypatch.setattr(replace_resnet50, "_train", meddle)
    found = replace_resnet50.measure(CPU, steps=2, batch=2, side=32)
    assert replace_resnet50.summarise([found]) == {"bit_identical_steps": 1}
    assert found["steps"][1]["different"] == ["bn1.running_var"]
    assert found["steps"][1]["same_loss"]
    first, second = (step["loss"][0] for step in found["steps"])
    assert first != second, "nothing was learned"
    assert Flags.current() == before
