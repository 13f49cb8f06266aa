"""Time a model's modules within a training step and in isolation."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import difflib
import functools
import itertools
import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch

from convtime.core.checks import check_type, check_whole, described, require
from convtime.core.errors import first_line, one_line
from convtime.counting.counters import counters
from convtime.counting.results import Counters, CountersUnavailable
from convtime.device.clocks import ClockMonitor
from convtime.device.provenance import provenance
from convtime.device.resolve import resolve_device
from convtime.recording.module_times import Direction, ModuleTimes, PassTimes
from convtime.recording.record import record
from convtime.recording.recording import Recording, Work
from convtime.recording.region import region
from convtime.recording.watching import (
    CopyError,
    SeenCall,
    WatchedModules,
    calls_seen,
    innermost_called,
    map_tensors,
    region_name,
    strided_copy,
)
from convtime.timing.candidate import differentiable
from convtime.timing.options import Options, Regime, options_of
from convtime.timing.sampling.measure import TimeLimit, WorkDevices, take_turn
from convtime.timing.time_op import time_op

_WATCHED, _PLAIN = "watched step", "plain step"
_DIRECTIONS: tuple[Direction, ...] = ("forward", "backward")
_ATTEMPTS = 3  # at a recording with a record for every launch
#: Default options for isolated timing: calls run right after the unmodified step.
_ISOLATED: Mapping[str, Any] = {
    "queue": "none",
    "placement": "as-is",
    "pages": "as-is",
    "warmup": 3,
    "budget": 0.3,
    "max_samples": 100,
}


def time_modules(
    model: torch.nn.Module,
    step: Callable[[], object],
    *,
    modules: Iterable[str] | None = None,
    steps: int = 10,
    warmup: int = 3,
    isolated: bool = True,
    regime: Literal["step"] | Regime = "step",
    metrics: str | Iterable[str] | None = None,
    margin: float = 0.02,
    device: torch.device | str | int | None = None,
    **options: Any,
) -> ModuleTimes:
    """Time the modules of a model within a training step, and the same calls in isolation.

    The step runs ``warmup`` times. It then runs ``2 * steps`` times, alternating between steps in
    which hooks watch the modules and plain steps; the difference shows the effect of the hooks. For
    each module, the step runs once more to copy the module's inputs and the gradients of its
    results.

    For isolated timing, ``time_op`` repeats these calls with a copy of the module and fresh copies
    of its inputs. With ``regime="step"``, each call runs right after a step, so the GPU is in the
    state that the step leaves behind. Before a backward pass, the module's forward pass runs first,
    then the step. All steps train the model.

    A module's backward pass consists of the autograd nodes created by its call. Sums of gradients
    from several sources, and uses of the gradients (the optimizer), belong to no module.

    Args:
        model: model whose modules are timed.
        step: callable without arguments that runs one training step: forward, backward, optimizer.
        modules: names of the modules to time, as in ``model.named_modules()``. The time of a nested
            module also counts for the modules that contain it. Default: modules that call no other
            modules.
        steps: number of watched steps to record.
        warmup: number of steps before the recording.
        isolated: whether to also time the modules in isolation, which takes many more steps.
        regime: ``step`` runs the step before each isolated call; other values are those of
            ``time_op``, without the step.
        metrics: hardware counters to read for the step and for each isolated module, as for
            :func:`convtime.counters`. Default: none.
        margin: relative difference that counts as equal.
        device: device of the work. Default: the device of the model's parameters.
        options: further options of ``time_op`` for isolated timing. Defaults: ``cache="warm"`` (on
            a GPU: as the step leaves it), ``queue="none"``, ``placement="as-is"``, ``warmup=3``,
            ``budget=0.3`` and ``max_samples=100``.

    Raises:
        TypeError: ``model`` is not a module, ``step`` is not callable, or an option is unknown.
        ValueError: no module has a given name, the model is compiled, the step calls none of the
            modules, or an option is out of range.
        RuntimeError: on a GPU, CUPTI is unavailable or its records stay incomplete. Exceptions of
            ``step`` propagate.
    """
    check_type("model", model, torch.nn.Module, "a torch.nn.Module")
    if not callable(step):
        raise TypeError(f"step must be callable, got {described(step)}")
    steps, warmup = check_whole("steps", steps, 1), check_whole("warmup", warmup, 1)
    where = _device_of(model) if device is None else resolve_device(device)
    chosen = {**_ISOLATED, "cache": "warm" if where.type == "cuda" else "auto", **options}
    chosen["regime"] = "as-is" if regime == "step" else regime
    if metrics is not None and not isinstance(metrics, str):
        metrics = tuple(metrics)
    for name in ("stop", "clocks"):
        if name in options:
            raise TypeError(f"time_modules has no option {name!r}: isolated calls determine it")
    made = options_of("time_modules", Options, chosen, margin=margin)
    made.check_ranges()
    _refuse_compiled(model)
    named = None if modules is None else _modules_named(model, modules)
    for _ in range(warmup - 1):
        step()
    called = innermost_called(model, step)
    watched = named or {name: module for name, module in model.named_modules() if name in called}
    require(
        called,
        f"the step calls no module of {type(model).__name__}; it must call the model itself, not "
        "a copy, a compiled version or a captured graph",
    )
    with take_turn(WorkDevices(where, (), "asked for"), made, TimeLimit(made.timeout)) as turn:
        recording, monitor = _record(step, watched, steps, where)
    passes, rest = _divide_steps(recording, watched)
    require(passes, f"the step calls none of the requested modules ({', '.join(watched)})")
    counted, why_not = _count(step, metrics, name="step", device=where)
    if isolated:
        time = functools.partial(
            _time_in_isolation,
            metrics=None if counted is None else metrics,
            device=where,
            options=chosen,
        )
        load = step if regime == "step" else None
        by_module = itertools.groupby(passes, key=operator.attrgetter("module"))
        passes = [
            timed
            for name, own in by_module
            for timed in _isolate([*own], watched[name], step, load, time)
        ]
    return ModuleTimes(
        model=type(model).__name__,
        method=recording.method,
        method_reason="" if where.type == "cuda" else "the work is on the CPU",
        device=str(where),
        regime=regime,
        passes=tuple(passes),
        step_seconds=_times(recording, _WATCHED),
        plain_seconds=_times(recording, _PLAIN),
        rest_seconds=rest,
        margin=float(margin),
        not_called=_never_called(model, {timed.module for timed in passes}, named),
        conditions=monitor.readings if monitor is not None else (),
        conditions_reason=monitor.reason if monitor is not None else "",
        exclusive=turn["exclusive"].used,
        exclusive_reason=turn["exclusive"].reason,
        counters=counted,
        counters_reason=why_not,
        provenance=provenance(where),
    )


def _refuse_compiled(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        require(
            not hasattr(module, "_orig_mod") and module._compiled_call_impl is None,
            f"the model must not be compiled, since compiled code skips the hooks that watch "
            f"modules, and {name or 'the model'} is compiled; pass the uncompiled model",
        )


def _modules_named(model: torch.nn.Module, names: Iterable[str]) -> dict[str, torch.nn.Module]:
    if not isinstance(names, Iterable):
        raise TypeError(f"modules must be names of modules, got {names!r}")
    every = dict(model.named_modules())
    names = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in names if name not in every]
    if unknown or not names:
        near = [like for name in unknown for like in difflib.get_close_matches(name, every, n=2)]
        raise ValueError(
            f"modules must be names in {type(model).__name__}.named_modules(), got "
            f"{', '.join(map(repr, unknown)) or 'none'}; similar names are "
            f"{', '.join(near or list(filter(None, every))[:5])}"
        )
    return {name: every[name] for name in names}


def _never_called(
    model: torch.nn.Module, timed: Collection[str], named: Iterable[str] | None
) -> tuple[str, ...]:
    """Return modules that were not called: requested ones, or leaves outside all timed modules."""
    if named is not None:
        return tuple(name for name in named if name not in timed)
    return tuple(
        name
        for name, module in model.named_modules()
        if not any(module.children())
        and not any(name == each or name.startswith(f"{each}.") or not each for each in timed)
    )


def _device_of(model: torch.nn.Module) -> torch.device:
    tensors = [*model.parameters(), *model.buffers()]
    gpus = [tensor.device for tensor in tensors if tensor.device.type == "cuda"]
    if tensors:
        return gpus[0] if gpus else torch.device("cpu")
    return resolve_device(None)


def _record(
    step: Callable[[], object],
    watched: Mapping[str, torch.nn.Module],
    steps: int,
    device: torch.device,
) -> tuple[Recording, ClockMonitor | None]:
    """Record watched steps, alternating with plain steps.

    Raises:
        RuntimeError: CUPTI is unavailable, or its records were incomplete in every attempt.
    """
    on_gpu = device.type == "cuda"
    for _ in range(_ATTEMPTS):
        monitor = ClockMonitor(device) if on_gpu else None
        with (
            monitor or contextlib.nullcontext(),
            record("kernel" if on_gpu else "cpu") as recording,
        ):
            for _ in range(steps):
                with region(_PLAIN):
                    step()
                with WatchedModules(watched), region(_WATCHED):
                    step()
        if on_gpu and recording.method != "kernel":
            raise RuntimeError(recording.method_reason)
        if not recording.fault:
            return recording, monitor
    raise RuntimeError(
        f"CUPTI's records of {_ATTEMPTS} recordings in a row were incomplete: {recording.fault}"
    )


def _times(recording: Recording, name: str) -> tuple[float, ...]:
    times = recording.region(name)
    return times.kernel_seconds if recording.method == "kernel" else times.host_seconds


def _divide_steps(
    recording: Recording, watched: Mapping[str, torch.nn.Module]
) -> tuple[list[PassTimes], tuple[float, ...]]:
    """Divide each watched step into the passes of modules and the rest.

    The time of a pass includes nested modules.
    """
    forward = {region_name(name, "forward"): name for name in watched}
    backward = {region_name(name, "backward") for name in watched}
    inside, rest = _by_step(recording, {*forward, *backward})
    on_gpu = recording.method == "kernel"
    passes = []
    called = dict.fromkeys(forward[each.name] for each in recording.entries if each.name in forward)
    for name in called:
        calls, _ = inside[region_name(name, "forward")]
        for direction in _DIRECTIONS:
            entries, works = inside[region_name(name, direction)]
            if not entries:
                continue
            recorded = [works[step] for step in rest]
            if on_gpu:
                seconds = [math.fsum(work.seconds for work in call) for call in recorded]
            else:
                seconds = [math.fsum(entries[step]) for step in rest]
            passes.append(
                PassTimes(
                    module=name,
                    kind=type(watched[name]).__name__,
                    direction=direction,
                    calls=len(calls[min(rest)]),
                    seconds=tuple(seconds),
                    activities=recording.activities_of(recorded),
                )
            )
    return passes, tuple(rest.values())


#: By step: the host time of each entry, and the work issued in it.
_Inside = tuple[dict[int, list[float]], dict[int, list[Work]]]


def _by_step(
    recording: Recording, passes: Collection[str]
) -> tuple[dict[str, _Inside], dict[int, float]]:
    """Return the contents of the regions within the steps, by the region's name.

    Also return the time of each step, by its entry, that belongs to none of the passes.
    """
    on_gpu = recording.method == "kernel"
    rest = {
        index: 0.0 if on_gpu else entry.seconds
        for index, entry in enumerate(recording.entries)
        if entry.name == _WATCHED
    }
    inside: dict[str, _Inside] = collections.defaultdict(
        lambda: (collections.defaultdict(list), collections.defaultdict(list))
    )

    def around(entry: int | None) -> tuple[int | None, set[str]]:
        """Return the outermost region around something, and the names of those within it."""
        path = [*recording.ancestors(entry)]
        return path[-1] if path else None, {recording.entries[each].name for each in path[:-1]}

    for entry in recording.entries:
        step, names = around(entry.parent)
        # A recursive module is already counted in its outer call.
        if step in rest and entry.name not in names:
            inside[entry.name][0][step].append(entry.seconds)
            if not on_gpu and entry.name in passes and names.isdisjoint(passes):
                rest[step] -= entry.seconds
    for work in recording.work:
        step, names = around(work.entry)
        if step in rest:
            for name in names:
                inside[name][1][step].append(work)
            if on_gpu and names.isdisjoint(passes):
                rest[step] += work.seconds
    return inside, rest


def _isolate(
    passes: Sequence[PassTimes],
    module: torch.nn.Module,
    step: Callable[[], object],
    load: Callable[[], object] | None,
    time: Callable[[PassTimes, _Replay], PassTimes],
) -> list[PassTimes]:
    """Return one module's passes with their isolated times, or why these are missing."""
    expected = passes[0].calls
    try:
        calls = calls_seen(module, step)
        if len(calls) == expected:
            replay = _Replay(module, calls, load)
            return [time(timed, replay) for timed in passes]
        why_not = (
            f"a recorded step calls it {expected} times, but the copied step {len(calls)} times"
        )
    except CopyError as error:
        why_not = str(error)
    return [dataclasses.replace(timed, isolated_reason=why_not) for timed in passes]


