"""The torch.vmap rules of the ops.

PyTorch's own rules batch the convolutions: they fold the batch into examples, channels or groups. A
call with a policy is computed example by example, because a policy is for the problem of one. For
pooling, the batch is folded into examples, and for a multi-layer perceptron into rows; several nets
are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch._functorch.autograd_function import custom_function_call_vmap_helper
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from convtime.core.kinds import KINDS, ConvolutionKind, kind_of
from convtime.core.load import _C as _C  # registers the ops
from convtime.ops.epilogue import ACTIVATIONS


def _one_by_one(
    op: Any, info: Any, in_dims: Sequence[Any], *arguments: Any, **options: Any
) -> tuple[Any, Any]:
    """Call the op for each example; an empty batch gets the results' shapes from one of zeros."""

    def example_of(argument: Any, dim: Any, i: int) -> Any:
        if not isinstance(dim, int):  # lists have lists
            return argument
        if info.batch_size == 0:
            sizes = [size for index, size in enumerate(argument.shape) if index != dim]
            return argument.sum() + argument.new_zeros(sizes)  # differentiable
        return argument.select(dim, i).contiguous()  # as mlp requires it of weights

    results = [
        op(*(example_of(*each, i) for each in zip(arguments, in_dims, strict=True)), **options)
        for i in range(max(1, info.batch_size))
    ]
    stacked = tree_map(
        lambda *parts: None if parts[0] is None else torch.stack(parts)[: info.batch_size], *results
    )
    return stacked, tree_map(lambda part: None if part is None else 0, stacked)


_library = torch.library.Library("convtime", "IMPL")  # type: ignore[no-untyped-call]


def _register_convolution(name: str, pytorchs: Callable[..., Any]) -> None:
    """Let PyTorch batch its own ops where the call has no policy.

    `torch.library.register_vmap` cannot do that: its rules get tensors without their batch.
    """
    op = getattr(torch.ops.convtime, name).default

    def batched(*arguments: Any, policy: str | None = None) -> Any:
        interpreter: Any = retrieve_current_functorch_interpreter()  # of torch.vmap
        one_by_one = partial(
            custom_function_call_vmap_helper,
            interpreter,
            partial(_one_by_one, op),
            op,
            *arguments,
            policy=policy,
        )
        if policy is not None or interpreter.batch_size() == 0:
            return one_by_one()
        try:
            return pytorchs(*arguments)
        except RuntimeError:
            one_by_one()  # raises the op's own error
            raise

    _library.impl(name, batched, "FuncTorchBatched")  # type: ignore[no-untyped-call]


def _pytorchs(
    kind: ConvolutionKind,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *numbers: Any,  # without the last ones, if they have their defaults
) -> torch.Tensor:
    options = {
        # PyTorch's rule takes the length of a list as the number of spatial dimensions.
        name: list(value) * kind.rank if isinstance(value, Sequence) and len(value) == 1 else value
        for name, value in zip(kind.numbers, numbers, strict=False)
    }
    output: torch.Tensor = getattr(F, kind.function)(input, weight, bias, **options)
    return output


def _pytorchs_backward(
    grad_output: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *arguments: Any
) -> Sequence[torch.Tensor | None]:
    gradients: Sequence[torch.Tensor | None] = torch.ops.aten.convolution_backward(
        grad_output, input, weight, [grad_output.shape[1]], *arguments
    )
    return gradients


def _pytorchs_epilogue(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    other: torch.Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    activation: str,
    alpha: float = 1.0,
    negative_slope: float = 0.01,
) -> torch.Tensor:
    if activation not in ACTIVATIONS:
        raise RuntimeError(f"activation must be one of {tuple(ACTIVATIONS)}, got {activation!r}")
    kind = kind_of(weight.dim() - 2, transposed=False)
    y = _pytorchs(kind, input, weight, bias, stride, padding, dilation, groups)
    if other is not None:
        y = torch.add(y, other, alpha=alpha)
    return ACTIVATIONS[activation](y, negative_slope)


for _kind in KINDS:
    _register_convolution(_kind.function, partial(_pytorchs, _kind))
_register_convolution("convolution_backward", _pytorchs_backward)
_register_convolution("convolution_epilogue", _pytorchs_epilogue)


def _examples(tensor: torch.Tensor, batch: int | None, count: int) -> torch.Tensor:
    """Fold the batch into the examples, as the outer part, or use it as the examples."""
    front = tensor.expand(count, *tensor.shape) if batch is None else tensor.movedim(batch, 0)
    return front if front.dim() == 4 else front.flatten(0, 1)


def _register_pooling(name: str, tensors: int, takes_input_size: bool) -> None:
    """Register a rule that pools more examples; `tensors` counts the op's leading tensors."""
    op = getattr(torch.ops.convtime, name).default

    def pool(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Any, Any]:
        count = info.batch_size
        sizes = [size for dim, size in enumerate(arguments[0].shape) if dim != in_dims[0]]
        examples = [
            _examples(tensor, batch, count)
            for tensor, batch in zip(arguments[:tensors], in_dims, strict=False)
        ]
        rest = list(arguments[tensors:])
        if takes_input_size:
            rest[0] = (examples[0].shape[0], *rest[0][-3:])
        results = op(*examples, *rest)
        if len(sizes) == 4:
            results = tree_map(
                lambda result: result.reshape(count, sizes[0], *result.shape[1:]), results
            )
        return results, tree_map(lambda _: 0, results)

    torch.library.register_vmap(op, pool)


for _name, _tensors, _takes_input_size in (
    ("relu_max_pool2d", 1, False),
    ("relu_max_pool2d_with_winners", 1, False),
    ("relu_max_pool2d_backward", 2, True),
    ("relu_max_pool2d_indices", 1, True),
):
    _register_pooling(_name, _tensors, _takes_input_size)


def _mlp(
    info: Any, in_dims: Sequence[int | None], input: torch.Tensor, weights: torch.Tensor, *rest: Any
) -> tuple[Any, Any]:
    op = torch.ops.convtime.mlp.default
    if in_dims[0] is None or in_dims[1] is not None:
        return _one_by_one(op, info, in_dims, input, weights, *rest)
    rows = input.movedim(in_dims[0], 0)
    output = op(rows.flatten(0, 1), weights, *rest)
    return output.reshape(*rows.shape[:2], output.shape[1]), 0


torch.library.register_vmap("convtime::mlp", _mlp)
torch.library.register_vmap(
    "convtime::mlp_backward", partial(_one_by_one, torch.ops.convtime.mlp_backward.default)
)
