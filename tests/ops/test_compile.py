"""The ops in torch.compile's graphs, and exported by AOTInductor."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn import grad as torch_grad

import convtime
from convtime import ops
from tests.helpers.op_calls import OPS

pytestmark = pytest.mark.thorough


Pair = tuple[Callable[..., Any], Callable[..., Any]]


def of_convolution(op: str) -> Pair:
    """A function that calls the op, and the same by PyTorch; both of an input and a weight."""
    ours, theirs = (getattr(library, op) for library in (ops, F))
    return lambda x, w: ours(x, w, padding=1).relu(), lambda x, w: theirs(x, w, padding=1).relu()


def of_epilogue(activation: str) -> Pair:
    function: Any = ops.conv2d_epilogue
    theirs: Any = getattr(F, activation)
    return (
        lambda x, w: 2 * function(x + 1, w, other=x, padding=1, activation=activation),
        lambda x, w: 2 * theirs(F.conv2d(x + 1, w, padding=1) + x),
    )


def of_gradients(library: Any) -> Callable[..., Any]:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        grad = F.conv2d(x, w, padding=1)
        of_input = library.conv2d_input(x.shape, w, grad, padding=1)
        total: torch.Tensor = of_input + library.conv2d_weight(x, w.shape, grad, padding=1).sum()
        return total

    return function


PAIRS: dict[str, tuple[int, Pair]] = {
    **{op: (int(op[-2]), of_convolution(op)) for op in OPS},
    **{name: (2, of_epilogue(name)) for name in ("relu", "gelu")},
    "gradients": (2, (of_gradients(ops), of_gradients(torch_grad))),
    "pooling": (
        2,
        (
            lambda x, w: ops.relu_max_pool2d(x * w.sum(), 3, 2, 1, return_indices=True)[0] * 2,
            lambda x, w: F.max_pool2d(F.relu(x * w.sum()), 3, 2, 1) * 2,
        ),
    ),
}


@pytest.fixture(autouse=True)
def without_tf32(repeatable: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


@pytest.mark.parametrize(
    ("name", "backend"),
    [*((name, "aot_eager") for name in PAIRS), ("conv2d", "inductor"), ("relu", "inductor")],
)
def test_compiles_without_graph_breaks_and_with_dynamic_shapes(
    name: str, backend: str, device: torch.device
) -> None:
    spatial, (ours, theirs) = PAIRS[name]
    compiled: Any = torch.compile(ours, backend=backend, fullgraph=True, dynamic=True)
    w = torch.randn(4, 4, *[3] * spatial, device=device, requires_grad=True)
    for size in (8, 11):
        x = torch.randn(2, 4, *range(size, size + spatial), device=device, requires_grad=True)
        results = [function(x, w) for function in (compiled, ours, theirs)]
        actual, eager, expected = (torch.autograd.grad(each.sum(), (x, w)) for each in results)
        torch.testing.assert_close(results[0], results[1])
        torch.testing.assert_close(results[0], results[2], rtol=1e-4, atol=1e-4)
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
    ours_grad, theirs_grad = ([leaf.grad for leaf in leaves] for leaves in (actual, expected))
    torch.testing.assert_close(ours_grad, theirs_grad, rtol=1e-4, atol=1e-3)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = torch.nn.Conv2d(3, 4, 3, padding="same")
        self.up = torch.nn.ConvTranspose2d(4, 2, 3, stride=2, output_padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.up(self.down(x).relu())
        return output


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
