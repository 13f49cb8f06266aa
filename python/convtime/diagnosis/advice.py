"""Advice for each cause, with the saving if a contrast has tried it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

from convtime.conv.advice import Advice
from convtime.diagnosis.diagnosis import Cause, CauseCode
from convtime.diagnosis.effects import BACKGROUND_CORES
from convtime.diagnosis.evidence import Evidence, Timing

#: Advice that needs no evidence, or a function that derives advice from it.
_Idea: TypeAlias = str | Callable[[Evidence], Iterator[Advice]]


def advise(cause: Cause, evidence: Evidence) -> tuple[Advice, ...]:
    """Return advice for a cause; advice with measured savings comes first."""
    ideas = ADVICE[cause.code]
    if not evidence.on_gpu:
        ideas = _ON_CPU.get(cause.code, ideas)
    advice: list[Advice] = []
    for idea in ideas:
        advice += [Advice(idea)] if isinstance(idea, str) else idea(evidence)
    return tuple(sorted(advice, key=lambda each: -(each.saved or 0.0)))


def _change(
    contrast: str,
    condition: str,
    text: str,
    evidence: Evidence,
    *,
    note: str = "",
    untried: bool = True,
) -> Iterator[Advice]:
    """Advise a change that a contrast tries; unless ``untried``, only if it was tried."""
    seconds, here = evidence.seconds(contrast, condition), evidence.seconds(contrast, "as-is")
    if seconds is not None:
        yield Advice(text, seconds, evidence.calls.loop.median if here is None else here, note)
    elif untried:
        yield Advice(text)


_graph = partial(_change, "method", "graph")  # instead of a loop


def _by_count(times: Mapping[str, Timing]) -> Iterator[tuple[int, Timing]]:
    """Yield the conditions whose names begin with a number, and that number."""
    for name, each in times.items():
        count = name.partition(" ")[0]
        if count.isdigit():
            yield int(count), each


def _batch(evidence: Evidence) -> Iterator[Advice]:
    times = evidence.contrasts.get("batch", {})
    for count, each in _by_count(times):
        text = "combine several calls into one, with a larger batch"
        yield Advice(text, each.median / count, times["one call"].median)


def _transfers(evidence: Evidence) -> Iterator[Advice]:
    if evidence.work.mapped_bytes:
        text = "copy data that is read more than once to the GPU's memory, from pinned memory"
        yield from _change("placement", "moved", text, evidence)
    else:
        text = (
            "keep the host's tensors in pinned memory (tensor.pin_memory()), and copy with "
            "non_blocking=True"
        )
        yield from _change("pinning", "pinned", text, evidence)
        yield Advice("copy on a separate stream while the GPU processes the previous data")


def _quota(evidence: Evidence) -> Iterator[Advice]:
    cores = evidence.host.cores if evidence.host else 1
    yield Advice(
        "raise the cgroup's quota (cpu.max, cpu.cfs_quota_us; --cpus of docker, limits.cpu of "
        f"Kubernetes), or use fewer than {cores:.0f} threads, to stay within the quota of a period"
    )


def _threads(evidence: Evidence) -> Iterator[Advice]:
    host, times = evidence.host, evidence.contrasts.get("threads", {})
    if host is not None and host.background >= BACKGROUND_CORES:
        yield Advice("stop the work of this process's other threads, or move it to another process")
    for count, each in _by_count(times):
        here = times["as-is"]
        yield Advice(f"call torch.set_num_threads({count})", each.median, here.median)
    if not times and host is not None:
        cores = max(1, int(host.cores))
        yield Advice(f"use no more threads than cores, with torch.set_num_threads({cores})")


ADVICE: Mapping[CauseCode, tuple[_Idea, ...]] = {
    "launch-bound": (
        partial(
            _graph,
            "capture the calls in a CUDA graph (torch.cuda.graph, or torch.compile with "
            "mode='reduce-overhead')",
        ),
        _batch,
        "fuse small operations (torch.compile, or _foreach and fused optimizers)",
    ),
    "host-bound": (
        "move the host's work out of the call, or do it earlier in another thread",
        partial(
            _graph,
            "capture the call in a CUDA graph (torch.cuda.graph), which skips that work",
            note="each replay then uses the host's results from the capture",
            untried=False,
        ),
    ),
    "synchronisation": (
        "keep results on the GPU: no .item(), .cpu(), printing of tensors, indexing with masks or "
        "torch.cuda.synchronize() in the loop; torch.cuda.set_sync_debug_mode('warn') reports them",
    ),
    "missing-wait": (
        "make the reading stream wait for the writing stream (stream.wait_stream(other), or an "
        "event), and inform the allocator (tensor.record_stream(stream))",
    ),
    "allocation": (
        "keep memory in PyTorch's cache: no torch.cuda.empty_cache() in the loop, results in "
        "existing tensors (out=), and the largest sizes first",
    ),
    "first-call": ("run one warm-up call with the same shapes and dtypes",),
    "cache": (
        "choose the cache state of the real use: cache='cold' between other work, cache='warm' for "
        "inputs that were just written",
        "run it right after its inputs are written, in pieces that fit in the cache",
    ),
    "clock": (
        "choose the regime of the real use: regime='burst' for occasional calls, "
        "regime='sustained' for training; or lock the clocks (convtime.locked_clocks)",
    ),
    "placement": (
        partial(
            _change,
            "placement",
            "moved",
            "allocate new tensors, not slices that are misaligned to 256 bytes",
        ),
        "time it at many addresses (placement='random', the default)",
    ),
    "contention": (
        "stop other work on the GPU (nvidia-smi lists processes), or choose another GPU with "
        "CUDA_VISIBLE_DEVICES, then run the diagnosis again",
    ),
    "layout": (
        partial(
            _change,
            "layout",
            "contiguous",
            "keep its tensors contiguous (tensor.contiguous(), once)",
            untried=False,
        ),
        partial(
            _change,
            "layout",
            "channels_last",
            "keep images and model in channels_last (.to(memory_format=…), once)",
            untried=False,
        ),
    ),
    "transfer": (_transfers,),
    "data": ("time it with realistic values, not with constants",),
    "threads": (_threads,),
    "process": ("compare medians over several processes, as convtime's pytest plugin does",),
    "page-faults": (
        partial(
            _change,
            "pages",
            "retained",
            "make the allocator retain memory: preload jemalloc or tcmalloc, or set "
            "MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ above the size of results",
        ),
        "write results to existing tensors (out=, or in-place operations)",
        "map memory in large pages (madvise, or transparent_hugepage/enabled)",
    ),
    "blocking": (
        "do the awaited work earlier, or in another thread while this thread computes",
        "find where it waits: py-spy dump --native shows the stack of a waiting thread",
    ),
    "python-overhead": (
        "process more elements per operator: batches, torch.vmap, _foreach functions",
        "compile it (torch.compile), or move loops from Python into one operator",
    ),
    "quota": (_quota,),
    "denormals": (
        partial(
            _change,
            "denormals",
            "flushed",
            "call torch.set_flush_denormal(True), which changes results by less than 1.2e-38",
        ),
        "keep values away from 0: scale them, or add a small constant",
    ),
    "numa": (
        partial(
            _change,
            "placement",
            "moved",
            "create tensors in the computing threads, which places their pages there (first "
            "touch); or bind threads and memory to one node with numactl",
        ),
    ),
}
_ON_CPU: Mapping[CauseCode, tuple[_Idea, ...]] = {
    "allocation": ADVICE["page-faults"],
    "clock": ("compare times at one clock: governor 'performance', no boost, warm machine",),
    "contention": ("stop other work on this machine, or reserve cores for this process (taskset)",),
}
