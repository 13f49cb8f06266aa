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

class Timing(TypedDict):
    seconds: list[list[float]]
    discarded: list[list[float]]
    method: str
    method_reason: str
    queue: str
    queue_reason: str
    warmup_calls: int
    warmup_seconds: float
    sampling_seconds: float
    stop_reason: str

def time_candidates(
    *,
    candidates: Sequence[tuple[Callable[..., object], tuple[Any, ...], Mapping[str, Any]]],
    method: str,
    queue: str,
    on_gpu: bool,
    stream: int,
    warmup_calls: int,
    warmup_seconds: float,
    min_samples: int,
    max_samples: int,
    budget: float,
    max_noise: float,
) -> Timing: ...
def cuda_available() -> bool: ...
def quantile(values: Sequence[float], q: float) -> float: ...
def summarize(values: Sequence[float]) -> Summary: ...
