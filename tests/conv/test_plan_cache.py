"""plan_cache: the plans that convolutions have chosen; almost all of it on a GPU."""

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.nn import functional as F

import convtime
from convtime import ops
from convtime.conv.plan_choice import Plan, TensorDescriptor
from convtime.conv.threads import in_fresh_thread

TENSOR = {"sizes": (1, 2, 3, 4), "strides": (24, 12, 4, 1), "alignment": 32, "dtype": "float32"}
RECORD = {
    "pass_name": "fprop", "policy": "heuristic", "device": "cuda:0", "dtype": "float32",
    **dict.fromkeys("xwy", TENSOR),
    **dict.fromkeys(("stride", "padding", "dilation"), (1, 1)),
    "z": None, "alpha": 0.5,
    "b": {"sizes": (1, 1), "strides": (1, 1), "alignment": 4, "dtype": "float32"},
    "activation": "relu", "negative_slope": 0.0,
    "deterministic": False, "allow_tf32": True,
    "tag": "ConvFwd_eng38_k2=8_k13=1", "source": "instant", "workspace_bytes": 0,
    "numerical_notes": ["TENSOR_CORE"], "behavior_notes": [],
    "refused": ["ConvFwd_eng1: no"], "timed": ["ConvFwd_eng2", "ConvFwd_eng3"],
    "uses": 3, "rebuilds": 1,
}  # fmt: skip


def test_choices_come_frozen_and_with_the_cores_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        ops.conv2d(torch.ones(1, 2, 4, 4), torch.ones(2, 2, 3, 3), policy="benchmark")
        convtime.conv.clear_plan_cache()
        assert convtime.conv.plan_cache() == ()
    monkeypatch.setattr("convtime.conv.plans.loading._C.plan_cache", lambda: [RECORD])
    (choice,) = convtime.conv.plan_cache()
    names = {field.name for field in dataclasses.fields(choice)}
    assert names - set(RECORD) == {"compute_type"}  # which the core does not tell
    assert set(RECORD) <= names
    assert choice.x == TensorDescriptor((1, 2, 3, 4), (24, 12, 4, 1), 32, "float32")
    assert (choice.z, choice.b) == (None, TensorDescriptor((1, 1), (1, 1), 4, "float32"))
    assert choice.refused == ("ConvFwd_eng1: no",)
    assert (choice.engine, choice.knobs) == (38, {2: 8, 13: 1})
    assert type(choice.plan) is Plan
    assert (choice.plan.tag, choice.plan.x) == ("ConvFwd_eng38_k2=8_k13=1", choice.x)
    with pytest.raises(dataclasses.FrozenInstanceError):
        choice.uses = 4  # type: ignore[misc]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No plans yet, and none left behind."""
    convtime.conv.clear_plan_cache()
    yield
    convtime.conv.clear_plan_cache()


OPS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
LENGTHS = {1: (784,), 2: (28, 28), 3: (8, 12, 8)}
each_op = pytest.mark.parametrize("op", OPS)


