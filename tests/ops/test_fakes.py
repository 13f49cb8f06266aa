"""The ops under fake tensors, and by torch.library.opcheck."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from convtime import ops
from tests.helpers.op_calls import OPS, Problem, make_tensor, problems, representative
from tests.helpers.op_examples import AMOUNTS, for_all


def described(result: Any) -> list[Any]:
    """What a fake has to get right; of a size of 1, any stride is."""

    def strides(tensor: torch.Tensor) -> list[int | None]:
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        return [stride if size > 1 else None for size, stride in pairs]

    tensors = result if isinstance(result, tuple) else (result,)
    return [
        tensor if tensor is None else (tensor.shape, strides(tensor), tensor.dtype, tensor.device)
        for tensor in tensors
    ]


def assert_fake_is_right(op: Any, *arguments: Any) -> None:
    """The results of fakes are described as those of the op."""
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in arguments]
        fake = op(*fakes)
    assert described(fake) == described(op(*arguments))


def whole_geometry(problem: Problem) -> dict[str, Any]:
    """All numbers of a convolution, one for each spatial dimension."""
    spatial = len(problem.w) - 2
    numbers: dict[str, Any] = {}
    for name, default in (("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)):
        value = problem.arguments.get(name, default)
        each = (value,) * spatial if isinstance(value, int) else tuple(value)
        numbers[name] = each * spatial if len(each) == 1 < spatial else each
    return {**numbers, "groups": problem.arguments.get("groups", 1)}


@pytest.mark.filterwarnings("ignore:.*padding='same' with even kernel:UserWarning")
@AMOUNTS
@pytest.mark.parametrize("op", OPS)
def test_fakes_of_convolutions_are_right(op: str, amount: int, device: torch.device) -> None:
    def check(problem: Problem) -> None:
        tensors = problem.tensors(device)
        call = problem.functions[0]
        assert_fake_is_right(lambda *args: call(*args, **problem.arguments), *tensors)
        x, w, _ = tensors
        is_short = device.type == "cpu" and problem.dtypes[0].itemsize == 2
        if isinstance(problem.arguments.get("padding"), str) or len(problem.x) < len(problem.w):
            return
        if is_short:  # torch 2.11 writes out of bounds in some of these gradients
            return
        at = whole_geometry(problem)
        grad = problem.functions[1](x, w, **problem.arguments)
        assert_fake_is_right(
            torch.ops.convtime.convolution_backward,
            *(grad, x, w, at["stride"], at["padding"], at["dilation"], "transpose" in op),
            *(at["output_padding"], at["groups"], (True, True, True)),
        )

    if device.type == "cuda":  # whose layouts PyTorch's own fakes know of these alone
        for layout in ("contiguous", "channels_last"):
            check(representative(op, layouts=(layout,) * 3))
    else:
        for_all(problems(op), check, 10 * amount)


WINDOW = ([3, 3], [2, 2], [1, 1], [1, 1], False)


@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_fakes_of_other_ops_are_right(layout: str, device: torch.device) -> None:
    namespace = torch.ops.convtime
    for shape in ((2, 8, 9, 16), (8, 9, 16)):
        x = make_tensor(shape, torch.float16, layout, device)
        assert_fake_is_right(namespace.relu_max_pool2d, x, *WINDOW)
        output, winners = namespace.relu_max_pool2d_with_winners(x, *WINDOW)
        assert_fake_is_right(namespace.relu_max_pool2d_with_winners, x, *WINDOW)
        assert_fake_is_right(
            namespace.relu_max_pool2d_backward, output, winners, list(x.shape), *WINDOW
        )
        assert_fake_is_right(namespace.relu_max_pool2d_indices, winners, list(x.shape), *WINDOW)
    for kernel in ([16, 8], [16, 9]):  # winners of one byte, and of four
        x = make_tensor((1, 2, 20, 20), torch.float32, layout, device)
        assert_fake_is_right(namespace.relu_max_pool2d_with_winners, x, kernel)
    w = make_tensor((4, 8, 3, 3), torch.float16, layout, device)
    x = make_tensor((2, 8, 9, 16), torch.float16, layout, device)
    other = make_tensor((2, 4, 7, 14), torch.float16, layout, device)
    for addend in (other, None):
        assert_fake_is_right(
            namespace.convolution_epilogue,
            *(x, w, None, addend, [1, 1], [0, 0], [1, 1], 1, "relu"),
        )


def test_fakes_refuse_what_the_ops_refuse() -> None:
    x, w = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3)
    calls: list[tuple[torch.Tensor, torch.Tensor, dict[str, Any]]] = [
        (x, w, {"dilation": 0}),
        (x, w[:, :, :0], {}),
        (x.to(torch.cfloat), w.to(torch.cfloat), {}),
        (x.bool(), w.bool(), {}),
        (x, w.double(), {}),
        (x, w, {"stride": 0}),
        (x, w, {"padding": -1}),
        (x, torch.ones(3, 2, 6, 3), {}),
    ]
    for input, weight, kwargs in calls:
        for function in (ops.conv2d, ops.conv2d_epilogue):
            with pytest.raises(RuntimeError):
                function(input, weight, **kwargs)
            with FakeTensorMode() as mode, pytest.raises(RuntimeError):
                function(mode.from_tensor(input), mode.from_tensor(weight), **kwargs)
    sizes = ((1, 3, 3, 4), (3, 3, 3), (1, 3, 3, 3, 1))
    right = torch.empty(1, 3, 3, 3)
    for addend in (*map(torch.empty, sizes), right.half(), right.to("meta")):
        with FakeTensorMode() as mode:
            fake_x, fake_w, fake_addend = map(mode.from_tensor, (x, w, right))
            assert ops.conv2d_epilogue(fake_x, fake_w, other=fake_addend).shape == right.shape
            fake_addend = mode.from_tensor(addend)
            with pytest.raises(RuntimeError):
                ops.conv2d_epilogue(fake_x, fake_w, other=fake_addend)


def test_fakes_look_at_output_padding_where_the_ops_do(device: torch.device) -> None:
    mode = FakeTensorMode()
    for batch, transposed, padding in ((2, True, 1), (2, True, 2), (2, False, 3), (0, True, 3)):
        size = 15 + padding if transposed else 3
        shapes = [(batch, 4, size, size), (batch, 4, 7, 7), (4, 4, 3, 3)]
        real = [torch.ones(shape, device=device) for shape in shapes]
        arguments = ((2, 2), (0, 0), (1, 1), transposed, (padding,) * 2, 1, (True, True, False))
        for tensors in (real, map(mode.from_tensor, real)):
            call = partial(torch.ops.convtime.convolution_backward, *tensors, *arguments)
            if batch and transposed and padding >= 2:  # the stride
                with pytest.raises(RuntimeError, match="output_padding must be smaller than"):
                    call()
            else:
                assert [gradient.shape for gradient in call()[:2]] == shapes[1:]
    x, w = torch.ones(0, 3, 4, 4, device=device), torch.ones(3, 2, 3, 3, device=device)
    assert ops.conv_transpose2d(x, w, output_padding=3).shape == (0, 2, 9, 9)

    def fake_shape(function: Any) -> torch.Size | None:
        try:
            fakes = mode.from_tensor(x), mode.from_tensor(w)
            shape: torch.Size = function(*fakes, output_padding=3).shape
        except RuntimeError:  # torch 2.15's own fake refuses it
            return None
        return shape

    assert fake_shape(ops.conv_transpose2d) == fake_shape(F.conv_transpose2d)


# --- By opcheck, which also traces the ops with dynamic shapes


@pytest.mark.thorough
@pytest.mark.parametrize("op", OPS)
def test_opcheck_of_convolutions(op: str, device: torch.device) -> None:
    size = (5, 4, 3)[: int(op[-2])]
    alone = Problem(op, (4, *size), (4, 2, *[2] * len(size)), None, {"groups": 2, "padding": 1})
    for problem in (representative(op), alone):
        tensors = problem.tensors(device)
        arguments = {
            key: [value] * int(op[-2]) if isinstance(value, int) and key != "groups" else value
            for key, value in problem.arguments.items()
        }
        function = getattr(torch.ops.convtime, op).default
        torch.library.opcheck(function, tuple(tensors), arguments)
        leaves = tuple(each if each is None else each.requires_grad_() for each in tensors)
        torch.library.opcheck(function, leaves, arguments)


@pytest.mark.thorough
@pytest.mark.parametrize("op", OPS)
def test_opcheck_of_convolution_backward(op: str, device: torch.device) -> None:
    problem = representative(op)
    x, w, _ = problem.leaves(device)
    grad = torch.randn_like(problem.functions[1](x, w, **problem.arguments)).requires_grad_()
    at = whole_geometry(problem)
    # Not test_aot_dispatch_dynamic: torch 2.11's double backward takes no symbolic sizes.
    tests = ("schema", "autograd_registration", "faketensor", "aot_dispatch_static")
    for mask in ((True, True, True), (True, False, False), (False, True, True)):
        arguments = (
            *(grad, x, w, at["stride"], at["padding"], at["dilation"], "transpose" in op),
            *(at["output_padding"], 1, mask),
        )
        torch.library.opcheck(
            torch.ops.convtime.convolution_backward.default,
            arguments,
            test_utils=[f"test_{name}" for name in tests],
        )


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
@pytest.mark.parametrize(("rank", "activation"), [(1, "identity"), (2, "relu"), (2, "gelu")])
def test_opcheck_of_epilogues(rank: int, activation: str, device: torch.device) -> None:
    size = (9, 8)[:rank]
    shapes = ((2, 8, *size), (16, 8, *(3,) * rank), (16,), (2, 16, *(5, 4)[:rank]))
    for requires_grad, layout in ((False, "contiguous"), (True, "channels_last")):
        x, w, b, z = (
            make_tensor(shape, torch.float32, layout, device).requires_grad_(requires_grad)
            for shape in shapes
        )
        numbers = [2] * rank, [1] * rank, [1] * rank, 1
        for bias, other in ((b, z), (None, None)):
            torch.library.opcheck(
                torch.ops.convtime.convolution_epilogue.default,
                (x, w, bias, other, *numbers, activation, 0.5),
            )


@pytest.mark.thorough
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
@pytest.mark.parametrize("dim", [3, 4])
def test_opcheck_of_pooling(dim: int, layout: str, device: torch.device) -> None:
    x = make_tensor((2, 8, 9, 16)[4 - dim :], torch.float32, layout, device)
    namespace = torch.ops.convtime
    output, winners = namespace.relu_max_pool2d_with_winners(x, *WINDOW)
    checked: list[tuple[Any, tuple[Any, ...]]] = [
        (namespace.relu_max_pool2d, (x,)),
        (namespace.relu_max_pool2d_with_winners, (x,)),
        (namespace.relu_max_pool2d_backward, (output, winners, list(x.shape))),
    ]
    for op, (tensor, *others) in checked:
        for leaf in (tensor, tensor.clone().requires_grad_()):
            torch.library.opcheck(op.default, (leaf, *others, *WINDOW))
    indices = namespace.relu_max_pool2d_indices.default
    torch.library.opcheck(indices, (winners, list(x.shape), *WINDOW))


@pytest.mark.thorough
def test_opcheck_of_mlp(device: torch.device) -> None:
    x = make_tensor((30, 24), torch.float16, "contiguous", device)
    weights = make_tensor((2, 32, 32), torch.float16, "contiguous", device) / 8
    grad = torch.ones((30, 3), dtype=torch.float16, device=device)
    namespace = torch.ops.convtime
    arguments = (grad, x, weights, "tanh")
    torch.library.opcheck(namespace.mlp_backward.default, arguments)
    leaves = x.clone().requires_grad_(), weights.clone().requires_grad_()
    torch.library.opcheck(namespace.mlp.default, (*leaves, 3, "relu"))
