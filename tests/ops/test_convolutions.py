"""The convolutions take what PyTorch's take, and compute the same bits."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch.nn import functional as F

from convtime import ops
from convtime.ops import convolutions
from tests.helpers.op_calls import OPS, Problem, make_tensor, problems, representative
from tests.helpers.op_examples import AMOUNTS, for_all

Function = Callable[..., torch.Tensor]


def outcome(
    function: Function, problem: Problem, device: torch.device, flags: dict[str, bool]
) -> list[torch.Tensor | None] | Exception:
    """The output and the gradients, or what was raised."""
    leaves = [
        tensor if tensor is None else tensor.detach().requires_grad_(needed)
        for tensor, needed in zip(problem.tensors(device), problem.needed, strict=True)
    ]
    wanted = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, **flags):
            output = function(*leaves, **problem.arguments)
        if device.type == "cpu" and output.dtype in (torch.float16, torch.bfloat16):
            return [output]  # torch 2.11 writes out of bounds in some of these gradients
        if not wanted:
            assert not output.requires_grad
            return [output]
        grad = make_tensor(output.shape, output.dtype, problem.layouts[2], device)
        # Sums of other engines come out differently from run to run.
        repeatable = {**flags, "deterministic": True}
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, **repeatable):
            return [output, *torch.autograd.grad(output, wanted, grad)]
    except Exception as error:
        return error


@pytest.mark.filterwarnings("ignore:.*padding='same' with even kernel:UserWarning")
@AMOUNTS
@pytest.mark.parametrize("op", OPS)
def test_an_op_takes_and_computes_what_pytorchs_does(
    op: str, amount: int, device: torch.device
) -> None:
    refused = []

    def check(call: tuple[Problem, bool, bool]) -> None:
        problem, deterministic, allow_tf32 = call
        # What transposed convolutions run adds up differently from call to call.
        deterministic |= "transpose" in op
        flags = {"deterministic": deterministic, "allow_tf32": allow_tf32}
        ours, theirs = (outcome(function, problem, device, flags) for function in problem.functions)
        refused.append(isinstance(theirs, Exception))
        if isinstance(theirs, Exception) or isinstance(ours, Exception):
            assert isinstance(theirs, Exception), f"PyTorch takes what convtime does not: {ours}"
            assert isinstance(ours, RuntimeError), f"PyTorch refuses with: {theirs}"
            return
        for actual, expected in zip(ours, theirs, strict=True):
            assert actual is not None
            assert expected is not None
            assert actual.dtype == expected.dtype
            assert actual.stride() == expected.stride()
            assert torch.equal(actual, expected)

    calls = st.tuples(problems(op, refused=True), st.booleans(), st.booleans())
    for_all(calls, check, 50 * amount, device, 6 * amount)
    if amount > 1:  # the family has calls of both kinds
        assert min(refused.count(True), refused.count(False)) > len(refused) / 10


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("op", OPS)
def test_gradients_of_16_bits_are_pytorchs_to_the_bit(
    op: str, layout: str, device: torch.device
) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        problem = representative(op, dtypes=(dtype, dtype), layouts=(layout, layout, layout))
        leaves = problem.leaves(device)
        outputs = [function(*leaves, **problem.arguments) for function in problem.functions]
        grad = make_tensor(outputs[0].shape, dtype, layout, device)
        gradients = [torch.autograd.grad(output, leaves, grad) for output in outputs]
        for ours, theirs in zip(*gradients, strict=True):
            assert ours.stride() == theirs.stride()
            assert torch.equal(ours, theirs)


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("op", OPS)
def test_second_derivatives_are_pytorchs_to_the_bit(op: str, device: torch.device) -> None:
    def second_order(function: Function, problem: Problem) -> Sequence[torch.Tensor]:
        leaves = problem.leaves(device)
        output = function(*leaves, **problem.arguments)
        first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in first]).sum()
        return torch.autograd.grad(total, leaves)

    whole = representative(op)
    for problem in (whole, dataclasses.replace(whole, x=whole.x[1:])):
        results = [second_order(function, problem) for function in problem.functions]
        assert all(map(torch.equal, *results))


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.parametrize("op", OPS)
def test_derivatives_are_the_numeric_ones(op: str, device: torch.device) -> None:
    options: dict[str, Any] = {"dtype": torch.float64, "device": device, "requires_grad": True}
    size = (4, 3, 2)[: int(op[-2])]
    shapes = ((2, 2, *size), (2, 1, *(2 for _ in size)), (2,))
    tensors = [torch.randn(shape, **options) for shape in shapes]

    def fn(*tensors: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = getattr(ops, op)(*tensors, stride=2, padding=1, groups=2)
        return output

    options = {"nondet_tol": 1e-12, "check_batched_grad": True}
    assert torch.autograd.gradcheck(
        fn, tensors, check_forward_ad=True, check_batched_forward_grad=True, **options
    )
    assert torch.autograd.gradgradcheck(
        fn, tensors, check_fwd_over_rev=True, check_rev_over_rev=True, **options
    )


# --- The ways of calling


def in_inference_mode(function: Function, *tensors: Any, **arguments: Any) -> torch.Tensor:
    with torch.inference_mode():
        output = function(*tensors, **arguments)
        assert output.is_inference()
        return output.clone()


def under_autocast(function: Function, *tensors: Any, **arguments: Any) -> torch.Tensor:
    outputs = []
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast(tensors[0].device.type, dtype=dtype):
            outputs.append(function(*tensors, **arguments))
        assert outputs[-1].dtype == dtype
    return torch.cat([output.float() for output in outputs])


def of_an_expanded_input(function: Function, x: Any, *tensors: Any, **arguments: Any) -> Any:
    return function(x[:1, :, ..., :1].expand(x.shape), *tensors, **arguments)


def traced_by_fx(function: Function, *tensors: Any, **arguments: Any) -> torch.Tensor:
    traced = torch.fx.symbolic_trace(lambda x, w, b: function(x, w, b, **arguments))
    assert f"{function.__name__}(" in traced.code
    output: torch.Tensor = traced(*tensors)
    return output


WAYS: list[Callable[..., torch.Tensor]] = [
    in_inference_mode,
    under_autocast,
    of_an_expanded_input,
    traced_by_fx,
]


@pytest.mark.usefixtures("repeatable")
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_results_are_pytorchs_whichever_way_it_is_called(
    way: Callable[..., torch.Tensor], device: torch.device
) -> None:
    for op in OPS:
        problem = representative(op)
        ours, theirs = (
            way(function, *problem.tensors(device), **problem.arguments)
            for function in problem.functions
        )
        assert torch.equal(ours, theirs), op


@pytest.mark.filterwarnings("ignore:.*padding='same' with even kernel:UserWarning")
def test_words_and_default_devices_leave_the_direct_entry(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry that costs the least time in Python."""
    monkeypatch.setattr(convolutions, "_by_torch_ops", lambda *_: pytest.fail("by torch.ops"))
    for op in OPS:
        problem = representative(op)
        tensors = problem.tensors(device)
        words = [] if "transpose" in op else [{"padding": "same"}, {"padding": "valid"}]
        for arguments in (problem.arguments, *words):
            with torch.device("meta"):
                ours, theirs = (function(*tensors, **arguments) for function in problem.functions)
            assert torch.equal(ours, theirs)


