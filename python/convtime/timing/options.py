"""How to time: the one list of options, from which signatures and docs follow."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import torch

from convtime.core.cpu import check_pin
from convtime.core.load import _C
from convtime.results.batch_record import BatchRecord

if TYPE_CHECKING:
    from typing_extensions import TypedDict

    class SharedOptions(TypedDict, total=False):
        """:class:`Options` but ``stop`` and ``margin`` as keywords, for type checkers alone."""

        method: Method
        metric: Metric
        queue: Queue
        cache: Cache
        placement: Placement
        pages: Pages
        regime: Regime
        clocks: Clocks
        pin: int | None
        device: torch.device | str | int | None
        stream: torch.cuda.Stream | None
        warmup: Literal["steady"] | SupportsFloat
        tolerance: float
        min_samples: int
        max_samples: int | None
        budget: float
        timeout: float | None
        exclusive: bool
        log: Callable[[BatchRecord], object] | None

    class SweepOptions(SharedOptions, total=False):
        """:class:`Options` but ``margin`` as keywords, for type checkers alone."""

        stop: Stop


Method = Literal["auto", "kernel", "event", "graph", "sync", "cpu"]
Metric = Literal["busy", "span", "sum"]
Queue = Literal["gate", "sleep", "none"]
Cache = Literal["auto", "cold", "cold-clean", "warm", "rotate"]
Placement = Literal["auto", "random", "as-is", "aligned"]
Pages = Literal["auto", "as-is", "fresh", "retained"]
Regime = Literal["auto", "as-is", "burst", "sustained", "both"]
Clocks = Literal["observe", "lock"]
Stop = Literal["interval", "noise", "entropy", "verdict", "count", "budget"]

_DEFAULT_MAX_SAMPLES = 10_000

Function = TypeVar("Function", bound=Callable[..., object])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """How to time; what each option means is the text in its annotation.

    Raises:
        TypeError: for a stream that is none, and a log that cannot be called.
        ValueError: for an option outside of its range.
    """

    method: Annotated[
        Method,
        "``kernel`` (the device's own time for the kernels, copies and memsets that the call "
        "issues on any stream, from CUPTI's records), ``event`` (between two CUDA events on the "
        "current stream, less their own cost), ``graph`` (one of many calls captured in CUDA "
        "graphs, less the gap between them), ``sync`` (host clock between two idle states of the "
        "device), ``cpu`` (host clock around the call, on an idle device) or ``auto``: for work on "
        "a GPU kernel or, where CUPTI cannot be used, event (sync if several GPUs are used); else "
        "cpu.",
    ] = "auto"
    metric: Annotated[
        Metric,
        "which time of a call's kernels, copies and memsets is the result, and what is compared: "
        "``busy`` (the time in which at least one of them ran), ``span`` (from the first start to "
        "the last end, gaps included) or ``sum`` (their durations added up, more than busy where "
        "work overlaps). For the method ``kernel``; other methods give the elapsed time.",
    ] = "busy"
    queue: Annotated[
        Queue,
        "``gate`` keeps the GPU from starting until a batch of calls is issued, so that short ones "
        "are not timed as gaps between launches; ``sleep`` does so with a kernel that sleeps for a "
        "time estimated beforehand; ``none`` does not. A callable that waits for the GPU itself "
        "cannot be queued; the result then says so.",
    ] = "gate"
    cache: Annotated[
        Cache,
        "``cold`` overwrites the cache before each call, outside of the timed region: a GPU's L2 "
        "cache, or all of the CPU's caches, which takes milliseconds. What was written is then "
        "written back to memory while the call runs, as after a kernel that writes; "
        "``cold-clean`` reads other data into a GPU's L2 cache instead, so that nothing is to be "
        "written back, as after one that reads; ``rotate`` gives each call other copies of its "
        "tensors, so many that they are cold when their turn comes again, on a GPU; ``warm`` "
        "leaves the cache as the call before left it; ``auto`` is cold on a GPU, and leaves a "
        "CPU's cache as it is.",
    ] = "auto"
    placement: Annotated[
        Placement,
        "``random`` gives each call other copies of its tensors, at random multiples of 512 bytes, "
        "so that its times are not those of one choice of addresses, which alone moves them by "
        "percents; ``aligned`` does so at multiples of 2 MiB; ``as-is`` calls it on the tensors "
        "that it was given; ``auto`` is random for work on a GPU whose tensors can all be copied, "
        "and are left as they are by all calls but the first. Where it is not as asked for, the "
        "result says why.",
    ] = "auto"
    pages: Annotated[
        Pages,
        "for work on the CPU, the memory pages of the tensors that calls allocate. ``fresh``: "
        "pages that were never touched, which the kernel maps and zeroes during the call, as in a "
        "first call; ``retained``: pages of earlier results, which are mapped already, as in a "
        "program that reuses its memory; ``as-is``: those that the C library's allocator "
        "provides, which depend on what the process allocated before; ``auto``: retained on the "
        "CPU, as-is on a GPU.",
    ] = "auto"
    regime: Annotated[
        Regime,
        "``burst`` lets the GPU idle between batches of calls, for as long as it takes to keep it "
        "at the highest clock that it gives these calls; ``sustained`` runs them back to back "
        "until neither times nor clocks drift any more, for 2.5 s at least and 8 s at most, and "
        "times some of them, without a pause before; ``as-is`` takes the GPU as it is; ``auto`` "
        "does so, too, until the clock falls under the calls, and then takes ``burst``; ``both`` "
        "times in burst and then sustained, for ``time_op`` alone: the result is that of the "
        "burst, and its ``sustained`` the other. Where the state asked for is not reached, the "
        "result's ``regime`` is ``as-is``, and says why. Idling does not count into ``budget``, "
        "calls between the timed ones do. After 10 s of idling in all, sampling ends as by the "
        "budget.",
    ] = "auto"
    clocks: Annotated[
        Clocks,
        "``observe`` leaves the GPU's clocks alone; ``lock`` locks them while it times (see "
        ":func:`convtime.locked_clocks`).",
    ] = "observe"
    pin: Annotated[
        int | None,
        "the CPU that the calling thread is kept on meanwhile. Threads that are there already, "
        "such as torch's own, run where they did; threads that the calls start stay on that CPU.",
    ] = None
    device: Annotated[
        torch.device | str | int | None,
        "where the work runs. Unless given: the GPU of the first CUDA tensor found in arguments, "
        "closure or module parameters, the CPU where only CPU tensors are found, and the current "
        "GPU (where there is one) if no tensor is found.",
    ] = None
    stream: Annotated[
        torch.cuda.Stream | None,
        "what is made the current stream for the calls; the current one unless given.",
    ] = None
    warmup: Annotated[
        Literal["steady"] | SupportsFloat,
        "``steady``: until neither times nor clocks drift any more, for 0.01 s at least and a "
        "second (or the budget, if that is less) at most, and what was steady is sampled already; "
        "on a GPU with ``regime='as-is'`` for 0.08 s at least, since its clock may take that long "
        "to fall; a whole number: so many calls; a float: so many seconds. One call is always "
        "made, and sixteen more of one on the CPU that is too short for the host's clock.",
    ] = "steady"
    stop: Annotated[
        Stop,
        "when sampling ends, beside ``max_samples`` and ``budget``: ``interval`` (half the width "
        "of the median's 95 % interval is at most ``tolerance`` of it), ``noise`` (the standard "
        "deviation is at most ``tolerance`` of the mean, or changes no more), ``entropy`` (the "
        "samples' distribution changes no more), ``verdict`` (for ``compare`` alone: it is settled "
        "how each candidate compares with the first), ``count`` (max_samples alone) or ``budget`` "
        "(the budget, and max_samples where it is given).",
    ] = "interval"
    tolerance: Annotated[
        float,
        "of ``interval`` and ``noise``.",
    ] = 0.005
    margin: Annotated[
        float,
        "share of the baseline's time up to which another time counts as the same.",
    ] = 0.01
    min_samples: Annotated[
        int,
        "samples taken at least, also beyond the budget. Five or fewer give no 95 % interval.",
    ] = 10
    max_samples: Annotated[
        int | None,
        "samples taken at most, whatever ``stop`` is. Unless given, 10,000, and unlimited with "
        "``stop='budget'``.",
    ] = None
    budget: Annotated[
        float,
        "seconds after which sampling ends; neither warm-up nor idling is counted.",
    ] = 1.0
    timeout: Annotated[
        float | None,
        "seconds after which the whole call ends, waiting and warm-up counted, with the samples "
        "that there are (the result's ``stop_reason`` is ``timeout``), or with a TimeoutError "
        "where there are none. It ends every wait for the GPU, which may go on working; a call "
        "that does not return is never interrupted. None for no limit.",
    ] = None
    exclusive: Annotated[
        bool,
        "whether processes and threads of this user time one after the other on a GPU: each waits "
        "for its turn, for a minute at most, and has the others wait meanwhile. The result says "
        "for how long, and why not where it did not have the GPU to itself.",
    ] = True
    log: Annotated[
        Callable[[BatchRecord], object] | None,
        "called after each batch with a :class:`convtime.BatchRecord`: ``print``, a logger's "
        "``info`` or a list's ``append``. What it raises ends the timing.",
    ] = None

    def __post_init__(self) -> None:
        for name, allowed in _choices().items():
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {str(allowed)[1:-1]}, got {getattr(self, name)!r}"
                )
        if not (self.pin is None or _is_count(self.pin)):
            raise ValueError(f"pin must be the number of a CPU, 0 or more, got {self.pin!r}")
        for name in ("min_samples", "max_samples"):
            is_default = name == "max_samples" and self.max_samples is None
            if not (is_default or _is_count(getattr(self, name))):
                raise ValueError(
                    f"{name} must be a whole number, 0 or more, got {getattr(self, name)!r}"
                )
        for name in ("budget", "tolerance", "margin"):
            if not is_finite(getattr(self, name)):
                raise ValueError(f"{name} must be a number, got {getattr(self, name)!r}")
        steady = isinstance(self.warmup, str) and self.warmup == "steady"
        if not (steady or _is_count(self.warmup) or _is_duration(self.warmup)):
            raise ValueError(
                "warmup must be 'steady', a whole number of calls or a float of seconds, 0 or "
                f"more, got {self.warmup!r}"
            )
        if not (self.timeout is None or (is_finite(self.timeout) and float(self.timeout) > 0)):
            raise ValueError(
                f"timeout must be a positive number of seconds or None, got {self.timeout!r}"
            )
        if not isinstance(self.exclusive, bool):
            raise ValueError(f"exclusive must be True or False, got {self.exclusive!r}")
        if not (self.log is None or callable(self.log)):
            raise TypeError(
                f"log must be something to call with each batch's record, such as print, got "
                f"{self.log!r}"
            )
        if self.stream is not None and not isinstance(self.stream, torch.cuda.Stream):
            raise TypeError(f"stream must be a torch.cuda.Stream, got {self.stream!r}")

    def check_ranges(self) -> None:
        """Checks the numbers with each other and the machine, as a timing does when it begins.

        Raises:
            ValueError: for those that do not fit.
        """
        check_pin(None if self.pin is None else int(self.pin))
        _C.check_stop_rule(**self.stop_rule())

    def stop_rule(self) -> dict[str, Any]:
        """When sampling ends, as the core takes it."""
        return {
            "stop": self.stop,
            "min_samples": int(self.min_samples),
            "max_samples": self._sample_limit(),
            "budget": float(self.budget),
            "tolerance": float(self.tolerance),
            "margin": float(self.margin),
        }

    def _sample_limit(self) -> int:
        if self.max_samples is not None:
            return int(self.max_samples)
        return sys.maxsize if self.stop == "budget" else _DEFAULT_MAX_SAMPLES


def make_options(function: str, given: Mapping[str, Any], but: Collection[str] = ()) -> Options:
    """The options of a call.

    Args:
        function: what was called.
        given: the options that were given, by name.
        but: options that the function does not take.

    Raises:
        TypeError: for an option that there is not.
        ValueError: as :class:`Options`.
    """
    names = [field.name for field in dataclasses.fields(Options) if field.name not in but]
    for name in given:
        if name not in names:
            raise TypeError(f"{function} has no option {name!r}; there are {', '.join(names)}")
    return Options(**given)


def takes_options(*but: str) -> Callable[[Function], Function]:
    """Gives a function that takes ``**options`` the signature and docs of :class:`Options`.

    ``{options}`` in its docstring becomes their descriptions.

    Args:
        but: options that it does not take.
    """
    fields = [field for field in dataclasses.fields(Options) if field.name not in but]
    hints = get_type_hints(Options)

    def wrap(function: Function) -> Function:
        own = inspect.signature(function)
        parameters = [
            parameter
            for parameter in own.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields
            if field.name not in own.parameters
        ]
        function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        if function.__doc__ is not None:  # as it is under python -OO
            function.__doc__ = function.__doc__.replace("{options}", _described(fields))
        return function

    return wrap


def _described(fields: Iterable[dataclasses.Field[Any]]) -> str:
    hints = get_type_hints(Options, include_extras=True)
    wrapper = textwrap.TextWrapper(width=100, initial_indent=" " * 8, subsequent_indent=" " * 12)
    texts = [wrapper.fill(f"{field.name}: {hints[field.name].__metadata__[0]}") for field in fields]
    return "\n".join(texts).lstrip()


@functools.cache
def _choices() -> dict[str, tuple[str, ...]]:
    """The options that are one of several names, and the names."""
    hints = get_type_hints(Options)
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def _is_count(value: object) -> bool:
    try:
        return isinstance(value, SupportsIndex) and 0 <= value.__index__() <= sys.maxsize
    except TypeError:  # of tensors and arrays, some of which are numbers
        return False


def is_finite(value: object) -> bool:
    """Whether something is a finite number, of whatever type; texts are not."""
    try:
        return not isinstance(value, str | bytes) and abs(float(value)) < float("inf")  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return False


def _is_duration(value: object) -> bool:
    return is_finite(value) and float(value) >= 0  # type: ignore[arg-type]
