"""List all engines of cuDNN for a convolution, and time those that run."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from convtime.conv.binding import bound_call, prepare
from convtime.conv.call import CUDNN_BACKENDS, FPROP, ConvCall, ConvTensors, same_bits
from convtime.conv.engine_pass import error_of, exact_result, prepare_pass
from convtime.conv.engine_table import (
    EngineResult,
    EngineTable,
    KnobRange,
    PassEngines,
)
from convtime.conv.explaining import backward_passes, with_grad_output
from convtime.conv.plan_oracle import PlanOracle
from convtime.core.errors import first_line
from convtime.core.load import _C
from convtime.device.provenance import provenance
from convtime.timing.candidate import Candidate
from convtime.timing.measurement import Measurement
from convtime.timing.signature import options_of, takes_options
from convtime.timing.time_op import time_op
from convtime.view.progress import tracked

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from convtime.timing.options import RaceOptions

_RUNS = 3  # whose bits are compared


@takes_options("quick")
def engines(
    fn: Callable[..., object] | Candidate,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    backward: bool | None = None,
    progress: bool | None = None,
    **options: Unpack[RaceOptions],
) -> EngineTable:
    """List every engine that cuDNN has for a convolution, and time those that run.

    Engines come from cuDNN's lists ("instant", by which PyTorch selects, "a", "b" and "fallback"),
    and from the indices of all engines. Those that PyTorch excludes, because of errata, TF32 or
    determinism, are not run. Each is timed alone, as by ``time_op(..., quick=True)``: about 10 ms.
    :func:`convtime.race` finds the fastest of a few. Plans are built for this call alone:
    :func:`convtime.conv.plan_cache` does not change. A child process finds the plan that PyTorch
    selects; it takes some seconds to start.

    Args:
        fn: A convolution, as for :func:`convtime.conv.explain`, on a GPU.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        backward: Whether to list the engines of the gradient passes too: dgrad and wgrad. None
            (default): those that input and weight request with requires_grad.
        progress: Whether to show a progress bar on standard error. Default: on a terminal only.
        {options}

    Returns:
        For each pass, the engines with time, workspace, error and settings, and PyTorch's choice.

    Raises:
        TypeError: fn is not a convolution, or may be more than one.
        ValueError: the tensors are not on a GPU, the dtype is unsupported, or backward is not a
            bool. PyTorch's own errors for invalid arguments propagate.
    """
    options_of("engines", options).check_ranges()
    bound = bound_call("engines", fn, args, kwargs, backward)
    tensors, call = prepare(bound, "engines")
    passes = [FPROP, *backward_passes(bound, backward)]
    return engines_of(call, tensors, passes, progress=progress, **options)


def engines_of(
    call: ConvCall,
    tensors: ConvTensors,
    passes: Sequence[str],
    *,
    progress: bool | None = None,
    **options: Any,
) -> EngineTable:
    """Return the engines of a call's passes, as :func:`engines` does.

    Raises:
        ValueError: the tensors are not on a GPU.
    """
    device = tensors.x.device
    if device.type != "cuda":
        raise ValueError(f"engines needs tensors on a GPU, where cuDNN runs, got them on {device}")
    tensors = dataclasses.replace(tensors, bias=None)
    call = dataclasses.replace(call, problem=dataclasses.replace(call.problem, bias=False))
    with (
        torch.no_grad(),
        torch.autocast(device.type, enabled=False),  # the tensors are already cast
        PlanOracle(device) as oracle,
    ):
        if len(passes) > 1:
            tensors, call = with_grad_output(tensors, call)
        timed = functools.partial(time_op, quick=True, **options)
        found = tuple(_list_pass(call, name, tensors, oracle, timed, progress) for name in passes)
    return EngineTable(call, str(device), found, provenance(device))


def _list_pass(
    call: ConvCall,
    name: str,
    tensors: ConvTensors,
    oracle: PlanOracle,
    timed: Callable[[Candidate], Measurement],
    progress: bool | None,
) -> PassEngines:
    theirs = call.pytorch_call(name, tensors)
    backend = call.backend(name, tensors)
    exact, result = exact_result(call, name, tensors), theirs()
    log = oracle.ask(call, [name])[name] if backend in CUDNN_BACKENDS else None
    return PassEngines(
        name=name,
        backend=backend,
        pytorch=timed(Candidate(theirs, name="PyTorch")),
        pytorch_tag=log.plan.tag if log and log.plan else None,
        unknown=log.unknown if log else "PyTorch does not give this pass to cuDNN",
        pytorch_error=error_of(result, exact),
        engines=tuple(_run_engines(call, name, tensors, exact, timed, progress)) if log else (),
    )


def _run_engines(
    call: ConvCall,
    name: str,
    tensors: ConvTensors,
    exact: torch.Tensor | None,
    timed: Callable[[Candidate], Measurement],
    progress: bool | None,
) -> Iterator[EngineResult]:
    prepared = prepare_pass(call, name, tensors)
    for listed in tracked(prepared.engines(), "engine", description=name, shown=progress):
        refused = [listed.pop(why) for why in ("unsupported", "excluded")]
        ranges = tuple(KnobRange(**each) for each in listed.pop("knob_ranges"))
        lists = {key: tuple(value) for key, value in listed.items() if isinstance(value, list)}
        engine = EngineResult(**{**listed, **lists, "knob_ranges": ranges})
        if any(refused):
            yield dataclasses.replace(engine, refused=" ".join(refused).split("\n")[0].strip())
        else:
            yield _run_engine(prepared, engine, exact, timed)


def _run_engine(
    prepared: _C.EnginePass,
    engine: EngineResult,
    exact: torch.Tensor | None,
    timed: Callable[[Candidate], Measurement],
) -> EngineResult:
    try:
        begin = time.perf_counter()
        workspace_bytes, run = prepared.build(engine.tag)
        engine = dataclasses.replace(
            engine,
            workspace_bytes=workspace_bytes,
            build_seconds=time.perf_counter() - begin,
        )
        results = []
        for _ in range(_RUNS):
            prepared.result.fill_(float("nan"))  # an engine that writes nothing is not exact
            run()
            results.append(prepared.result.clone())
        torch.cuda.synchronize(prepared.result.device)
        return dataclasses.replace(
            engine,
            measurement=timed(Candidate(run, name=engine.tag)),
            error=error_of(results[0], exact),
            repeats=all(same_bits(results[0], other) for other in results[1:]),
        )
    except RuntimeError as error:  # also out of memory; the other engines may run
        torch.cuda.synchronize(prepared.result.device)  # raises if the GPU is unusable
        return dataclasses.replace(engine, refused=first_line(error))