def test_overrides_and_modes_see_the_call(device: torch.device, spy: Any) -> None:
    class Tagged(torch.Tensor):
        pass

    x, w = torch.ones(2, 3, 9, 11, device=device), torch.ones(4, 3, 3, 3, device=device)
    assert isinstance(ops.conv2d(x.as_subclass(Tagged), w), Tagged)
    with torch.device("meta"), spy:
        ops.conv2d(x, w)
    assert torch.ops.convtime.conv2d in spy.seen


def test_generated_functions_are_like_written_ones() -> None:
    for name in ops.__all__:
        if not name.startswith("conv"):
            continue
        function = getattr(ops, name)
        assert function.__name__ == function.__qualname__ == function.__code__.co_name == name
        assert pickle.loads(pickle.dumps(function)) is function
        documentation = inspect.getdoc(function)
        assert documentation is not None
        assert "conv" in documentation.splitlines()[0]
        assert not {"{", "}"} & set(documentation)
        assert max(map(len, documentation.splitlines())) <= 100
        shapes = ["(K, C / groups, ", "(C, K / groups, "]
        other = shapes.pop("transpose" not in name)
        assert other not in documentation
        assert "weight: shape" not in documentation or f"weight: shape {shapes[0]}" in documentation
        assert "torch.Tensor" in str(inspect.signature(function))


