"""The torch.vmap rules of the ops: many convolutions or poolings become one.

The batch is folded into examples, channels or groups, as PyTorch does for its own convolutions, so
cuDNN gets the same problems. For pooling, the batch is folded into examples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from convtime.core.kinds import KINDS, ConvolutionKind
from convtime.core.load import _C as _C  # registers the ops
from convtime.ops.activations import FUNCTIONS

_EXAMPLES, _CHANNELS = 0, 1  # dimensions of inputs and outputs


@dataclasses.dataclass(frozen=True)
class _Batched:
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
        """Return the tensor with the batch as dimension 0."""
        assert self.batch is not None
        return self.tensor.movedim(self.batch, 0)

    def folded_into(self, dim: int) -> torch.Tensor:
        """Fold the batch into this dimension of an example, as its outer part."""
        return self.at_front().movedim(0, dim).flatten(dim, dim + 1)

    def folded_into_groups(self, dim: int, groups: int) -> torch.Tensor:
        """Fold the batch into each group's channels, as the outer part, in this dimension."""
        front = self.at_front()
        parts = torch.unflatten(front, dim + 1, (groups, front.shape[dim + 1] // groups))
        return parts.movedim(0, dim + 1).flatten(dim, dim + 2)

    def shape_alone(self, dim: int, times: int) -> torch.Tensor:
        """Return an expanded placeholder with an example's shape, repeated along a dimension."""
        sizes = list(self.example.shape)
        sizes[dim] *= times
        return self.tensor.new_empty(()).expand(sizes)


def _unfolded(tensor: torch.Tensor, dim: int, batch: int) -> _Batched:
    """Reverse _Batched.folded_into."""
    return _Batched(torch.unflatten(tensor, dim, (batch, tensor.shape[dim] // batch)), dim)


def _unfolded_from_groups(tensor: torch.Tensor, dim: int, groups: int, batch: int) -> _Batched:
    """Reverse _Batched.folded_into_groups."""
    parts = torch.unflatten(tensor, dim, (groups, batch, tensor.shape[dim] // (groups * batch)))
    return _Batched(parts.transpose(dim, dim + 1).flatten(dim + 1, dim + 2), dim)


# Dimension 0 of a weight has the channels of all groups, dimension 1 those of one group.


def _output_dim(transposed: bool) -> int:
    """Return the weight's dimension of output channels."""
    return 1 if transposed else 0


def _input_dim(transposed: bool) -> int:
    """Return the weight's dimension of input channels."""
    return 0 if transposed else 1


def _fold_weight(weight: _Batched, dim: int, groups: int) -> torch.Tensor:
    return weight.folded_into_groups(dim, groups) if dim == 0 else weight.folded_into(dim)


def _unfold_weight(weight: torch.Tensor, dim: int, groups: int, batch: int) -> _Batched:
    if dim == 0:
        return _unfolded_from_groups(weight, dim, groups, batch)
    return _unfolded(weight, dim, batch)


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
    one, none = (1,) * kind.rank, (0,) * kind.rank

    def conv(
        _info: Any,
        in_dims: Sequence[int | None],
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Sequence[int] = one,
        padding: Sequence[int] = none,
        dilation: Sequence[int] = one,
        groups: int = 1,
        *,
        policy: str | None = None,
    ) -> tuple[torch.Tensor, int | None]:
        def run(
            x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, groups: int
        ) -> torch.Tensor:
            result: torch.Tensor = op(x, w, b, stride, padding, dilation, groups, policy=policy)
            return result

        return _convolve(kind, run, in_dims, input, weight, bias, groups)

    def conv_transpose(
        _info: Any,
        in_dims: Sequence[int | None],
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Sequence[int] = one,
        padding: Sequence[int] = none,
        output_padding: Sequence[int] = none,
        groups: int = 1,
        dilation: Sequence[int] = one,
        *,
        policy: str | None = None,
    ) -> tuple[torch.Tensor, int | None]:
        def run(
            x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, groups: int
        ) -> torch.Tensor:
            numbers = stride, padding, output_padding, groups, dilation
            result: torch.Tensor = op(x, w, b, *numbers, policy=policy)
            return result

        return _convolve(kind, run, in_dims, input, weight, bias, groups)

    rule = conv_transpose if kind.transposed else conv
    _register_rule(f"convtime::{kind.function}", rule)


_Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, int], torch.Tensor]


def _convolve(
    kind: ConvolutionKind,
    run: _Run,
    in_dims: Sequence[int | None],
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    groups: int,
) -> tuple[torch.Tensor, int | None]:
    """Compute a convolution of batched tensors; return it with its batch dimension."""
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
        run(x.example, w.example, None if b is None else b.example, groups)
    if x.dim < dims:
        examples = input.unsqueeze(0) if x.batch is None else x.at_front().unsqueeze(1)
        x = _Batched(examples, None if x.batch is None else 0)
    if b is None or (w.batch is None and b.batch is None):
        output = _convolve_examples(kind, run, x, w, bias, groups)
    else:
        output = _add_bias(_convolve_examples(kind, run, x, w, None, groups), b)
    if input.dim() - (in_dims[0] is not None) < dims:
        output = _Batched(output.at_front().squeeze(1), 0)
    return output.tensor, output.batch


def _convolve_examples(
    kind: ConvolutionKind,
    run: _Run,
    x: _Batched,
    w: _Batched,
    bias: torch.Tensor | None,
    groups: int,
) -> _Batched:
    if x.batch is not None and w.batch is not None:
        output = run(x.folded_into(_CHANNELS), w.folded_into(0), bias, groups * w.size)
        return _unfolded(output, _CHANNELS, w.size)
    if x.batch is not None:
        return _unfolded(run(x.folded_into(_EXAMPLES), w.tensor, bias, groups), _EXAMPLES, x.size)
    if w.batch is not None:
        folded = _fold_weight(w, _output_dim(kind.transposed), groups)
        output = run(x.tensor, folded, bias, groups)
        return _unfolded_from_groups(output, _CHANNELS, groups, w.size)
    return _Batched(run(x.tensor, w.tensor, bias, groups), None)


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
    y = output.tensor.unsqueeze(0) if output.batch is None else output.at_front()
    numbers = bias.tensor if bias.batch is None else bias.at_front().unsqueeze(1)
    return _Batched(y + numbers.reshape(*numbers.shape, *(1,) * (y.dim() - 3)), 0)


_Gradient = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]
_Gradients = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]
_BatchDims = tuple[int | None, int | None, int | None]


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
) -> tuple[_Gradients, _BatchDims]:
    numbers = stride, padding, dilation, transposed, output_padding

    def run(
        y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, groups: int, mask: Sequence[bool]
    ) -> _Gradients:
        gradients: _Gradients = torch.ops.convtime.convolution_backward(
            y, x, w, *numbers, groups, mask, policy=policy_of(mask)
        )
        return gradients

    def policy_of(mask: Sequence[bool]) -> str | None:
        """Return the policy, or None if it names an engine for the other gradient's call."""
        for place, name in enumerate(
            ("ConvFwd_" if transposed else "ConvBwdData_", "ConvBwdFilter_")
        ):
            if policy and policy.startswith(name) and output_mask[place] and not mask[place]:
                return None
        return policy

    def input_gradient(
        y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, groups: int
    ) -> torch.Tensor:
        gradient = run(y, x, w, groups, (True, False, False))[0]
        assert gradient is not None
        return gradient

    def weight_gradient(
        y: torch.Tensor, x: torch.Tensor, w: torch.Tensor, groups: int
    ) -> torch.Tensor:
        gradient = run(y, x, w, groups, (False, True, False))[1]
        assert gradient is not None
        return gradient

    y, x, w = (
        _Batched(tensor, dim)
        for tensor, dim in zip((grad_output, input, weight), in_dims, strict=False)
    )
    channels = w.example.shape[:1] + x.example.shape[1:2] + y.example.shape[1:2]
    if not (3 <= w.dim == x.dim == y.dim and _can_be_grouped(groups, *channels)):
        run(y.example, x.example, w.example, groups, output_mask)  # raises the op's own error
    found: list[_Batched | None] = [None, None, None]
    if y.batch is not None and x.batch is not None and w.batch is not None:
        folded = y.folded_into(_CHANNELS), x.folded_into(_CHANNELS), w.folded_into(0)
        first, second, _ = run(*folded, groups * w.size, (*output_mask[:2], False))
        found[0] = None if first is None else _unfolded(first, _CHANNELS, w.size)
        found[1] = None if second is None else _unfolded(second, 0, w.size)
    else:
        if output_mask[0]:
            found[0] = _input_gradient(input_gradient, y, x, w, transposed, groups)
        if output_mask[1]:
            found[1] = _weight_gradient(weight_gradient, y, x, w, transposed, groups)
    if output_mask[2]:
        found[2] = _bias_gradient(y)
    gradients = tuple(None if gradient is None else gradient.tensor for gradient in found)
    dims = tuple(None if gradient is None else gradient.batch for gradient in found)
    return gradients, dims  # type: ignore[return-value]


def _input_gradient(
    run: _Gradient, y: _Batched, x: _Batched, w: _Batched, transposed: bool, groups: int
) -> _Batched:
    if y.batch is not None and w.batch is not None:
        shape = x.shape_alone(_CHANNELS, w.size)
        gradient = run(y.folded_into(_CHANNELS), shape, w.folded_into(0), groups * w.size)
        return _unfolded(gradient, _CHANNELS, w.size)
    if y.batch is not None:
        shape = x.shape_alone(_EXAMPLES, y.size)
        gradient = run(y.folded_into(_EXAMPLES), shape, w.tensor, groups)
        return _unfolded(gradient, _EXAMPLES, y.size)
    if w.batch is not None:
        folded = _fold_weight(w, _input_dim(transposed), groups)
        gradient = run(y.tensor, x.shape_alone(_CHANNELS, w.size), folded, groups)
        return _unfolded_from_groups(gradient, _CHANNELS, groups, w.size)
    return _Batched(run(y.tensor, x.shape_alone(_EXAMPLES, 1), w.tensor, groups), None)


def _weight_gradient(
    run: _Gradient, y: _Batched, x: _Batched, w: _Batched, transposed: bool, groups: int
) -> _Batched:
    if y.batch is not None and x.batch is not None:
        shape = w.shape_alone(0, x.size)
        folded = y.folded_into(_CHANNELS), x.folded_into(_CHANNELS)
        return _unfolded(run(*folded, shape, groups * x.size), 0, x.size)
    if y.batch is not None:
        dim = _output_dim(transposed)
        shape = w.shape_alone(dim, y.size)
        gradient = run(y.folded_into_groups(_CHANNELS, groups), x.tensor, shape, groups)
        return _unfold_weight(gradient, dim, groups, y.size)
    if x.batch is not None:
        dim = _input_dim(transposed)
        shape = w.shape_alone(dim, x.size)
        gradient = run(y.tensor, x.folded_into_groups(_CHANNELS, groups), shape, groups)
        return _unfold_weight(gradient, dim, groups, x.size)
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
    kind = KINDS[_Batched(weight, in_dims[1]).dim - 3]
    conv = getattr(torch.ops.convtime, kind.function).default

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, groups: int) -> torch.Tensor:
        output: torch.Tensor = conv(x, w, b, stride, padding, dilation, groups, policy=policy)
        return output

    y, batch = _convolve(kind, run, in_dims[:3], input, weight, bias, groups)
    y = y if batch is None else y.movedim(batch, 0)
    if other is not None:
        z = other if in_dims[3] is None else other.movedim(in_dims[3], 0)
        y = torch.add(y, z, alpha=alpha)
    return FUNCTIONS[activation](y, negative_slope), 0


_register_rule("convtime::convolution_epilogue", _convolution_epilogue)


def _examples(tensor: torch.Tensor, batch: int | None, count: int) -> torch.Tensor:
    """Fold the batch into the examples, as the outer part, or use it as the examples."""
    front = tensor.expand(count, *tensor.shape) if batch is None else tensor.movedim(batch, 0)
    return front if front.dim() == 4 else front.flatten(0, 1)


def _register_pooling(name: str, *, tensors: int, takes_input_size: bool) -> None:
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

        def unfolded(result: torch.Tensor) -> torch.Tensor:
            if not is_batched:
                return result
            return torch.unflatten(result, 0, (count, result.shape[0] // count))

        results = op(*examples, *rest)
        return tree_map(unfolded, results), tree_map(lambda _: 0, results)

    _register_rule(op, pool)


_register_pooling("relu_max_pool2d", tensors=1, takes_input_size=False)
_register_pooling("relu_max_pool2d_with_winners", tensors=1, takes_input_size=False)
_register_pooling("relu_max_pool2d_backward", tensors=2, takes_input_size=True)
_register_pooling("relu_max_pool2d_indices", tensors=1, takes_input_size=True)
