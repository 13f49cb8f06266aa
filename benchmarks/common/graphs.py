"""Calls in CUDA graphs."""

import dataclasses
from typing import Any

import torch

from common.running import Call


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