# --- What is refused

V, X, U = torch.ones(2, 4, 8), torch.ones(2, 4, 8, 8), torch.ones(2, 4, 5, 5, 5)
W, B = torch.ones(6, 4, 3, 3), torch.ones(6)
T = W[:4]  # of transposed convolutions

BAD: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("conv1d", (V[0, 0], W[..., 0]), {}, r"shape \(N, C, L\) or \(C, L\), got \[8\]"),
    ("conv3d", (U[0, 0], U), {}, r"shape \(N, C, D, H, W\) or \(C, D, H, W\), got"),
    ("conv2d", (X, W[0]), {}, r"shape \(K, C / groups, R, S\), got \[4, 3, 3\]"),
    ("conv_transpose3d", (U, U[:, :, 0]), {}, r"shape \(C, K / groups, T, R, S\), got"),
    ("conv2d", (X[:, :3], W), {}, r"groups channels \(4 \* 1\), got 3"),
    ("conv_transpose2d", (X, W), {}, r"as dimension 0 of weight \(6\), got 4"),
    ("conv_transpose2d", (X, T), {"groups": 3}, r"a multiple of groups \(3\), got 4"),
    ("conv2d", (X, W[:, :1]), {"groups": 4}, r"a multiple of groups \(4\), got 6"),
    ("conv2d", (X, W), {"groups": 0}, "groups must be at least 1, got 0"),
    ("conv2d", (X.int(), W.int()), {}, "dtype must be Half, .* got Int"),
    ("conv2d", (X, W.half()), {}, r"weight must have the input's dtype \(Float\), got Half"),
    ("conv2d", (X, W, B.half()), {}, r"the input's dtype \(Float\), got Half"),
    ("conv2d", (X, W, B[:5]), {}, r"bias must have shape \(6\).* got \[5\]"),
    ("conv_transpose2d", (X, T, B), {}, r"bias must have shape \(4\).* got \[6\]"),
    ("conv2d", (X, None), {}, "weight must be a tensor, got NoneType"),
    ("conv2d", (X, W[:, :, :0]), {}, "a kernel of at least 1 x 1"),
    ("conv2d", (X, W[:0]), {}, "at least one output channel"),
    ("conv_transpose2d", (X, T[:, :0]), {}, "at least one output channel"),
    ("conv1d", (V, W[..., 0]), {"stride": (1, 1)}, r"one number, got \[1, 1\]"),
    ("conv1d", (V, W[..., 0]), {"stride": 1.5}, "stride must be one whole number, got 1.5"),
    ("conv2d", (X, W), {"stride": (1, 1, 1)}, r"one or two numbers, got \[1, 1, 1\]"),
    ("conv3d", (U, U), {"padding": (0, 0)}, r"one or three numbers, got \[0, 0\]"),
    ("conv2d", (X, W), {"stride": b"\1\2"}, r"stride must be .* whole numbers, got b'\\x01\\x02'"),
    ("conv2d", (X, W), {"stride": (1, -1)}, r"between 1 and 2147483647, got \[1, -1\]"),
    ("conv2d", (X, W), {"padding": 2**40}, "padding must be between 0 and 2147483647"),
    ("conv2d", (X, W), {"dilation": 0}, "dilation must be between 1"),
    ("conv1d", (V, W[..., 0]), {"dilation": 4}, "got .*9 .* 8 in length"),
    ("conv2d", (X, W), {"dilation": 4}, "larger than the padded input, got .*9 .* 8 in height"),
    ("conv3d", (U, U), {"dilation": (2, 1, 1)}, "got .*9 .* 5 in depth"),
    ("conv2d", (X, W), {"padding": "full"}, "number, 'same' or 'valid', got 'full'"),
    ("conv2d", (X, W), {"padding": "same", "stride": 2}, r"a stride of 1, got \(2, 2\)"),
    ("conv2d", (X, W[0, 0, 0]), {"padding": "same"}, "weight must have shape"),
    ("conv_transpose2d", (X, T), {"padding": "same"}, "whole numbers, got 'same'"),
    ("conv_transpose2d", (X, T), {"padding": 6}, "got 6 for an output of 10 in height"),
    ("conv_transpose2d", (X, T), {"output_padding": (0, 1)}, r"dilation \(1\), got 1 in width"),
    ("conv_transpose2d", (X, T), {"output_padding": -1}, "output_padding must be between 0 and"),
    ("conv2d", (X, W), {"policy": "fastest"}, "'benchmark' or the tag .* got 'fastest'"),
    ("conv2d", (X, W), {"policy": "eng38_k2"}, "or the tag .* got 'eng38_k2'"),
    ("conv2d", (X, W), {"policy": "ConvBwdData_eng5"}, "ConvBwdData, but .* computes ConvFwd"),
    ("conv_transpose2d", (X, T), {"policy": "ConvFwd_eng0"}, "but .* computes ConvBwdData"),
    ("conv2d", (X, W), {"policy": "ConvFwd_ADD_ADD_RELU_FWD_eng0"}, "ADD_ADD_RELU_FWD, but"),
]