class _Replay:
    """Repeat a step's calls of a module on a copy of the module.

    Args:
        module: original module; not modified.
        calls: the step's calls of the module.
        load: callable to run before each replay; None for none.

    Raises:
        CopyError: the module cannot be copied.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        calls: Sequence[SeenCall],
        load: Callable[[], object] | None,
    ) -> None:
        try:
            self._module = copy.deepcopy(module)
        except Exception as error:  # the module's own code may not support copying
            raise CopyError(f"the module cannot be copied: {first_line(error)}") from error
        self._calls = calls
        self._load = load or (lambda: None)
        self._inputs: list[Any] = []
        self._outputs: list[torch.Tensor] = []
        self._gradients: list[torch.Tensor] = []

    def before_forward(self) -> None:
        self._load()
        self._renew_inputs()

    def forward(self) -> list[object]:
        results = []
        for call, (args, kwargs) in zip(self._calls, self._inputs, strict=True):
            with call.modes.enter():
                results.append(self._module(*args, **kwargs))
        return results

    def before_backward(self) -> None:
        self._outputs.clear()
        for parameter in self._module.parameters():
            parameter.grad = None
        self._renew_inputs()
        gradients = []
        for call, result in zip(self._calls, self.forward(), strict=True):
            # An abandoned call has no gradients; checkpoints abandon calls in their second pass.
            pairs = zip(differentiable(result), call.gradients, strict=bool(call.gradients))
            for output, gradient in pairs:
                if gradient is not None:
                    self._outputs.append(output)
                    gradients.append(gradient)
        self._load()
        self._gradients = [strided_copy(gradient) for gradient in gradients]

    def backward(self) -> None:
        torch.autograd.backward(self._outputs, self._gradients)

    def _renew_inputs(self) -> None:
        """Copy the inputs last, as in a step; a module may modify its inputs."""
        self._inputs.clear()
        self._inputs += [map_tensors(_renew, (call.args, call.kwargs)) for call in self._calls]


def _renew(tensor: torch.Tensor) -> torch.Tensor:
    tensor.grad = None
    # Not a leaf: leaves do not allow in-place changes.
    renewed = tensor.clone()
    if renewed.stride() != tensor.stride():
        renewed.data = strided_copy(tensor)
    return renewed


def _time_in_isolation(
    timed: PassTimes,
    calls: _Replay,
    *,
    metrics: str | Iterable[str] | None,
    device: torch.device,
    options: Mapping[str, Any],
) -> PassTimes:
    if not any(timed.seconds):
        return dataclasses.replace(timed, isolated_reason="it issues no GPU work")
    forward = timed.direction == "forward"
    fn = calls.forward if forward else calls.backward
    before = calls.before_forward if forward else calls.before_backward
    name = region_name(timed.module, timed.direction)
    try:
        alone = time_op(fn, before=before, name=name, device=device, **options)
    except Exception as error:  # raised by the module's own code
        return dataclasses.replace(timed, isolated_reason=first_line(error))
    try:
        counted, why_not = _count(fn, metrics, before=before, name=name, device=device)
    except Exception as error:  # raised by the module's own code
        counted, why_not = None, first_line(error)
    return dataclasses.replace(timed, isolated=alone, counters=counted, counters_reason=why_not)


def _count(
    fn: Callable[[], object], metrics: str | Iterable[str] | None, **options: Any
) -> tuple[Counters | None, str]:
    """Return the counters of a call, or why they are missing; neither for no metrics."""
    if metrics is None:
        return None, ""
    try:
        return counters(fn, metrics=metrics, cache="warm", **options), ""
    except CountersUnavailable as error:
        return None, one_line(error)
