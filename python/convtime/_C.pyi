from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict

CONFIDENCE: float

class Summary(TypedDict):
    mean: float
    stdev: float
    min: float
    max: float
    median: float
    iqr: float
    median_interval: tuple[float, float]

class Activity(TypedDict):
    kind: str
    name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers_per_thread: int
    shared_memory_bytes: int
    bytes: int
    seconds: tuple[float | None, ...]

class Timing(TypedDict):
    seconds: list[list[float]]
    discarded: list[list[float]]
    method: str
    method_reason: str
    queue: str
    queue_reason: str
    spans: list[list[float]]
    overhead_seconds: float
    raw_seconds: list[list[float]]
    activities: list[list[Activity]]
    warmup_calls: int
    warmup_seconds: float
    sampling_seconds: float
    stop_reason: str

def time_candidates(
    *,
    candidates: Sequence[
        tuple[
            Callable[..., object],
            tuple[Any, ...],
            Mapping[str, Any],
            Callable[[], object] | None,
        ]
    ],
    method: str,
    queue: str,
    on_gpu: bool,
    stream: int,
    flush_data: int,
    flush_bytes: int,
    kernel_unavailable: str,
    warmup_calls: int,
    warmup_seconds: float,
    min_samples: int,
    max_samples: int,
    budget: float,
    max_noise: float,
) -> Timing: ...
def cuda_available() -> bool: ...
def flush_buffer_bytes() -> int: ...
def kernel_method_unavailable() -> str: ...
def quantile(values: Sequence[float], q: float) -> float: ...
def summarize(values: Sequence[float]) -> Summary: ...