def test_bad_input_is_one_clear_error(device: torch.device) -> None:
    for op, args, kwargs, message in BAD:
        on_device = [arg if arg is None else arg.to(device) for arg in args]
        prefix = "" if "policy" in kwargs else f"{op}: .*"
        with pytest.raises((RuntimeError, TypeError), match=prefix + message):
            getattr(ops, op)(*on_device, **kwargs)
    # and the process, with its GPU context, goes on
    assert torch.equal(ops.conv2d(X.to(device), W.to(device)), F.conv2d(X.to(device), W.to(device)))


def test_an_output_of_which_nothing_is_left_is_pytorchs(device: torch.device) -> None:
    x, w = torch.ones(2, 4, 1, 2, device=device), torch.ones(4, 3, 1, 3, device=device)
    actual = ops.conv_transpose2d(x, w, padding=(0, 2))
    assert actual.shape == F.conv_transpose2d(x, w, padding=(0, 2)).shape == (2, 3, 1, 0)


def test_what_the_machine_cannot_do_is_refused() -> None:
    with pytest.raises(RuntimeError, match="names cuDNN's engine 5, but PyTorch computes this"):
        ops.conv2d(X, W, policy="eng5")
    with pytest.raises(RuntimeError, match=r"the output would take .* bytes and this machine has"):
        ops.conv2d(X, W, padding=2_000_000_000)


# --- What needs a GPU


@pytest.mark.cuda
def test_what_a_gpu_cannot_do_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"out of memory|too large|overflow|Overflow"):
        ops.conv2d(X.cuda(), W.cuda(), padding=1_000_000)
    torch.cuda.synchronize()
    assert torch.equal(ops.conv2d(X.cuda(), W.cuda()), F.conv2d(X.cuda(), W.cuda()))
    with pytest.raises(RuntimeError, match="weight must be on the input's device"):
        ops.conv2d(X.cuda(), W)
    with pytest.raises(RuntimeError, match="bias must be on the input's device"):
        ops.conv2d(X.cuda(), W.cuda(), B)


def large() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(16, 64, 28, 28, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")


@pytest.mark.cuda
@pytest.mark.parametrize("allow_tf32", [False, True])
@pytest.mark.parametrize("deterministic", [False, True])
def test_conv2d_follows_torchs_cudnn_flags(allow_tf32: bool, deterministic: bool) -> None:
    x, w = large()
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=deterministic, allow_tf32=allow_tf32
    ):
        assert torch.equal(ops.conv2d(x, w, padding=1), F.conv2d(x, w, padding=1))


@pytest.mark.cuda
def test_conv2d_is_used_on_the_current_stream_and_from_threads() -> None:
    x, w = large()
    expected = F.conv2d(x, w, padding=1)
    torch.cuda.synchronize()

    def work(_: int) -> bool:
        with torch.cuda.stream(torch.cuda.Stream()):
            results = [ops.conv2d(x, w, padding=1) for _ in range(20)]
            torch.cuda.current_stream().synchronize()
        return all(torch.equal(result, expected) for result in results)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))
