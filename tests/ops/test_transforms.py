"""What torch.func, torch.compile's code generators and distributed tensors make of the ops."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import convtime
from convtime import ops

# name: op, input shape, weight shape, arguments
PROBLEMS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1-d": ("conv1d", (2, 4, 9), (6, 4, 3), {"stride": 2, "padding": 1}),
    "2-d": ("conv2d", (2, 4, 9, 8), (6, 4, 3, 3), {"stride": (2, 1), "padding": 1}),
    "grouped": ("conv2d", (2, 4, 9, 8), (6, 2, 3, 3), {"groups": 2, "dilation": 2}),
    "unbatched": ("conv2d", (4, 9, 8), (6, 4, 3, 3), {}),
    "3-d": ("conv3d", (2, 4, 5, 5, 5), (4, 4, 3, 3, 3), {}),
    "transposed 1-d": ("conv_transpose1d", (2, 4, 5), (4, 3, 3), {"stride": 2}),
    "transposed": (
        "conv_transpose2d",
        (2, 4, 5, 6),
        (4, 3, 3, 3),
        {"stride": 2, "output_padding": 1},
    ),
    "transposed, grouped": (
        "conv_transpose2d",
        (2, 4, 5, 6),
        (4, 3, 3, 3),
        {"groups": 2, "stride": 2},
    ),
    "transposed 3-d": ("conv_transpose3d", (2, 4, 3, 3, 3), (4, 2, 2, 2, 2), {"groups": 2}),
}
BATCH = 3
Function = Callable[..., torch.Tensor]


def functions(name: str) -> tuple[Function, Function]:
    """convtime's and PyTorch's, of input, weight and bias."""
    op, _, _, kwargs = PROBLEMS[name]

    def bound(function: Function) -> Function:
        return lambda *tensors: function(*tensors, **kwargs)

    return bound(getattr(ops, op)), bound(getattr(F, op))


def make_tensors(
    name: str,
    device: torch.device,
    dims: tuple[int | None, ...] = (None, None, None),
    dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, ...]:
    """Input, weight and bias, with a batch in these dimensions."""
    op, x, w, kwargs = PROBLEMS[name]
    outputs = w[1] * kwargs.get("groups", 1) if "transpose" in op else w[0]
    generator = torch.Generator().manual_seed(0)
    tensors = []
    for shape, dim in zip((x, w, (outputs,)), dims, strict=True):
        full = shape if dim is None else (*shape[:dim], BATCH, *shape[dim:])
        tensors.append(torch.randn(full, generator=generator).to(device, dtype))
    return tuple(tensors)


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """Leaves out cuDNN's engines whose sums come out differently from run to run."""
    with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True):
        yield


BATCH_DIMS = [
    dims for dims in itertools.product((0, None), (1, None), (0, None)) if dims != (None,) * 3
]


