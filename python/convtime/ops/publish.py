"""Publish functions that are generated from the table of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from convtime.core.kinds import ConvolutionKind

_Function = TypeVar("_Function", bound=Callable[..., Any])

# Names of the sizes of input, kernel and output, by the number of spatial dimensions.
_SIZES = {
    1: ("L", "S", "P"),
    2: ("H, W", "R, S", "P, Q"),
    3: ("D, H, W", "T, R, S", "O, P, Q"),
}
_NUMBERS = {
    1: "one number",
    2: "one number or (vertical, horizontal)",
    3: "one number or (depth, vertical, horizontal)",
}


def shapes(kind: ConvolutionKind) -> dict[str, str]:
    """Return the shapes of a convolution's tensors, as documentation and errors write them."""
    sizes, kernel, output_sizes = _SIZES[kind.rank]
    channels = "C, K / groups" if kind.transposed else "K, C / groups"
    return {
        "input": f"(N, C, {sizes})",
        "input_example": f"(C, {sizes})",
        "weight": f"({channels}, {kernel})",
        "output": f"(N, K, {output_sizes})",
        "output_example": f"(K, {output_sizes})",
    }


def publish(
    kind: ConvolutionKind, suffix: str, documentation: str, **fields: str
) -> Callable[[_Function], _Function]:
    """Name a generated function after its convolution, and document it.

    Args:
        kind: the convolution that the function is generated for.
        suffix: follows the convolution's name in the function's.
        documentation: the docstring, with the convolution's names and shapes as ``{fields}``.
        fields: further ones.
    """

    def published(function: _Function) -> _Function:
        function.__name__ = function.__qualname__ = f"{kind.function}{suffix}"
        # Separate code for each: torch.compile counts the recompilations of code, and profilers
        # show its name.
        function.__code__ = function.__code__.replace(co_name=function.__name__)
        function.__doc__ = documentation.format(
            function=kind.function,
            rank=kind.rank,
            numbers=_NUMBERS[kind.rank],
            **shapes(kind),
            **fields,
        )
        return function

    return published
