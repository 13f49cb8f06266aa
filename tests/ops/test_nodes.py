"""The autograd nodes of convolutions are torch's to tools that read graphs, such as torchviz."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F

from convtime import ops
from tests.helpers.op_calls import OPS, small_tensors


def leaves(op: str) -> list[torch.Tensor]:
    return [tensor.requires_grad_() for tensor in small_tensors(op, per_group=2).values()]


def saved(node: Any) -> dict[str, Any]:
    """The values that tools read, with tensors as their identity."""
    values = {name: getattr(node, name) for name in dir(node) if name.startswith("_saved_")}
    return {
        name: (value.data_ptr(), value.shape, value.requires_grad)
        if isinstance(value, torch.Tensor)
        else value
        for name, value in values.items()
    }


@pytest.mark.parametrize("op", OPS)
def test_nodes_have_the_class_and_values_of_torchs(op: str) -> None:
    x, w, b = leaves(op)
    strided = {"stride": 2, **({"output_padding": 1} if "transpose" in op else {})}
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, w, b), {}),
        ((x, w, b), strided),
        ((x, w, b), {"padding": 1, "dilation": 2}),
        ((x, w, None), {}),
        ((x.detach(), w, b), {}),
    ]
    for tensors, numbers in calls:
        ours, theirs = (
            getattr(library, op)(*tensors, groups=2, **numbers).grad_fn for library in (ops, F)
        )
        assert type(ours) is type(theirs)
        assert ours.name() == theirs.name() == "ConvolutionBackward0"
        assert dir(ours) == dir(theirs)
        assert saved(ours) == saved(theirs)
        of_ours, of_theirs = (
            [following and following.variable.data_ptr() for following, _ in node.next_functions]
            for node in (ours, theirs)
        )
        assert of_ours == of_theirs


@pytest.mark.parametrize("op", OPS)
def test_saved_tensors_are_freed_as_torchs(op: str) -> None:
    def messages(library: Any) -> list[str]:
        output = getattr(library, op)(*leaves(op), groups=2)
        output.sum().backward()
        found = []
        for call in (
            lambda: output.grad_fn._saved_input,
            lambda: output.grad_fn._raw_saved_input.register_hooks(abs, abs),
            lambda: output.sum().backward(),
        ):
            with pytest.raises(RuntimeError) as error:
                call()
            found.append(str(error.value))
        assert output.grad_fn._saved_groups == 2
        return found

    assert messages(ops) == messages(F)


@pytest.mark.parametrize("op", OPS)
def test_nodes_of_gradients_have_the_class_and_values_of_torchs(op: str) -> None:
    tensors = leaves(op)
    results = []
    for library in (ops, F):
        output = getattr(library, op)(*tensors, stride=2, padding=1, groups=2)
        grad = torch.ones_like(output, requires_grad=True)
        (gradient,) = torch.autograd.grad(output, tensors[0], grad, create_graph=True)
        node: Any = gradient.grad_fn
        values = saved(node)
        del values["_saved_grad_output"]  # each has its own
        assert torch.equal(node._saved_grad_output, grad)
        results.append((type(node), node.name(), dir(node), values))
    assert results[0] == results[1]
    assert results[0][1] == "ConvolutionBackwardBackward0"