@pytest.mark.parametrize("dims", BATCH_DIMS)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_vmap_is_pytorchs_to_the_bit(
    name: str, dims: tuple[int | None, ...], device: torch.device
) -> None:
    tensors = make_tensors(name, device, dims)

    def both(function: Function) -> tuple[torch.Tensor, ...]:
        def of_one(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            found = torch.func.grad(
                lambda *tensors: function(*tensors).square().sum(), argnums=(0, 1, 2)
            )(*tensors)
            return function(*tensors), *found

        results: tuple[torch.Tensor, ...] = torch.vmap(of_one, in_dims=dims)(*tensors)
        return results

    ours, theirs = functions(name)
    for actual, expected in zip(both(ours), both(theirs), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dims", BATCH_DIMS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_vmap_of_an_empty_batch_is_empty(
    name: str, dims: tuple[int | None, ...], device: torch.device
) -> None:
    """Also where PyTorch's own fails: batches of weights."""
    full = make_tensors(name, device, dims)
    tensors = tuple(
        (tensor if dim is None else tensor.narrow(dim, 0, 0)).requires_grad_()
        for tensor, dim in zip(full, dims, strict=True)
    )
    ours, theirs = functions(name)
    output = torch.vmap(ours, in_dims=dims)(*tensors)
    assert output.shape == (0, *torch.vmap(theirs, in_dims=dims)(*full).shape[1:])
    for tensor, gradient in zip(tensors, torch.autograd.grad(output.sum(), tensors), strict=True):
        assert torch.equal(gradient, torch.zeros_like(tensor))


def test_vmaps_nest(device: torch.device) -> None:
    x, w, b = make_tensors("2-d", device, (0, 0, None))
    ours, theirs = (
        torch.vmap(torch.vmap(function, in_dims=(0, None, None)), in_dims=(None, 0, None))(x, w, b)
        for function in functions("2-d")
    )
    assert torch.equal(ours, theirs)


def test_a_batch_of_gradients_is_pytorchs(device: torch.device) -> None:
    x, w, b = make_tensors("2-d", device)
    w.requires_grad_()
    found: list[torch.Tensor] = []
    for function in functions("2-d"):
        output = function(x, w, b)
        generator = torch.Generator(device).manual_seed(1)
        grads = torch.randn(BATCH, *output.shape, device=device, generator=generator)
        found += torch.autograd.grad(output, w, grads, is_grads_batched=True)
    torch.testing.assert_close(*found)


@pytest.mark.parametrize(
    ("x", "w", "kwargs", "message"),
    [
        ((3, 8), (6, 4, 3, 3), {}, r"input must have shape \(N, C, H, W\) .* got \[8\]"),
        ((3, 2, 4, 8, 8), (6, 4, 3), {}, r"weight must have shape .* got \[6, 4, 3\]"),
        ((3, 2, 4, 8, 8), (6, 4, 3, 3), {"groups": 0}, "groups must be at least 1, got 0"),
        ((3, 2, 4, 8, 8), (6, 1, 3, 3), {"groups": 4}, r"a multiple of groups \(4\), got 6"),
        ((3, 2, 4, 8, 8), (6, 4, 3, 3), {"policy": "fastest"}, "got 'fastest'"),
    ],
)
def test_bad_input_under_vmap_is_one_clear_error(
    x: tuple[int, ...], w: tuple[int, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(RuntimeError, match=f"conv2d: .*{message}"):
        torch.vmap(lambda x: ops.conv2d(x, torch.ones(w), **kwargs))(torch.ones(x))


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (torch.ones(1), r"bias must have shape \(6\).* got \[1\]"),
        (torch.ones(6).double(), r"bias must have the input's dtype \(Float\), got Double"),
    ],
)
def test_a_bad_bias_under_vmap_is_one_clear_error(bias: torch.Tensor, message: str) -> None:
    x, w = torch.ones(2, 4, 8, 8), torch.ones(3, 6, 4, 3, 3)
    with pytest.raises(RuntimeError, match=f"conv2d: {message}"):
        torch.vmap(lambda w: ops.conv2d(x, w, bias))(w)


def test_bad_gradients_under_vmap_are_one_clear_error() -> None:
    x, w, y = torch.ones(3, 2, 4, 8, 8), torch.ones(6, 4, 3, 3), torch.ones(3, 2, 6, 6)
    with pytest.raises(RuntimeError, match=r"grad_output must have the output's shape .* got"):
        torch.vmap(lambda x, y: ops.conv2d_weight(x, w.shape, y))(x, y)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_forward_mode_is_pytorchs_to_the_bit(name: str, device: torch.device) -> None:
    tensors = make_tensors(name, device)
    for which in itertools.product((False, True), repeat=3):
        places = [place for place, chosen in enumerate(which) if chosen]
        if not places:
            continue
        tangents = tuple(torch.randn_like(tensors[place]) for place in places)

        def jvp(function: Function) -> tuple[torch.Tensor, torch.Tensor]:
            def of_places(*primals: torch.Tensor) -> torch.Tensor:
                arguments = list(tensors)
                for place, primal in zip(places, primals, strict=True):  # noqa: B023
                    arguments[place] = primal
                return function(*arguments)

            primals = tuple(tensors[place] for place in places)  # noqa: B023
            output, tangent, *_ = torch.func.jvp(of_places, primals, tangents)  # noqa: B023
            return output, tangent

        for ours, theirs in zip(*map(jvp, functions(name)), strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("error:There is a performance drop")
def test_a_hessian_is_pytorchs(name: str, device: torch.device) -> None:
    x, w, b = make_tensors(name, device, dtype=torch.float64)

    def hessian(function: Function) -> Any:
        def loss(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return function(x, w, b).pow(3).sum()

        return torch.func.hessian(loss, argnums=(1, 2))(x, w, b)

    torch.testing.assert_close(*map(hessian, functions(name)))


@pytest.mark.parametrize("op", ["conv2d", "conv_transpose2d"])
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_forward_mode_agrees_with_differences(op: str, device: torch.device) -> None:
    options: dict[str, Any] = {"dtype": torch.float64, "device": device, "requires_grad": True}
    tensors = tuple(torch.randn(shape, **options) for shape in ((2, 4, 4, 3), (4, 2, 2, 2), (4,)))

    def fn(*tensors: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = getattr(ops, op)(*tensors, stride=2, padding=1, groups=2)
        return output

    options = {"nondet_tol": 1e-12, "check_batched_grad": True}
    assert torch.autograd.gradcheck(fn, tensors, check_forward_ad=True, **options)
    assert torch.autograd.gradgradcheck(
        fn, tensors, check_fwd_over_rev=True, check_rev_over_rev=True, nondet_tol=1e-12
    )


class Recorder(TorchDispatchMode):
    """Names of the convolutions that run, with the policy of those that are convtime's."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str | None]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if "conv" in func.name():
            self.seen.append((func.name(), (kwargs or {}).get("policy")))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["2-d", "grouped", "transposed", "3-d", "1-d"])
def test_every_order_of_gradients_keeps_the_policy(name: str, device: torch.device) -> None:
    op, _, _, kwargs = PROBLEMS[name]
    leaves = [tensor.requires_grad_() for tensor in make_tensors(name, device)]
    # With output padding, PyTorch keeps one of the second order's convolutions off cuDNN, where
    # there are no policies.
    numbers = {key: value for key, value in kwargs.items() if key != "output_padding"}
    output = getattr(ops, op)(*leaves, **numbers, policy="heuristic")
    for _ in range(3):
        with Recorder() as recorder:
            gradients = torch.autograd.grad(output.pow(3).sum(), leaves, create_graph=True)
        assert recorder.seen
        assert {policy for _, policy in recorder.seen} == {"heuristic"}
        assert all(op.startswith("convtime::") for op, _ in recorder.seen)
        output = torch.cat([gradient.flatten() for gradient in gradients])


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_transforms_keep_the_policy(device: torch.device) -> None:
    x, w, b = make_tensors("2-d", device, (0, None, None))

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return ops.conv2d(x, w, b, policy="heuristic").square().sum()

    with Recorder() as recorder:
        torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(w, x)
        torch.func.jvp(lambda w: torch.func.grad(loss)(w, x[0]), (w,), (w,))
    assert {policy for _, policy in recorder.seen} == {"heuristic"}


def test_an_engine_of_one_gradient_is_not_asked_of_the_other() -> None:
    x, w, y = torch.ones(3, 2, 4, 8, 8), torch.ones(6, 4, 3, 3), torch.ones(3, 2, 6, 6, 6)

    def gradients(x: torch.Tensor, y: torch.Tensor, policy: str) -> tuple[torch.Tensor, ...]:
        found: tuple[torch.Tensor, ...] = torch.ops.convtime.convolution_backward(
            y, x, w, (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (True, True, False), policy=policy
        )
        return found[:2]

    # Without cuDNN an engine is refused, once its turn has come.
    with Recorder() as recorder, pytest.raises(RuntimeError, match="names cuDNN's engine 5"):
        torch.vmap(lambda x, y: gradients(x, y, "ConvBwdFilter_eng5"))(x, y)
    assert [policy for _, policy in recorder.seen] == [None, "ConvBwdFilter_eng5"]
    with pytest.raises(RuntimeError, match="names an engine of ConvFwd, but this call computes"):
        torch.vmap(lambda x, y: gradients(x, y, "ConvFwd_eng5"))(x, y)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Of two processes, of which this is one; the other is made up."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
    yield dist.device_mesh.init_device_mesh("cpu", (2,))
    dist.destroy_process_group()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("name", [name for name in PROBLEMS if name != "unbatched"])
def test_distributed_tensors_are_computed_in_shards_of_the_batch(
    name: str, bias: bool, mesh: Any
) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    op, _, _, kwargs = PROBLEMS[name]
    x, w, b = make_tensors(name, torch.device("cpu"))
    sharded = distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)
    leaves = [
        distribute_tensor(tensor, mesh, [Replicate()], src_data_rank=None).requires_grad_()
        for tensor in ((w, b) if bias else (w,))
    ]
    output: Any = getattr(ops, op)(sharded, *leaves, **kwargs)
    assert output.placements == (Shard(0),)
    expected = functions(name)[1](x[:1], w, b if bias else None)
    assert torch.equal(output.to_local(), expected)
    gradients: Any = torch.autograd.grad(output.sum(), leaves)
    assert all(gradient.placements[0].is_partial() for gradient in gradients)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("adds", [False, True])
def test_distributed_tensors_have_epilogues(bias: bool, adds: bool, mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    x, w, b, z = (torch.randn(size) for size in ((2, 4, 9, 9), (6, 4, 3, 3), 6, (2, 6, 7, 7)))
    leaves: Any = [
        distribute_tensor(tensor, mesh, [Replicate()], src_data_rank=None).requires_grad_()
        for tensor in ((w, b) if bias else (w,))
    ]
    output: Any = ops.conv2d_epilogue(
        distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None),
        *leaves,
        other=distribute_tensor(z, mesh, [Shard(0)], src_data_rank=None) if adds else None,
    )
    assert output.placements == (Shard(0),)
    expected = F.conv2d(x[:1], w, b if bias else None)
    expected = F.relu(expected + z[:1] if adds else expected)
    torch.testing.assert_close(output.to_local(), expected)
    gradients: Any = torch.autograd.grad(output.sum(), leaves)
    assert all(gradient.placements[0].is_partial() for gradient in gradients)


def test_tensors_that_are_sharded_otherwise_are_gathered(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    x, w, _ = make_tensors("unbatched", torch.device("cpu"))
    kernel = distribute_tensor(w, mesh, [Replicate()], src_data_rank=None)
    output: Any = ops.conv2d(distribute_tensor(x, mesh, [Replicate()], src_data_rank=None), kernel)
    assert output.placements == (Replicate(),)
    assert torch.equal(output.to_local(), F.conv2d(x, w))
    columns = distribute_tensor(torch.ones(2, 4, 9, 8), mesh, [Shard(3)], src_data_rank=None)
    assert ops.conv2d(columns, kernel).shape == (2, 6, 7, 6)


@pytest.mark.parametrize("op", ["conv2d", "conv_transpose2d"])
def test_distributed_tensors_are_told_apart_by_the_numbers(op: str, mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    x, w = torch.ones(2, 4, 9, 9), torch.ones(4, 4, 3, 3)
    sharded = distribute_tensor(x, mesh, [Shard(0)], src_data_rank=None)
    kernel = distribute_tensor(w, mesh, [Replicate()], src_data_rank=None)
    for numbers in ({}, {"padding": 1}, {"stride": 2}, {"stride": 2, "dilation": 2}):
        ours, theirs = getattr(ops, op), getattr(F, op)
        assert ours(sharded, kernel, **numbers).shape == theirs(x, w, **numbers).shape


COMPILED = """
import torch
import torch.distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore
import convtime.ops
dist.init_process_group("fake", rank=0, world_size=2, store=FakeStore())
mesh = dist.device_mesh.init_device_mesh("cpu", (2,))
x = distribute_tensor(torch.ones(2, 3, 5, 5), mesh, [Shard(0)], src_data_rank=None)
w = distribute_tensor(torch.ones(4, 3, 3, 3), mesh, [Replicate()], src_data_rank=None)
output = torch.compile(convtime.ops.conv2d, backend="aot_eager", fullgraph=True)(x, w)
assert output.placements == (Shard(0),)
"""


def test_distributed_tensors_compile_before_any_eager_call() -> None:
    subprocess.run([sys.executable, "-c", COMPILED], check=True, timeout=300)


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
