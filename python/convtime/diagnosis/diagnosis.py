"""Causes that dominate an operation's time or make it vary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from convtime.conv.advice import Advice
from convtime.core import codec
from convtime.diagnosis.evidence import Evidence
from convtime.view.shown import Shown
from convtime.view.wording import format_seconds, format_signed

#: Possible causes of a time. ``launch-bound``: the GPU waits for launches. ``host-bound``: it waits
#: for other host work. ``synchronisation``: the host waits for the GPU inside the call.
#: ``missing-wait``: a value is read before it is ready. ``allocation``: memory is requested from
#: CUDA or, on a CPU, from the system. ``first-call``: loading, compiling, searching. ``cache``:
#: the cache's content. ``clock``: clock of a GPU or CPU. ``placement``: addresses. ``contention``:
#: work of others. ``layout``: memory layout of tensors, and uncoalesced accesses. ``transfer``:
#: between host and GPU. ``data``: the values. ``process``: the time differs in a fresh process.
#: On a CPU only: ``threads``: this process's threads slow each other down. ``page-faults``: memory
#: is mapped anew. ``blocking``: the call sleeps, or waits for files, locks or processes.
#: ``python-overhead``: the interpreter and the dispatcher. ``quota``: a cgroup stops the process.
#: ``denormals``: values close to 0. ``numa``: memory of another node.
CauseCode = Literal[
    "launch-bound",
    "host-bound",
    "synchronisation",
    "missing-wait",
    "allocation",
    "first-call",
    "cache",
    "clock",
    "placement",
    "contention",
    "layout",
    "transfer",
    "data",
    "threads",
    "process",
    "page-faults",
    "blocking",
    "python-overhead",
    "quota",
    "denormals",
    "numa",
]


@dataclasses.dataclass(frozen=True)
class Cause:
    """One cause of an operation's time, or of changes in its time.

    Attributes:
        code: code of the cause; see :data:`CauseCode`.
        sentence: the cause in words.
        evidence: the evidence for it, one sentence each.
        effect: share of a call's time that it takes or changes, from 0 to 1.
        confidence: confidence in the finding, from 0 to 1.
        variance_share: share of the variance of the times over all tried conditions that is between
            the conditions of this cause; None if its conditions were not varied.
        advice: suggestions.
    """

    code: CauseCode
    sentence: str
    evidence: tuple[str, ...]
    effect: float
    confidence: float
    variance_share: float | None = None
    advice: tuple[Advice, ...] = ()

    def __str__(self) -> str:
        weight = f"{self.effect:.0%} of the time"
        if self.variance_share is not None:
            weight += f", {self.variance_share:.0%} of the variance"
        return f"{self.code} ({weight}, confidence {self.confidence:.2f}): {self.sentence}"


@dataclasses.dataclass(frozen=True)
class Account:
    """Breakdown of a call's time in a loop that waits only at its end. Unit: seconds.

    The parts overlap because host and device work concurrently. Only ``busy`` and ``idle`` add up
    to ``seconds``.

    Attributes:
        seconds: time of a call.
        busy: time in which the device did anything.
        idle: time in which the device did nothing; 0 on a CPU.
        copies: part of ``busy`` in which the device only copied from or to the host.
        issuing: time in which the host worked on the call, without waiting for the device.
        waiting: time in which the host waited for the device inside the call. On a CPU, time in
            which the call slept, or waited for files, locks or other processes.
        allocating: time in which the host requested memory from CUDA or returned it.
        launches: number of kernels, copies and memsets.
        queued: on a CPU, time in which one of its threads waited for a core.
        throttled: on a CPU, time in which a cgroup's quota stopped it.
        faulting: on a CPU, time in which memory was mapped.
        interpreting: on a CPU, time outside PyTorch's operators: in Python and in code it calls.
        dispatching: on a CPU, time to call PyTorch's operators, without their computations.
    """

    seconds: float
    busy: float
    idle: float
    copies: float
    issuing: float
    waiting: float
    allocating: float
    launches: float
    queued: float = 0.0
    throttled: float = 0.0
    faulting: float = 0.0
    interpreting: float = 0.0
    dispatching: float = 0.0


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of the difference between two times.

    Attributes:
        name: ``cache``, ``flush``, ``clock``, ``placement``, ``gaps``, ``launch``, ``event cost``,
            ``waiting``, ``threads``, ``pages`` or ``statistics``.
        seconds: its contribution to convtime's time; negative if it reduces that time.
        sentence: description of the part.
    """

    name: str
    seconds: float
    sentence: str

    def __str__(self) -> str:
        return f"{self.name} {format_signed(self.seconds)}"


@dataclasses.dataclass(frozen=True)
class Difference:
    """Another tool's time compared with convtime's, and the parts of their difference.

    Attributes:
        tool: name of the tool, given or assumed.
        assumed: whether the tool is unknown, and the one that matches best was assumed.
        theirs: the tool's time, in seconds.
        ours: convtime's time, in seconds.
        parts: parts of the difference; together with ``unexplained`` they add up to it.
        unexplained: the remaining difference.
    """

    tool: str
    assumed: bool
    theirs: float
    ours: float
    parts: tuple[Part, ...]
    unexplained: float

    @property
    def title(self) -> str:
        """The two times in words."""
        way = f"as by {self.tool}" if self.assumed else f"by {self.tool}"
        theirs, ours = map(format_seconds, (self.theirs, self.ours))
        return f"{theirs} {way}, and {ours} by convtime"

    def __str__(self) -> str:
        parts = [*map(str, self.parts), f"unexplained {format_signed(self.unexplained)}"]
        return f"{self.title}: {', '.join(parts)}"


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A contrast that was not examined.

    Attributes:
        contrast: name of the contrast.
        reason: why it was not examined.
        varies: the condition that it would have varied, in words.
    """

    contrast: str
    reason: str
    varies: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis(codec.Stored, Shown, show="convtime.diagnosis.show"):
    """Causes that dominate an operation's time or make it vary; see :func:`convtime.diagnose`.

    Attributes:
        name: name of the operation.
        causes: causes, the largest first; empty if none was found.
        account: breakdown of a call's time.
        evidence: all measured values behind the causes.
        skipped: contrasts that were not examined, and why.
        difference: difference to the other tool's time; None if no such time was given.
        advice: suggestions that were tried for a convolution, independent of the causes; empty for
            any other operation.
        seconds: duration of the diagnosis.
        device: device on which the work ran.
        unused_gpu: the GPU that was expected to run work but received none from the call, which was
            therefore diagnosed as CPU work; empty otherwise.
        provenance: hardware, software and source state (see convtime.device.provenance).
    """

    name: str
    causes: tuple[Cause, ...]
    account: Account
    evidence: Evidence
    skipped: tuple[Skipped, ...]
    difference: Difference | None
    advice: tuple[Advice, ...]
    seconds: float
    device: str
    unused_gpu: str = ""
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def first(self) -> CauseCode | Literal["nothing"]:
        """The code of the largest cause, or ``nothing``."""
        return self.causes[0].code if self.causes else "nothing"
