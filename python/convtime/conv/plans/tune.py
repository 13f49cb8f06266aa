"""Choose plans for convolutions, so that choosing again gives the same answer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import torch

from convtime.conv.call import CUDNN_BACKENDS, FPROP, PASSES
from convtime.conv.engine_pass import exact_result, prepare_pass
from convtime.conv.plan_choice import PlanChoice
from convtime.conv.plans.loading import gpu_kind
from convtime.conv.plans.passes import ConvPass, pass_of, passes_of_call, passes_of_choices
from convtime.conv.plans.plan_set import Choice, Layout, PlanProblem, Plans, StoredPlan
from convtime.conv.plans.replay import ReplayResult, replay, replay_elsewhere
from convtime.conv.plans.search import Limits, Search
from convtime.core import codec
from convtime.core.checks import check_whole, require
from convtime.core.errors import InputError, first_line
from convtime.core.load import _C
from convtime.device.provenance import provenance
from convtime.device.resolve import resolve_device
from convtime.sweeps.executing import Workers, call_in_workers
from convtime.sweeps.worker import failure_of
from convtime.timing.candidate import Candidate, with_keywords
from convtime.timing.options import TuneOptions, options_of
from convtime.timing.show import grouped
from convtime.tuning.race import MOST_MARGIN, check_above_0
from convtime.view.progress import ProgressBar, tracked

if TYPE_CHECKING:
    from typing_extensions import Unpack


# PyTorch's own kernels for depthwise convolutions, in whose place cuDNN can compute.
_DEPTHWISE_BACKENDS = ("CudaDepthwise2d", "CudaDepthwise3d")
_LAYOUTS: tuple[Layout, ...] = ("channels_last",)
_TOLERANCE = 1.1  # of errors
_PAIR_BUDGET = 0.2  # seconds, for one candidate and PyTorch's


@with_keywords(TuneOptions)
def tune(
    subject: Callable[..., object] | Candidate | Collection[PlanChoice | ConvPass],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    passes: Collection[str] | None = None,
    budget: float = 1.5,
    margin: float = MOST_MARGIN,
    workspace_limit: int | None = None,
    deterministic: bool = False,
    tolerance: float = _TOLERANCE,
    layouts: Collection[Layout] = _LAYOUTS,
    knobs: bool = True,
    confirm: bool = True,
    executor: Workers = None,
    progress: bool | None = None,
    **options: Unpack[TuneOptions],
) -> Plans:
    """Choose the fastest plan of cuDNN for each convolution of a call, and each of its passes.

    Candidates are PyTorch's own way, the engines of all lists of cuDNN and of all indices, the
    fastest of them with other settings, and engines of another layout with the cost of converting.
    The budget limits how many are built: each engine comes once, in the order of the lists, before
    other settings of it. Those whose runs take more than twice the shortest are left out.
    :func:`convtime.race` chooses. Among candidates that are as fast within the margin, it prefers
    PyTorch's choice, then the smallest workspace, then the smallest engine number, so that tuning
    again gives the same answer. Only engines whose error is within the tolerance are timed. What
    PyTorch excludes, because of errata, TF32 or determinism, is not run. The operands are random,
    with the sizes, the layouts and the alignment of the call's.

    :func:`convtime.conv.load_plans` makes convtime's convolutions use the result, and
    ``convtime.nn.replace(model, plans=...)`` a model's. ``save`` and ``add_to`` write it to a file.

    Args:
        subject: a model, or any function that runs convolutions on a GPU, which is called once; or
            choices of :func:`convtime.conv.plan_cache`, to tune what a program has run.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.
        passes: which of "fprop", "dgrad" and "wgrad" to tune. Default: the forward pass, and the
            gradients of tensors that require them.
        budget: planned seconds of search for each pass. PyTorch's own engine is built whatever the
            budget is, and a build that has begun is not interrupted. PyTorch's first call, which
            searches too with ``torch.backends.cudnn.benchmark``, is not part of it.
        margin: relative difference that counts as equal, above 0 and at most 0.01.
        workspace_limit: largest workspace of a plan, in bytes. Default: no limit.
        deterministic: whether plans must give the same bits in each run.
        tolerance: largest error of a plan against float64, relative to PyTorch's own error.
        layouts: layouts to convert to: "channels_last", "contiguous". Only those that the operands
            do not have are tried.
        knobs: whether to vary the settings of the fastest engines.
        confirm: whether to run the chosen plans in a fresh process from a file, which takes some
            seconds. A plan that does not give the same engine and bits there is replaced by
            PyTorch's choice. If that fails or is interrupted, a warning says so, and the plans stay
            as they are.
        executor: the processes that search, each one pass at a time: None for this one,
            ``"gpus"`` for one on each GPU, a number of them, or a
            :class:`concurrent.futures.Executor` such as Dask's ``Client.get_executor()``. All must
            have the same kind of GPU as this process, which makes the call and confirms the plans.
        progress: whether to show a progress bar on standard error. Default: on a terminal only.
            An interrupt ends the search, and keeps the plans that were found.
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
        A plan for each problem, with what it gains. A pass whose search fails has none, which a
        warning says.

    Raises:
        InputError: the call fails or runs no convolution, there is no GPU, or an argument is out of
            range.
        RuntimeError: all searches failed.
    """
    options_of("tune", TuneOptions, options, margin=margin).check_ranges()
    limits = _limits(budget, margin, workspace_limit, deterministic, tolerance, layouts, knobs)
    if passes is not None:
        is_known = passes and {*passes} <= {*PASSES}
        require(is_known, f"passes must be some of {PASSES}, got {[*passes]}")
    device = _gpu(options.get("device"))
    if isinstance(subject, Collection) and not callable(subject):
        conv_passes = passes_of_choices(subject)
    else:
        given = subject if isinstance(subject, Candidate) else None
        candidate = given or Candidate(subject, *args, kwargs=kwargs)  # type: ignore[arg-type]
        conv_passes = passes_of_call(candidate, passes)
    entries = _tune_passes(conv_passes, limits, executor, progress, options)
    plans = Plans(tuple(entries), margin, provenance(device))
    if not confirm or not plans.entries:
        return plans
    try:
        return confirm_choices(plans, device)
    except (Exception, KeyboardInterrupt) as error:  # such as of a GPU that a search made unusable
        why = "it was interrupted" if isinstance(error, KeyboardInterrupt) else first_line(error)
        warnings.warn(
            "tune: whether the plans give the same results in a fresh process is unknown: "
            f"{why}; save them, and check them with convtime tune --revalidate FILE",
            stacklevel=2,
        )
        return plans


def _limits(
    budget: float,
    margin: float,
    workspace_limit: int | None,
    deterministic: bool,
    tolerance: float,
    layouts: Collection[Layout],
    knobs: bool,
) -> Limits:
    check_above_0("budget", budget)
    check_above_0("margin", margin, MOST_MARGIN)
    check_above_0("tolerance", tolerance)
    if workspace_limit is not None:
        check_whole("workspace_limit (bytes)", workspace_limit)
    known = get_args(Layout)
    require(
        not isinstance(layouts, str) and all(layout in known for layout in layouts),
        f"layouts must be some of {known}, got {layouts!r}",
    )
    return Limits(budget, margin, tolerance, workspace_limit, deterministic, knobs, tuple(layouts))


def _tune_passes(
    passes: Sequence[ConvPass],
    limits: Limits,
    executor: Workers,
    progress: bool | None,
    options: Mapping[str, Any],
) -> list[StoredPlan]:
    tuned: dict[int, StoredPlan] = {}
    errors: dict[int, Exception] = {}
    search = functools.partial(_tune_in_worker, limits, options)
    with ProgressBar(len(passes), "pass", shown=progress) as bar:
        try:
            if executor is None:
                searches = _here(search, passes, bar)
            else:
                requested = options.get("device")
                done = call_in_workers(executor, requested, search, passes)
                searches = ((place, future.result) for place, future in done)
            for place, result in searches:
                try:
                    tuned[place] = result()
                except InputError:
                    raise
                except Exception as error:  # of the search, or of an executor whose worker ended
                    errors[place] = error
                bar.update(advance=1)
        except KeyboardInterrupt:
            if not tuned:
                raise
    if errors:
        reasons = grouped((failure_of(errors[place]), passes[place]) for place in sorted(errors))
        sentences = (
            f"{failed[0]}{f' and {len(failed) - 1} more' if failed[1:] else ''}: {reason}"
            for reason, failed in reasons.items()
        )
        sentence = f"no plan was found for {'; '.join(sentences)}"
        if not tuned:
            raise RuntimeError(sentence) from errors[min(errors)]
        warnings.warn(sentence, stacklevel=3)
    entries: dict[object, StoredPlan] = {}
    for place in sorted(tuned):
        entries.setdefault(tuned[place].key, tuned[place])
    return [*entries.values()]


def _here(
    search: Callable[[ConvPass], StoredPlan], passes: Iterable[ConvPass], bar: ProgressBar
) -> Iterator[tuple[int, Callable[[], StoredPlan]]]:
    for place, conv_pass in enumerate(passes):
        bar.update(description=str(conv_pass))
        yield place, functools.partial(search, conv_pass)


def _tune_in_worker(limits: Limits, options: Mapping[str, Any], conv_pass: ConvPass) -> StoredPlan:
    return tune_pass(conv_pass, _gpu(options.get("device")), limits, options)


def tune_pass(
    conv_pass: ConvPass,
    device: torch.device,
    limits: Limits,
    options: Mapping[str, Any],
    only: Sequence[Choice] | None = None,
) -> StoredPlan:
    """Choose the plan of one pass.

    Args:
        conv_pass: the pass.
        device: a GPU.
        limits: what the search may use.
        options: options of the timings.
        only: the candidates besides PyTorch's. Default: all that cuDNN lists.

    Raises:
        RuntimeError: PyTorch's call fails, or the GPU became unusable.
    """
    with search_of(conv_pass, device, limits, options) as (source, search):
        choice, facts = search.run(only) if search else (Choice("pytorch"), None)
        architecture, multiprocessors = source.gpu
        return StoredPlan(
            name=conv_pass.name,
            count=conv_pass.count,
            problem=codec.decode(PlanProblem, source.problem),
            architecture=architecture,
            multiprocessors=multiprocessors,
            choice=choice,
            facts=facts,
        )


@contextlib.contextmanager
def search_of(
    conv_pass: ConvPass, device: torch.device, limits: Limits, options: Mapping[str, Any]
) -> Iterator[tuple[_C.EnginePass, Search | None]]:
    """Yield a pass on random operands and its search, under the flags of its call.

    There is no search where neither PyTorch nor convtime gives the pass to cuDNN.
    """
    call, name = conv_pass.call, conv_pass.pass_name
    with (
        torch.cuda.device(device),
        call.flags.applied(),
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),  # the tensors are already cast
    ):
        tensors = call.tensors(device, backward=name != FPROP)
        source = prepare_pass(call, name, tensors)
        backend = call.backend(name, tensors)
        if backend not in CUDNN_BACKENDS + _DEPTHWISE_BACKENDS:
            yield source, None
            return
        yield (
            source,
            Search(
                source,
                call.pytorch_call(name, tensors),
                exact_result(call, name, tensors),
                _without_own_layout(limits, codec.decode(PlanProblem, source.problem)),
                follows_list=backend in CUDNN_BACKENDS and not call.flags.benchmark,
                options=options,
            ),
        )


def _without_own_layout(limits: Limits, problem: PlanProblem) -> Limits:
    own = "channels_last" if problem.channels_last else "contiguous"
    # cuDNN has no channels-last engines for float64.
    others = [layout for layout in limits.layouts if layout != own and problem.dtype != "float64"]
    return dataclasses.replace(limits, layouts=tuple(others))


def confirm_choices(plans: Plans, device: torch.device) -> Plans:
    """Return the plans that give the same engines and bits in a fresh process.

    PyTorch's choice takes the place of the others.
    """
    here = replay(plans, device)
    elsewhere = replay_elsewhere(plans, device)
    entries = tuple(
        _confirm_choice(entry, ours, theirs)
        for entry, ours, theirs in zip(plans.entries, here, elsewhere, strict=True)
    )
    return dataclasses.replace(plans, entries=entries)


def _confirm_choice(entry: StoredPlan, here: ReplayResult, elsewhere: ReplayResult) -> StoredPlan:
    if entry.choice.backend == "pytorch":
        return entry
    repeats = entry.facts is None or entry.facts.repeats
    why = here.why or elsewhere.why
    if not why and not here.tag:
        why = "convtime's op asked for the plan of another problem"
    if not why and here.tag != elsewhere.tag:
        why = f"a fresh process ran {elsewhere.tag or 'PyTorch'}"
    if not why and repeats and here.bits != elsewhere.bits:
        why = "a fresh process gave other bits"
    if not why:
        return entry
    facts = entry.facts and dataclasses.replace(
        entry.facts, refused=(*entry.facts.refused, (str(entry.choice), why))
    )
    return dataclasses.replace(entry, choice=Choice("pytorch"), facts=facts)


def revalidate(plans: Plans, progress: bool | None = None) -> Plans:
    """Return the plans as the cuDNN of this process runs them.

    Each choice is timed against PyTorch's, which takes its place if it is not faster, does not run
    or is less exact. Then they are run in a fresh process, as by :func:`tune`.

    Raises:
        InputError: there is no GPU, or the plans are for another one.
    """
    device = _gpu(None)
    kind = gpu_kind(device)
    foreign = [each for each in plans.entries if (each.architecture, each.multiprocessors) != kind]
    if foreign:
        raise InputError(
            f"{len(foreign)} of {len(plans.entries)} plans are for sm_{foreign[0].architecture} "
            f"with {foreign[0].multiprocessors} multiprocessors, and this GPU is sm_{kind[0]} with "
            f"{kind[1]}; check them there"
        )
    limits = Limits(_PAIR_BUDGET, plans.margin, _TOLERANCE, knobs=False)
    entries = [
        tune_pass(
            pass_of(entry.problem, entry.name, entry.count),
            device,
            limits,
            {},
            only=[entry.choice] if entry.choice.backend == "cudnn" else [],
        )
        for entry in tracked(plans.entries, "plan", shown=progress)
    ]
    return confirm_choices(Plans(tuple(entries), plans.margin, provenance(device)), device)


def _gpu(given: torch.device | str | int | None) -> torch.device:
    device = resolve_device(given)
    require(
        device.type == "cuda", f"plans are chosen on a GPU, where cuDNN runs, got device {device}"
    )
    return device
