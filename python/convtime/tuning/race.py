"""Find the fastest of several callables."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

from convtime.core.checks import check_one_of, is_finite, require
from convtime.core.errors import first_line
from convtime.core.load import _C
from convtime.timing.candidate import Candidate, candidates_of, distinct, with_keywords
from convtime.timing.compare import compare
from convtime.timing.comparison import Agreement, Comparison
from convtime.timing.measurement import Measurement
from convtime.timing.options import Options, RaceOptions, options_of
from convtime.timing.result_check import Check, check_results
from convtime.timing.sampling.measure import TimeLimit, find_devices, measure, take_turn
from convtime.timing.time_op import with_rates
from convtime.tuning import elimination, isolation
from convtime.tuning.race_result import Race
from convtime.view.progress import ProgressBar

if TYPE_CHECKING:
    from typing_extensions import Unpack


MOST_MARGIN = 0.01
PATIENCE_SECONDS = 60.0
_SECONDS_PER_CANDIDATE = 0.08
_TOO_FAST = 1.1  # times the rate that a large copy or matmul reaches
_FEW_SAMPLES = 6  # the fewest that have an interval
_IDLE_SECONDS = 1.0

#: The options that the stages of a race set themselves.
OWN_OPTIONS = ("stop", "tolerance", "warmup", "min_samples", "max_samples", "quick")


@with_keywords(RaceOptions)
def race(
    candidates: Mapping[str, Callable[[], object] | Candidate]
    | Sequence[Callable[[], object] | Candidate],
    *,
    key: Callable[[str], Any] | None = None,
    check: Check | bool | None = "close",
    reference: Callable[[], object] | Candidate | None = None,
    isolated: bool = False,
    progress: bool | None = None,
    margin: float = MOST_MARGIN,
    budget: float | None = None,
    timeout: float = PATIENCE_SECONDS,
    **options: Unpack[RaceOptions],
) -> Race:
    """Find the fastest of several callables, so that racing them again gives the same answer.

    Each candidate is timed alone for about 10 ms, as by ``time_op(..., quick=True)``. Those that
    fail, return another result than the reference, or take more than 1.5 times the shortest time
    are dropped. The others are timed together: ``compare`` calls them in random order, round by
    round, and those that it finds slower than the fastest by more than the margin are dropped. Its
    last round starts when times and clocks no longer drift. Candidates that it does not find slower
    are ties. Among those whose time is within half of the margin of the shortest, the first one
    wins.

    Args:
        candidates: callables without arguments, or with them (:class:`convtime.Candidate`), by name
            or in a sequence, as for ``compare``.
        key: function of a candidate's name, whose smallest value wins among ties. Default: the
            given order.
        check: whether candidates must return the same result as the reference: ``close`` (within a
            tolerance for each dtype), ``exact`` (bit by bit), or None (no check). See
            docs/explanation/comparing.md.
        reference: a callable or Candidate, whose result is right; it is not timed. Default: the
            first candidate that does not fail.
        isolated: whether the race runs in a child process, which can be replaced when a candidate
            ends it, does not return, or makes the GPU unusable (an illegal memory access). This
            takes some seconds. Functions must be defined in modules, which the child imports; and
            tensors are copied to it.
        progress: whether to show a progress bar on standard error. Default: on a terminal only.
        margin: relative difference that counts as equal, above 0 and at most 0.01.
        budget: planned duration in seconds. Default: 0.08 per candidate. It is exceeded by the
            first calls, e.g. compilations, by long calls, of which each has at least two, and six
            in a round, and by a child process's start.
        timeout: seconds after which a candidate that has not been timed alone is dropped. In this
            process, this does not interrupt a call that does not return, and if the GPU does not
            become idle, the race ends with an error.
        method: ``kernel`` (device time of the kernels, copies and memsets that the call issues on
            any stream, from CUPTI records), ``event`` (time between two CUDA events on the current
            stream, minus the overhead of the events), ``graph`` (time of one of many calls captured
            in CUDA graphs, minus the gap between them), ``sync`` (host time between two idle states
            of the device), ``cpu`` (host time of the call, on an idle device) or ``auto``: for work
            on a GPU kernel, or event if CUPTI is unavailable (sync if the work uses several GPUs);
            for work on the CPU cpu.
        metric: which time of a call's kernels, copies and memsets is the result and is compared:
            ``busy`` (time during which at least one of them ran), ``span`` (from the first start to
            the last end, including gaps) or ``sum`` (sum of their durations, more than busy if they
            overlap). Only for the method ``kernel``; other methods measure the elapsed time.
        queue: ``gate`` blocks the GPU until a batch of calls is issued, so that short calls are not
            timed as gaps between launches; ``sleep`` does the same with a kernel that sleeps for an
            estimated time; ``none`` does not block the GPU. A callable that synchronizes with the
            GPU cannot be queued; the result then says so.
        cache: ``cold`` overwrites the cache before each call, outside the timed region: the L2
            cache of a GPU, or all caches of the CPU, which takes milliseconds. The call then also
            causes the write-back of that data, as after a kernel that writes; ``cold-clean`` reads
            other data into a GPU's L2 cache instead, so that nothing needs to be written back, as
            after a kernel that reads; ``rotate`` (GPU only) gives each call different copies of its
            tensors, enough copies that each is evicted before it is reused; ``warm`` leaves the
            cache in the state after the previous call; ``auto`` is cold on a GPU, and leaves a
            CPU's cache alone.
        placement: ``random`` gives each call different copies of its tensors, at random multiples
            of 512 bytes, so that the times do not represent a single choice of addresses, which
            alone changes them by percents; ``aligned`` does so at multiples of 2 MiB; ``as-is``
            uses the tensors passed by the caller; ``auto`` is random for work on a GPU if all of
            its tensors can be copied and no call after the first modifies them. If the request
            cannot be met, the result says why.
        pages: memory pages of the tensors that calls allocate, for work on the CPU. ``fresh``:
            pages that were never touched, which the operating system maps and zeroes during the
            call, as in a first call; ``retained``: pages of earlier results, which are already
            mapped, as in a program that reuses its memory; ``as-is``: pages from the C library's
            allocator, which depend on earlier allocations of the process; ``auto``: retained on the
            CPU, as-is on a GPU.
        regime: ``burst`` lets the GPU idle between batches of calls, long enough to keep it at the
            highest clock that it reaches with these calls; ``sustained`` runs calls back to back
            until times and clocks stop drifting, for 2.5 s to 8 s, and times some of them without a
            pause; ``as-is`` uses the GPU in its current state; ``auto`` starts like as-is and
            changes to ``burst`` if the calls lower the clock. If the GPU does not reach the
            requested state, the result's ``regime`` is ``as-is``, and the result says why.
            ``budget`` does not count idle time, but counts the calls between the timed ones. After
            10 s of idle time in total, sampling stops as if the budget were used up.
        clocks: ``observe`` does not change the GPU's clocks; ``lock`` locks them during the timing
            (see :func:`convtime.locked_clocks`).
        pin: number of the CPU that the calling thread is pinned to during the timing. Existing
            threads, such as torch's, are not moved; threads that the calls start inherit the pin.
        device: device of the work. Default: the GPU of the first CUDA tensor found in arguments,
            closure or module parameters; the CPU if only CPU tensors are found; the current GPU (if
            there is one) if no tensor is found.
        stream: stream that is current during the calls. Default: the current stream.
        margin: relative difference from the baseline's time that counts as equal.
        budget: seconds after which sampling stops, not counting warm-up and idle time.
        timeout: seconds after which the whole call ends, including waiting and warm-up: with the
            samples taken so far (the result's ``stop_reason`` is ``timeout``), or with a
            TimeoutError if there are none. It ends every wait for the GPU, which may continue its
            work; it does not interrupt a call that does not return. None: no limit.
        exclusive: whether processes and threads of this user take turns on a GPU: each waits until
            the GPU is free, for at most a minute, and blocks the others while it times. The result
            says how long it waited, and why if it did not have the GPU to itself.
        log: called after each batch with a :class:`convtime.BatchRecord`: ``print``, a logger's
            ``info`` or a list's ``append``. An exception that it raises ends the timing.

    Returns:
        The winner, the ties, all times and why each other candidate was dropped.

    Raises:
        ValueError: if there are fewer than two candidates, or an argument is out of range;
            otherwise as ``compare``.
        TypeError: for a candidate that is not callable, or an unknown option.
        RuntimeError: if no candidate can be timed, or if one makes the GPU unusable in this
            process.
    """
    raced = candidates_of(candidates)
    names = [candidate.name for candidate in raced]
    got = f"{names[0]!r} alone; time_op times it" if names else "none"
    require(len(names) >= 2, f"there must be at least two candidates to race, got {got}")
    if not isinstance(check, bool):
        check_one_of("check", check, (*get_args(Check), None))
    check_above_0("margin", margin, MOST_MARGIN)
    check_above_0("budget", _SECONDS_PER_CANDIDATE if budget is None else budget)
    check_above_0("timeout", timeout)
    require(isinstance(isolated, bool), f"isolated must be True or False, got {isolated!r}")
    require(
        not isolated or (options.get("stream") is None and options.get("log") is None),
        "isolated=True cannot use a stream or a log, which do not exist in a child process; leave "
        "out stream and log",
    )
    if reference is not None:
        made = reference if isinstance(reference, Candidate) else Candidate(reference)
        reference = made.but(name=distinct("reference", names))
    order = names if key is None else sorted(names, key=key)
    chosen = options_of("race", RaceOptions, options, margin=margin, timeout=timeout)
    chosen.check_ranges()
    plan = isolation.Plan(
        candidates={candidate.name: candidate for candidate in raced},
        reference=reference,
        check=("close" if check is True else check) or None,
        order=order,
        seconds=_SECONDS_PER_CANDIDATE * len(raced) if budget is None else float(budget),
        options=chosen,
    )
    with _progress(progress, len(raced)) as on_stage:
        return isolation.run(run, plan, on_stage) if isolated else run(plan, on_stage)


def check_above_0(what: str, number: float, most: float = math.inf) -> None:
    """Raise an InputError for an argument that is not a number above 0, and at most ``most``."""
    limit = f" and at most {most}" if is_finite(most) else ""
    require(
        is_finite(number) and 0 < float(number) <= most,
        f"{what} must be a number above 0{limit}, got {number!r}",
    )


def run(plan: isolation.Plan, on_stage: elimination.OnStage) -> Race:
    """Run a race in this process.

    Raises:
        RuntimeError: as :func:`race`.
        ValueError: a stream of the GPU is being captured, or as ``compare``.
    """
    candidates = plan.candidates
    devices = find_devices([*candidates.values()], plan.options.device)
    options = dataclasses.replace(plan.options, device=devices.device)
    with take_turn(devices, options, TimeLimit(None)):
        return elimination.Elimination(
            [*candidates],
            _Timer(plan, options, [gpu.index for gpu in devices.gpus]),
            order=plan.order,
            seconds=plan.seconds,
            margin=options.margin,
            on_stage=on_stage,
        ).run()


class _Timer:
    def __init__(self, plan: isolation.Plan, options: Options, gpus: Sequence[int]) -> None:
        self._plan = plan
        self._gpus = gpus
        as_is = "as-is" if options.regime == "auto" else options.regime
        self._last = dataclasses.replace(options, regime=as_is)
        self._early = dataclasses.replace(options, regime="as-is")

    def time_alone(self, name: str) -> Measurement:
        candidate = self._plan.candidates[name]
        longer = {"budget": 0.2} if self._plan.thorough else {"quick": True}
        options = dataclasses.replace(self._early, min_samples=2, **longer)
        try:
            measured = measure([candidate], options)[0]
        except Exception:
            self._require_usable([name])
            raise
        return with_rates(candidate, measured, options)

    def _require_usable(self, names: Sequence[str]) -> None:
        """Raise an UnusableError if the GPU does no further work in this process."""
        try:
            if not self._gpus or _C.idle_within([*self._gpus], _IDLE_SECONDS):
                return
            why = "work on the GPU does not end"
        except RuntimeError as error:
            why = f"work on the GPU failed ({first_line(error)})"
        several = "" if len(names) == 1 else "one of "
        raise elimination.UnusableError(
            names[0] if len(names) == 1 else "",
            f"{why} after {several}{', '.join(map(repr, names))} ran, and nothing else can run "
            "there in this process; in a new process, race(..., isolated=True) drops such a "
            "candidate",
        )

    def compare(self, names: Sequence[str], seconds: float, *, last: bool) -> Comparison:
        options = self._last if last else self._early
        given = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
        given |= {
            "stop": "verdict",
            "budget": seconds,
            "warmup": "steady" if last else 1,
            "min_samples": _FEW_SAMPLES,
            "timeout": None,
        }
        try:
            compared: Comparison = compare(
                [self._plan.candidates[name] for name in names],
                check=None,
                interference=False,
                **given,
            )
            return compared
        except Exception:
            self._require_usable(names)
            raise

    def agreements(self, names: Sequence[str]) -> Mapping[str, Agreement]:
        how = self._plan.check
        others = [self._plan.candidates[name] for name in names]
        if self._plan.reference is not None:
            others.insert(0, self._plan.reference)
        if how is None or len(others) < 2:
            return {}
        agreements = check_results(others, how, self._early, TimeLimit(None))
        self._require_usable(names)
        return agreements

    def too_fast(self, measured: Measurement) -> str:
        ceilings = measured.ceilings
        if ceilings is None:
            return ""
        reached = [(measured.flops_per_second, ceilings.flops_per_second, "matmul")]
        if measured.cache != "warm":  # a cache is faster than memory
            reached.append((measured.bytes_per_second, ceilings.bytes_per_second, "copy"))
        for rate, ceiling, what in reached:
            if rate is not None and rate > _TOO_FAST * ceiling:
                return (
                    f"it reaches {rate / ceiling:.0%} of the rate of this device's largest {what}: "
                    "its flops or nbytes are too high, it computes in another precision, or it "
                    "leaves out work"
                )
        return ""


@contextlib.contextmanager
def _progress(progress: bool | None, count: int) -> Iterator[elimination.OnStage]:
    """Show a race's stages as the description of a progress bar over the candidates."""
    with ProgressBar(count, "candidate", shown=progress) as bar:

        def on_stage(stage: str, names: Sequence[str]) -> None:
            description = names[0] if stage == "alone" else f"{stage}, {len(names)} left"
            bar.update(description=" ".join(description.split()), advance=stage == "alone")

        yield on_stage
