from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypedDict

import torch

class DeadlineError(TimeoutError): ...
class CollectiveRefused(ValueError): ...  # noqa: N818
class CuptiError(RuntimeError): ...

class CollectiveStamps:
    def __init__(self) -> None: ...
    def count(self) -> int: ...
    def take(self) -> list[int]: ...

CONFIDENCE: float

DOUBT_OF_CPU_RATIOS: float

WATCH_SECONDS: float

def host_clock_tick() -> float: ...

class Summary(TypedDict):
    mean: float
    stdev: float
    min: float
    max: float
    median: float
    iqr: float

class Convolution(Protocol):
    def __call__(
        self,
        input: object,
        weight: object,
        bias: object,
        stride: object,
        padding: object,
        dilation: object,
        groups: object,
        policy: object,
        /,
    ) -> torch.Tensor: ...

class TransposedConvolution(Protocol):
    def __call__(
        self,
        input: object,
        weight: object,
        bias: object,
        stride: object,
        padding: object,
        output_padding: object,
        groups: object,
        dilation: object,
        policy: object,
        /,
    ) -> torch.Tensor: ...

class ConvolutionWithEpilogue(Protocol):
    def __call__(
        self,
        input: object,
        weight: object,
        bias: object,
        stride: object,
        padding: object,
        dilation: object,
        groups: object,
        other: object,
        alpha: object,
        activation: object,
        negative_slope: object,
        policy: object,
        /,
    ) -> torch.Tensor: ...

conv1d: Convolution
conv2d: Convolution
conv3d: Convolution
conv_transpose1d: TransposedConvolution
conv_transpose2d: TransposedConvolution
conv_transpose3d: TransposedConvolution
conv1d_epilogue: ConvolutionWithEpilogue
conv2d_epilogue: ConvolutionWithEpilogue
conv3d_epilogue: ConvolutionWithEpilogue

def call_op(
    op: Callable[..., torch.Tensor], /, *args: object, **kwargs: object
) -> torch.Tensor: ...
def execute_floor(
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: int | tuple[int, ...],
    padding: int | tuple[int, ...],
    dilation: int | tuple[int, ...],
    groups: int,
    /,
) -> Callable[[], None]: ...

class EnginePass:
    """One cuDNN operation of a convolution, which any engine can compute; needs CUDA."""

    def __init__(
        self,
        input: torch.Tensor | None,
        weight: torch.Tensor | None,
        grad_output: torch.Tensor | None,
        of_weight: bool,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        output_padding: Sequence[int],
        groups: int,
        transposed: bool,
    ) -> None: ...
    @property
    def result(self) -> torch.Tensor: ...
    @property
    def problem(self) -> dict[str, Any]: ...
    @property
    def gpu(self) -> tuple[int, int]: ...
    def in_layout(self, channels_last: bool) -> EnginePass: ...
    def engines(self) -> list[dict[str, Any]]: ...
    def build(self, tag: str) -> tuple[int, Callable[[], None]]: ...

# Needs CUDA, as the next two do.
def store_plan(
    problem: Mapping[str, Any],
    architecture: int,
    multiprocessors: int,
    name: str,
    tag: str,
    channels_last: bool | None,
) -> None: ...
def has_stored_plan(
    problem: Mapping[str, Any], architecture: int, multiprocessors: int
) -> bool: ...
def clear_stored_plans() -> None: ...
def plan_cache() -> list[dict[str, Any]]: ...
def clear_plan_cache() -> None: ...
def time_candidates(
    *,
    candidates: Sequence[Mapping[str, Any]],
    method: str,
    metric: str,
    queue: str,
    regime: str,
    on_gpu: bool,
    stream: int,
    flush: Sequence[tuple[int, int, int, int, bool]],
    other_devices: Sequence[int],
    several_ranks: bool,
    warmup_calls: int,
    warmup_seconds: float,
    warmup_steady: bool,
    max_steady_seconds: float,
    stop: str,
    min_samples: int,
    max_samples: int,
    budget: float,
    tolerance: float,
    margin: float,
    first_batch_seconds: float,
    seconds_left: float,
    on_batch: Callable[[dict[str, Any]], object] | None,
    agreement: object = None,
) -> list[dict[str, Any]]: ...

class OfOneRank:
    def __enter__(self) -> None: ...
    def __exit__(self, *args: object) -> None: ...

def cuda_available() -> bool: ...
def count_kernels(
    *,
    call: tuple[Any, ...],
    metrics: Sequence[str],
    replays_kernels: bool,
    repeats: int,
    flush: Sequence[tuple[int, int, int, int, bool]],
) -> dict[str, Any]: ...
def describe_metrics(names: Sequence[str]) -> list[tuple[str, str, str] | None]: ...
def metric_names() -> list[str]: ...

class Trace:
    def now(self) -> int: ...
    @staticmethod
    def thread() -> int: ...
    def take(
        self, other_devices: Sequence[int]
    ) -> tuple[list[dict[str, Any]], list[tuple[int, int, int, int, int, int]], str]: ...
    def close(self) -> None: ...

class MakeWay:
    def __enter__(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...

class HostProbe:
    cores: float
    missing: str
    def __init__(self) -> None: ...
    def begin(self, expected_seconds: float) -> None: ...
    def end(self) -> dict[str, Any]: ...

class ThreadWatch:
    missing: str
    def __init__(self) -> None: ...
    def stop(self) -> dict[str, int]: ...

class OperatorClock:
    def __init__(self, limit_seconds: float) -> None: ...
    def stop(self) -> dict[str, float]: ...

def core_clock_hz() -> float | None: ...

class CpuPages:
    def __init__(self, pages: str) -> None: ...
    def __enter__(self) -> CpuPages: ...
    def __exit__(self, *exception: object) -> None: ...
    def reason(self) -> str: ...

class WithoutPersistingL2:
    def __init__(self, device: int) -> None: ...
    def __enter__(self) -> str: ...
    def __exit__(self, *exception: object) -> None: ...

def idle_within(devices: Sequence[int], seconds: float) -> bool: ...
def device_ticks(device: int) -> dict[str, float | None]: ...
def flush_buffer_bytes(device: int, clean: bool) -> int: ...
def kernel_method_unavailable() -> str: ...
def kernel_cache() -> dict[str, Any] | None: ...
def quantile(values: Sequence[float], q: float) -> float: ...
def summarize(values: Sequence[float], tick: float = 0.0) -> Summary: ...
def paired_ratio(
    over: Sequence[float],
    under: Sequence[float],
    uncertainty: float = 0.0,
    *,
    tick: float = 0.0,
    over_places: Sequence[int] = (),
    under_places: Sequence[int] = (),
    batches: Sequence[int] = (),
) -> tuple[float, float, float]: ...
def median_interval(
    seconds: Sequence[float],
    places: Sequence[int],
    batches: Sequence[int],
    tick: float,
    uncertainty: float,
) -> tuple[float, float, Literal["samples", "batches", "placements"], int]: ...
def judge(
    low: float, high: float, margin: float, doubt: float = 0.0
) -> Literal["same", "faster", "slower", "uncertain"]: ...
def is_steady(series: Sequence[float]) -> bool: ...
def check_stop_rule(
    *,
    stop: str,
    min_samples: int,
    max_samples: int,
    budget: float,
    tolerance: float,
    margin: float,
) -> None: ...
def stop_reason(
    *,
    samples: Sequence[Sequence[float]],
    elapsed_seconds: float,
    stop: str,
    min_samples: int,
    max_samples: int,
    budget: float,
    tolerance: float,
    margin: float,
) -> str: ...
