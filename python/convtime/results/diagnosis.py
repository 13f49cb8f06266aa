"""What dominates an operation's time, and what makes it vary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from convtime.core import codec
from convtime.results.advice import Advice
from convtime.results.evidence import Evidence
from convtime.results.units import format_seconds, format_signed

#: What a time can be due to. ``launch-bound``: the GPU waits for launches. ``host-bound``: it waits
#: for other work of the host's. ``synchronisation``: the host waits for the GPU inside of the call.
#: ``missing-wait``: something is read before it is there. ``allocation``: CUDA, or a CPU's system,
#: is asked for memory. ``first-call``: loading, compiling, searching. ``cache``: what it holds.
#: ``clock``: of a GPU or a CPU. ``placement``: addresses. ``contention``: others' work.
#: ``layout``: how tensors lie, and accesses that are not coalesced. ``transfer``: between host and
#: GPU. ``data``: the numbers. ``process``: a fresh one takes another time. On a CPU alone:
#: ``threads``: those of this process slow each other down. ``page-faults``: memory is mapped anew.
#: ``blocking``: the call sleeps, or waits for files, locks or processes. ``python-overhead``: the
#: interpreter and the dispatcher. ``quota``: a cgroup stops the process. ``denormals``: numbers
#: close to 0. ``numa``: memory of another node.
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
    """One thing that an operation's time is due to, or that its time changes with.

    Attributes:
        code: what it is; see :data:`CauseCode`.
        sentence: that in words.
        evidence: what it is told by, a sentence each.
        effect: the share of a call's time that it takes, or moves it by, from 0 to 1.
        confidence: how sure that is, from 0 to 1.
        variance_share: of the variance of times over all conditions that were tried, what lies
            between this cause's; None where it was not varied.
        advice: what to do about it.
    """

    code: CauseCode
    sentence: str
    evidence: tuple[str, ...]
    effect: float
    confidence: float
    variance_share: float | None = None
    advice: tuple[Advice, ...] = ()

    def __str__(self) -> str:
        told = [f"{self.effect:.0%} of the time"]
        if self.variance_share is not None:
            told.append(f"{self.variance_share:.0%} of the variance")
        told.append(f"confidence {self.confidence:.2f}")
        return f"{self.code} ({', '.join(told)}): {self.sentence}"


@dataclasses.dataclass(frozen=True)
class Account:
    """Where the time of a call goes, in a loop that waits at its end alone. Seconds.

    The parts overlap, as host and device work at once: only ``busy`` and ``idle`` add up to
    ``seconds``.

    Attributes:
        seconds: of a call.
        busy: in which the device did anything.
        idle: in which it did nothing; 0 on a CPU.
        copies: of ``busy``, in which it copied from or to the host and did nothing else.
        issuing: in which the host worked on the call, waiting for the device left out.
        waiting: in which the host waited for the device inside of the call. On a CPU, in which the
            call slept, or waited for files, locks or other processes.
        allocating: in which it asked CUDA for memory, or gave some back.
        launches: kernels, copies and memsets.
        queued: on a CPU, in which one of its threads waited for a core.
        throttled: on a CPU, in which a cgroup's quota stopped it.
        faulting: on a CPU, in which memory was mapped.
        interpreting: on a CPU, outside of PyTorch's operators: in Python and what that calls.
        dispatching: on a CPU, in calling PyTorch's operators, their computations left out.
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
    """A part of the difference between two numbers.

    Attributes:
        name: ``cache``, ``flush``, ``clock``, ``placement``, ``gaps``, ``launch``, ``event cost``,
            ``waiting``, ``threads``, ``pages`` or ``statistics``.
        seconds: that it adds to this package's number, below 0 where it takes some off.
        sentence: what it is.
    """

    name: str
    seconds: float
    sentence: str

    def __str__(self) -> str:
        return f"{self.name} {format_signed(self.seconds)}"


@dataclasses.dataclass(frozen=True)
class Difference:
    """Another tool's number beside this package's, and what lies between them.

    Attributes:
        tool: which one it is, or was taken for.
        assumed: whether the tool is not known, and taken to work in the way that comes closest.
        theirs: its number, in seconds.
        ours: this package's.
        parts: what lies between the two; with ``unexplained`` they add up to their difference.
        unexplained: what remains.
    """

    tool: str
    assumed: bool
    theirs: float
    ours: float
    parts: tuple[Part, ...]
    unexplained: float

    @property
    def title(self) -> str:
        """The two numbers."""
        way = f"as by {self.tool}" if self.assumed else f"by {self.tool}"
        theirs, ours = map(format_seconds, (self.theirs, self.ours))
        return f"{theirs} {way}, and {ours} by convtime"

    def __str__(self) -> str:
        told = [*map(str, self.parts), f"unexplained {format_signed(self.unexplained)}"]
        return f"{self.title}: {', '.join(told)}"


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A contrast that was not looked at.

    Attributes:
        contrast: its name.
        reason: why it was not.
        varies: what it would have varied, in words.
    """

    contrast: str
    reason: str
    varies: str = ""


@dataclasses.dataclass(frozen=True, repr=False)
class Diagnosis(codec.Stored):
    """What dominates an operation's time and what makes it vary; see :func:`convtime.diagnose`.

    Attributes:
        name: what was diagnosed.
        causes: the weightiest first; empty where nothing was found.
        account: where the time of a call goes.
        evidence: all numbers that this was told by.
        skipped: what was not looked at, and why.
        difference: to the number that it was set against; None where there was none.
        advice: what was tried of a convolution, whatever the causes; empty for anything else.
        seconds: what the diagnosis took.
        device: where the work ran.
        unused_gpu: the GPU on which work was expected and to which the call gives none, so that it
            was diagnosed as work on the CPU; empty otherwise.
        provenance: hardware, software and source state (see convtime.core.provenance).
    """

    SCHEMA: ClassVar[str] = "1.3"

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
        """The code of the weightiest cause."""
        return self.causes[0].code if self.causes else "nothing"

    def __str__(self) -> str:
        """The causes with their evidence, what to do, and where the time goes."""
        from convtime.show.diagnosis import brief

        return brief(self)

    def __repr__(self) -> str:
        from convtime.show.diagnosis import line

        return f"<convtime.Diagnosis {line(self)}>"

    def details(self) -> str:
        """As printed, with every number that it was told by."""
        from convtime.show.diagnosis import sheet

        return sheet(self)

    def _repr_html_(self) -> str:
        from convtime.show.diagnosis import html_sheet

        return html_sheet(self)
