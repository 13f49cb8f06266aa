"""cuDNN execution plans as data: PyTorch's, parsed from cuDNN's log, and convtime's."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from convtime.view.shown import Shown

_ENGINE = re.compile(r"(?:^|_)eng(\d+)")
_KNOB = re.compile(r"_k(\d+)=(-?\d+)")


def engine_of(tag: str) -> int:
    """Return the index of the engine that a tag names, e.g. 38 of "ConvFwd_eng38_k2=8_k13=1".

    Raises:
        ValueError: The tag does not name an engine.
    """
    match = _ENGINE.search(tag)
    if match is None:
        raise ValueError(f"a tag must name an engine (eng and a number), got {tag!r}")
    return int(match[1])


def knobs_of(tag: str) -> dict[int, int]:
    """Return the settings in a tag, by cuDNN's knob number."""
    return {int(knob): int(value) for knob, value in _KNOB.findall(tag)}


@dataclasses.dataclass(frozen=True)
class TensorDescriptor:
    """A tensor as described to cuDNN.

    Attributes:
        sizes: Size of each dimension.
        strides: Stride of each dimension, in elements. Dimensions of size one have the stride of a
            dense tensor.
        alignment: Alignment of the first element's address, in bytes; at most 32.
        dtype: For example "float32".
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int
    dtype: str

    def __str__(self) -> str:
        sizes, strides = "×".join(map(str, self.sizes)), "/".join(map(str, self.strides))
        return f"{sizes}, strides {strides}, aligned to {self.alignment}, {self.dtype}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A cuDNN execution plan, and the description that cuDNN was given to select it.

    Attributes:
        tag: Name of operation, engine and knobs, as in the cuDNN frontend's log, e.g.
            "ConvFwd_eng38_k2=8_k13=1"; a policy for :func:`convtime.ops.conv2d`.
        source: How it was selected. For PyTorch: "heuristic" or "benchmark". For convtime: the list
            that contains it, "instant" (cuDNN's heuristics) or "fallback"; "benchmark" if a timed
            run decided; "explicit" if the policy named it.
        workspace_bytes: Memory that it needs in addition to its tensors.
        numerical_notes: cuDNN's names of its effects on numerics, without their common prefix.
        behavior_notes: cuDNN's names of other properties, without their common prefix.
        refused: Earlier plans that could not be used, as "tag" or "tag: reason".
        x: The input of cuDNN's convolution, or its gradient. Tensors with one spatial dimension get
            a height of 1. None if it is unknown; the same applies to all following fields. For a
            transposed convolution, x is its output (see ConvProblem.cudnn_problem).
        w: The weight, or its gradient.
        y: The output, or its gradient.
        compute_type: Data type of the computation, e.g. "float32".
        stride: One number per spatial dimension.
        padding: One number per spatial dimension.
        dilation: One number per spatial dimension.
    """

    tag: str
    source: str
    workspace_bytes: int
    numerical_notes: tuple[str, ...] = ()
    behavior_notes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    x: TensorDescriptor | None = None
    w: TensorDescriptor | None = None
    y: TensorDescriptor | None = None
    compute_type: str | None = None
    stride: tuple[int, ...] | None = None
    padding: tuple[int, ...] | None = None
    dilation: tuple[int, ...] | None = None

    @property
    def engine(self) -> int:
        """The engine's index among the engines of the operation.

        Raises:
            ValueError: The tag does not name an engine.
        """
        return engine_of(self.tag)

    @property
    def knobs(self) -> Mapping[int, int]:
        """The engine's settings, by cuDNN's knob number."""
        return knobs_of(self.tag)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PlanChoice(Shown, Plan, show="convtime.conv.show_plan", package="convtime.conv"):
    """A plan that convtime's convolutions have selected, and the convolution it is for.

    Attributes:
        pass_name: "fprop", "dgrad" or "wgrad" of y = conv(x, w). A transposed convolution is a
            "dgrad": x is its output, y its input.
        policy: The policy that selected it: "heuristic", "benchmark" or an engine's tag.
        device: For example "cuda:0".
        dtype: For example "float32".
        timed: Tags of the plans that were timed, in that order, if a timed run decided.
        z: Tensor that is multiplied by `alpha` and added to the convolution in the same graph; None
            for none.
        alpha: See z.
        b: The bias in the same graph; None if there is none, or if it is added afterwards.
        activation: Last operation of the graph, as :func:`convtime.ops.conv2d_epilogue` names it.
        negative_slope: Slope of "leaky_relu".
        deterministic: Whether engines that are not bitwise reproducible were excluded. An engine
            that the policy names is never excluded: see its numerical_notes.
        allow_tf32: Whether engines that use tensor cores for float32 were allowed. An engine that
            the policy names is always allowed.
        uses: Number of runs, in all threads.
        rebuilds: Number of the plans that ran and were rebuilt from engine and knobs: in threads
            other than the one that selected it, or after a thread had dropped its plan.
    """

    pass_name: str
    policy: str
    device: str
    dtype: str
    timed: tuple[str, ...] = ()
    z: TensorDescriptor | None = None
    alpha: float = 1.0
    b: TensorDescriptor | None = None
    activation: str = "identity"
    negative_slope: float = 0.0
    deterministic: bool
    allow_tf32: bool
    uses: int
    rebuilds: int

    @property
    def plan(self) -> Plan:
        """The plan alone, without the convolution that it was selected for."""
        names = [field.name for field in dataclasses.fields(Plan)]
        return Plan(**{name: getattr(self, name) for name in names})
