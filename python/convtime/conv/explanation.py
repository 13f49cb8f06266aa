"""The plans and kernels of PyTorch and convtime for a convolution, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from convtime.conv.advice import Advice
from convtime.conv.call import ConvCall
from convtime.conv.plan_choice import Plan
from convtime.core import codec
from convtime.timing.activity import DeviceActivity
from convtime.timing.verdict import Ratio
from convtime.view.shown import Shown


@dataclasses.dataclass(frozen=True)
class Side:
    """How one side, PyTorch or convtime, runs a pass.

    Attributes:
        plan: The cuDNN plan; None if there is none or it is unknown.
        no_plan: Why there is no plan; empty if there is one.
        kernels: The device activities, in order; empty on a CPU.
        seconds: The median time of a call.
        method: How that time was measured: see convtime.Measurement.
    """

    plan: Plan | None
    no_plan: str
    kernels: tuple[DeviceActivity, ...]
    seconds: float
    method: str


@dataclasses.dataclass(frozen=True)
class PassExplanation:
    """One pass, as run by PyTorch and by convtime.

    Attributes:
        name: "fprop", "dgrad" (gradient of the input) or "wgrad" (gradient of the weight). A
            transposed convolution's fprop is cuDNN's dgrad, and its dgrad is cuDNN's fprop, as the
            tags show.
        backend: The name of the ConvBackend that PyTorch selects, e.g. "Cudnn".
        why: Why PyTorch selects it, in one sentence.
        pytorch: How PyTorch runs the pass.
        convtime: How convtime runs the pass.
        ratio: convtime's time divided by PyTorch's, from interleaved calls.
        verdict: The verdict from the ratio's interval: see convtime.Comparison.verdict.
        bit_identical: Whether both results are bitwise identical.
        pytorch_repeats: Whether PyTorch's further calls give the same bits as its first.
        differences: All differences between the two, in one sentence each, except for times, which
            always differ. Empty: both run the same.
        advice: Other layouts, dtypes and sizes, with the time of PyTorch's call for each.
    """

    name: str
    backend: str
    why: str
    pytorch: Side
    convtime: Side
    ratio: Ratio
    verdict: str
    bit_identical: bool
    pytorch_repeats: bool
    differences: tuple[str, ...]
    advice: tuple[Advice, ...] = ()


@dataclasses.dataclass(frozen=True, repr=False)
class Explanation(
    codec.Stored, Shown, show="convtime.conv.show_explanation", package="convtime.conv"
):
    """The plans and kernels of PyTorch and convtime for a convolution; see :func:`explain`.

    Attributes:
        call: The convolution: problem, dtype, layouts and torch's flags.
        device: The device that ran it, e.g. "cuda:0".
        policy: convtime's selection policy; None: follow torch.backends.cudnn.benchmark.
        passes: The forward pass first, then those of the backward pass.
        provenance: Hardware, software and source state (see convtime.device.provenance).
    """

    call: ConvCall
    device: str
    policy: str | None
    passes: tuple[PassExplanation, ...]
    provenance: Mapping[str, Any]

    @property
    def backend(self) -> str:
        """The backend that PyTorch selects for the forward pass, e.g. "Cudnn"."""
        return self.passes[0].backend

    @property
    def why(self) -> str:
        """Why PyTorch selects it, in one sentence."""
        return self.passes[0].why

    @property
    def differences(self) -> tuple[str, ...]:
        """The differences of all passes; empty: PyTorch and convtime run the same."""
        return tuple(f"{each.name}: {text}" for each in self.passes for text in each.differences)
