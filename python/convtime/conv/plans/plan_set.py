"""Chosen plans of convolutions as data, and their file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock

from convtime.conv.plan_choice import engine_of, knobs_of
from convtime.core import codec, strict_json
from convtime.core.checks import require
from convtime.core.errors import InputError, one_line, why
from convtime.timing.verdict import Ratio
from convtime.view.shown import Shown

Layout = Literal["channels_last", "contiguous"]


@dataclasses.dataclass(frozen=True)
class Operand:
    """A tensor as described to cuDNN.

    Attributes:
        sizes: Size of each dimension; one spatial dimension has a height of 1.
        strides: Stride of each dimension, in elements.
        alignment: Alignment of the first element's address, in bytes; at most 32.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int


@dataclasses.dataclass(frozen=True)
class PlanProblem:
    """What a plan is chosen for: one cuDNN operation, y = conv(x, w).

    Attributes:
        pass_name: Which of the three it computes: "fprop" y, "dgrad" x, "wgrad" w. A transposed
            convolution is a "dgrad": x is its output.
        dtype: For example "float16".
        x: Input of the convolution.
        w: Weight.
        y: Output.
        stride: One number per spatial dimension.
        padding: One number per spatial dimension.
        dilation: One number per spatial dimension.
        deterministic: Whether torch asked for engines that are bitwise reproducible.
        allow_tf32: Whether torch allowed TF32.
        z: Tensor that is multiplied by `alpha` and added in the same operation, if any.
        alpha: See z.
        b: Bias in the same operation, if any.
        activation: Last step of the same operation.
        negative_slope: Slope of "leaky_relu".
    """

    pass_name: str
    dtype: str
    x: Operand
    w: Operand
    y: Operand
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    deterministic: bool
    allow_tf32: bool
    z: Operand | None = None
    alpha: float = 1.0
    b: Operand | None = None
    activation: str = "identity"
    negative_slope: float = 0.0

    @property
    def channels_last(self) -> bool:
        """Whether the input is in channels-last layout."""
        strides = self.x.strides
        return strides[1] == 1 and max(strides[2:]) > 1

    def __str__(self) -> str:
        layout = "channels_last" if self.channels_last else "contiguous"
        x, w = ("×".join(map(str, operand.sizes)) for operand in (self.x, self.w))
        return f"{self.pass_name} of {x} by {w}, {self.dtype} {layout}"


@dataclasses.dataclass(frozen=True)
class Choice:
    """How to compute a problem.

    Attributes:
        backend: "cudnn": the engine; "pytorch": as PyTorch does.
        engine: Index of cuDNN's engine; None for "pytorch".
        knobs: Its settings: cuDNN's number of each, and the value. Others have the engine's
            defaults.
        layout: The layout that the operands are first converted to, and the result from; None: they
            stay as they are.
    """

    backend: Literal["cudnn", "pytorch"]
    engine: int | None = None
    knobs: tuple[tuple[int, int], ...] = ()
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if (self.backend == "cudnn") != (self.engine is not None):
            raise ValueError("an engine is needed if backend is 'cudnn', and only then")

    @classmethod
    def of_tag(cls, tag: str, layout: Layout | None = None) -> Choice:
        """Return the choice of the engine that a tag names, e.g. "ConvFwd_eng38_k2=8_k13=1".

        Raises:
            ValueError: The tag does not name an engine.
        """
        return cls("cudnn", engine_of(tag), tuple(knobs_of(tag).items()), layout)

    def with_knob(self, knob: int, value: int) -> Choice:
        knobs = dict(self.knobs) | {knob: value}
        return dataclasses.replace(self, knobs=tuple(knobs.items()))

    @property
    def tag(self) -> str:
        """The engine's tag, e.g. "eng38_k2=8_k13=1"; "PyTorch" for PyTorch's own way."""
        if self.engine is None:
            return "PyTorch"
        return f"eng{self.engine}" + "".join(f"_k{knob}={value}" for knob, value in self.knobs)

    def __str__(self) -> str:
        return self.tag if self.layout is None else f"{self.tag} in {self.layout}"


