"""PyTorch's events, CUDA graphs and compiler. Imports no convtime, which may be an earlier one."""

import dataclasses
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from common.running import Call

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def seconds_per_call(call: Call, count: int = 1) -> float:
    """Of calls that follow each other without waiting, by two events of CUDA."""
    event: Any = torch.cuda.Event
    start, end = (event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return 1e-3 * float(start.elapsed_time(end)) / count


@dataclasses.dataclass(frozen=True)
class Replay:
    """A call in a CUDA graph, which has only the addresses of what the call reads and writes."""

    graph: torch.cuda.CUDAGraph
    call: Call  # as long as it is kept, its tensors are

    def __call__(self) -> None:
        self.graph.replay()


def capture(call: Call) -> Replay:
    """In one graph, after three calls that warm it up."""
    cuda: Any = torch.cuda
    stream = cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return Replay(graph, call)


class _Mapped:
    """Pinned numbers of the host, float32, as memory that the GPU can read."""

    def __init__(self, pinned: torch.Tensor) -> None:
        self._kept = pinned  # for as long as the GPU's tensor is there, which holds this object
        self.__cuda_array_interface__ = {
            "shape": tuple(pinned.shape),
            "typestr": "<f4",
            "data": (pinned.data_ptr(), False),
            "version": 3,
        }


def mapped(pinned: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """A tensor of the GPU that lies where a pinned one of the host does; float32."""
    seen = torch.as_tensor(_Mapped(pinned), device=device)
    if seen.data_ptr() != pinned.data_ptr():
        raise RuntimeError("PyTorch copied what it was to see mapped")
    return seen


def compile_whole(function: Callable[Arguments, Result], mode: str) -> Callable[Arguments, Result]:
    """In one piece, for one shape; what autotuning finds is not printed, a table a product."""
    from torch._inductor import config

    config.autotune_num_choices_displayed = 0
    config.max_autotune_report_choices_stats = False
    compile_: Any = torch.compile
    compiled: Callable[Arguments, Result] = compile_(
        function, mode=mode, fullgraph=True, dynamic=False
    )
    return compiled
