"""What to do about each cause, with what it saves where a contrast has tried it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from convtime.results.advice import Advice
from convtime.results.diagnosis import Cause, CauseCode
from convtime.results.evidence import Evidence
from convtime.study.diagnose.account import BACKGROUND_CORES


def advise(cause: Cause, evidence: Evidence) -> tuple[Advice, ...]:
    """What to do about a cause, what was tried first."""
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
                    "do the work of several calls in one, with a larger batch",
                    each.median / int(count),
                    one.median,
                )
    yield Advice("fuse small operations (torch.compile, or _foreach and fused optimizers)")


def _of_host(evidence: Evidence) -> Iterator[Advice]:
    yield Advice("take the host's work out of the call, or do it in another thread beforehand")
    graph = evidence.seconds("method", "graph")
    if graph is not None:
        yield Advice(
            "capture the call in a CUDA graph (torch.cuda.graph), which leaves that work out",
            graph,
            evidence.calls.loop.median,
            note="what the host computes is then that of the capture",
        )


def _of_waits(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice(
        "leave results on the GPU: no .item(), .cpu(), print of a tensor, mask as an index or "
        "torch.cuda.synchronize() in the loop; torch.cuda.set_sync_debug_mode('warn') names them"
    )


def _of_missing_waits(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice(
        "have the stream that reads wait for the one that writes (stream.wait_stream(other), or an "
        "event), and tell the allocator of it (tensor.record_stream(stream))"
    )


def _of_allocations(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.on_gpu:
        yield from _of_page_faults(evidence)
        return
    yield Advice(
        "leave memory in PyTorch's cache: no torch.cuda.empty_cache() in the loop, results written "
        "to tensors that are there (out=), and the largest sizes first"
    )


def _of_first_calls(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice("call it once before it counts, with the same shapes and dtypes")


def _of_cache(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice(
        "say which state is meant: cache='cold' for work between other work, cache='warm' for work "
        "on what was written just before"
    )
    yield Advice("run it right behind what writes its inputs, in pieces that fit in the cache")


def _of_clock(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.on_gpu:
        yield Advice(
            "compare times at one clock: the governor 'performance', no boost, and the machine warm"
        )
        return
    yield Advice(
        "say which state is meant: regime='burst' for a call now and then, regime='sustained' for "
        "training; or lock the clocks (convtime.locked_clocks)"
    )


def _of_places(evidence: Evidence) -> Iterator[Advice]:
    here = evidence.seconds("placement", "as-is")
    moved = evidence.seconds("placement", "moved")
    yield _tried("allocate its tensors anew, and not as a slice off 256 bytes", moved, here)
    yield Advice("time it at many addresses (placement='random'), which is the default")


def _of_others(evidence: Evidence) -> Iterator[Advice]:
    if not evidence.on_gpu:
        yield Advice("end what else runs on this machine, or keep cores free of it (taskset)")
        return
    yield Advice(
        "end what else uses the GPU (nvidia-smi names processes), or choose another one with "
        "CUDA_VISIBLE_DEVICES, and look again"
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
            "copy what is read more than once to the GPU's memory, from pinned memory",
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
    yield Advice("copy on a stream of its own while the GPU computes on what came before")


def _of_data(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice("time it with numbers like those of its use, and not with constant ones")


def _of_page_faults(evidence: Evidence) -> Iterator[Advice]:
    yield _tried(
        "have the allocator keep memory: preload jemalloc or tcmalloc, or set "
        "MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ above the size of results",
        evidence.seconds("pages", "retained"),
        evidence.seconds("pages", "as-is"),
    )
    yield Advice("write results to tensors that are there already (out=, or in-place operations)")
    yield Advice("map memory in large pages (madvise, or transparent_hugepage/enabled)")


def _of_blocking(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice("do what it waits for beforehand, or in another thread while this one computes")
    yield Advice("see where it waits: py-spy dump --native shows the stack of a waiting thread")


def _of_python(evidence: Evidence) -> Iterator[Advice]:  # noqa: ARG001
    yield Advice(
        "compute on more numbers in each operator: batches, torch.vmap, _foreach functions"
    )
    yield Advice("compile it (torch.compile), or move loops from Python into one operator")


def _of_quota(evidence: Evidence) -> Iterator[Advice]:
    cores = evidence.host.cores if evidence.host else 1
    yield Advice(
        "raise the cgroup's quota (cpu.max, cpu.cfs_quota_us; --cpus of docker, limits.cpu of "
        f"Kubernetes), or use fewer than {cores:.0f} threads, so that a period's quota lasts"
    )


def _of_denormals(evidence: Evidence) -> Iterator[Advice]:
    yield _tried(
        "call torch.set_flush_denormal(True), which changes results by less than 1.2e-38",
        evidence.seconds("denormals", "flushed"),
        evidence.seconds("denormals", "as-is"),
    )
    yield Advice("keep numbers away from 0: scale them, or add a small constant")


def _of_numa(evidence: Evidence) -> Iterator[Advice]:
    yield _tried(
        "have the threads that compute make the tensors, which places them (first touch); or bind "
        "both to a node with numactl",
        evidence.seconds("placement", "moved"),
        evidence.seconds("placement", "as-is"),
    )


def _of_threads(evidence: Evidence) -> Iterator[Advice]:
    if evidence.host is not None and evidence.host.background >= BACKGROUND_CORES:
        yield Advice("end what other threads of this process compute, or move it to a process")
    found = evidence.contrasts.get("threads", {})
    for name, each in found.items():
        count = name.partition(" ")[0]
        if count.isdigit():
            yield _tried(
                f"call torch.set_num_threads({count})",
                each.median,
                evidence.seconds("threads", "as-is"),
            )


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
