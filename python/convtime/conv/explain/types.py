"""What PyTorch and convtime run for a convolution, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from convtime.conv.call import ConvCall
from convtime.core import codec
from convtime.results.activity import DeviceActivity
from convtime.results.advice import Advice
from convtime.results.comparison import Ratio
from convtime.results.plan import Plan


@dataclasses.dataclass(frozen=True)
class Side:
    """What one of the two, PyTorch or convtime, does for a pass.

    Attributes:
        plan: The cuDNN plan; None where there is none, or where it is not known.
        no_plan: Why there is no plan; empty where there is one.
        kernels: What the device does, in order; empty on a CPU.
        seconds: The median time of a call.
        method: What that time is: see convtime.Measurement.
    """

    plan: Plan | None
    no_plan: str
    kernels: tuple[DeviceActivity, ...]
    seconds: float
    method: str


@dataclasses.dataclass(frozen=True)
class PassExplanation:
    """One pass, as PyTorch and as convtime run it.

    Attributes:
        name: "fprop", "dgrad" (the input's gradient) or "wgrad" (the weight's). A transposed
            convolution's fprop is cuDNN's dgrad, and its dgrad cuDNN's fprop, as the tags say.
        backend: What PyTorch chooses, by the name of its ConvBackend, e.g. "Cudnn".
        why: Why PyTorch chooses that, a sentence.
        pytorch: What PyTorch does.
        convtime: What convtime does.
        ratio: convtime's time over PyTorch's, from calls that took turns.
        verdict: What the ratio's interval says: see convtime.Comparison.verdict.
        bit_identical: Both results are the same bits.
        pytorch_repeats: PyTorch's own further calls give the same bits as its first.
        differences: Everything that is not the same in what the two run, a sentence each; times,
            which never are the same, aside. Empty: they run the same.
        advice: Other layouts, dtypes and sizes, with what a call of PyTorch's takes in each.
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
class Explanation(codec.Stored):
    """What PyTorch and convtime run for a convolution; see :func:`explain`.

    Attributes:
        call: The convolution: problem, dtype, layouts and torch's flags.
        device: Where it ran, e.g. "cuda:0".
        policy: convtime's selection policy; None: as torch.backends.cudnn.benchmark says.
        passes: Forward first, then those of the backward pass.
        provenance: Hardware, software and source state (see convtime.core.provenance).
    """

    SCHEMA: ClassVar[str] = "2.1"

    call: ConvCall
    device: str
    policy: str | None
    passes: tuple[PassExplanation, ...]
    provenance: Mapping[str, Any]

    @property
    def backend(self) -> str:
        """What PyTorch chooses for the forward pass, e.g. "Cudnn"."""
        return self.passes[0].backend

    @property
    def why(self) -> str:
        """Why PyTorch chooses that, a sentence."""
        return self.passes[0].why

    @property
    def differences(self) -> tuple[str, ...]:
        """Those of all passes; empty: PyTorch and convtime run the same."""
        return tuple(f"{found.name}: {text}" for found in self.passes for text in found.differences)

    def __str__(self) -> str:
        """Of each pass: the same or not, plan, time, and what the time goes into."""
        from convtime.show.explanation import brief

        return brief(self)

    def __repr__(self) -> str:
        from convtime.show.explanation import line

        return f"<convtime.Explanation {line(self)}>"

    def details(self) -> str:
        """As printed, with all that is known of plans and kernels."""
        from convtime.show.explanation import sheet

        return sheet(self)

    def _repr_html_(self) -> str:
        from convtime.show.explanation import html_sheet

        return html_sheet(self)
