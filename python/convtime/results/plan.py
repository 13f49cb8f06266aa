"""cuDNN's plans as data: PyTorch's, as its log has them, and convtime's.

Imports nothing compiled: the child of convtime.conv.plan_oracle loads it without convtime's core.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

_ENGINE = re.compile(r"_eng(\d+)")
_KNOB = re.compile(r"_k(\d+)=(-?\d+)")


@dataclasses.dataclass(frozen=True)
class TensorDescriptor:
    """A tensor as cuDNN is told of it.

    Attributes:
        sizes: Of each dimension.
        strides: Of each dimension, in elements; those of dimensions of size one are a dense
            tensor's.
        alignment: Of the first element's address, in bytes; 32 where it is more.
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
    """A cuDNN execution plan, and what cuDNN was told when it was chosen.

    Attributes:
        tag: Name of operation, engine and knobs, as the cuDNN frontend's log has it, e.g.
            "ConvFwd_eng38_k2=8_k13=1"; a policy for :func:`convtime.ops.conv2d`.
        source: How it was selected: "heuristic" or "benchmark" for PyTorch; for convtime the list
            that it comes from: "instant" (cuDNN's heuristics) or "fallback"; "benchmark" where a
            timed run decided, "explicit" where the policy named it.
        workspace_bytes: Memory that it needs beside its tensors.
        numerical_notes: cuDNN's names of what it does to numbers, less their common beginning.
        behavior_notes: cuDNN's names of what else is particular about it, likewise.
        refused: What came before it and could not be used, as "tag" or "tag: reason".
        x: The input of cuDNN's convolution, or its gradient. As all tensors of one spatial
            dimension, with a height of 1. None where it is not known; so are all that follow. A
            transposed convolution's own output is x (see ConvProblem.cudnn_problem).
        w: The weight, or its gradient.
        y: The output, or its gradient.
        compute_type: In which it is computed, e.g. "float32".
        stride: One number a spatial dimension; so are padding and dilation.
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
        """The engine's index among those of the operation.

        Raises:
            ValueError: For a tag that names none.
        """
        match = _ENGINE.search(self.tag)
        if match is None:
            raise ValueError(
                f"a plan's tag must name an engine (_eng and a number), got {self.tag!r}"
            )
        return int(match[1])

    @property
    def knobs(self) -> Mapping[int, int]:
        """The engine's settings, by cuDNN's number of each."""
        return {int(knob): int(value) for knob, value in _KNOB.findall(self.tag)}


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class PlanChoice(Plan):
    """A plan that convtime's convolutions have selected, and for what.

    Attributes:
        pass_name: "fprop", "dgrad" or "wgrad" of y = conv(x, w). A transposed convolution is a
            "dgrad": x is its output, y its input.
        policy: What selected it: "heuristic", "benchmark" or an engine's tag.
        device: For example "cuda:0".
        dtype: For example "float32".
        timed: Tags of the plans that were timed, in that order, where a timed run decided.
        z: What is added to the convolution in the same graph, times `alpha`; None for nothing.
        alpha: See z.
        b: The bias in the same graph; None where there is none, or it is added afterwards.
        activation: With which the graph ends, as :func:`convtime.ops.conv2d_epilogue` names it.
        negative_slope: Of "leaky_relu".
        deterministic: Engines that do not repeat bit for bit were left out, unless the policy named
            the engine: see its numerical_notes.
        allow_tf32: Engines that use tensor cores for float32 were not left out. As deterministic,
            it does not bind an engine that the policy named.
        uses: How often it has run, in all threads.
        rebuilds: How many of the plans that ran were built anew from its engine and knobs: in other
            threads than the one that selected it, or where a thread had dropped its own.
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

    def __str__(self) -> str:
        """One line: for what it was chosen, which plan it is, and how often it ran."""
        from convtime.show.plan import line

        return line(self)

    def __repr__(self) -> str:
        return f"<convtime.PlanChoice {self}>"

    def details(self) -> str:
        """All that is known, a line for each fact."""
        from convtime.show.plan import sheet

        return sheet(self)

    def _repr_html_(self) -> str:
        from convtime.show.plan import html_sheet

        return html_sheet(self)

    @property
    def plan(self) -> Plan:
        """The plan alone, without what it was selected for."""
        names = [field.name for field in dataclasses.fields(Plan)]
        return Plan(**{name: getattr(self, name) for name in names})
