"""The cuDNN plans that convtime's convolutions have selected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from convtime._load import _C


@dataclass(frozen=True)
class TensorDescriptor:
    """A tensor as cuDNN's descriptor sees it.

    Attributes:
        strides: In elements; those of dimensions of size one are a dense tensor's.
        alignment: Of the first element's address, in bytes; 32 where it is more.
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int


@dataclass(frozen=True)
class PlanChoice:
    """Which plan was selected for a convolution, and why.

    Attributes:
        pass_name: "fprop", "dgrad" or "wgrad" of y = conv(x, w). A transposed convolution is a
            "dgrad": x is its output, y its input.
        policy: What selected it: "heuristic", "benchmark" or an engine's tag.
        device: For example "cuda:0".
        dtype: For example "float32".
        x: The input, or its gradient. As all tensors of one spatial dimension, with a height of 1.
        w: The weight, or its gradient.
        y: The output, or its gradient.
        deterministic: Engines that do not repeat bit for bit were left out, unless the policy named
            the engine: see its numerical_notes.
        allow_tf32: Engines that use tensor cores for float32 were not left out. As deterministic,
            it does not bind an engine that the policy named.
        tag: Name of operation, engine and knobs, as the cuDNN frontend's log has it; a policy for
            :func:`convtime.ops.conv2d`.
        engine: cuDNN's index of the engine.
        knobs: The engine's settings, by cuDNN's number of each.
        source: The list that it comes from: "instant" (cuDNN's heuristics) or "fallback";
            "benchmark" where a timed run decided, "explicit" where the policy named it.
        workspace_bytes: Memory that it needs beside its tensors.
        numerical_notes: cuDNN's names of what it does to numbers.
        behavior_notes: cuDNN's names of what else is particular about it.
        refused: What came before it and did not run, as "tag: reason".
        uses: How often it has run, in all threads.
    """

    pass_name: str
    policy: str
    device: str
    dtype: str
    x: TensorDescriptor
    w: TensorDescriptor
    y: TensorDescriptor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    deterministic: bool
    allow_tf32: bool
    tag: str
    engine: int
    knobs: Mapping[int, int]
    source: str
    workspace_bytes: int
    numerical_notes: tuple[str, ...]
    behavior_notes: tuple[str, ...]
    refused: tuple[str, ...]
    uses: int


def plan_cache() -> tuple[PlanChoice, ...]:
    """What was selected so far in this process, the most recently used last.

    All threads share the choices; each builds its own plans of them. There are at most 10,000; the
    ones that were not used for longest are dropped.
    """
    return tuple(_plan_choice(record) for record in _C.plan_cache())


def clear_plan_cache() -> None:
    """Forgets every choice and every plan: the next call of each convolution selects anew.

    CUDA graphs that were captured before may need the plans that go, and must not be replayed.
    """
    _C.clear_plan_cache()


def _plan_choice(record: Mapping[str, Any]) -> PlanChoice:
    tensors = {
        name: TensorDescriptor(
            **{key: record[name][key] for key in ("sizes", "strides", "alignment")}
        )
        for name in ("x", "w", "y")
    }
    (engine,) = re.findall(r"eng(\d+)", record["tag"])
    knobs = {int(knob): int(value) for knob, value in re.findall(r"_k(\d+)=(-?\d+)", record["tag"])}
    return PlanChoice(**{**record, **tensors, "engine": int(engine), "knobs": knobs})
