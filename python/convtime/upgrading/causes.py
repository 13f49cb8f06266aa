"""Derive the cause of a layer's change from the facts of both interpreters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

from convtime.regression.attribution import UNKNOWN_COMMITS, Attribution

#: Cause of a change. ``dtype``, ``sizes``, ``layout`` and ``module`` (its type or parameters): the
#: model makes another call. ``method``: convtime timed a test in another way. ``flag``: a setting
#: of torch differs, and the kernels or results with it. ``backend``, ``plan``, ``kernels``: torch
#: chose others for the same call. ``threads``: torch uses another number of threads. ``clock``: the
#: hardware or its clock. ``version``: torch, CUDA or cuDNN has another version, and nothing else
#: differs. ``unknown``: no recorded fact differs.
Cause = Literal[
    "dtype",
    "sizes",
    "layout",
    "module",
    "method",
    "flag",
    "backend",
    "plan",
    "kernels",
    "threads",
    "clock",
    "version",
    "unknown",
]

_CALL: tuple[Cause, ...] = ("dtype", "module", "sizes", "layout")
_CHOICES: tuple[Cause, ...] = ("backend", "plan", "kernels")
_VERSIONS = ("torch", "cuda", "cudnn")


@dataclasses.dataclass(frozen=True)
class PassFacts:
    """Facts of one pass of a layer, or of a test, in one interpreter.

    Of a test, only kernels and first call are known, and its plan if its time changed.

    Attributes:
        module: the layer's type and parameters.
        dtype: dtypes of its inputs and weights.
        sizes: sizes of its inputs.
        layout: memory formats of its inputs and weights.
        backend: PyTorch's backend for a convolution; empty if it is not one.
        plan: tag of cuDNN's plan; empty if none was built.
        kernels: names of the GPU's kernels, or of the operations on a CPU, with their number.
        bits: a number that depends on every bit of the results; empty if they do not repeat.
        error: largest error of the results compared with float64, over their largest magnitude;
            None if the layer does not compute in float64.
        memory_bytes: most memory that the first call allocated; None on a CPU.
        first_call_seconds: time of the first call in a process; None if it is unknown.
    """

    module: str = ""
    dtype: str = ""
    sizes: str = ""
    layout: str = ""
    backend: str = ""
    plan: str = ""
    kernels: tuple[str, ...] = ()
    bits: str = ""
    error: float | None = None
    memory_bytes: int | None = None
    first_call_seconds: float | None = None


@dataclasses.dataclass(frozen=True)
class Explained:
    """The cause of a change, with the recorded facts that it is derived from."""

    cause: Cause
    evidence: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.evidence}" if self.evidence else self.cause


def cause_of(
    before: PassFacts,
    after: PassFacts,
    settings: tuple[Mapping[str, str], Mapping[str, str]],
    attribution: Attribution | None,
) -> Explained:
    """Return the cause of a change: the earliest in the chain from the call to the kernels.

    Args:
        before: facts of the old interpreter.
        after: facts of the new interpreter.
        settings: versions and settings of both interpreters.
        attribution: the gate's attribution of the same change.
    """
    differing = {
        what: _change(getattr(before, what), getattr(after, what))
        for what in (*_CALL, *_CHOICES)
        if getattr(before, what) != getattr(after, what)
    }
    choices = [f"{what}: {differing[what]}" for what in _CHOICES if what in differing]
    flags = _differing(*settings, "flag ")
    gate_cause = None if attribution is None else attribution.cause
    gate_evidence = "" if attribution is None else attribution.evidence
    if not differing.keys().isdisjoint(_CALL):
        return _first_of(differing)
    if gate_cause == "method":
        return Explained("method", gate_evidence)
    # A setting holds for the whole process: it is the cause only where it has an effect.
    if flags and (choices or _other_bits(before, after)):
        return Explained("flag", "; ".join([", ".join(flags), *choices]))
    if choices:
        return _first_of(differing)
    if threads := _differing(*settings, "threads"):
        return Explained("threads", *threads)
    if gate_cause == "hardware or clocks":
        return Explained("clock", gate_evidence)
    if gate_evidence in ("", UNKNOWN_COMMITS):  # an interpreter has no commit
        gate_evidence = "no recorded fact differs"
    versions = [text for what in _VERSIONS for text in _differing(*settings, what)]
    new = [text for text in versions if text not in gate_evidence]
    return Explained("version" if versions else "unknown", "; ".join([*new, gate_evidence]))


def difference_of(before: PassFacts | None, after: PassFacts | None) -> str:
    """Describe how the results differ in their bits; empty if they agree or do not repeat."""
    if before is None or after is None or not _other_bits(before, after):
        return ""
    if before.error is None or after.error is None:
        return "the results differ in their bits"
    return (
        "the results differ in their bits; largest error compared with float64 "
        f"{before.error:.2g} → {after.error:.2g}"
    )


def _other_bits(before: PassFacts, after: PassFacts) -> bool:
    return bool(before.bits and after.bits) and before.bits != after.bits


def _first_of(differing: Mapping[Cause, str]) -> Explained:
    (cause, evidence), *others = differing.items()
    return Explained(cause, "; ".join([evidence, *(f"{what}: {text}" for what, text in others)]))


def _change(before: str | tuple[str, ...], after: str | tuple[str, ...]) -> str:
    if isinstance(before, str) or isinstance(after, str):
        return f"{before or 'none'} → {after or 'none'}"
    gone = [item for item in before if item not in after]
    new = [item for item in after if item not in before]
    return f"{', '.join(gone) or 'none'} → {', '.join(new) or 'none'}"


def _differing(before: Mapping[str, str], after: Mapping[str, str], beginning: str) -> list[str]:
    """Return the settings that begin so and differ; one that only one side knows does not."""
    return [
        f"{what.removeprefix('flag ')}: {value} → {after[what]}"
        for what, value in before.items()
        if what.startswith(beginning)
        and after.get(what, value) != value
        and "unknown" not in (value, after[what])
    ]
