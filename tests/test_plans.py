from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import convtime
from convtime import ops

RECORD = {
    "pass_name": "fprop",
    "policy": "heuristic",
    "device": "cuda:0",
    "dtype": "float32",
    **{name: {"sizes": (1, 2, 3, 4), "strides": (24, 12, 4, 1), "alignment": 32} for name in "xwy"},
    **dict.fromkeys(("stride", "padding", "dilation"), (1, 1)),
    "deterministic": False,
    "allow_tf32": True,
    "tag": "ConvFwd_eng38_k2=8_k13=1",
    "engine": 38,
    "knobs": {2: 8, 13: 1},
    "source": "instant",
    "workspace_bytes": 0,
    "numerical_notes": ["CUDNN_NUMERICAL_NOTE_TENSOR_CORE"],
    "behavior_notes": [],
    "refused": ["ConvFwd_eng1: no"],
    "uses": 3,
}


def test_choices_come_frozen_and_with_the_cores_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("convtime.plans._C.plan_cache", lambda: [RECORD])
    (choice,) = convtime.plan_cache()
    assert {field.name for field in dataclasses.fields(choice)} == set(RECORD)
    assert choice.x == convtime.TensorDescriptor((1, 2, 3, 4), (24, 12, 4, 1), 32)
    assert choice.refused == ("ConvFwd_eng1: no",)
    assert (choice.tag, choice.knobs) == ("ConvFwd_eng38_k2=8_k13=1", {2: 8, 13: 1})
    with pytest.raises(dataclasses.FrozenInstanceError):
        choice.uses = 4  # type: ignore[misc]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_cpu_has_no_plans() -> None:
    ops.conv2d(torch.ones(1, 2, 4, 4), torch.ones(2, 2, 3, 3), policy="benchmark")
    convtime.clear_plan_cache()
    assert convtime.plan_cache() == ()


@pytest.fixture
def fresh() -> Iterator[None]:
    """No plans yet, and none left behind."""
    convtime.clear_plan_cache()
    yield
    convtime.clear_plan_cache()


def make_inputs(**options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    options = {"generator": generator, "device": "cuda", **options}
    return torch.randn(16, 64, 28, 28, **options), torch.randn(64, 64, 3, 3, **options)


def gradients(conv2d: Callable[..., torch.Tensor], **kwargs: Any) -> tuple[torch.Tensor, ...]:
    leaves = [tensor.requires_grad_() for tensor in make_inputs()]
    output = conv2d(*leaves, padding=1, **kwargs)
    return (output, *torch.autograd.grad(output, leaves, torch.ones_like(output)))


@pytest.mark.cuda
@pytest.mark.usefixtures("fresh")
def test_every_pass_has_a_choice_that_says_what_it_is_for() -> None:
    gradients(ops.conv2d)
    choices = {choice.pass_name: choice for choice in convtime.plan_cache()}
    operations = {"fprop": "ConvFwd", "dgrad": "ConvBwdData", "wgrad": "ConvBwdFilter"}
    assert choices.keys() == operations.keys()
    for name, choice in choices.items():
        assert (choice.policy, choice.dtype, choice.device) == ("heuristic", "float32", "cuda:0")
        assert choice.x.sizes == choice.y.sizes == (16, 64, 28, 28)
        assert choice.w == convtime.TensorDescriptor((64, 64, 3, 3), (576, 9, 3, 1), 32)
        assert (choice.stride, choice.padding, choice.dilation) == ((1, 1), (1, 1), (1, 1))
        knobs = "".join(f"_k{knob}={value}" for knob, value in choice.knobs.items())
        assert choice.tag == f"{operations[name]}_eng{choice.engine}{knobs}"
        assert choice.source in ("instant", "fallback")
        assert choice.uses == 1


@pytest.mark.cuda
@pytest.mark.usefixtures("fresh")
def test_no_convolution_of_pytorchs_runs_in_any_pass() -> None:
    gradients(ops.conv2d)
    with torch.profiler.profile() as profiler:
        gradients(ops.conv2d)
        torch.cuda.synchronize()
    names = {event.name for event in profiler.events()}
    assert {"convtime::conv2d", "convtime::conv2d_backward"} <= names
    assert not {name for name in names if name.startswith("aten::") and "conv" in name}
    assert {choice.uses for choice in convtime.plan_cache()} == {2}


@pytest.mark.cuda
@pytest.mark.parametrize("allow_tf32", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_every_pass_runs_pytorchs_kernels(
    dtype: torch.dtype, channels_last: bool, deterministic: bool, allow_tf32: bool
) -> None:
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    leaves = [
        tensor.to(memory_format=memory_format).requires_grad_()
        for tensor in make_inputs(dtype=dtype)
    ]

    def run(conv2d: Callable[..., torch.Tensor]) -> None:
        output = conv2d(*leaves, padding=1)
        torch.autograd.grad(output, leaves, torch.ones_like(output))

    def kernels(conv2d: Callable[..., torch.Tensor]) -> list[str]:
        run(conv2d)
        with torch.profiler.profile() as profiler:
            run(conv2d)
            torch.cuda.synchronize()
        return sorted(
            event.name
            for event in profiler.events()
            if event.device_type == torch.autograd.DeviceType.CUDA
        )

    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=deterministic, allow_tf32=allow_tf32
    ):
        theirs = kernels(F.conv2d)
        assert kernels(ops.conv2d) == theirs
        assert theirs


@pytest.mark.cuda
@pytest.mark.usefixtures("fresh")
def test_the_flag_takes_effect_at_once() -> None:
    x, w = make_inputs()
    for benchmark in (False, True, False):
        with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark):
            ops.conv2d(x, w)
        last = convtime.plan_cache()[-1]
        assert last.policy == ("benchmark" if benchmark else "heuristic")
    assert len(convtime.plan_cache()) == 2
    assert last.uses == 2