def make_inputs(op: str = "conv2d", **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    spatial = int(op[-2])
    generator = torch.Generator("cuda").manual_seed(0)
    options = {"generator": generator, "device": "cuda", **options}
    x = torch.randn(16, 64, *LENGTHS[spatial], **options)
    return x, torch.randn(64, 64, *[3] * spatial, **options)


def large_inputs() -> tuple[torch.Tensor, torch.Tensor]:
    """Of a problem whose plan needs a workspace."""
    x = torch.randn(64, 256, 56, 56, device="cuda")
    return x, torch.randn(256, 256, 3, 3, device="cuda")


def gradients(namespace: Any, op: str = "conv2d", **kwargs: Any) -> tuple[torch.Tensor, ...]:
    leaves = [tensor.requires_grad_() for tensor in make_inputs(op)]
    output = getattr(namespace, op)(*leaves, padding=1, **kwargs)
    return (output, *torch.autograd.grad(output, leaves, torch.ones_like(output)))


@pytest.mark.cuda
@each_op
def test_every_pass_has_a_choice_that_says_what_it_is_for(op: str) -> None:
    gradients(ops, op)
    choices = {choice.pass_name: choice for choice in convtime.conv.plan_cache()}
    operations = {"fprop": "ConvFwd", "dgrad": "ConvBwdData", "wgrad": "ConvBwdFilter"}
    assert choices.keys() == operations.keys()
    spatial = int(op[-2])
    # As PyTorch: one dimension has a height of one.
    lengths, kernel, padding = LENGTHS[spatial], (3,) * spatial, (1,) * spatial
    if spatial == 1:
        lengths, kernel, padding = (1, *lengths), (1, 3), (0, 1)
    weight = (64, 64, *kernel)
    strides = tuple(int(np.prod(weight[axis:])) for axis in range(1, len(weight) + 1))
    for name, choice in choices.items():
        assert (choice.policy, choice.dtype, choice.device) == ("heuristic", "float32", "cuda:0")
        assert choice.x.sizes == choice.y.sizes == (16, 64, *lengths)
        assert choice.w == TensorDescriptor(weight, strides, 32, "float32")
        one = (1,) * len(kernel)
        assert (choice.stride, choice.padding, choice.dilation) == (one, padding, one)
        knobs = "".join(f"_k{knob}={value}" for knob, value in choice.knobs.items())
        assert choice.tag == f"{operations[name]}_eng{choice.engine}{knobs}"
        assert choice.source in ("instant", "fallback")
        assert choice.uses == 1
    with torch.profiler.profile() as profiler:
        gradients(ops, op)
        torch.cuda.synchronize()
    names = {event.name for event in profiler.events()}
    assert {f"convtime::{op}", "convtime::convolution_backward"} <= names
    assert not {name for name in names if name.startswith("aten::") and "conv" in name}
    assert {choice.uses for choice in convtime.conv.plan_cache()} == {2}


@pytest.mark.cuda
@each_op
def test_a_choice_can_be_named_and_captured(op: str) -> None:
    """Also of a transposed convolution, whose forward pass is a gradient."""
    x, w = make_inputs(op)
    options = {"stride": 2, **({"output_padding": 1} if "transpose" in op else {})}
    function = getattr(ops, op)
    output = function(x, w, **options)
    (choice,) = convtime.conv.plan_cache()
    assert choice.pass_name == ("dgrad" if "transpose" in op else "fprop")
    spatial = int(op[-2])
    ends = (x, output) if "transpose" not in op else (output, x)
    assert tuple(each.sizes[-spatial:] for each in (choice.x, choice.y)) == tuple(
        each.shape[2:] for each in ends
    )
    short = choice.tag.partition("_")[2]
    for policy in (choice.tag, short):
        assert torch.equal(function(x, w, **options, policy=policy), output)
    named = convtime.conv.plan_cache()[-1]
    assert (named.tag, named.source, named.uses) == (choice.tag, "explicit", 2)
    assert named.policy == short
    for policy in ("heuristic", "benchmark"):
        expected = function(x, w, **options, policy=policy)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = function(x, w, **options, policy=policy)
        captured.zero_()
        graph.replay()
        assert torch.equal(captured, expected)


@pytest.mark.cuda
@pytest.mark.thorough
@each_op
def test_every_pass_runs_pytorchs_kernels(op: str) -> None:
    """With all flags for conv2d; the others share the code: those that change the plan most."""
    flags = itertools.product((torch.float32, torch.float16, torch.bfloat16), *[[False, True]] * 3)
    for dtype, channels_last, deterministic, allow_tf32 in flags:
        if op != "conv2d" and (deterministic or (dtype != torch.float32 and not allow_tf32)):
            continue
        leaves = list(make_inputs(op, dtype=dtype))
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        if channels_last and leaves[0].dim() in formats:
            leaves = [leaf.to(memory_format=formats[leaf.dim()]) for leaf in leaves]
        leaves = [leaf.requires_grad_() for leaf in leaves]
        with torch.backends.cudnn.flags(
            enabled=True, benchmark=False, deterministic=deterministic, allow_tf32=allow_tf32
        ):
            theirs = kernels(F, op, leaves)
            assert kernels(ops, op, leaves) == theirs, (dtype, channels_last, deterministic)
            assert theirs


def kernels(namespace: Any, op: str, leaves: list[torch.Tensor]) -> list[str]:
    """Of a training step, once it is warm."""

    def run() -> None:
        output = getattr(namespace, op)(*leaves, padding=1)
        torch.autograd.grad(output, leaves, torch.ones_like(output))

    run()
    with torch.profiler.profile() as profiler:
        run()
        torch.cuda.synchronize()
    return sorted(event.name for event in profiler.events() if event.device_type == DeviceType.CUDA)


@pytest.mark.cuda
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are not two CUDA devices")
def test_each_device_has_choices_of_its_own() -> None:
    for op in OPS:
        x, w = make_inputs(op)
        convtime.conv.clear_plan_cache()
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
            for device in ("cuda:0", "cuda:1", "cuda:0"):  # while cuda:0 is the current one
                on_device = [tensor.to(device) for tensor in (x, w)]
                assert torch.equal(getattr(ops, op)(*on_device), getattr(F, op)(*on_device))
        assert [choice.device for choice in convtime.conv.plan_cache()] == ["cuda:1", "cuda:0"]


@pytest.mark.cuda
def test_the_flag_takes_effect_at_once() -> None:
    x, w = make_inputs()
    for benchmark in (False, True, False):
        with torch.backends.cudnn.flags(enabled=True, benchmark=benchmark):
            ops.conv2d(x, w)
        last = convtime.conv.plan_cache()[-1]
        assert last.policy == ("benchmark" if benchmark else "heuristic")
    assert len(convtime.conv.plan_cache()) == 2
    assert last.uses == 2


@pytest.mark.cuda
def test_the_benchmark_is_said_to_be_one_and_is_done_once() -> None:
    expected = gradients(ops)
    for _ in range(2):
        for ours, theirs in zip(gradients(ops, policy="benchmark"), expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-2, atol=1e-1)  # TF32 or not
    timed = [choice for choice in convtime.conv.plan_cache() if choice.policy == "benchmark"]
    assert {choice.pass_name for choice in timed} == {"fprop", "dgrad", "wgrad"}
    assert {(choice.source, choice.uses) for choice in timed} == {("benchmark", 2)}
    for choice in timed:
        assert choice.tag in choice.timed
        assert 1 <= len(choice.timed) == len(set(choice.timed)) <= 10


@pytest.mark.cuda
def test_what_cannot_be_done_is_one_clear_error() -> None:
    x, w = make_inputs()
    ops.conv2d(x, w)
    engine = convtime.conv.plan_cache()[-1].engine
    with pytest.raises(RuntimeError, match=r"with engine 99999; supported .*\beng\d+"):
        ops.conv2d(x, w, policy="eng99999")
    with pytest.raises(RuntimeError, match=rf"engine {engine} has no knob k999=1 .* knobs are:"):
        ops.conv2d(x, w, policy=f"eng{engine}_k999=1")
    with (
        pytest.raises(RuntimeError, match="conv2d: plans cannot be timed during CUDA graph"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        ops.conv2d(x, w, policy="benchmark")
    assert torch.equal(ops.conv2d(x, w), F.conv2d(x, w))


@pytest.mark.cuda
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
    (choice,) = convtime.conv.plan_cache()
    assert choice.uses == 81


@pytest.mark.cuda
def test_a_thread_without_a_context_gets_the_same_plan() -> None:
    """cuDNN's runtime-compiled depthwise engine goes through the driver, as cuBLASLt's do."""
    x, w = (
        torch.randn(shape, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
        for shape in ((32, 480, 14, 14), (480, 1, 3, 3))
    )
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ops.conv2d, x, w, padding=1, groups=480).result()
    (found,) = convtime.conv.plan_cache()
    convtime.conv.clear_plan_cache()
    ops.conv2d(x, w, padding=1, groups=480)
    (expected,) = convtime.conv.plan_cache()
    assert found.tag == expected.tag
    assert found.refused == ()


@contextlib.contextmanager
def little_memory(room: int) -> Iterator[None]:
    """Leaves so many bytes to allocate."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties("cuda").total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.cuda
def test_a_plan_without_memory_gives_way_to_the_next() -> None:
    x, w = large_inputs()
    expected = ops.conv2d(x, w, padding=1)
    (first,) = convtime.conv.plan_cache()
    assert first.workspace_bytes > 64 * 2**20, "this problem tells nothing here: take another"
    with little_memory(expected.nbytes + first.workspace_bytes // 2):
        actual = ops.conv2d(x, w, padding=1)
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-1)
    first, second = convtime.conv.plan_cache()
    assert second.workspace_bytes < first.workspace_bytes
    assert f"{first.tag}: cannot allocate the plan's workspace" in second.refused[0]
    assert (first.uses, second.uses) == (1, 1)

    # As in PyTorch: this thread stays with it, and others know nothing of it.
    ops.conv2d(x, w, padding=1)
    in_fresh_thread(lambda: ops.conv2d(x, w, padding=1), x.device)
    counts = {choice.tag: (choice.uses, choice.rebuilds) for choice in convtime.conv.plan_cache()}
    assert counts == {first.tag: (2, 1), second.tag: (2, 0)}

    with (
        little_memory(expected.nbytes + first.workspace_bytes // 2),
        pytest.raises(torch.OutOfMemoryError, match="conv2d: cannot allocate the plan's workspace"),
    ):
        ops.conv2d(x, w, padding=1, policy=first.tag)
    actual = ops.conv2d(x, w, padding=1, policy=first.tag)
    torch.testing.assert_close(actual, expected, rtol=1e-2, atol=1e-1)


IMPORTS = "import gc, os, convtime, torch\nfrom convtime import ops\n"


def run_child(code: str, **environment: str) -> str:
    """Runs Python in a process of its own, which reads its environment anew; what it prints."""
    result = subprocess.run(
        [sys.executable, "-c", IMPORTS + textwrap.dedent(code)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert "convtime: " not in result.stderr  # what destructors cannot throw
    return result.stdout


@pytest.mark.cuda
@pytest.mark.thorough
def test_an_error_of_cudas_own_is_told_as_it_is() -> None:
    output = run_child(
        """
        x, w = torch.randn(2, 8, 9, 9, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
        ops.conv2d(x, w)
        torch.ones(1, device="cuda")[torch.tensor([7], device="cuda")]  # out of bounds
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            pass
        for policy in ("heuristic", "benchmark", "eng0"):  # with a plan, and without
            try:
                ops.conv2d(x, w, policy=policy)
            except torch.AcceleratorError as error:
                print(str(error).splitlines()[0], flush=True)
        os._exit(0)
        """
    )
    assert output == 3 * "CUDA error: device-side assert triggered\n"


@pytest.mark.cuda
@pytest.mark.thorough
def test_the_limit_of_pytorchs_plans_is_that_of_convtimes() -> None:
    for limit, rebuilds in {"0": 0, "1": 1, "2": 0, "-1": 0}.items():
        output = run_child(
            """
            x, w = torch.randn(2, 8, 9, 9, device="cuda"), torch.randn(8, 8, 3, 3, device="cuda")
            for padding in (0, 1, 0, 0):
                ops.conv2d(x, w, padding=padding)
            print([(choice.uses, choice.rebuilds) for choice in convtime.conv.plan_cache()])
            """,
            TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT=limit,
        )
        assert output == f"[(1, 0), (3, {rebuilds})]\n"


@pytest.mark.cuda
@pytest.mark.thorough
def test_the_errata_hold_for_a_named_engine(tmp_path: Path) -> None:
    x, w = make_inputs()
    ops.conv2d(x, w, padding=1, policy="heuristic")
    chosen = convtime.conv.plan_cache()[-1]
    rule = {"rule_id": "test", "operation": "ConvFwd", "engine": chosen.engine}
    errata = tmp_path / "errata.json"
    errata.write_text(json.dumps({"version": 1, "rules": [rule]}))
    output = run_child(
        f"""
        x = torch.randn({tuple(x.shape)}, device="cuda")
        w = torch.randn({tuple(w.shape)}, device="cuda")
        ops.conv2d(x, w, padding=1, policy="heuristic")
        print(convtime.conv.plan_cache()[-1].engine != {chosen.engine})
        try:
            ops.conv2d(x, w, padding=1, policy="{chosen.tag}")
        except RuntimeError as error:
            print(str(error).splitlines()[0])
        """,
        CUDNN_ERRATA_JSON_FILE=str(errata),
    )
    told, error = output.splitlines()
    assert told == "True"
    said = "which must not run this convolution: CUDNN_ERRATA_JSON_FILE forbids it"
    assert error.startswith(f"conv2d: policy names cuDNN's plan {chosen.tag}, {said}")


@pytest.mark.cuda
@pytest.mark.thorough
def test_a_graph_outlives_thread_and_plan() -> None:
    # The depthwise engine's kernels are compiled for the plan, and go with it.
    run_child(
        """
        from convtime.conv.threads import in_fresh_thread

        half = {"device": "cuda", "dtype": torch.float16}
        depthwise = [
            torch.randn(shape, **half).to(memory_format=torch.channels_last)
            for shape in ((32, 480, 14, 14), (480, 1, 3, 3))
        ]
        dense = [torch.randn(16, 64, 28, 28, **half), torch.randn(64, 64, 3, 3, **half)]
        volume = [torch.randn(2, 16, 8, 14, 14, **half), torch.randn(16, 16, 3, 3, 3, **half)]
        calls = [
            lambda: ops.conv2d(*depthwise, padding=1, groups=480),
            lambda: ops.conv2d(*dense, padding=1),
            lambda: ops.conv3d(*volume, padding=1),
        ]

        def capture(call):
            graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
            with torch.cuda.stream(stream):
                expected = call()
                torch.cuda.synchronize()
                with torch.cuda.graph(graph, stream=stream):
                    captured = call()
            return graph, captured, expected

        # Plans of autograd's threads end without a word.
        x, w = (torch.randn_like(tensor, requires_grad=True) for tensor in dense)
        ops.conv2d(x, w, padding=1).sum().backward()

        # Of threads that have ended, and of plans that others have pushed out.
        graphs = [in_fresh_thread(lambda: capture(call), depthwise[0].device) for call in calls]
        graphs += [capture(call) for call in calls]
        convtime.conv.clear_plan_cache()
        for call in calls:
            call()
        gc.collect()
        torch.cuda.synchronize()
        for graph, captured, expected in graphs:
            captured.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            torch.testing.assert_close(captured, expected)
        """,
        TORCH_CUDNN_V8_API_LRU_CACHE_LIMIT="1",
    )


@pytest.mark.cuda
def test_the_floor_only_executes() -> None:
    x, w = make_inputs()
    for bias in (None, torch.ones(w.shape[0], device=x.device, dtype=x.dtype)):
        floor = convtime._C.execute_floor(x, w, bias, 1, 1, 1, 1)
        with torch.profiler.profile() as profiler:
            floor()
            torch.cuda.synchronize()
        names = {event.name for event in profiler.events()}
        assert not {name for name in names if name.startswith(("aten::", "convtime::"))}
        on_gpu = [each.name for each in profiler.events() if each.device_type == DeviceType.CUDA]
        assert on_gpu
        assert any("elementwise" in name for name in on_gpu) == (bias is not None)
