"""The six convolutions, with torch.nn.functional's arguments and convtime's policy."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.compiler import is_dynamo_compiling

from convtime.core.kinds import KINDS, ConvolutionKind, Numbers
from convtime.core.load import _C
from convtime.ops.arguments import check_options, check_tensors, geometry, pad_end
from convtime.ops.publish import publish
from convtime.ops.sharding import register_rules

_CONVOLUTION = """{rank}-D convolution with the arguments of :func:`torch.nn.functional.{function}`.

    On a GPU, where PyTorch would use cuDNN, convtime calls cuDNN itself, also for the gradients; it
    selects plans as PyTorch does. Otherwise, it runs the same kernels as PyTorch. Gradients of any
    order, forward-mode derivatives and :func:`torch.vmap` use the same convolutions as in PyTorch,
    under the same policy.

    Args:
        input: shape {input} or {input_example}; float16, bfloat16, float32 or float64.
        weight: shape {weight}, same dtype and device as ``input``.
        bias: shape (K,), or None.
        stride: steps, {numbers}, at least 1.
        padding: zeros added on both sides, {numbers};
            or ``"valid"`` (none), or ``"same"`` (keeps the size; needs a stride of 1).
        dilation: steps between the kernel's elements, as many as for ``stride``, at least 1.
        groups: number of groups, divides C and K.
        policy: how the cuDNN plan is selected, here and for the gradients. ``"heuristic"`` selects
            like PyTorch with ``torch.backends.cudnn.benchmark`` off, ``"benchmark"`` like PyTorch
            with it on, and None follows that flag at the time of the call. A tag from
            :func:`convtime.conv.plan_cache`, such as ``"eng38_k2=8_k13=1"``, with or without the
            prefix ``"ConvFwd_"``, selects that engine with those knobs or raises an error. It
            overrides torch's flags for determinism and TF32; the gradients then follow the
            benchmark flag. Engines that PyTorch's errata forbid for the convolution are rejected.

    Returns:
        Shape {output}, or {output_example} for an input without N.

    Raises:
        TypeError: an argument has a wrong type, in the same cases as in PyTorch.
        RuntimeError: shapes, dtypes, devices or numbers are invalid or inconsistent; cuDNN does not
            have the engine or a knob for the convolution; or plans would have to be timed during
            CUDA graph capture.
        NotImplementedError: the tensors have another dtype (a RuntimeError, too).
        torch.OutOfMemoryError: memory is insufficient for the output, or for the engine that the
            policy names.
        torch.AcceleratorError: CUDA itself reports an error.
    """

_TRANSPOSED = """{rank}-D transposed convolution; as :func:`torch.nn.functional.{function}`.

    It is the gradient of a convolution with respect to its input, and uses cuDNN's plan for that
    gradient. Everything else is as for :func:`conv{rank}d`.

    Args:
        input: shape {input} or {input_example}; float16, bfloat16, float32 or float64.
        weight: shape {weight}, same dtype and device as ``input``.
        bias: shape (K,), or None.
        stride: steps in the output, {numbers}, at least 1.
        padding: elements removed from both sides of the output,
            {numbers}.
        output_padding: elements added at the end of the output, as many as for ``stride``, smaller
            than ``stride`` or ``dilation``.
        groups: number of groups, divides C and K.
        dilation: steps between the kernel's elements, as many as for ``stride``, at least 1.
        policy: as for conv{rank}d; an engine's tag is one of dgrad, with or without
            ``"ConvBwdData_"``.

    Returns:
        Shape {output}, or {output_example} for an input without N.

    Raises:
        TypeError: as conv{rank}d.
        RuntimeError: as conv{rank}d.
    """


class Convolution(Protocol):
    def __call__(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        *,
        policy: str | None = None,
    ) -> torch.Tensor: ...


class TransposedConvolution(Protocol):
    def __call__(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        dilation: Numbers = 1,
        *,
        policy: str | None = None,
    ) -> torch.Tensor: ...


def _convolution(kind: ConvolutionKind) -> Convolution:
    direct = getattr(_C, kind.function)

    @publish(kind, "", _CONVOLUTION)
    def convolution(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Numbers = 1,
        padding: Numbers | str = 0,
        dilation: Numbers = 1,
        groups: int = 1,
        *,
        policy: str | None = None,
    ) -> torch.Tensor:
        # Dynamo traces torch.ops, and cannot trace _C.
        if not is_dynamo_compiling():
            output: torch.Tensor = direct(
                input, weight, bias, stride, padding, dilation, groups, policy
            )
            if output is not NotImplemented:
                return output
        return _by_torch_ops(
            kind, input, weight, bias, stride, padding, 0, dilation, groups, policy
        )

    return convolution


def _transposed_convolution(kind: ConvolutionKind) -> TransposedConvolution:
    direct = getattr(_C, kind.function)

    @publish(kind, "", _TRANSPOSED)
    def convolution(
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        stride: Numbers = 1,
        padding: Numbers = 0,
        output_padding: Numbers = 0,
        groups: int = 1,
        dilation: Numbers = 1,
        *,
        policy: str | None = None,
    ) -> torch.Tensor:
        if not is_dynamo_compiling():
            output: torch.Tensor = direct(
                input, weight, bias, stride, padding, output_padding, groups, dilation, policy
            )
            if output is not NotImplemented:
                return output
        return _by_torch_ops(
            kind, input, weight, bias, stride, padding, output_padding, dilation, groups, policy
        )

    return convolution


def _by_torch_ops(
    kind: ConvolutionKind,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: Numbers,
    padding: Numbers | str,
    output_padding: Numbers,
    dilation: Numbers,
    groups: int,
    policy: str | None,
) -> torch.Tensor:
    """Call torch.ops: for calls that the direct entry does not handle, and for error messages."""
    check_tensors(kind.function, input=input, weight=weight)
    check_options(kind.function, bias=bias, policy=policy)
    register_rules()
    at = geometry(
        kind.function, kind, weight.shape, stride, padding, dilation, groups, output_padding
    )
    numbers = [getattr(at, name) for name in kind.numbers]
    call = getattr(torch.ops.convtime, kind.function)
    output: torch.Tensor = call(pad_end(input, at.surplus), weight, bias, *numbers, policy=policy)
    return output


# With types, because type checkers may look at them before they look at what makes them.
conv1d: Convolution = _convolution(KINDS[0])
conv2d: Convolution = _convolution(KINDS[1])
conv3d: Convolution = _convolution(KINDS[2])
conv_transpose1d: TransposedConvolution = _transposed_convolution(KINDS[3])
conv_transpose2d: TransposedConvolution = _transposed_convolution(KINDS[4])
conv_transpose3d: TransposedConvolution = _transposed_convolution(KINDS[5])
