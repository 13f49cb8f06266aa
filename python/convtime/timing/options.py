"""The timing options: the single list from which signatures and docs are generated."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import (
    Annotated,
    Any,
    Literal,
    SupportsFloat,
    TypedDict,
    get_args,
    get_origin,
    get_type_hints,
)

import torch

from convtime.core.checks import (
    as_whole,
    check_one_of,
    check_type,
    check_whole,
    described,
    is_finite,
    require,
)
from convtime.core.load import _C
from convtime.device.cpu import check_pin
from convtime.view.wording import format_seconds

Method = Literal["auto", "kernel", "event", "graph", "sync", "cpu"]
Metric = Literal["busy", "span", "sum"]
Queue = Literal["gate", "sleep", "none"]
Cache = Literal["auto", "cold", "cold-clean", "warm", "rotate"]
Placement = Literal["auto", "random", "as-is", "aligned"]
Pages = Literal["auto", "as-is", "fresh", "retained"]
Regime = Literal["auto", "as-is", "burst", "sustained"]
Clocks = Literal["observe", "lock"]
Stop = Literal["interval", "noise", "entropy", "verdict", "count", "budget"]


@dataclasses.dataclass(frozen=True)
class BatchRecord:
    """One batch of calls that were issued together: rounds of one call per candidate.

    Attributes:
        number: number of the batch, from 1.
        phase: ``warm-up`` (its last batches may also become samples) or ``sampling``.
        rounds: number of rounds.
        held: whether the queue was held until all calls were issued; None if no hold was requested.
        fate: use of its samples and of earlier ones: ``kept``, ``set aside`` and so on.
        gap_seconds: time for which the GPU was idle before the batch.
        idle_clock_hz: the SM clock at the end of that gap; None if it is unknown.
        lowest_clock_hz: the lowest SM clock of its calls; None if it is unknown.
        highest_clock_hz: the highest SM clock of its calls; None if it is unknown.
        issue_seconds: host time to issue its calls.
        wall_seconds: time from the first call's issue until all calls were done.
    """

    number: int
    phase: str
    rounds: int
    held: bool | None
    fate: str
    gap_seconds: float
    idle_clock_hz: float | None
    lowest_clock_hz: float | None
    highest_clock_hz: float | None
    issue_seconds: float
    wall_seconds: float

    def __str__(self) -> str:
        held = {None: "", True: ", held", False: ", not held"}[self.held]
        facts = [f"batch {self.number} ({self.phase}): {self.rounds} rounds{held}, {self.fate}"]
        if self.gap_seconds:
            idle_hz = self.idle_clock_hz
            then = "" if idle_hz is None else f", then at {idle_hz / 1e6:.0f} MHz"
            facts.append(f"idle for {format_seconds(self.gap_seconds)}{then}")
        if self.lowest_clock_hz is not None and self.highest_clock_hz is not None:
            lowest, highest = self.lowest_clock_hz / 1e6, self.highest_clock_hz / 1e6
            facts.append(f"clock {lowest:.0f} .. {highest:.0f} MHz")
        facts.append(f"issued in {format_seconds(self.issue_seconds)}")
        facts.append(f"done after {format_seconds(self.wall_seconds)}")
        return "; ".join(facts)


# The keywords of functions, by which type checkers and :func:`options_of` check them.


class CallOptions(TypedDict, total=False):
    """The keywords of :class:`convtime.Candidate`."""

    kwargs: Mapping[str, Any] | None
    name: str | None
    before: Callable[[], object] | None
    grad_to_none: Iterable[torch.Tensor] | None
    backward: bool
    flops: float | None
    nbytes: float | None


class PlaceOptions(TypedDict, total=False):
    """Where the work is."""

    device: torch.device | str | int | None
    stream: torch.cuda.Stream | None


class DeviceOptions(PlaceOptions, total=False):
    """Where the work is, and whether others wait for it."""

    exclusive: bool


class RaceOptions(DeviceOptions, total=False):
    """What ``race`` takes as ``time_op`` does."""

    method: Method
    metric: Metric
    queue: Queue
    cache: Cache
    placement: Placement
    pages: Pages
    regime: Regime
    clocks: Clocks
    pin: int | None
    log: Callable[[BatchRecord], object] | None


class TuneOptions(RaceOptions, total=False):
    """What ``tune`` takes as ``time_op`` does."""

    timeout: float | None


class LimitOptions(TuneOptions, total=False):
    """:class:`Options` without ``budget``, ``stop``, ``margin`` and ``quick``."""

    warmup: Literal["steady"] | SupportsFloat
    tolerance: float
    min_samples: int
    max_samples: int | None


class SharedOptions(LimitOptions, total=False):
    """:class:`Options` without ``stop`` and ``margin``."""

    quick: bool
    budget: float


class SweepOptions(SharedOptions, total=False):
    """:class:`Options` without ``margin``."""

    stop: Stop


class EngineOptions(LimitOptions, total=False):
    """What ``engines`` takes as ``time_op`` does."""

    budget: float
    stop: Stop
    margin: float


class ExplainOptions(LimitOptions, total=False):
    """What ``explain`` takes as ``time_op`` does."""

    quick: bool
    stop: Stop
    margin: float


class TimeOptions(CallOptions, SweepOptions, total=False):
    """What ``time_op`` takes."""


class MemoryOptions(CallOptions, PlaceOptions, total=False):
    """What ``peak_memory`` takes."""


class EnergyOptions(CallOptions, DeviceOptions, total=False):
    """What ``energy`` takes."""


class CounterOptions(EnergyOptions, total=False):
    """What ``counters`` takes."""

    cache: Cache


class DiagnoseOptions(EnergyOptions, total=False):
    """What ``diagnose`` takes."""

    metric: Metric


_DEFAULT_MAX_SAMPLES = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Timing options; the annotation of each field describes it.

    Raises:
        TypeError: if ``stream`` is not a stream, or ``log`` is not callable.
        ValueError: if an option is outside its range.
    """

    method: Annotated[
        Method,
        "``kernel`` (device time of the kernels, copies and memsets that the call issues on any "
        "stream, from CUPTI records), ``event`` (time between two CUDA events on the current "
        "stream, minus the overhead of the events), ``graph`` (time of one of many calls captured "
        "in CUDA graphs, minus the gap between them), ``sync`` (host time between two idle states "
        "of the device), ``cpu`` (host time of the call, on an idle device) or ``auto``: for work "
        "on a GPU kernel, or event if CUPTI is unavailable (sync if the work uses several GPUs); "
        "for work on the CPU cpu.",
    ] = "auto"
    metric: Annotated[
        Metric,
        "which time of a call's kernels, copies and memsets is the result and is compared: "
        "``busy`` (time during which at least one of them ran), ``span`` (from the first start to "
        "the last end, including gaps) or ``sum`` (sum of their durations, more than busy if they "
        "overlap). Only for the method ``kernel``; other methods measure the elapsed time.",
    ] = "busy"
    queue: Annotated[
        Queue,
        "``gate`` blocks the GPU until a batch of calls is issued, so that short calls are not "
        "timed as gaps between launches; ``sleep`` does the same with a kernel that sleeps for an "
        "estimated time; ``none`` does not block the GPU. A callable that synchronizes with the "
        "GPU cannot be queued; the result then says so.",
    ] = "gate"
    cache: Annotated[
        Cache,
        "``cold`` overwrites the cache before each call, outside the timed region: the L2 cache of "
        "a GPU, or all caches of the CPU, which takes milliseconds. The call then also causes the "
        "write-back of that data, as after a kernel that writes; ``cold-clean`` reads other data "
        "into a GPU's L2 cache instead, so that nothing needs to be written back, as after a "
        "kernel that reads; ``rotate`` (GPU only) gives each call different copies of its tensors, "
        "enough copies that each is evicted before it is reused; ``warm`` leaves the cache in the "
        "state after the previous call; ``auto`` is cold on a GPU, and leaves a CPU's cache alone.",
    ] = "auto"
    placement: Annotated[
        Placement,
        "``random`` gives each call different copies of its tensors, at random multiples of 512 "
        "bytes, so that the times do not represent a single choice of addresses, which alone "
        "changes them by percents; ``aligned`` does so at multiples of 2 MiB; ``as-is`` uses the "
        "tensors passed by the caller; ``auto`` is random for work on a GPU if all of its tensors "
        "can be copied and no call after the first modifies them. If the request cannot be met, "
        "the result says why.",
    ] = "auto"
    pages: Annotated[
        Pages,
        "memory pages of the tensors that calls allocate, for work on the CPU. ``fresh``: pages "
        "that were never touched, which the operating system maps and zeroes during the call, as "
        "in a first call; ``retained``: pages of earlier results, which are already mapped, as in "
        "a program that reuses its memory; ``as-is``: pages from the C library's allocator, which "
        "depend on earlier allocations of the process; ``auto``: retained on the CPU, as-is on a "
        "GPU.",
    ] = "auto"
    regime: Annotated[
        Regime,
        "``burst`` lets the GPU idle between batches of calls, long enough to keep it at the "
        "highest clock that it reaches with these calls; ``sustained`` runs calls back to back "
        "until times and clocks stop drifting, for 2.5 s to 8 s, and times some of them without a "
        "pause; ``as-is`` uses the GPU in its current state; ``auto`` starts like as-is "
        "and changes to ``burst`` if the calls lower the clock. "
        "If the GPU does not reach the requested state, the result's ``regime`` is ``as-is``, and "
        "the result says why. ``budget`` does not count idle time, but counts the calls between "
        "the timed ones. After 10 s of idle time in total, sampling stops as if the budget were "
        "used up.",
    ] = "auto"
    clocks: Annotated[
        Clocks,
        "``observe`` does not change the GPU's clocks; ``lock`` locks them during the timing (see "
        ":func:`convtime.locked_clocks`).",
    ] = "observe"
    pin: Annotated[
        int | None,
        "number of the CPU that the calling thread is pinned to during the timing. Existing "
        "threads, such as torch's, are not moved; threads that the calls start inherit the pin.",
    ] = None
    device: Annotated[
        torch.device | str | int | None,
        "device of the work. Default: the GPU of the first CUDA tensor found in arguments, closure "
        "or module parameters; the CPU if only CPU tensors are found; the current GPU (if there is "
        "one) if no tensor is found.",
    ] = None
    stream: Annotated[
        torch.cuda.Stream | None,
        "stream that is current during the calls. Default: the current stream.",
    ] = None
    warmup: Annotated[
        Literal["steady"] | SupportsFloat,
        "``steady``: until times and clocks stop drifting, for 0.01 s to 1 s (or to the budget, if "
        "that is less), and the steady calls already count as samples; on a GPU with "
        "``regime='as-is'`` at least 0.08 s, because its clock may take that long to fall; an int: "
        "number of calls; a float: seconds. At least one call is always made, and sixteen more if "
        "a call on the CPU is too short for the host's clock.",
    ] = "steady"
    stop: Annotated[
        Stop,
        "when sampling stops, in addition to ``max_samples`` and ``budget``: ``interval`` (half "
        "the width of the median's 95 % interval is at most ``tolerance`` times the median), "
        "``noise`` (the standard deviation is at most ``tolerance`` times the mean, or no longer "
        "changes), ``entropy`` (the distribution of the samples no longer changes), ``verdict`` "
        "(``compare`` only: the verdict on each candidate against the first is settled), "
        "``count`` (only max_samples) or ``budget`` (only the budget, and max_samples if given).",
    ] = "interval"
    tolerance: Annotated[
        float,
        "relative tolerance of ``interval`` and ``noise``.",
    ] = 0.005
    margin: Annotated[
        float,
        "relative difference from the baseline's time that counts as equal.",
    ] = 0.01
    min_samples: Annotated[
        int,
        "minimum number of samples, even beyond the budget. Five or fewer give no 95 % interval.",
    ] = 10
    max_samples: Annotated[
        int | None,
        "maximum number of samples, for every ``stop``. Default: 10,000, or unlimited with "
        "``stop='budget'``.",
    ] = None
    budget: Annotated[
        float,
        "seconds after which sampling stops, not counting warm-up and idle time.",
    ] = 1.0
    quick: Annotated[
        bool,
        "whether the whole call takes about 10 ms per candidate: one untimed call in place of a "
        "steady warm-up, fewer placements, no idling (``regime='auto'`` becomes ``as-is``), and "
        "sampling until the 10 ms are over, if no other limit ends it before. A longer call is "
        "timed five times, unless ``min_samples`` is given; five give no 95 % interval. For a "
        "choice among many candidates, such as an autotuner's.",
    ] = False
    timeout: Annotated[
        float | None,
        "seconds after which the whole call ends, including waiting and warm-up: with the samples "
        "taken so far (the result's ``stop_reason`` is ``timeout``), or with a TimeoutError if "
        "there are none. It ends every wait for the GPU, which may continue its work; it does not "
        "interrupt a call that does not return. None: no limit.",
    ] = None
    exclusive: Annotated[
        bool,
        "whether processes and threads of this user take turns on a GPU: each waits until the GPU "
        "is free, for at most a minute, and blocks the others while it times. The result says how "
        "long it waited, and why if it did not have the GPU to itself.",
    ] = True
    log: Annotated[
        Callable[[BatchRecord], object] | None,
        "called after each batch with a :class:`convtime.BatchRecord`: ``print``, a logger's "
        "``info`` or a list's ``append``. An exception that it raises ends the timing.",
    ] = None

    def __post_init__(self) -> None:
        for name, allowed in _choices().items():
            check_one_of(name, getattr(self, name), allowed)
        for name in ("pin", "min_samples", "max_samples"):
            if getattr(self, name) is not None or name == "min_samples":
                check_whole(name, getattr(self, name))
        for name in ("exclusive", "quick"):
            value = getattr(self, name)
            require(
                isinstance(value, bool), f"{name} must be True or False, got {described(value)}"
            )
        for name in ("budget", "tolerance", "margin"):
            value = getattr(self, name)
            require(is_finite(value), f"{name} must be a number, got {described(value)}")
        calls = as_whole(self.warmup)
        lasts = calls is None and is_finite(self.warmup) and float(self.warmup) >= 0
        require(
            lasts or (calls is not None and calls >= 0) or self.warmup == "steady",
            "warmup must be 'steady', a whole number of calls or a float of seconds, 0 or more, "
            f"got {described(self.warmup)}",
        )
        require(
            self.timeout is None or (is_finite(self.timeout) and float(self.timeout) > 0),
            f"timeout must be a positive number of seconds or None, got {described(self.timeout)}",
        )
        if not (self.log is None or callable(self.log)):
            raise TypeError(
                "log must be a callable that takes each batch's record, such as print, got "
                f"{described(self.log)}"
            )
        require(
            not (self.quick and self.regime in ("burst", "sustained")),
            f"quick=True does not wait for a regime of the GPU, got regime={self.regime!r}; use "
            "'auto' or 'as-is', or leave out quick",
        )
        if self.stream is not None:
            check_type("stream", self.stream, torch.cuda.Stream, "a torch.cuda.Stream")

    def check_ranges(self) -> None:
        """Check the values against each other and against the machine, as a timing does first.

        Raises:
            ValueError: if they do not fit.
        """
        check_pin(None if self.pin is None else int(self.pin))
        _C.check_stop_rule(**self.stop_rule())

    def stop_rule(self) -> dict[str, Any]:
        """The stop rule as arguments of the core."""
        default = sys.maxsize if self.stop == "budget" else _DEFAULT_MAX_SAMPLES
        return {
            "stop": self.stop,
            "min_samples": int(self.min_samples),
            "max_samples": default if self.max_samples is None else int(self.max_samples),
            "budget": float(self.budget),
            "tolerance": float(self.tolerance),
            "margin": float(self.margin),
        }


def options_of(function: str, keywords: type, given: Mapping[str, Any], **others: Any) -> Options:
    """Make the options of a call.

    Args:
        function: name of the function that was called, for the message.
        keywords: the class whose annotations are the options that the function takes.
        given: the options passed, by name.
        others: further options, which the function determines.

    Raises:
        TypeError: for an unknown option.
        ValueError: as :class:`Options`.
    """
    names = [name for name in Options.__annotations__ if name in keywords.__annotations__]
    for name in given:
        if name not in names:
            raise TypeError(f"{function} has no option {name!r}; there are {', '.join(names)}")
    return Options(**others, **given)


@functools.cache
def _choices() -> dict[str, tuple[str, ...]]:
    """Names of the options that have a fixed set of values, and the values."""
    hints = get_type_hints(Options)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
