"""The ops in torch.compile's graphs, and exported by AOTInductor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import convtime
from convtime import ops
from tests.helpers.op_calls import OPS

pytestmark = pytest.mark.thorough


def of_convolution(op: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function that calls the op, and the same by PyTorch; both of an input and a weight."""
    ours, theirs = (getattr(library, op) for library in (ops, F))
    return (
        lambda x, w: ours(x, w, padding=1).relu(),
        lambda x, w: theirs(x, w, padding=1).relu(),
    )


def of_epilogue(activation: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    function: Any = ops.conv2d_epilogue
    theirs: Any = getattr(F, activation)
    return (
        lambda x, w: 2 * function(x + 1, w, other=x, padding=1, activation=activation),
        lambda x, w: 2 * theirs(F.conv2d(x + 1, w, padding=1) + x),
    )


def of_pooling() -> tuple[Callable[..., Any], Callable[..., Any]]:
    return (
        lambda x, w: ops.relu_max_pool2d(x * w.sum(), 3, 2, 1, return_indices=True)[0] * 2,
        lambda x, w: F.max_pool2d(F.relu(x * w.sum()), 3, 2, 1) * 2,
    )


PAIRS: dict[str, tuple[int, tuple[Callable[..., Any], Callable[..., Any]]]] = {
    **{op: (int(op[-2]), of_convolution(op)) for op in OPS},
    **{name: (2, of_epilogue(name)) for name in ("relu", "gelu")},
    "pooling": (2, of_pooling()),
}


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """Leaves out engines whose sums come out differently from run to run, and TF32."""
    with torch.backends.cudnn.flags(
        enabled=True, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield


@pytest.mark.parametrize("name", PAIRS)
def test_compiles_without_graph_breaks_and_with_dynamic_shapes(
    name: str, device: torch.device
) -> None:
    spatial, (ours, theirs) = PAIRS[name]
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True, dynamic=True)
    w = torch.randn(4, 4, *[3] * spatial, device=device, requires_grad=True)
    for size in (8, 11):
        x = torch.randn(2, 4, *range(size, size + spatial), device=device, requires_grad=True)
        results = [function(x, w) for function in (compiled, ours, theirs)]
        gradients = [torch.autograd.grad(result.sum(), (x, w)) for result in results]
        assert torch.equal(results[0], results[1])
        torch.testing.assert_close(results[0], results[2], rtol=1e-4, atol=1e-4)
        for actual, eager, expected in zip(*gradients, strict=True):
            torch.testing.assert_close(actual, eager)
            torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", PAIRS)
def test_compiled_autograd_traces_the_gradients(name: str, device: torch.device) -> None:
    spatial, (ours, theirs) = PAIRS[name]
    x = torch.randn(2, 4, *range(8, 8 + spatial), device=device)
    w = torch.randn(4, 4, *[3] * spatial, device=device)
    expected, actual = ([tensor.clone().requires_grad_() for tensor in (x, w)] for _ in range(2))
    theirs(*expected).square().sum().backward()
    loss = ours(*actual).square().sum()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        loss.backward()
    for mine, pytorchs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine.grad, pytorchs.grad, rtol=1e-4, atol=1e-3)


def test_a_compiled_net_is_the_same(device: torch.device) -> None:
    net = convtime.nn.FusedMLP((24, 16, 3), device=device)
    inputs = torch.randn((30, 24), device=device).half()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    gradients: list[torch.Tensor] = []
    for module in (compiled, net):
        output = module(inputs)
        gradients += torch.autograd.grad(output.sum(), net.weights)
        assert torch.equal(output, net(inputs))
    assert torch.equal(*gradients)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv2d(3, 4, 3, padding="same")
        self.up = torch.nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.up(self.down(x).relu())
        return output


@pytest.fixture
def no_precompiled_headers() -> Iterator[None]:
    """They take longer to compile than the few kernels that they are for."""
    from torch._inductor import config

    with config.patch(cpp_cache_precompile_headers=False):
        yield


@pytest.mark.usefixtures("no_precompiled_headers")
def test_inductor_compiles_a_replaced_model(device: torch.device) -> None:
    model = Net().to(device)
    convtime.nn.replace(model, policy="heuristic")
    parameters = list(model.parameters())
    compiled: Any = torch.compile(model, backend="inductor", fullgraph=True, dynamic=True)
    for batch in (2, 3):
        x = torch.randn(batch, 3, 8, 9, device=device)
        actual, expected = compiled(x), model(x)
        torch.testing.assert_close(actual, expected)
        for ours, theirs in zip(
            torch.autograd.grad(actual.sum(), parameters),
            torch.autograd.grad(expected.sum(), parameters),
            strict=True,
        ):
            torch.testing.assert_close(ours, theirs)
    with torch.profiler.profile() as profiler:
        compiled(x)
    names = {event.name for event in profiler.events()}
    assert {"convtime::conv2d", "convtime::conv_transpose2d"} <= names


LOAD = """
import sys
import torch
from torch._inductor import aoti_load_package
import convtime.ops
x, expected = torch.load(sys.argv[2])
torch.testing.assert_close(aoti_load_package(sys.argv[1])(x), expected)
"""


def test_aotinductor_exports_a_replaced_model(device: torch.device, tmp_path: Any) -> None:
    from torch._inductor import aoti_compile_and_package

    model = Net().to(device).eval().requires_grad_(False)
    convtime.nn.replace(model, only=["down"], policy="heuristic")
    convtime.nn.replace(model)
    x = torch.randn(2, 3, 8, 9, device=device)
    exported = torch.export.export(model, (x,))
    package = aoti_compile_and_package(
        exported,
        package_path=str(tmp_path / "model.pt2"),
        inductor_configs={
            # What is compiled runs once: that is to be soon, and not fast.
            "aot_inductor.compile_wrapper_opt_level": "O0",
            "aot_inductor.precompile_headers": False,
        },
    )
    torch.save((x, model(x)), tmp_path / "example.pt")
    # In a process that compiled nothing, as where such a model is used.
    command = [sys.executable, "-c", LOAD, package, str(tmp_path / "example.pt")]
    subprocess.run(command, check=True, timeout=300)
