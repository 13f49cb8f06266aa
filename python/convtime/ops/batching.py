"""The torch.vmap rules of the ops: many convolutions or poolings become one.

The batch is folded into examples, channels or groups, as PyTorch does for its own convolutions, so
cuDNN gets the same problems. For pooling, the batch is folded into examples, and for a
multi-layer perceptron into rows; several nets are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from convtime.core.kinds import KINDS, ConvolutionKind, kind_of
from convtime.core.load import _C as _C  # registers the ops
from convtime.ops.activations import FUNCTIONS

_EXAMPLES, _CHANNELS = 0, 1  # dimensions of inputs and outputs


class _Batched(NamedTuple):
    """A tensor and its batch dimension, or None if it is not batched."""

    tensor: torch.Tensor
    batch: int | None

    @property
    def size(self) -> int:
        assert self.batch is not None
        return self.tensor.shape[self.batch]

    @property
    def dim(self) -> int:
        """Number of dimensions without the batch."""
        return self.tensor.dim() - (self.batch is not None)

    @property
    def example(self) -> torch.Tensor:
        return self.tensor if self.batch is None else self.tensor.select(self.batch, 0)

    def at_front(self) -> torch.Tensor:
        """Return the tensor with the batch as dimension 0, of size 1 if it is not batched."""
        return (
            self.tensor.unsqueeze(0) if self.batch is None else self.tensor.movedim(self.batch, 0)
        )

    def folded_into(self, dim: int, groups: int = 1) -> torch.Tensor:
        """Fold the batch into each group's part of this dimension, as the outer part."""
        front = self.at_front()
        parts = torch.unflatten(front, dim + 1, (groups, front.shape[dim + 1] // groups))
        return parts.movedim(0, dim + 1).flatten(dim, dim + 2)

    def shape_alone(self, dim: int, times: int) -> torch.Tensor:
        """Return an expanded placeholder with an example's shape, repeated along a dimension."""
        sizes = list(self.example.shape)
        sizes[dim] *= times
        return self.tensor.new_empty(()).expand(sizes)


def _unfolded(tensor: torch.Tensor, dim: int, batch: int, groups: int = 1) -> _Batched:
    """Reverse _Batched.folded_into."""
    parts = torch.unflatten(tensor, dim, (groups, batch, tensor.shape[dim] // (groups * batch)))
    return _Batched(parts.transpose(dim, dim + 1).flatten(dim + 1, dim + 2), dim)


def _groups_along(dim: int, groups: int) -> int:
    """Return how many groups have their channels along this dimension of a weight."""
    return groups if dim == 0 else 1


def _can_be_grouped(groups: int, *channels: int) -> bool:
    return groups >= 1 and all(count % groups == 0 for count in channels)


def _register_rule(op: Any, rule: Callable[..., tuple[Any, Any]]) -> None:
    """Register a rule for nonempty batches; an empty batch runs with one example of zeros.

    The result of that example is dropped. An empty batch, folded into another dimension, would hide
    that dimension's size.
    """

    def of_any_batch(
        info: Any, in_dims: Sequence[int | None], *arguments: Any, **options: Any
    ) -> tuple[Any, Any]:
        if info.batch_size > 0:
            return rule(info, in_dims, *arguments, **options)
        filled = (
            _with_one(argument, dim) if isinstance(dim, int) else argument  # lists have lists
            for argument, dim in zip(arguments, in_dims, strict=True)
        )
        results, dims = rule(info._replace(batch_size=1), in_dims, *filled, **options)
        emptied = tree_map(
            lambda result, dim: result if dim is None else result.narrow(dim, 0, 0), results, dims
        )
        return emptied, dims

    torch.library.register_vmap(op, of_any_batch)


def _with_one(empty: torch.Tensor, dim: int) -> torch.Tensor:
    sizes = list(empty.shape)
    sizes[dim] = 1
    return torch.cat((empty, empty.new_zeros(sizes)), dim)  # differentiable


def _register(kind: ConvolutionKind) -> None:
    op = getattr(torch.ops.convtime, kind.function).default

    def rule(
        _info: Any,
        in_dims: Sequence[int | None],
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        *numbers: Any,  # without the last ones, if they have their defaults
        policy: str | None = None,
    ) -> _Batched:
        options = dict(zip(kind.numbers, numbers, strict=False))
        groups = options.pop("groups", 1)
        run = partial(op, **options, policy=policy)
        return _convolve(kind, run, in_dims, input, weight, bias, groups)

    _register_rule(f"convtime::{kind.function}", rule)


def _convolve(
    kind: ConvolutionKind,
    run: Callable[..., torch.Tensor],
    in_dims: Sequence[int | None],
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    groups: int,
) -> _Batched:
    """Compute a convolution of batched tensors, by a function of tensors and groups."""
    x, w = _Batched(input, in_dims[0]), _Batched(weight, in_dims[1])
    b = None if bias is None else _Batched(bias, in_dims[2])
    dims = kind.rank + 2
    if not (
        x.dim in (dims - 1, dims)
        and w.dim == dims
        and _can_be_grouped(groups, w.example.shape[0])
        and (b is None or _is_bias_of(kind, b, w, groups))
    ):
        # Raise the op's own error message.
        run(x.example, w.example, None if b is None else b.example, groups=groups)
    is_one_example = x.dim < dims
    if is_one_example:
        x = _Batched(input.unsqueeze(0), None if x.batch is None else x.batch + 1)
    if b is None or (w.batch is None and b.batch is None):
        output = _convolve_examples(kind, run, x, w, bias, groups)
    else:
        output = _add_bias(_convolve_examples(kind, run, x, w, None, groups), b)
    return _Batched(output.at_front().squeeze(1), 0) if is_one_example else output


def _convolve_examples(
    kind: ConvolutionKind,
    run: Callable[..., torch.Tensor],
    x: _Batched,
    w: _Batched,
    bias: torch.Tensor | None,
    groups: int,
) -> _Batched:
    if x.batch is not None and w.batch is not None:
        folded = x.folded_into(_CHANNELS), w.folded_into(0)
        return _unfolded(run(*folded, bias, groups=groups * w.size), _CHANNELS, w.size)
    if x.batch is not None:
        output = run(x.folded_into(_EXAMPLES), w.tensor, bias, groups=groups)
        return _unfolded(output, _EXAMPLES, x.size)
    if w.batch is not None:
        dim = 1 if kind.transposed else 0  # of the output channels
        output = run(x.tensor, w.folded_into(dim, _groups_along(dim, groups)), bias, groups=groups)
        return _unfolded(output, _CHANNELS, w.size, groups)
    return _Batched(run(x.tensor, w.tensor, bias, groups=groups), None)


def _is_bias_of(kind: ConvolutionKind, bias: _Batched, weight: _Batched, groups: int) -> bool:
    """Whether the op would accept this bias; an addition alone would accept more."""
    outputs = weight.example.shape[1] * groups if kind.transposed else weight.example.shape[0]
    return (
        bias.example.shape == (outputs,)
        and bias.tensor.dtype == weight.tensor.dtype
        and bias.tensor.device == weight.tensor.device
    )


def _add_bias(output: _Batched, bias: _Batched) -> _Batched:
    """Add the bias per channel; bias, output or both are batched."""
    y, numbers = output.at_front(), bias.at_front().unsqueeze(1)
    return _Batched(y + numbers.reshape(*numbers.shape, *(1,) * (y.dim() - 3)), 0)


_Gradient = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]


def _convolution_backward(
    _info: Any,
    in_dims: Sequence[int | None],
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    *,
    policy: str | None = None,
) -> tuple[Sequence[torch.Tensor | None], Sequence[int | None]]:
    engines = "ConvFwd_" if transposed else "ConvBwdData_", "ConvBwdFilter_"

    def run(
        y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, groups: int, mask: Sequence[bool]
    ) -> Sequence[torch.Tensor]:
        # A policy may name an engine of the other gradient, which has a call of its own.
        others = tuple(engines[i] for i in range(2) if output_mask[i] and not mask[i])
        gradients: Sequence[torch.Tensor] = torch.ops.convtime.convolution_backward(
            y,
            x,
            w,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            mask,
            policy=None if policy and policy.startswith(others) else policy,
        )
        return gradients

    def alone(
        place: int, y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, groups: int
    ) -> torch.Tensor:
        """Compute the gradient of the input (0) or of the weight (1)."""
        return run(y, x, w, groups, (place == 0, place == 1, False))[place]

    y, x, w = map(_Batched, (grad_output, input, weight), in_dims)
    channels = w.example.shape[:1] + x.example.shape[1:2] + y.example.shape[1:2]
    if not (3 <= w.dim == x.dim == y.dim and _can_be_grouped(groups, *channels)):
        run(y.example, x.example, w.example, groups, output_mask)  # raises the op's own error
    found: list[tuple[torch.Tensor | None, int | None]] = [(None, None)] * 3
    if y.batch is not None and x.batch is not None and w.batch is not None:
        folded = y.folded_into(_CHANNELS), x.folded_into(_CHANNELS), w.folded_into(0)
        gradients = run(*folded, groups * w.size, (*output_mask[:2], False))
        for place, dim in enumerate((_CHANNELS, 0)):
            if output_mask[place]:
                found[place] = _unfolded(gradients[place], dim, w.size)
    else:
        if output_mask[0]:
            found[0] = _input_gradient(partial(alone, 0), y, x, w, transposed, groups)
        if output_mask[1]:
            found[1] = _weight_gradient(partial(alone, 1), y, x, w, transposed, groups)
    if output_mask[2]:
        found[2] = _bias_gradient(y)
    return tuple(tensor for tensor, _ in found), tuple(dim for _, dim in found)


def _input_gradient(
    run: _Gradient, y: _Batched, x: _Batched, w: _Batched, transposed: bool, groups: int
) -> _Batched:
    if y.batch is not None and w.batch is not None:
        folded = y.folded_into(_CHANNELS), x.shape_alone(_CHANNELS, w.size), w.folded_into(0)
        return _unfolded(run(*folded, groups * w.size), _CHANNELS, w.size)
    if y.batch is not None:
        folded = y.folded_into(_EXAMPLES), x.shape_alone(_EXAMPLES, y.size), w.tensor
        return _unfolded(run(*folded, groups), _EXAMPLES, y.size)
    if w.batch is not None:
        dim = 0 if transposed else 1  # of the input channels
        weights = w.folded_into(dim, _groups_along(dim, groups))
        gradient = run(y.tensor, x.shape_alone(_CHANNELS, w.size), weights, groups)
        return _unfolded(gradient, _CHANNELS, w.size, groups)
    return _Batched(run(y.tensor, x.shape_alone(_EXAMPLES, 1), w.tensor, groups), None)


def _weight_gradient(
    run: _Gradient, y: _Batched, x: _Batched, w: _Batched, transposed: bool, groups: int
) -> _Batched:
    if y.batch is not None and x.batch is not None:
        folded = y.folded_into(_CHANNELS), x.folded_into(_CHANNELS), w.shape_alone(0, x.size)
        return _unfolded(run(*folded, groups * x.size), 0, x.size)
    if y.batch is not None:
        dim = 1 if transposed else 0  # of the output channels
        folded = y.folded_into(_CHANNELS, groups), x.tensor, w.shape_alone(dim, y.size)
        return _unfolded(run(*folded, groups), dim, y.size, _groups_along(dim, groups))
    if x.batch is not None:
        dim = 0 if transposed else 1  # of the input channels
        folded = y.tensor, x.folded_into(_CHANNELS, groups), w.shape_alone(dim, x.size)
        return _unfolded(run(*folded, groups), dim, x.size, _groups_along(dim, groups))
    return _Batched(run(y.tensor, x.tensor, w.shape_alone(0, 1), groups), None)


def _bias_gradient(y: _Batched) -> _Batched:
    if y.batch is None:
        return _Batched(y.tensor.sum((0, *range(2, y.dim))), None)
    return _Batched(y.at_front().sum((1, *range(3, y.dim + 1))), 0)


for _kind in KINDS:
    _register(_kind)
_register_rule("convtime::convolution_backward", _convolution_backward)


def _convolution_epilogue(
    _info: Any,
    in_dims: Sequence[int | None],
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
    *,
    policy: str | None = None,
) -> tuple[torch.Tensor, int]:
    """Compute the convolution with its own rule; sums and activations work on any batch."""
    if activation not in FUNCTIONS:
        raise RuntimeError(
            f"convolution_epilogue: activation must be one of {tuple(FUNCTIONS)}, got "
            f"{activation!r}"
        )
    kind = kind_of(_Batched(weight, in_dims[1]).dim - 2, transposed=False)
    op = getattr(torch.ops.convtime, kind.function).default
    run = partial(op, stride=stride, padding=padding, dilation=dilation, policy=policy)
    y = _convolve(kind, run, in_dims[:3], input, weight, bias, groups).at_front()
    if other is not None:
        y = torch.add(y, _Batched(other, in_dims[3]).at_front(), alpha=alpha)
    return FUNCTIONS[activation](y, negative_slope), 0


_register_rule("convtime::convolution_epilogue", _convolution_epilogue)


def _examples(tensor: torch.Tensor, batch: int | None, count: int) -> torch.Tensor:
    """Fold the batch into the examples, as the outer part, or use it as the examples."""
    front = tensor.expand(count, *tensor.shape) if batch is None else tensor.movedim(batch, 0)
    return front if front.dim() == 4 else front.flatten(0, 1)


def _register_pooling(name: str, tensors: int, takes_input_size: bool) -> None:
    """Register a rule that pools more examples; `tensors` counts the op's leading tensors."""
    op = getattr(torch.ops.convtime, name).default

    def pool(info: Any, in_dims: Sequence[int | None], *arguments: Any) -> tuple[Any, Any]:
        count = info.batch_size
        is_batched = arguments[0].dim() - (in_dims[0] is not None) == 4
        examples = [
            _examples(tensor, batch, count)
            for tensor, batch in zip(arguments[:tensors], in_dims, strict=False)
        ]
        rest = list(arguments[tensors:])
        if takes_input_size:
            sizes = rest[0]
            rest[0] = (count * sizes[0] if is_batched else count, *sizes[-3:])

        results = op(*examples, *rest)
        if is_batched:
            results = tree_map(
                lambda result: torch.unflatten(result, 0, (count, result.shape[0] // count)),
                results,
            )
        return results, tree_map(lambda _: 0, results)

    _register_rule(op, pool)


for _name, _tensors, _takes_input_size in (
    ("relu_max_pool2d", 1, False),
    ("relu_max_pool2d_with_winners", 1, False),
    ("relu_max_pool2d_backward", 2, True),
    ("relu_max_pool2d_indices", 1, True),
):
    _register_pooling(_name, _tensors, _takes_input_size)


def _mlp(
    info: Any,
    in_dims: Sequence[int | None],
    input: torch.Tensor,
    weights: torch.Tensor,
    outputs: int,
    activation: str,
) -> tuple[torch.Tensor, int]:
    op = torch.ops.convtime.mlp.default
    if in_dims[1] is None:
        rows = _Batched(input, in_dims[0]).at_front()
        output = op(rows.flatten(0, 1), weights, outputs, activation)
        return output.unflatten(0, rows.shape[:2]), 0
    results = [
        op(*tensors, outputs, activation)
        for tensors in _one_by_one(info.batch_size, in_dims, input, weights)
    ]
    return torch.stack(results), 0


def _mlp_backward(
    info: Any, in_dims: Sequence[int | None], *arguments: Any
) -> tuple[tuple[torch.Tensor, ...], tuple[int, int]]:
    *tensors, activation = arguments
    results = [
        torch.ops.convtime.mlp_backward.default(*each, activation)
        for each in _one_by_one(info.batch_size, in_dims, *tensors)
    ]
    return tuple(torch.stack(each) for each in zip(*results, strict=True)), (0, 0)


def _one_by_one(
    count: int, in_dims: Sequence[int | None], *tensors: torch.Tensor
) -> Iterator[list[torch.Tensor]]:
    """Yield the tensors of each example; contiguous, because the ops require it of weights."""
    for i in range(count):
        yield [
            tensor if batch is None else tensor.select(batch, i).contiguous()
            for tensor, batch in zip(tensors, in_dims, strict=False)
        ]


_register_rule("convtime::mlp", _mlp)
_register_rule("convtime::mlp_backward", _mlp_backward)