@pytest.mark.cuda
@pytest.mark.usefixtures("fresh")
def test_the_benchmark_is_said_to_be_one_and_is_done_once() -> None:
    expected = gradients(ops.conv2d)
    for _ in range(2):
        for ours, theirs in zip(gradients(ops.conv2d, policy="benchmark"), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-1)  # TF32 or not
    timed = [choice for choice in convtime.plan_cache() if choice.policy == "benchmark"]
    assert {choice.pass_name for choice in timed} == {"fprop", "dgrad", "wgrad"}
    assert {(choice.source, choice.uses) for choice in timed} == {("benchmark", 2)}


@pytest.mark.cuda
@pytest.mark.usefixtures("fresh")
def test_an_engine_can_be_named_by_its_tag() -> None:
    x, w = make_inputs()
    expected = ops.conv2d(x, w)
    (chosen,) = convtime.plan_cache()
    for policy in (chosen.tag, chosen.tag.removeprefix("ConvFwd_")):
        assert torch.equal(ops.conv2d(x, w, policy=policy), expected)
    named = convtime.plan_cache()[-1]
    assert (named.tag, named.source, named.uses) == (chosen.tag, "explicit", 2)
    assert named.policy == chosen.tag.removeprefix("ConvFwd_")


@pytest.mark.cuda
def test_engines_and_knobs_that_there_are_not_are_one_clear_error() -> None:
    x, w = make_inputs()
    ops.conv2d(x, w)
    engine = convtime.plan_cache()[-1].engine
    with pytest.raises(RuntimeError, match=r"with engine 99999; it can with: .*\beng\d+"):
        ops.conv2d(x, w, policy="eng99999")
    with pytest.raises(RuntimeError, match=rf"engine {engine} has no knob k999=1 .* knobs are:"):
        ops.conv2d(x, w, policy=f"eng{engine}_k999=1")
    assert torch.equal(ops.conv2d(x, w), F.conv2d(x, w))


@pytest.mark.cuda
@pytest.mark.usefixtures("fresh")
def test_threads_share_choices_and_have_plans_of_their_own() -> None:
    x, w = make_inputs()
    expected = ops.conv2d(x, w, policy="benchmark")
    torch.cuda.synchronize()

    def work(_: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [ops.conv2d(x, w, policy="benchmark") for _ in range(10)]
            torch.cuda.current_stream().synchronize()
        return all(torch.equal(result, expected) for result in results)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
    (choice,) = convtime.plan_cache()
    assert choice.uses == 81


@pytest.mark.cuda
@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("policy", ["heuristic", "benchmark"])
def test_a_ready_plan_can_be_captured(policy: str) -> None:
    x, w = make_inputs()
    expected = ops.conv2d(x, w, policy=policy)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = ops.conv2d(x, w, policy=policy)
    captured.zero_()
    graph.replay()
    assert torch.equal(captured, expected)


@pytest.mark.cuda
@pytest.mark.usefixtures("fresh")
def test_timing_plans_while_capturing_is_one_clear_error() -> None:
    x, w = make_inputs()
    with (
        pytest.raises(RuntimeError, match="conv2d: plans cannot be timed while a CUDA graph is"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        ops.conv2d(x, w, policy="benchmark")
    assert ops.conv2d(x, w, policy="benchmark").isfinite().all()


@pytest.mark.cuda
@pytest.mark.usefixtures("fresh")
def test_a_plan_without_memory_gives_way_to_the_next() -> None:
    x = torch.randn(64, 256, 56, 56, device="cuda")
    w = torch.randn(256, 256, 3, 3, device="cuda")
    expected = ops.conv2d(x, w, padding=1)
    (first,) = convtime.plan_cache()
    assert first.workspace_bytes > 64 * 2**20, "this problem tells nothing here: take another"
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    room = expected.nbytes + first.workspace_bytes // 2
    total = torch.cuda.get_device_properties("cuda").total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / total)
    try:
        actual = ops.conv2d(x, w, padding=1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-1)
    (second,) = convtime.plan_cache()
    assert second.workspace_bytes < first.workspace_bytes
    assert f"{first.tag}: no memory for its workspace" in second.refused[0]


@pytest.mark.cuda
def test_cleared_plans_are_selected_anew() -> None:
    x, w = make_inputs()
    expected = ops.conv2d(x, w)
    convtime.clear_plan_cache()
    assert convtime.plan_cache() == ()
    assert torch.equal(ops.conv2d(x, w), expected)
    assert [choice.uses for choice in convtime.plan_cache()] == [1]


@pytest.mark.cuda
def test_the_floor_only_executes() -> None:
    x, w = make_inputs()
    floor = convtime._C.execute_floor(x, w, 1, 1, 1, 1)  # type: ignore[attr-defined]
    with torch.profiler.profile() as profiler:
        floor()
        torch.cuda.synchronize()
    names = {event.name for event in profiler.events()}
    assert not {name for name in names if name.startswith(("aten::", "convtime::"))}
    assert {e for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA}
