"""Calls in a thread that knows nothing yet, and the plans that convtime builds there."""

import functools
import threading
from typing import Any

import pytest
import torch

import convtime
from convtime.conv.call import (
    CUDNN_BACKENDS,
    PASSES,
    ConvCall,
    Flags,
    TensorLayout,
    memory_format,
    same_bits,
)
from convtime.conv.identity import convtime_call
from convtime.conv.threads import FreshThread, in_fresh_thread
from convtime.timing.activity import same_launches

THREE_SAMPLES: dict[str, Any] = {
    "method": "kernel", "check": None, "interference": False, "warmup": 1, "stop": "count",
    "min_samples": 3, "max_samples": 3,
}  # fmt: skip
# A kernel that adds up in no fixed order may well give the same bits twice.
_REPEATS = 100


def test_a_fresh_thread_gives_back_results_and_errors_and_ends(device: torch.device) -> None:
    def fail() -> None:
        raise KeyError("inside")

    assert in_fresh_thread(torch.is_grad_enabled, device) is False
    with pytest.raises(KeyError, match="inside"):
        in_fresh_thread(fail, device)
    with FreshThread(device) as thread:
        (first, second) = (thread.call(threading.current_thread) for _ in range(2))
        assert first is second is not threading.current_thread()
    assert not first.is_alive()


@pytest.mark.cuda
def test_a_fresh_thread_runs_on_the_current_stream() -> None:
    stream = torch.cuda.Stream()
    device = torch.device("cuda", torch.cuda.current_device())
    with torch.cuda.stream(stream):
        assert in_fresh_thread(torch.cuda.current_stream, device) == stream


Sizes = tuple[int, ...]


def call(
    x: Sizes,
    w: Sizes,
    dtype: str = "float32",
    layout: str = "nchw",
    *,
    flags: Flags = Flags(),  # noqa: B008 (it is frozen)
    misaligned: int = 0,
    **parameters: Any,
) -> ConvCall:
    def lay_out(shape: Sizes, misalignment: int = 0) -> TensorLayout:
        tensor = torch.empty(shape, device="meta")
        tensor = tensor.to(memory_format=memory_format(layout, len(shape)))
        return TensorLayout(shape, tensor.stride(), misalignment)

    return ConvCall.of_layouts(dtype, lay_out(x, misaligned), lay_out(w), flags=flags, **parameters)


IEEE, DETERMINISTIC = Flags(allow_tf32=False), Flags(deterministic=True)
CALLS = {
    "float32": call((16, 64, 28, 28), (64, 64, 3, 3), padding=(1, 1)),
    "float32 without TF32": call((16, 64, 28, 28), (64, 64, 3, 3), padding=(1, 1), flags=IEEE),
    "float32, deterministic": call((16, 64, 28, 28), (64, 64, 3, 3), flags=DETERMINISTIC),
    "float32, channels_last": call((16, 64, 28, 28), (64, 64, 3, 3), layout="nhwc"),
    "float32, first layer": call((4, 3, 224, 224), (64, 3, 7, 7), stride=(2, 2), padding=(3, 3)),
    "float32, grouped": call((8, 64, 28, 28), (64, 16, 3, 3), groups=4, padding=(1, 1)),
    "float32, misaligned": call((4, 32, 28, 28), (32, 32, 3, 3), misaligned=4),
    "float16": call((16, 64, 28, 28), (64, 64, 3, 3), "float16", padding=(1, 1)),
    "float16, channels_last": call((16, 64, 28, 28), (64, 64, 3, 3), "float16", "nhwc"),
    "float16, pointwise": call((8, 256, 14, 14), (512, 256, 1, 1), "float16", "nhwc"),
    "float16, depthwise": call((32, 480, 14, 14), (480, 1, 3, 3), "float16", "nhwc", groups=480),
    "float16, grouped": call((8, 128, 28, 28), (128, 4, 3, 3), "float16", "nhwc", groups=32),
    "bfloat16, channels_last": call((8, 96, 56, 56), (192, 96, 2, 2), "bfloat16", "nhwc"),
    "float64": call((2, 16, 14, 14), (24, 16, 3, 3), "float64", padding=(1, 1)),
    "1-d": call((8, 64, 1000), (128, 64, 9), stride=(2,), padding=(4,)),
    "3-d": call((2, 16, 12, 28, 28), (32, 16, 3, 3, 3), padding=(1, 1, 1)),
    "transposed": call(
        (8, 64, 14, 14), (64, 32, 4, 4), transposed=True, stride=(2, 2), padding=(1, 1)
    ),
    "transposed, float16": call(
        (8, 64, 14, 14), (64, 32, 2, 2), "float16", "nhwc", transposed=True, stride=(2, 2)
    ),
    "transposed, 3-d": call((2, 16, 6, 8, 8), (16, 8, 2, 2, 2), transposed=True, stride=(2, 2, 2)),
}


TIMED = ("float32", "float16, channels_last", "3-d", "transposed")
QUICK = ("float32", "float16, channels_last", "1-d", "transposed, 3-d")


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("name", "policy"),
    [
        *(
            pytest.param(name, "heuristic", marks=[] if name in QUICK else pytest.mark.thorough)
            for name in CALLS
        ),
        *(pytest.param(name, "benchmark", marks=pytest.mark.thorough) for name in TIMED),
    ],
)
def test_a_second_thread_builds_the_same_plans_from_engine_and_knobs(
    name: str, policy: str
) -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    problem = CALLS[name]
    tensors = problem.tensors(device)
    for pass_name in PASSES:
        ours = convtime_call(problem, pass_name, tensors, policy)
        convtime.conv.clear_plan_cache()
        with problem.flags.applied(), torch.no_grad(), FreshThread(device) as thread:
            assert problem.backend(pass_name, tensors) in CUDNN_BACKENDS
            first = ours()
            (selected,) = convtime.conv.plan_cache()
            second = thread.call(ours)
            (rebuilt,) = convtime.conv.plan_cache()
            assert rebuilt.tag == selected.tag
            assert (selected.uses, selected.rebuilds) == (1, 0)
            assert (rebuilt.uses, rebuilt.rebuilds) == (2, 1)
            repeats = all(same_bits(first, ours()) for _ in range(_REPEATS))
            assert same_bits(first, second) or not repeats
            both: dict[str, Any] = {"first": ours, "second": functools.partial(thread.call, ours)}
            compared = convtime.compare(both, device=device, **THREE_SAMPLES)
        launches = {who: found.activities for who, found in compared.measurements.items()}
        assert launches["first"]
        assert same_launches(launches["first"], launches["second"])
