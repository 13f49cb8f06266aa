"""Advice for each cause, with the saving if a contrast has tried it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from convtime.conv.advice import Advice
from convtime.diagnosis.account import BACKGROUND_CORES
from convtime.diagnosis.diagnosis import Cause, CauseCode
from convtime.diagnosis.evidence import Evidence


def advise(cause: Cause, evidence: Evidence) -> tuple[Advice, ...]:
    """Return advice for a cause; advice with measured savings comes first."""
    made = _BY_CAUSE.get(cause.code)
    found = list(made(evidence)) if made else []
    return tuple(sorted(found, key=lambda each: -(each.saved or 0.0)))


def _of_launches(evidence: Evidence) -> Iterator[Advice]:
    yield _tried(
        "capture the calls in a CUDA graph (torch.cuda.graph, or torch.compile with "
        "mode='reduce-overhead')",
        evidence.seconds("method", "graph"),
        evidence.calls.loop.median,
    )
    found = evidence.contrasts.get("batch", {})
    one = found.get("one call")
    if one is not None:
        for name, each in found.items():
            count = name.partition(" ")[0]
            if count.isdigit():
                yield Advice(
                    "combine several calls into one, with a larger batch",
                    each.median / int(count),
                    one.median,
                )
    yield Advice("fuse small operations (torch.compile, or _foreach and fused optimizers)")


def _of_host(evidence: Evidence) -> Iterator[Advice]:
    yield Advice("move the host's work out of the call, or do it earlier in another thread")
    graph = evidence.seconds("method", "graph")
    if graph is not None:
        yield Advice(
            "capture the call in a CUDA graph (torch.cuda.graph), which skips that work",
            graph,
            evidence.calls.loop.median,
            note="each replay then uses the host's results from the capture",
        )


def _of_waits(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice(
        "keep results on the GPU: no .item(), .cpu(), printing of tensors, indexing with masks or "
        "torch.cuda.synchronize() in the loop; torch.cuda.set_sync_debug_mode('warn') reports them"
    )


def _of_missing_waits(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice(
        "make the reading stream wait for the writing stream (stream.wait_stream(other), or an "
        "event), and inform the allocator (tensor.record_stream(stream))"
    )


def _of_allocations(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.on_gpu:
        yield from _of_page_faults(evidence)
        return
    yield Advice(
        "keep memory in PyTorch's cache: no torch.cuda.empty_cache() in the loop, results in "
        "existing tensors (out=), and the largest sizes first"
    )


def _of_first_calls(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice("run one warm-up call with the same shapes and dtypes")


def _of_cache(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice(
        "choose the cache state of the real use: cache='cold' between other work, cache='warm' for "
        "inputs that were just written"
    )
    yield Advice("run it right after its inputs are written, in pieces that fit in the cache")


def _of_clock(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.on_gpu:
        yield Advice("compare times at one clock: governor 'performance', no boost, warm machine")
        return
    yield Advice(
        "choose the regime of the real use: regime='burst' for occasional calls, "
        "regime='sustained' for training; or lock the clocks (convtime.locked_clocks)"
    )


def _of_places(evidence: Evidence) -> Iterator[Advice]:
    here = evidence.seconds("placement", "as-is")
    moved = evidence.seconds("placement", "moved")
    yield _tried("allocate new tensors, not slices that are misaligned to 256 bytes", moved, here)
    yield Advice("time it at many addresses (placement='random', the default)")


def _of_others(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.on_gpu:
        yield Advice("stop other work on this machine, or reserve cores for this process (taskset)")
        return
    yield Advice(
        "stop other work on the GPU (nvidia-smi lists processes), or choose another GPU with "
        "CUDA_VISIBLE_DEVICES, then run the diagnosis again"
    )


def _of_layout(evidence: Evidence) -> Iterator[Advice]:
    here = evidence.seconds("layout", "as-is")
    for name, text in (
        ("contiguous", "keep its tensors contiguous (tensor.contiguous(), once)"),
        ("channels_last", "keep images and model in channels_last (.to(memory_format=…), once)"),
    ):
        other = evidence.seconds("layout", name)
        if other is not None:
            yield _tried(text, other, here)


def _of_transfers(evidence: Evidence) -> Iterator[Advice]:
    if evidence.work.mapped_bytes:
        yield _tried(
            "copy data that is read more than once to the GPU's memory, from pinned memory",
            evidence.seconds("placement", "moved"),
            evidence.seconds("placement", "as-is"),
        )
        return
    yield _tried(
        "keep the host's tensors in pinned memory (tensor.pin_memory()), and copy with "
        "non_blocking=True",
        evidence.seconds("pinning", "pinned"),
        evidence.seconds("pinning", "as-is"),
    )
    yield Advice("copy on a separate stream while the GPU processes the previous data")


def _of_data(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice("time it with realistic values, not with constants")


def _of_page_faults(evidence: Evidence) -> Iterator[Advice]:
    yield _tried(
        "make the allocator retain memory: preload jemalloc or tcmalloc, or set "
        "MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ above the size of results",
        evidence.seconds("pages", "retained"),
        evidence.seconds("pages", "as-is"),
    )
    yield Advice("write results to existing tensors (out=, or in-place operations)")
    yield Advice("map memory in large pages (madvise, or transparent_hugepage/enabled)")


def _of_blocking(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice("do the awaited work earlier, or in another thread while this thread computes")
    yield Advice("find where it waits: py-spy dump --native shows the stack of a waiting thread")


def _of_python(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice("process more elements per operator: batches, torch.vmap, _foreach functions")
    yield Advice("compile it (torch.compile), or move loops from Python into one operator")


def _of_quota(evidence: Evidence) -> Iterator[Advice]:
    cores = evidence.host.cores if evidence.host else 1
    yield Advice(
        "raise the cgroup's quota (cpu.max, cpu.cfs_quota_us; --cpus of docker, limits.cpu of "
        f"Kubernetes), or use fewer than {cores:.0f} threads, to stay within the quota of a period"
    )


def _of_denormals(evidence: Evidence) -> Iterator[Advice]:
    yield _tried(
        "call torch.set_flush_denormal(True), which changes results by less than 1.2e-38",
        evidence.seconds("denormals", "flushed"),
        evidence.seconds("denormals", "as-is"),
    )
    yield Advice("keep values away from 0: scale them, or add a small constant")


def _of_numa(evidence: Evidence) -> Iterator[Advice]:
    yield _tried(
        "create tensors in the computing threads, which places their pages there (first touch); or "
        "bind threads and memory to one node with numactl",
        evidence.seconds("placement", "moved"),
        evidence.seconds("placement", "as-is"),
    )


def _of_threads(evidence: Evidence) -> Iterator[Advice]:
    if evidence.host is not None and evidence.host.background >= BACKGROUND_CORES:
        yield Advice("stop the work of this process's other threads, or move it to another process")
    found = evidence.contrasts.get("threads", {})
    for name, each in found.items():
        count = name.partition(" ")[0]
        if count.isdigit():
            yield _tried(
                f"call torch.set_num_threads({count})",
                each.median,
                evidence.seconds("threads", "as-is"),
            )
    if not found and evidence.host is not None:
        cores = max(1, int(evidence.host.cores))
        yield Advice(f"use no more threads than cores, with torch.set_num_threads({cores})")


def _of_processes(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice("compare medians over several processes, as convtime's pytest plugin does")


def _tried(text: str, seconds: float | None, instead_of: float | None) -> Advice:
    return Advice(text, *((None, None) if None in (seconds, instead_of) else (seconds, instead_of)))


_BY_CAUSE: Mapping[CauseCode, Callable[[Evidence], Iterator[Advice]]] = {
    "launch-bound": _of_launches,
    "host-bound": _of_host,
    "synchronisation": _of_waits,
    "missing-wait": _of_missing_waits,
    "allocation": _of_allocations,
    "first-call": _of_first_calls,
    "cache": _of_cache,
    "clock": _of_clock,
    "placement": _of_places,
    "contention": _of_others,
    "layout": _of_layout,
    "transfer": _of_transfers,
    "data": _of_data,
    "threads": _of_threads,
    "process": _of_processes,
    "page-faults": _of_page_faults,
    "blocking": _of_blocking,
    "python-overhead": _of_python,
    "quota": _of_quota,
    "denormals": _of_denormals,
    "numa": _of_numa,
}
