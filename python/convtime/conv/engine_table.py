"""All engines of cuDNN for a convolution, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from convtime.conv.call import ConvCall
from convtime.core import codec
from convtime.timing.measurement import Measurement
from convtime.view.figure import Figure
from convtime.view.shown import Shown


@dataclasses.dataclass(frozen=True)
class KnobRange:
    """The values that an engine allows for one of its settings.

    Attributes:
        knob: cuDNN's number of the setting (cudnnBackendKnobType_t), as in a tag.
        minimum: Smallest value.
        maximum: Largest value.
        step: Distance of the values; 0 or 1: every value between them.
    """

    knob: int
    minimum: int
    maximum: int
    step: int


@dataclasses.dataclass(frozen=True)
class EngineResult:
    """One engine with its settings.

    Attributes:
        tag: Name of operation, engine and settings, e.g. "ConvFwd_eng38_k2=8_k13=1"; a policy for
            :func:`convtime.ops.conv2d`.
        places: Where cuDNN lists it, and at which position from 0: "instant" (the list by which
            PyTorch selects), "a", "b", "fallback", or "index" (all engines with default settings).
        knob_ranges: The settings that it has, and their values.
        numerical_notes: cuDNN's names of its effects on numerics, without their common prefix.
        behavior_notes: cuDNN's names of other properties, without their common prefix.
        workspace_bytes: Memory that it needs in addition to its tensors; None if it is not known
            without a plan.
        shared_memory_bytes: Shared memory of a block; None if it is not known.
        refused: Why it was not run: cuDNN's or PyTorch's reason, or its failure. Empty if it was.
        build_seconds: Time for building the plan, which may compile a kernel; None if not built.
        measurement: Time of the pass; None if it was not timed.
        error: Root mean square of the difference from the result in float64, relative to that of
            the result. None if it is not known.
        repeats: Whether three runs gave the same bits; None if it was not run.
    """

    tag: str
    places: tuple[tuple[str, int], ...]
    knob_ranges: tuple[KnobRange, ...] = ()
    numerical_notes: tuple[str, ...] = ()
    behavior_notes: tuple[str, ...] = ()
    workspace_bytes: int | None = None
    shared_memory_bytes: int | None = None
    refused: str = ""
    build_seconds: float | None = None
    measurement: Measurement | None = None
    error: float | None = None
    repeats: bool | None = None


@dataclasses.dataclass(frozen=True)
class PassEngines:
    """All engines for one pass.

    Attributes:
        name: "fprop", "dgrad" (gradient of the input) or "wgrad" (gradient of the weight).
        backend: The name of the ConvBackend that PyTorch selects, e.g. "Cudnn". Engines are listed
            only if it runs cuDNN.
        pytorch: Time of PyTorch's call, without the bias.
        pytorch_tag: Tag of the plan that PyTorch's log names; None if it is not known.
        unknown: Why it is not known; empty if it is.
        pytorch_error: As EngineResult.error, of PyTorch's own result.
        engines: In cuDNN's order: the lists first.
    """

    name: str
    backend: str
    pytorch: Measurement
    pytorch_tag: str | None
    unknown: str
    pytorch_error: float | None
    engines: tuple[EngineResult, ...]

    @property
    def timed(self) -> tuple[EngineResult, ...]:
        """The engines that were timed, the fastest first."""
        ran = [(engine, engine.measurement) for engine in self.engines if engine.measurement]
        return tuple(engine for engine, _ in sorted(ran, key=lambda pair: pair[1].median))


@dataclasses.dataclass(frozen=True, repr=False)
class EngineTable(codec.Stored, Shown, show="convtime.conv.show_engines", package="convtime.conv"):
    """All engines of cuDNN for a convolution; see :func:`convtime.conv.engines`.

    Attributes:
        call: The convolution: problem, dtype, layouts and torch's flags.
        device: The GPU, e.g. "cuda:0".
        passes: The forward pass first, then those of the backward pass.
        provenance: Hardware, software and source state (see convtime.device.provenance).
    """

    call: ConvCall
    device: str
    passes: tuple[PassEngines, ...]
    provenance: Mapping[str, Any]

    def plot(self) -> Figure:
        """Draw the time of each engine against its workspace, and mark PyTorch's choice."""
        figure: Figure = self._drawing().plot(self)
        return figure