@dataclasses.dataclass(frozen=True)
class SearchFacts:
    """What was found when a choice was made. It is no part of its identity.

    Attributes:
        pytorch_tag: PyTorch's own engine; empty if it is not known, or not one of cuDNN.
        pytorch_seconds: Time of PyTorch's own choice.
        seconds: Time of the choice, converting layouts included.
        speedup: PyTorch's time divided by the choice's, from paired samples.
        error: Root mean square of its difference from the result in float64, relative to that
            result; None if unknown.
        pytorch_error: The same of PyTorch's own result.
        workspace_bytes: Memory that it needs in addition to its tensors; None if unknown.
        repeats: Whether repeated runs gave the same bits.
        raced: Number of candidates that were timed.
        ties: The candidates that are as fast, within the margin, in the order of preference.
        inexact: Candidates that were not timed because of their error, with the error.
        refused: Candidates that could not run, do not meet a limit, or were not built because the
            budget was used, with the reason.
        budget_seconds: Duration of the search, without PyTorch's first call.
    """

    pytorch_tag: str
    pytorch_seconds: float
    seconds: float
    speedup: Ratio
    error: float | None
    pytorch_error: float | None
    workspace_bytes: int | None
    repeats: bool
    raced: int
    ties: tuple[str, ...]
    inexact: tuple[tuple[str, float], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    budget_seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class StoredPlan:
    """A problem on a kind of GPU, and the choice for it.

    Attributes:
        name: Where the problem occurs, e.g. "layer1.0.conv1".
        count: How often it occurs there.
        problem: The problem.
        architecture: The GPU's, e.g. 90 for compute capability 9.0.
        multiprocessors: Their number.
        choice: The choice.
        facts: What was measured; None for an entry that was written by hand.
    """

    name: str
    problem: PlanProblem
    architecture: int
    multiprocessors: int
    choice: Choice
    count: int = 1
    facts: SearchFacts | None = None

    @property
    def key(self) -> tuple[PlanProblem, int, int]:
        """What identifies an entry: a file has one for each key."""
        return self.problem, self.architecture, self.multiprocessors


@dataclasses.dataclass(frozen=True, repr=False)
class Plans(codec.Stored, Shown, show="convtime.conv.plans.show", package="convtime.conv"):
    """Chosen plans of convolutions; see :func:`convtime.conv.tune`.

    Attributes:
        entries: One for each problem and kind of GPU.
        margin: Relative difference of times that counts as equal.
        provenance: Hardware and software that they were chosen with (see
            convtime.device.provenance). Plans are used with the same version of cuDNN only.
    """

    entries: tuple[StoredPlan, ...]
    margin: float
    provenance: Mapping[str, Any]

    def updated(self, newer: Plans) -> Plans:
        """Return the entries of both; those of `newer` replace those of the same key.

        Raises:
            InputError: They were chosen with different versions of cuDNN.
        """
        mine, other = self.provenance.get("cudnn"), newer.provenance.get("cudnn")
        require(
            mine == other,
            f"these plans were chosen with cuDNN {mine} and cannot be joined with those of "
            f"cuDNN {other}; check them with convtime tune --revalidate, or write another file",
        )
        entries = {entry.key: entry for entry in (*self.entries, *newer.entries)}
        return dataclasses.replace(newer, entries=tuple(entries.values()))

    def add_to(self, path: str | os.PathLike[str]) -> Plans:
        """Write the plans to a file, which keeps its entries for other problems and GPUs.

        Processes that write to one file at the same time wait for each other.

        Args:
            path: The file; it may not exist yet.

        Returns:
            All plans of the file.

        Raises:
            InputError: The file is not one of plans, has plans of another cuDNN, or cannot be
                written.
        """
        target = Path(path)
        try:
            with FileLock(f"{target}.lock"):
                plans = read_plans(target).updated(self) if target.exists() else self
                plans.save(target)
        except OSError as error:
            raise InputError(f"{target}: cannot be written ({error.strerror})") from error
        return plans


def read_plans(path: str | os.PathLike[str]) -> Plans:
    """Read a file of plans.

    Raises:
        InputError: It cannot be read, or has something else.
    """
    path = Path(path)
    try:
        plans = Plans.from_dict(strict_json.parse(path.read_bytes().decode(), str(path)))
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({why(error)})") from error
    except ValueError as error:  # also of a path with a NUL, and of bytes that are not UTF-8
        raise InputError(f"{path}: is no file of plans ({one_line(error)})") from error
    keys = [entry.key for entry in plans.entries]
    for place, key in enumerate(keys):
        require(
            key not in keys[:place], f"{path}: has two entries for {key[0]}; delete one of them"
        )
    return plans
