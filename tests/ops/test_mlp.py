"""FusedMLP and MLPTrainer against PyTorch's own layers, losses and optimizers in 64 bits."""

from __future__ import annotations

import contextlib
import copy
import math
import pickle
import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional as F

from convtime.core.errors import InputError
from convtime.nn import FusedMLP, MLPTrainer
from convtime.ops import mlp

WIDTHS = {
    "square": (64, 64, 64, 64, 64),
    "narrow": (24, 40, 64, 3),
    "odd": (13, 31, 7),
    "one layer": (64, 10),
    "wide": (100, 128, 128, 127),
    "deep": (128,) * 9,
    "16": (16,) * 5,
    "16 at most": (9, 12, 16, 4),
    "32": (32,) * 7,
    "20": (20,) * 4,
}
# What runs by cuBLASLt on a GPU, of 16 bits and without biases.
WIDE = {
    "square": (256,) * 4,
    "uneven": (100, 200, 512, 37),
    "narrow ends": (8, 320, 1),
}
# What is padded to 16 or 32, and runs by cuBLASLt with biases or in 32 bits.
NARROW = {"16": (16,) * 3, "11": (11, 9, 3), "32": (32,) * 4, "20": (20, 20, 7)}
SCALE = 1024.0  # of losses in 16 bits
LOSSES: dict[str, Any] = {"mse": F.mse_loss, "cross_entropy": F.cross_entropy}


def make_net(
    widths: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    activation: str = "relu",
    gain: float = 2.0,
    bias: bool = False,
) -> FusedMLP:
    torch.manual_seed(0)
    net = FusedMLP(widths, activation, dtype, bias=bias, device=device)
    with torch.no_grad():
        net.weights.mul_(gain)  # PyTorch's own draw shrinks what goes through it
    return net


def make_data(
    net: FusedMLP, rows: int, loss: str = "mse", seed: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn((rows, net.widths[0]), generator=generator)
    if loss == "mse":
        targets = torch.randn((rows, net.widths[-1]), generator=generator).to(net.weights)
    else:
        classes = torch.randint(net.widths[-1], (rows,), generator=generator)
        targets = classes.to(net.weights.device)
    return inputs.to(net.weights), targets


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative, in the Euclidean norm."""
    difference = ours.detach().double().cpu() - exact.detach().double().cpu()
    return float(difference.norm() / exact.detach().double().cpu().norm())


def flat_weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().double().cpu().flatten() for weight in model.parameters()])


def linears(model: torch.nn.Sequential) -> list[torch.nn.Linear]:
    return [module for module in model if isinstance(module, torch.nn.Linear)]


OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-2},
    "adam": {"lr": 1e-2, "betas": (0.8, 0.99), "weight_decay": 1e-2},
    "adamw": {"lr": 1e-2, "weight_decay": 0.1},
}
TORCHS = {
    "sgd": torch.optim.SGD,
    "momentum": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
}


def train_by_torch(
    model: torch.nn.Sequential,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    batch: int,
    steps: int,
    loss: str = "mse",
    optimizer: str = "sgd",
    mixed: torch.dtype | None = None,
) -> list[float]:
    """The losses of as many steps, each on the next batch; on a GPU also in mixed precision."""
    learner: Any = TORCHS[optimizer](model.parameters(), **OPTIMIZERS[optimizer])
    scaler = torch.amp.GradScaler("cuda", init_scale=SCALE, enabled=mixed is not None)
    losses = []
    for step in range(steps):
        begin = step % (len(inputs) // batch) * batch
        rows = slice(begin, begin + batch)
        learner.zero_grad()
        with torch.autocast("cuda", mixed, enabled=mixed is not None):
            value: torch.Tensor = LOSSES[loss](model(inputs[rows]), targets[rows])
        scaled: Any = scaler.scale(value)
        scaled.backward()
        scaler.step(learner)
        scaler.update()
        losses.append(float(value.detach()))
    return losses


def make_trainer(
    net: FusedMLP,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    batch: int,
    loss: str = "mse",
    optimizer: str = "sgd",
    **options: Any,
) -> MLPTrainer:
    name = "sgd" if optimizer == "momentum" else optimizer
    options = OPTIMIZERS[optimizer] | options
    return MLPTrainer(net, inputs, targets, batch_size=batch, loss=loss, optimizer=name, **options)


def trained_weights(trainer: MLPTrainer) -> torch.Tensor:
    """In 32 bits, where the trainer has them."""
    state = trainer.state_dict()
    net = copy.deepcopy(trainer.model)
    net.weights.data = state.get("master", state["weights"])
    return flat_weights(net.to_sequential())


def exact_copy(net: FusedMLP) -> torch.nn.Sequential:
    return net.to_sequential().double()


def to_exact(targets: torch.Tensor) -> torch.Tensor:
    return targets.double() if targets.is_floating_point() else targets


# --- The layers


@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
def test_output_and_gradients_are_pytorchs(
    widths: tuple[int, ...], activation: str, bias: bool
) -> None:
    net = make_net(widths, torch.float64, activation=activation, bias=bias)
    model = net.to_sequential()
    inputs, _ = make_data(net, 33)
    ours, theirs = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    output, expected = net(ours), model(theirs)
    torch.testing.assert_close(output, expected)
    gradient = torch.randn_like(output)
    output.backward(gradient)
    expected.backward(gradient)
    torch.testing.assert_close(ours.grad, theirs.grad)
    assert net.weights.grad is not None
    padding = net.weights.grad.clone()
    for i, linear in enumerate(linears(model)):
        rows, columns = linear.weight.shape
        torch.testing.assert_close(net.weights.grad[i, :rows, :columns], linear.weight.grad)
        padding[i, :rows, :columns] = 0
        if bias:
            torch.testing.assert_close(net.weights.grad[i, -1, :rows], linear.bias.grad)
            padding[i, -1, :rows] = 0
    assert padding.count_nonzero() == 0


@pytest.mark.cuda
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("rows", [1, 33, 1000, 20_000])
def test_a_gpu_is_as_exact_as_pytorch_on_it(
    widths: tuple[int, ...], dtype: torch.dtype, activation: str, rows: int
) -> None:
    net = make_net(widths, dtype, "cuda", activation)
    model, exact = net.to_sequential(), exact_copy(net)
    inputs, gradient = make_data(net, rows)
    results = []
    for candidate, x in ((net, inputs), (model, inputs), (exact, inputs.double())):
        leaf = x.detach().clone().requires_grad_()
        output = candidate(leaf)
        output.backward(gradient.to(output))
        results.append((output, leaf.grad, candidate))
    ours, theirs, truth = results
    allowed = 2e-3 if dtype == torch.float16 else 2e-2
    assert error(ours[0], truth[0]) <= max(1.1 * error(theirs[0], truth[0]), allowed)
    # A ReLU's derivative jumps, and with it the gradients where rounding moves an input across.
    allowed *= 10 if activation == "relu" else 1
    assert error(ours[1], truth[1]) <= max(1.5 * error(theirs[1], truth[1]), allowed)
    assert isinstance(net.weights.grad, torch.Tensor)
    for i, (linear, right) in enumerate(zip(linears(model), linears(exact), strict=True)):
        outputs, columns = linear.weight.shape
        mine = net.weights.grad[i, :outputs, :columns]
        assert error(mine, right.weight.grad) <= max(
            1.5 * error(linear.weight.grad, right.weight.grad), allowed
        )
        assert net.weights.grad[i].count_nonzero() == mine.count_nonzero()


@pytest.mark.cuda
@pytest.mark.parametrize("widths", (WIDE | NARROW).values(), ids=WIDE | NARROW)
@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_wide_net_on_a_gpu_is_as_exact_as_pytorch_on_it(
    widths: tuple[int, ...], bias: bool, dtype: torch.dtype, activation: str
) -> None:
    net = make_net(widths, dtype, "cuda", activation, bias=bias)
    model, exact = net.to_sequential(), exact_copy(net)
    inputs, gradient = make_data(net, 1000)
    results = []
    for candidate, x in ((net, inputs), (model, inputs), (exact, inputs.double())):
        leaf = x.detach().clone().requires_grad_()
        output = candidate(leaf)
        output.backward(gradient.to(output))
        results.append((output, leaf.grad))
    allowed = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 1e-5}[dtype]
    (ours, ours_back), (theirs, theirs_back), (truth, truth_back) = results
    assert error(ours, truth) <= max(1.2 * error(theirs, truth), allowed)
    # A ReLU's derivative jumps, and with it the gradients where rounding moves an input across.
    allowed *= 10 if activation == "relu" else 1
    assert error(ours_back, truth_back) <= max(1.5 * error(theirs_back, truth_back), allowed)
    assert isinstance(net.weights.grad, torch.Tensor)
    mine = copy.deepcopy(net)
    mine.weights.data = net.weights.grad
    gradients = [[p.grad for p in one.parameters()] for one in (model, exact)]
    for own, theirs_grad, right in zip(mine.to_sequential().parameters(), *gradients, strict=True):
        assert error(own, right) <= max(1.5 * error(theirs_grad, right), allowed)


def test_more_dimensions_are_rows(device: torch.device) -> None:
    net = make_net((24, 16, 3), torch.float16, device)
    inputs, _ = make_data(net, 30)
    output = net(inputs.reshape(5, 6, 24))
    assert output.shape == (5, 6, 3)
    assert torch.equal(output.reshape(30, 3), net(inputs))


def test_no_rows_give_none_and_gradients_of_zero(device: torch.device) -> None:
    net = make_net((24, 16, 3), torch.float16, device, bias=True)
    inputs = torch.ones((5, 0, 24), dtype=torch.float16, device=device, requires_grad=True)
    output = net(inputs)
    assert output.shape == (5, 0, 3)
    output.sum().backward()
    assert inputs.grad is not None
    assert torch.equal(net.weights.grad, torch.zeros_like(net.weights))


def test_an_input_without_columns_is_refused() -> None:
    with pytest.raises(InputError, match=r"input must have 24 columns.*got shape \(\)"):
        make_net((24, 3))(torch.tensor(1.0))


def test_rows_need_not_be_contiguous(device: torch.device) -> None:
    net = make_net((24, 16, 3), torch.float16, device)
    inputs, _ = make_data(net, 30)
    strided = torch.empty((24, 30), dtype=inputs.dtype, device=device).t().copy_(inputs)
    assert torch.equal(net(strided), net(inputs))
    odd = torch.empty(30 * 24 + 1, dtype=inputs.dtype, device=device)[1:].view(30, 24)
    assert torch.equal(net(odd.copy_(inputs)), net(inputs))  # not aligned to 16 bytes


@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
def test_nan_spreads_as_with_pytorch(device: torch.device, bias: bool) -> None:
    net = make_net((24, 16, 16, 3), torch.float16, device, bias=bias)
    inputs, _ = make_data(net, 30)
    inputs[4, 7] = math.nan
    inputs[20, 0] = math.inf
    output, expected = net(inputs), net.to_sequential()(inputs)
    assert torch.equal(output.isnan(), expected.isnan())
    assert output[4].isnan().all()


def test_a_net_is_made_of_pytorchs_layers_and_back() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(5, 7, bias=False), torch.nn.Tanh(), torch.nn.Linear(7, 2, bias=False)
    )
    net = FusedMLP.from_sequential(model)
    assert net.widths == (5, 7, 2)
    assert net.weights.shape == (2, 16, 16)
    again = net.to_sequential()
    assert [type(module) for module in again] == [type(module) for module in model]
    for ours, theirs in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(net(torch.ones(3, 5)), model(torch.ones(3, 5)))


def test_biases_are_taken_and_given_back() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 2))
    net = FusedMLP.from_sequential(model)
    assert net.weights.shape == (2, 17, 16)
    again = net.to_sequential()
    for ours, theirs in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    torch.testing.assert_close(net(torch.ones(3, 5)), model(torch.ones(3, 5)))
    with pytest.raises(InputError, match="must have no biases.* got one with$"):
        FusedMLP((5, 7, 2)).load_sequential(model)


@pytest.mark.parametrize(
    ("width", "padded"),
    [(1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64), (65, 128), (129, 192)],
)
def test_widths_are_padded_to_those_of_the_kernels(width: int, padded: int) -> None:
    net = FusedMLP((3, width, 2))
    assert net.weights.shape == (2, padded, padded)


def test_weights_are_drawn_as_pytorchs() -> None:
    torch.manual_seed(3)
    net = FusedMLP((100, 60, 80), dtype=torch.float32)
    first, second = linears(net.to_sequential())
    assert 0.095 < float(first.weight.detach().abs().max()) <= 0.1
    assert 0.125 < float(second.weight.detach().abs().max()) <= 60**-0.5


def test_opcheck(device: torch.device) -> None:
    net = make_net((24, 16, 3), torch.float16, device)
    inputs, _ = make_data(net, 30)
    namespace = torch.ops.convtime
    torch.library.opcheck(namespace.mlp.default, (inputs.requires_grad_(), net.weights, 3, "relu"))
    gradient = torch.ones((30, 3), dtype=torch.float16, device=device)
    torch.library.opcheck(
        namespace.mlp_backward.default,
        (gradient, inputs.detach(), net.weights.detach(), "tanh"),
    )


def make_small(bias: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """An input and weights without padding between the layers, for numeric derivatives."""
    generator = torch.Generator().manual_seed(0)
    sizes = (4, 5), (3, 6 + bias, 6)
    input, weights = (
        torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
        for size in sizes
    )
    return input, weights


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
def test_derivatives_are_the_numeric_ones(activation: str, bias: bool) -> None:
    def apply(input: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return mlp(input, weights, 3, activation)

    small = make_small(bias)
    assert torch.autograd.gradcheck(apply, small, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(
        apply, small, check_fwd_over_rev=True, check_rev_over_rev=True
    )


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
@pytest.mark.parametrize(
    "derive",
    [torch.func.jacrev, torch.func.jacfwd, torch.func.hessian],
    ids=lambda derive: derive.__name__,
)
def test_torch_func_derives_as_pytorchs_layers(
    derive: Callable[..., Callable[..., torch.Tensor]], activation: str, bias: bool
) -> None:
    net = make_net((5, 7, 6, 3), torch.float64, activation=activation, bias=bias)
    model = net.to_sequential()
    inputs, _ = make_data(net, 4)
    ours, theirs = (
        derive(lambda x, module=module: module(x).square().sum(0))(inputs)
        for module in (net, model)
    )
    assert theirs.count_nonzero() > 0
    torch.testing.assert_close(ours, theirs)


def test_forward_mode_is_pytorchs(device: torch.device) -> None:
    dtype = torch.float16 if device.type == "cuda" else torch.float64
    net = make_net((24, 16, 3), dtype, device, "tanh", bias=True)
    inputs, _ = make_data(net, 30)
    direction = torch.ones_like(inputs)
    tangents = []
    for module in (net, net.to_sequential()):
        with forward_ad.dual_level():
            output = module(forward_ad.make_dual(inputs, direction))
            tangents.append(forward_ad.unpack_dual(output).tangent)
    allowed = 1e-2 if dtype == torch.float16 else 1e-12
    assert error(*tangents) < allowed


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_a_gradient_penalty_is_pytorchs(device: torch.device, activation: str) -> None:
    dtype = torch.float32 if device.type == "cuda" else torch.float64
    net = make_net((24, 16, 3), dtype, device, activation, bias=True)
    model = net.to_sequential()
    inputs, _ = make_data(net, 30)
    inputs.requires_grad_()
    for module in (net, model):
        output = module(inputs)
        (gradient,) = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
        (gradient.norm(dim=1) - 1).square().sum().backward()
    allowed = 1e-2 if device.type == "cuda" else 1e-12
    assert isinstance(net.weights.grad, torch.Tensor)
    for i, linear in enumerate(linears(model)):
        rows, columns = linear.weight.shape
        assert error(net.weights.grad[i, :rows, :columns], linear.weight.grad) < allowed


def test_vmap_over_rows_and_over_nets(device: torch.device) -> None:
    nets = [make_net((24, 16, 3), torch.float32, device, bias=True) for _ in range(3)]
    for i, net in enumerate(nets):
        with torch.no_grad():
            net.weights.mul_(i + 1)
    inputs, _ = make_data(nets[0], 30)
    parameters, _ = torch.func.stack_module_state(nets)
    outputs = torch.vmap(lambda p: torch.func.functional_call(nets[0], p, (inputs,)))(parameters)
    torch.testing.assert_close(outputs, torch.stack([net(inputs) for net in nets]))
    groups = inputs.reshape(5, 6, 24)
    torch.testing.assert_close(torch.vmap(nets[0])(groups), nets[0](groups))
    torch.testing.assert_close(
        torch.vmap(nets[0], in_dims=1)(groups), nets[0](groups).transpose(0, 1)
    )


def test_gradients_of_each_row_are_pytorchs() -> None:
    net = make_net((24, 16, 3), torch.float64)
    model = net.to_sequential()
    inputs, _ = make_data(net, 6)

    def each(module: torch.nn.Module) -> dict[str, torch.Tensor]:
        def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            output = torch.func.functional_call(module, parameters, (row.unsqueeze(0),))
            return output.square().sum()

        parameters = {name: p.detach() for name, p in module.named_parameters()}
        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)

    ours, theirs = each(net)["weights"], each(model)
    torch.testing.assert_close(ours[:, 0, :16, :24], theirs["0.weight"])
    torch.testing.assert_close(ours[:, 1, :3, :16], theirs["2.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_casts_as_linear_layers_do(device: torch.device, dtype: torch.dtype) -> None:
    net = make_net((24, 16, 3), torch.float32, device)
    before = torch.nn.Linear(24, 24, device=device)
    inputs, _ = make_data(net, 30)
    with torch.autocast(device.type, dtype):
        output, expected = net(before(inputs)), net.to_sequential()(before(inputs))
        empty = net(inputs[:0])
    assert output.dtype == expected.dtype == empty.dtype == dtype
    torch.testing.assert_close(output, expected, rtol=0.05, atol=0.05)
    output.float().sum().backward()
    assert net.weights.grad is not None
    assert net.weights.grad.dtype == torch.float32


def test_autocast_changes_neither_steps_nor_gradients_of_other_calls() -> None:
    results = []
    for enabled in (False, True):
        net = make_net((24, 16, 3))
        inputs, targets = make_data(net, 30)
        output = net(inputs)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            (gradient,) = torch.autograd.grad(output.sum(), net.weights)
            make_trainer(net, inputs, targets, 10).step()
        results.append((gradient, net.weights))
    for plain, autocast in zip(*results, strict=True):
        assert torch.equal(plain, autocast)


def test_autocast_leaves_64_bits() -> None:
    net = make_net((24, 16, 3), torch.float64)
    inputs, _ = make_data(net, 30)
    expected = net(inputs)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(net(inputs), expected)


@pytest.mark.parametrize("widths", [(5, 7, 6, 3), (100, 40, 70, 90), (24, 64, 3)])
@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
def test_padding_that_was_written_changes_nothing(
    widths: tuple[int, ...], bias: bool, device: torch.device
) -> None:
    net = make_net(widths, torch.float32, device, bias=bias)
    torch.nn.init.normal_(net.weights)
    model = net.to_sequential()
    inputs, _ = make_data(net, 30)
    ours, theirs = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
    output, expected = net(ours), model(theirs)
    assert error(output, expected) < 1e-5
    output.sum().backward()
    expected.sum().backward()
    assert isinstance(ours.grad, torch.Tensor)
    assert error(ours.grad, theirs.grad) < 1e-5
    assert isinstance(net.weights.grad, torch.Tensor)
    entries = sum(p.numel() for p in model.parameters())
    assert net.weights.grad.count_nonzero() <= entries


def test_padding_is_known_wherever_the_weights_come_from() -> None:
    net = make_net((24, 40, 3), bias=True)
    inputs, _ = make_data(net, 30)
    torch.nn.init.normal_(net.weights)
    expected = net(inputs)
    assert list(net.state_dict()) == ["weights"]
    empty = FusedMLP((24, 40, 3), dtype=torch.float32, bias=True, device="meta")
    assigned = copy.deepcopy(empty)
    assigned.load_state_dict(net.state_dict(), assign=True)
    empty.to_empty(device="cpu").load_state_dict(net.state_dict())
    pickled = pickle.loads(pickle.dumps(net))
    for other in (assigned, empty, pickled, copy.deepcopy(net)):
        assert torch.equal(other(inputs), expected)


def test_weights_are_drawn_again() -> None:
    net = make_net((24, 40, 3), gain=1.0, bias=True)
    first = net.weights.detach().clone()
    with torch.no_grad():
        net.weights.fill_(5)
    torch.manual_seed(0)
    net.reset_parameters()
    assert torch.equal(net.weights, first)
    assert net.weights.count_nonzero() <= 24 * 40 + 40 + 40 * 3 + 3


def test_inference_mode_is_the_same() -> None:
    net = make_net((24, 40, 3))
    inputs, _ = make_data(net, 30)
    expected = net(inputs)
    with torch.inference_mode():
        assert torch.equal(net(inputs), expected)


def test_a_compiled_net_is_the_same(device: torch.device) -> None:
    net = make_net((24, 16, 3), torch.float16, device)
    inputs, _ = make_data(net, 30)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    gradients = []
    for module in (compiled, net):
        output = module(inputs)
        (gradient,) = torch.autograd.grad(output.sum(), net.weights)
        gradients.append(gradient)
        assert torch.equal(output, net(inputs))
    assert torch.equal(*gradients)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (((64,),), "widths must be two or more whole numbers"),
        (((64, 0),), r"got \(64, 0\)"),
        (((64, 64), "gelu"), "activation must be one of relu, tanh; got 'gelu'"),
        (((64, 64), "relu", torch.int8), "dtype must be one of"),
    ],
)
def test_a_net_that_cannot_be_is_refused(arguments: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FusedMLP(*arguments)


@pytest.mark.parametrize(
    ("modules", "sentence"),
    [
        ([], "got nothing"),
        (
            [torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4, bias=False)],
            "all have biases, or none; got layer 0 with and layer 2 without",
        ),
        ([torch.nn.Linear(4, 4, bias=False), torch.nn.ReLU()], "got Linear, ReLU"),
        ([torch.nn.Linear(4, 4, bias=False), torch.nn.GELU(), torch.nn.Linear(4, 4)], "GELU"),
        (
            [
                torch.nn.Linear(4, 4, bias=False),
                torch.nn.ReLU(),
                torch.nn.Linear(5, 4, bias=False),
            ],
            "got 5 after 4 in layer 2",
        ),
    ],
)
def test_a_model_of_other_layers_is_refused(modules: list[torch.nn.Module], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FusedMLP.from_sequential(torch.nn.Sequential(*modules))


def test_a_model_of_other_widths_is_not_loaded() -> None:
    with pytest.raises(InputError, match=re.escape("must have widths (4, 5)")):
        FusedMLP((4, 5)).load_sequential(torch.nn.Sequential(torch.nn.Linear(4, 6, bias=False)))


def test_inputs_that_do_not_fit_are_refused(device: torch.device) -> None:
    net = make_net((24, 16, 3), torch.float16, device)
    with pytest.raises(InputError, match="must have 24 columns"):
        net(torch.ones(3, 25, dtype=torch.float16, device=device))
    with pytest.raises(RuntimeError, match="at least one row"):
        mlp(torch.ones(0, 24, dtype=torch.float16, device=device), net.weights.detach(), 3)
    with pytest.raises(RuntimeError, match="weights' dtype Half, got Float"):
        net(torch.ones(3, 24, device=device))
    with pytest.raises(RuntimeError, match="must be 'relu' or 'tanh', got 'sine'"):
        mlp(torch.ones(3, 24, dtype=torch.float16, device=device), net.weights.detach(), 3, "sine")


@pytest.mark.cuda
def test_what_a_gpu_cannot_do_is_refused() -> None:
    with pytest.raises(RuntimeError, match="weights' device"):
        FusedMLP((24, 3), device="cuda")(torch.ones(3, 24, dtype=torch.float16))
    with pytest.raises(RuntimeError, match="float16, bfloat16 or float32 on a GPU, got Double"):
        FusedMLP((24, 3), dtype=torch.float64, device="cuda")(
            torch.ones(3, 24, dtype=torch.float64, device="cuda")
        )
    x = torch.ones(3, 70, device="cuda", dtype=torch.float16)
    with pytest.raises(RuntimeError, match="width 16, 32 or a multiple of 64, padded with zeros"):
        mlp(x, torch.ones(2, 70, 70, device="cuda", dtype=torch.float16), 3)


# --- Training


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
def test_steps_are_pytorchs(loss: str, optimizer: str, bias: bool) -> None:
    net = make_net((24, 40, 64, 3), torch.float64, bias=bias)
    model = exact_copy(net)
    inputs, targets = make_data(net, 75, loss)
    trainer = make_trainer(net, inputs, targets, 20, loss, optimizer)
    for _ in range(4):
        trainer.step()
    trainer.steps(5)
    losses = train_by_torch(model, inputs, targets, 20, 9, loss, optimizer)
    torch.testing.assert_close(
        flat_weights(net.to_sequential()), flat_weights(model), rtol=1e-5, atol=1e-7
    )
    torch.testing.assert_close(trainer.losses().double(), torch.tensor(losses).double())
    assert trainer.steps_taken == 9
    assert trainer.steps_skipped == 0


# Of one cluster with a tile a block, with two, and of the whole GPU with a tile a block and more.
BATCHES = [16, 77, 1024, 2000, 5000, 65_536]


@pytest.mark.cuda
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("widths", WIDTHS.values(), ids=WIDTHS)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_on_a_gpu_follow_64_bits(
    batch: int, widths: tuple[int, ...], loss: str, dtype: torch.dtype
) -> None:
    net = make_net(widths, dtype, "cuda")
    theirs, exact = net.to_sequential().float(), exact_copy(net)
    before = flat_weights(exact)
    inputs, targets = make_data(net, 2 * batch, loss)
    trainer = make_trainer(net, inputs, targets, batch, loss, "momentum", loss_scale=SCALE)
    for _ in range(3):
        trainer.step()
    trainer.steps(2)
    train_by_torch(theirs, inputs, targets, batch, 5, loss, "momentum", mixed=dtype)
    losses = train_by_torch(exact, inputs.double(), to_exact(targets), batch, 5, loss, "momentum")
    allowed = 0.02 if dtype == torch.float16 else 0.15
    ours, mixed, truth = (
        weights - before
        for weights in (trained_weights(trainer), flat_weights(theirs), flat_weights(exact))
    )
    # Rounding moves inputs of a ReLU across 0: in a deep net and a small batch, a few decide.
    assert error(ours, truth) < max(allowed, 1.5 * error(mixed, truth))
    torch.testing.assert_close(
        trainer.losses().double(), torch.tensor(losses).double(), rtol=allowed, atol=allowed
    )


@pytest.mark.cuda
@pytest.mark.parametrize("widths", (WIDE | NARROW).values(), ids=WIDE | NARROW)
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_wide_nets_steps_on_a_gpu_follow_64_bits(
    widths: tuple[int, ...], loss: str, bias: bool, dtype: torch.dtype
) -> None:
    net = make_net(widths, dtype, "cuda", bias=bias)
    exact = exact_copy(net)
    before = flat_weights(exact)
    inputs, targets = make_data(net, 2 * 1000, loss)
    scale = None if dtype == torch.float32 else 1024.0
    trainer = make_trainer(net, inputs, targets, 1000, loss, "momentum", loss_scale=scale)
    on_chip = max(widths) <= 128 and not bias and dtype != torch.float32
    assert trainer.path == ("on-chip" if on_chip else "wide")
    trainer.steps(2)
    losses = train_by_torch(exact, inputs.double(), to_exact(targets), 1000, 2, loss, "momentum")
    allowed = {torch.float16: 0.02, torch.bfloat16: 0.15, torch.float32: 2e-3}[dtype]
    assert error(trained_weights(trainer) - before, flat_weights(exact) - before) < allowed
    torch.testing.assert_close(
        trainer.losses().double(), torch.tensor(losses).double(), rtol=allowed, atol=allowed
    )
    padding = net.weights.detach().clone()
    for i, linear in enumerate(linears(exact)):
        padding[i, : linear.out_features, : linear.in_features] = 0
        if bias:
            padding[i, -1, : linear.out_features] = 0
    assert padding.count_nonzero() == 0


def check_optimizer(net: FusedMLP, batch: int, optimizer: str, master: bool) -> None:
    theirs, exact = net.to_sequential(), exact_copy(net)
    before = flat_weights(exact)
    inputs, targets = make_data(net, 2 * batch)
    trainer = make_trainer(net, inputs, targets, batch, optimizer=optimizer, master_weights=master)
    trainer.steps(4)
    train_by_torch(exact, inputs.double(), targets.double(), batch, 4, "mse", optimizer)
    truth = flat_weights(exact) - before
    allowed = 0.15
    if not master:
        # Most of SGD's updates are too small to change a weight of 8 bits, with PyTorch, too.
        train_by_torch(theirs, inputs, targets, batch, 4, "mse", optimizer)
        allowed = max(allowed, 1.1 * error(flat_weights(theirs) - before, truth))
    assert error(trained_weights(trainer) - before, truth) < allowed


@pytest.mark.cuda
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("master", [True, False])
def test_a_wide_nets_optimizers_on_a_gpu_follow_64_bits(optimizer: str, master: bool) -> None:
    net = make_net(WIDE["square"], torch.bfloat16, "cuda", bias=True)
    check_optimizer(net, 512, optimizer, master)


@pytest.mark.cuda
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
def test_a_tuned_net_trains_alike(width: int) -> None:
    losses = []
    for tune in (False, True):
        net = make_net((width,) * 5, torch.float16, "cuda")
        inputs, targets = make_data(net, 2 * 512)
        before = net.weights.detach().clone()
        trainer = make_trainer(net, inputs, targets, 512, optimizer="momentum", tune=tune)
        assert torch.equal(net.weights, before)
        assert trainer.steps_taken == 0
        assert trainer.losses().numel() == 0
        trainer.steps(20)
        losses.append(trainer.losses())
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-2, atol=1e-3)


def test_tuning_that_is_interrupted_leaves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        assert not torch.equal(net.weights, before)
        raise KeyboardInterrupt

    net = make_net((24, 3), torch.float32, "cpu")
    before = net.weights.detach().clone()
    trainer = make_trainer(net, *make_data(net, 16), 8)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: types.SimpleNamespace(replay=None))
    monkeypatch.setattr(torch.cuda, "graph", contextlib.nullcontext)
    monkeypatch.setattr("convtime.nn.mlp_trainer.race", interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer._fastest_plan(2)
    assert torch.equal(net.weights, before)
    assert trainer.steps_taken == 0


@pytest.mark.cuda
@pytest.mark.parametrize("batch", [77, 1024, 5000, 70_000])
@pytest.mark.parametrize("width", [16, 32, 64, 128])
def test_all_plans_of_a_step_train_alike(batch: int, width: int) -> None:
    net = make_net((width,) * 4, torch.bfloat16, "cuda")
    exact = exact_copy(net)
    before = flat_weights(exact)
    inputs, targets = make_data(net, 2 * batch)
    trainer = make_trainer(net, inputs, targets, batch, optimizer="momentum")
    begin = trainer.state_dict()
    train_by_torch(exact, inputs.double(), targets.double(), batch, 3, "mse", "momentum")
    plans = torch.ops.convtime.mlp_plans(net.weights, width, width, batch)
    assert len(set(plans)) == len(plans) >= 2
    assert trainer.path_reason.endswith(plans[0])
    for plan in range(len(plans)):
        trainer.load_state_dict(begin)
        trainer._options["plan"] = plan
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            trainer.steps(1)
        trainer.steps(3)
        moved = trained_weights(trainer) - before
        assert error(moved, flat_weights(exact) - before) < 0.15, plans[plan]
        state = trainer.state_dict()
        trainer.load_state_dict(begin)
        for _ in range(3):
            graph.replay()
        torch.cuda.synchronize()
        for name, tensor in trainer.state_dict().items():
            assert torch.equal(tensor.nan_to_num(), state[name].nan_to_num()), (plans[plan], name)
    trainer._options["plan"] = len(plans)
    with pytest.raises(RuntimeError, match=f"plan must be .* {len(plans)} plans of mlp_plans"):
        trainer.step()


@pytest.mark.cuda
def test_why_a_net_is_wide_is_said() -> None:
    for widths, dtype, bias, why in (
        ((64, 64), torch.float16, False, "at most 128, in 16 bits and without biases"),
        ((64, 64), torch.float16, True, "there are biases"),
        ((64, 64), torch.float32, False, "the dtype is float32: products by cuBLASLt in"),
        ((64, 200, 3), torch.float16, False, "a width of 256 is above 128"),
        ((64,) * 41, torch.float16, False, "40 layers of width 64 do not fit"),
        ((20,) * 71, torch.float16, False, "70 layers of width 32 do not fit"),
        ((16, 16), torch.bfloat16, False, "at most 128, in 16 bits and without biases"),
    ):
        net = make_net(widths, dtype, "cuda", bias=bias)
        inputs, targets = make_data(net, 40)
        trainer = make_trainer(net, inputs, targets, 20)
        assert why in trainer.path_reason
        assert trainer.path == ("on-chip" if "at most 128" in why else "wide")


@pytest.mark.cuda
@pytest.mark.parametrize("batch", [256, 4096])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("master", [True, False])
def test_optimizers_on_a_gpu_follow_64_bits(batch: int, optimizer: str, master: bool) -> None:
    check_optimizer(make_net(WIDTHS["square"], torch.bfloat16, "cuda"), batch, optimizer, master)


@pytest.mark.cuda
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("batch", [1024, 8192])
def test_weights_are_as_exact_as_pytorchs_float16(loss: str, batch: int) -> None:
    net = make_net(WIDTHS["square"], torch.float16, "cuda", gain=1.0)
    theirs, exact = net.to_sequential(), exact_copy(net)
    inputs, targets = make_data(net, 4 * batch, loss)
    trainer = make_trainer(net, inputs, targets, batch, loss, "momentum", master_weights=False)
    trainer.steps(50)
    train_by_torch(theirs, inputs, targets, batch, 50, loss, "momentum")
    train_by_torch(exact, inputs.double(), to_exact(targets), batch, 50, loss, "momentum")
    truth = flat_weights(exact)
    ours = error(flat_weights(net.to_sequential()), truth)
    assert ours <= 1.1 * error(flat_weights(theirs), truth)


@pytest.mark.cuda
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
def test_steps_are_deterministic(batch: int, width: int) -> None:
    results = []
    for _ in range(2):
        net = make_net((width,) * 4, torch.float16, "cuda")
        inputs, targets = make_data(net, 2 * batch)
        trainer = make_trainer(net, inputs, targets, batch, optimizer="momentum")
        trainer.steps(20)
        results.append(trainer.state_dict())
    for name, tensor in results[0].items():
        assert torch.equal(tensor.nan_to_num(), results[1][name].nan_to_num()), name


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("batch", "width"),
    [(20_000, 16), (20_000, 32), (1024, 64), (8192, 64), (20_000, 128), (1024, 256)],
)
def test_a_thousand_repeats_are_one(batch: int, width: int) -> None:
    net = make_net((width,) * 5, torch.float16, "cuda")
    inputs, targets = make_data(net, batch)
    trainer = make_trainer(net, inputs, targets, batch, optimizer="momentum")
    begin = trainer.state_dict()
    trainer.steps(1)
    expected = net.weights.detach().clone()
    wrong = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        trainer.load_state_dict(begin)
        trainer.steps(1)
        wrong += net.weights.detach().ne(expected).any()
    assert int(wrong) == 0


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("batch", "width"),
    [(256, 16), (8192, 32), (256, 64), (8192, 64), (8192, 128), (256, 256)],
)
def test_a_graph_of_steps_goes_on_with_the_next_batches(batch: int, width: int) -> None:
    states = []
    for captured in (False, True):
        net = make_net((width,) * 5, torch.float16, "cuda")
        inputs, targets = make_data(net, 3 * batch)
        trainer = make_trainer(net, inputs, targets, batch, optimizer="adam")
        step = trainer.step
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                trainer.step()
            step = graph.replay
        for _ in range(7):
            step()
        trainer.lr = 0.1  # which a captured step takes notice of
        for _ in range(2):
            step()
        torch.cuda.synchronize()
        states.append(trainer.state_dict())
    assert int(states[1]["counters"][0]) == 9
    for name, tensor in states[0].items():
        assert torch.equal(tensor.nan_to_num(), states[1][name].nan_to_num()), name


@pytest.mark.cuda
def test_steps_run_on_the_stream_in_use() -> None:
    net = make_net(WIDTHS["square"], torch.float16, "cuda")
    inputs, targets = make_data(net, 1024)
    trainer = make_trainer(net, inputs, targets, 1024)
    torch.cuda.synchronize()
    stream: Any = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        trainer.step()
        assert not stream.query()
    stream.synchronize()
    assert trainer.steps_taken == 1


def test_losses_fall_as_pytorchs(device: torch.device) -> None:
    """Of a function to fit, in the dtypes that the device is for."""
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    net = make_net((2, 64, 64, 1), dtype, device, "tanh", gain=1.0)
    generator = torch.Generator().manual_seed(5)
    inputs = torch.rand((2048, 2), generator=generator) * 2 - 1
    targets = (3 * inputs[:, :1] + 2 * inputs[:, 1:]).sin()  # odd, as such a net without bias
    model = net.to_sequential().float().cpu()
    trainer = MLPTrainer(
        net,
        inputs.to(net.weights),
        targets.to(net.weights),
        batch_size=256,
        optimizer="adam",
        lr=1e-2,
    )
    trainer.steps(300)
    learner = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(300):
        rows = slice(step % 8 * 256, step % 8 * 256 + 256)
        learner.zero_grad()
        loss = F.mse_loss(model(inputs[rows]), targets[rows])
        loss.backward()
        learner.step()
        losses.append(float(loss.detach()))
    ours = trainer.losses()
    assert float(ours[-16:].mean()) < 0.1 * float(ours[:8].mean())
    assert float(ours[-16:].mean()) < 1.5 * sum(losses[-16:]) / 16 + 1e-3


@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
def test_a_step_that_overflows_is_skipped_and_counted(device: torch.device, bias: bool) -> None:
    net = make_net((24, 40, 3), torch.float16, device, bias=bias)
    inputs, targets = make_data(net, 40)
    before = net.weights.detach().clone()
    trainer = make_trainer(net, inputs, 1000 * targets, 20, optimizer="adam")
    assert trainer.loss_scale == 65536
    trainer.step()
    assert torch.equal(net.weights, before)
    assert (trainer.steps_taken, trainer.steps_skipped, trainer.loss_scale) == (1, 1, 32768)
    while trainer.steps_skipped == trainer.steps_taken < 20:
        trainer.step()
    assert trainer.steps_taken < 20
    assert not torch.equal(net.weights, before)
    assert bool(net.weights.isfinite().all())


def test_a_scale_that_is_given_stays(device: torch.device) -> None:
    net = make_net((24, 40, 3), torch.float16, device)
    inputs, targets = make_data(net, 40)
    trainer = make_trainer(net, inputs, 1000 * targets, 20, loss_scale=65536.0)
    trainer.steps(3)
    assert (trainer.steps_skipped, trainer.loss_scale) == (3, 65536)


@pytest.mark.parametrize("widths", [(24, 40, 3), (24, 192, 3)])
@pytest.mark.parametrize(("overflows", "bound"), [(True, 2.0**-126), (False, 2.0**126)])
def test_a_dynamic_scale_keeps_within_what_can_be_gone_on_from(
    overflows: bool, bound: float, widths: tuple[int, ...], device: torch.device
) -> None:
    net = make_net(widths, torch.float16, device)
    inputs, targets = make_data(net, 40)
    # Gradients of 0 never overflow.
    inputs, targets = (inputs * math.nan, targets) if overflows else (0 * inputs, 0 * targets)
    trainer = make_trainer(net, inputs, targets, 20)
    state = trainer.state_dict()
    state["rates"][1] = bound
    state["counters"][:] = torch.tensor([2000, 0, 1999])
    trainer.load_state_dict(state)
    trainer.step()
    assert trainer.loss_scale == bound
    assert trainer.steps_skipped == overflows
    trainer.load_state_dict(trainer.state_dict())


def test_nan_reaches_the_weights_where_nothing_is_scaled(device: torch.device) -> None:
    net = make_net((24, 40, 3), torch.bfloat16, device)
    inputs, targets = make_data(net, 40)
    inputs[3, 3] = math.nan
    trainer = make_trainer(net, inputs, targets, 20)
    trainer.step()
    assert bool(net.weights.isnan().any())
    assert math.isnan(float(trainer.losses()[0]))
    assert trainer.loss_scale is None


def test_a_state_is_gone_on_from(device: torch.device) -> None:
    net = make_net((24, 40, 3), torch.float16, device)
    inputs, targets = make_data(net, 60)
    trainer = make_trainer(net, inputs, targets, 20, optimizer="adam")
    trainer.steps(3)
    state = trainer.state_dict()
    trainer.steps(4)
    expected = net.weights.detach().clone()
    other = make_trainer(make_net((24, 40, 3), torch.float16, device), inputs, targets, 20,
                         optimizer="adam")  # fmt: skip
    other.load_state_dict(state)
    other.steps(4)
    assert torch.equal(other.model.weights, expected)
    with pytest.raises(InputError, match="state must have the tensors"):
        other.load_state_dict({"weights": expected})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"counters": torch.tensor([-1, 0, 0])}, r"counters must be .* got \[-1, 0, 0\]"),
        ({"counters": torch.tensor([3, 2, 2])}, r"counters must be .* got \[3, 2, 2\]"),
        ({"counters": torch.zeros(3)}, r"got counters \(3,\) torch.float32"),
        ({"rates": torch.tensor([-1.0, 1.0])}, "state's lr must be .* got -1.0"),
        ({"rates": torch.tensor([1.0, math.inf])}, "state's loss scale must be .* got inf"),
        ({"weights": torch.zeros(1, 32, 32, dtype=torch.complex64)}, "torch.complex64$"),
        ({"losses": None}, "losses NoneType"),
    ],
)
def test_states_that_no_trainer_gives_are_refused(changes: dict[str, Any], sentence: str) -> None:
    net = make_net((24, 3))
    trainer = make_trainer(net, *make_data(net, 60), 20)
    trainer.step()
    state = trainer.state_dict()
    with pytest.raises(InputError, match=sentence):
        trainer.load_state_dict(state | changes)
    assert torch.equal(trainer.model.weights, state["weights"])


def test_the_last_losses_are_kept() -> None:
    net = make_net((24, 40, 3))
    inputs, targets = make_data(net, 60)
    trainer = make_trainer(net, inputs, targets, 20, history=4)
    every = make_trainer(make_net((24, 40, 3)), inputs, targets, 20)
    assert trainer.losses().numel() == 0
    for taken in range(1, 11):
        trainer.step()
        every.step()
        assert torch.equal(trainer.losses(), every.losses()[-4:]), taken


def test_the_weights_version_changes_with_a_step() -> None:
    net = make_net((24, 64, 3))
    inputs, targets = make_data(net, 60)
    loss = F.mse_loss(net(inputs), targets)
    make_trainer(net, inputs, targets, 20).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_changed_between_steps_are_trained(dtype: torch.dtype) -> None:
    net = make_net((24, 3), dtype)
    trainer = make_trainer(net, *make_data(net, 60), 20)
    trainer.steps(2)
    before = trainer.state_dict()
    with torch.no_grad():
        net.weights[0, 0].fill_(0.5)
    state = trainer.state_dict()
    for name in {"weights", "master"} & set(state):
        assert torch.equal(state[name][0, 0], torch.full_like(state[name][0, 0], 0.5))
        assert torch.equal(state[name][0, 1:], before[name][0, 1:])  # to the last bit
    with torch.no_grad():
        net.weights.zero_()
    trainer.lr = 1e-30
    trainer.step()
    assert float(net.weights.detach().abs().max()) < 1e-20


def change_by_data(net: FusedMLP) -> None:
    net.weights.data.fill_(0.5)


def change_by_fused_optimizer(net: FusedMLP) -> None:
    # Not SGD: for 16-bit weights on a CPU, torch 2.11's fused SGD changes nothing.
    net.weights.grad = torch.ones_like(net.weights)
    torch.optim.Adam(net.parameters(), lr=0.5, fused=True).step()


CHANGES = [change_by_data, change_by_fused_optimizer]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("widths", [(64, 64, 64), (256, 256)], ids=["on chip", "wide"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_changes_that_pytorch_does_not_count_are_trained(
    change: Callable[[FusedMLP], None],
    widths: tuple[int, ...],
    optimizer: str,
    device: torch.device,
) -> None:
    net = make_net(widths, torch.bfloat16, device)
    trainer = make_trainer(net, *make_data(net, 60), 20, optimizer=optimizer)
    trainer.steps(2)
    before = net.weights.detach().clone()
    change(net)
    changed = net.weights.detach().clone()
    assert float((changed - before).abs().min()) > 0.1
    trainer.lr = 1e-30
    trainer.steps(2)
    for name, tensor in trainer.state_dict().items():
        if name in ("weights", "master"):
            assert bool(((tensor - changed).abs() < 0.01).all())


def test_weights_that_stay_keep_their_32_bits(device: torch.device) -> None:
    net = make_net((64, 64), torch.bfloat16, device)
    trainer = make_trainer(net, *make_data(net, 60), 20)
    trainer.steps(2)
    before = trainer.state_dict()["master"]
    assert not torch.equal(before, before.bfloat16().float())
    net.weights.data[0, 0].fill_(0.5)
    trainer.lr = 1e-30
    trainer.step()
    after = trainer.state_dict()["master"]
    assert torch.equal(after[0, 1:], before[0, 1:])
    assert torch.equal(after[0, 0], torch.full_like(after[0, 0], 0.5))


@pytest.mark.cuda
@pytest.mark.parametrize("batch", [256, 8192])
@pytest.mark.parametrize("width", [16, 32, 64, 128, 256])
def test_replays_take_over_changes(batch: int, width: int) -> None:
    net = make_net((width, width, width), torch.bfloat16, "cuda")
    trainer = make_trainer(net, *make_data(net, 2 * batch), batch)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        trainer.step()
    graph.replay()
    change_by_data(net)
    trainer.lr = 1e-30
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(net.weights, torch.full_like(net.weights, 0.5))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
def test_padding_that_was_written_is_not_trained(
    optimizer: str, bias: bool, device: torch.device
) -> None:
    dtype = torch.float32 if device.type == "cuda" else torch.float64
    net = make_net((24, 40, 50, 3), dtype, device, bias=bias)
    inputs, targets = make_data(net, 60)
    trainer = make_trainer(net, inputs, targets, 20, optimizer=optimizer)
    with torch.no_grad():
        net.weights.normal_(std=0.1)
    model = exact_copy(net)
    trainer.steps(3)
    train_by_torch(model, inputs.double(), targets.double(), 20, 3, optimizer=optimizer)
    assert error(flat_weights(net.to_sequential()), flat_weights(model)) < 1e-4


@pytest.mark.parametrize(
    "replace",
    [
        lambda net: net.double(),
        lambda net: net.to("meta"),
        lambda net: net.load_state_dict(copy.deepcopy(net.state_dict()), assign=True),
    ],
    ids=["another dtype", "another device", "assigned"],
)
def test_weights_that_were_replaced_are_refused(replace: Callable[[FusedMLP], object]) -> None:
    net = make_net((24, 40, 3))
    trainer = make_trainer(net, *make_data(net, 60), 20)
    replace(net)
    with pytest.raises(InputError, match="weights must stay the tensor that the trainer was made"):
        trainer.step()


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_trainers_are_not_copied(copied: Callable[[object], object]) -> None:
    net = make_net((24, 40, 3))
    with pytest.raises(InputError, match="a trainer must not be copied or pickled"):
        copied((net, make_trainer(net, *make_data(net, 60), 20)))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"inputs": torch.ones(40, 25)}, r"inputs must have shape \(rows, 24\).*got \(40, 25\)"),
        ({"inputs": torch.ones(40, 24).double()}, "inputs must be of torch.float32; got"),
        ({"targets": torch.ones(39, 3)}, r"targets must have shape \(40, 3\)"),
        ({"targets": torch.ones(40, 3, device="meta")}, "targets must be on the model's device"),
        ({"loss": "cross_entropy"}, r"targets must have shape \(40,\)"),
        ({"loss": "cross_entropy", "targets": torch.ones(40)}, "must be of torch.int64"),
        (
            {"loss": "cross_entropy", "targets": torch.arange(40)},
            "targets must be classes from 0 to 2.*got 0 to 39",
        ),
        ({"loss": "l1"}, "loss must be one of mse, cross_entropy; got 'l1'"),
        ({"optimizer": "lamb"}, "optimizer must be one of sgd, adam, adamw"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 to the 40 rows"),
        ({"batch_size": 41}, "got 41"),
        ({"batch_size": 2.0}, "batch_size must be a whole number .* got 2.0"),
        ({"inputs": [[0.0] * 24] * 40}, "inputs must be a tensor; got list"),
        ({"targets": None}, "targets must be a tensor; got NoneType"),
        ({"lr": 0}, "lr must be a finite float32 at least 1.18e-38; got 0"),
        ({"lr": math.nan}, "lr must be"),
        ({"lr": math.inf}, "lr must be"),
        ({"lr": 1e39}, r"lr must be a finite float32 at least 1.18e-38; got 1e\+39"),
        ({"lr": 10**400}, "lr must be"),
        ({"lr": 1e-50}, "lr must be a finite float32 at least 1.18e-38; got 1e-50"),
        ({"momentum": 1.0}, "momentum must be a finite float32 at least 0 and below 1; got 1.0"),
        ({"betas": (0.9, 1)}, r"betas\[1\] must be"),
        ({"betas": (0.9, 1 - 1e-12)}, r"betas\[1\] must be"),
        ({"betas": (0.9,)}, r"betas must be two numbers; got \(0.9,\)"),
        ({"betas": 0.9}, "betas must be two numbers; got 0.9"),
        ({"eps": 0.0}, "eps must be a finite float32 at least 1.18e-38"),
        ({"eps": 1e-50}, "eps must be"),
        ({"weight_decay": -1}, "weight_decay must be"),
        ({"loss_scale": "static"}, "loss_scale must be 'auto', 'dynamic', a number"),
        ({"loss_scale": 0.0}, "loss_scale must be a finite float32 at least 1.18e-38"),
        ({"loss_scale": 1e-40}, "loss_scale must be"),
        ({"history": 0}, "history must be a whole number from 1; got 0"),
        ({"history": "a"}, "history must be a whole number from 1; got 'a'"),
        ({"tune": True}, "tune must be False on a CPU"),
    ],
)
def test_what_cannot_be_trained_is_refused(changes: dict[str, Any], sentence: str) -> None:
    net = make_net((24, 40, 3))
    arguments: dict[str, Any] = {
        "inputs": torch.ones(40, 24),
        "targets": torch.ones(40, 3),
        "batch_size": 20,
    }
    with pytest.raises(InputError, match=sentence):
        MLPTrainer(net, **arguments | changes)


@pytest.mark.parametrize("count", [0, -1, 1.5, "2"])
def test_a_number_of_steps_that_there_is_not_is_refused(count: Any) -> None:
    net = make_net((24, 40, 3))
    trainer = make_trainer(net, *make_data(net, 40), 20)
    with pytest.raises(InputError, match=f"count must be .* from 1 to 1000000; got {count!r}"):
        trainer.steps(count)


@pytest.mark.parametrize(
    ("optimizer", "reference"),
    [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)],
)
def test_weight_decay_has_torchs_default(optimizer: str, reference: Any) -> None:
    net = make_net((24, 40, 3))
    trainer = MLPTrainer(net, *make_data(net, 40), batch_size=20, optimizer=optimizer)
    (group,) = reference([torch.ones(1, requires_grad=True)], lr=1e-3).param_groups
    assert trainer._options["weight_decay"] == group["weight_decay"]


def test_other_models_are_refused() -> None:
    with pytest.raises(InputError, match="model must be a FusedMLP; got Linear"):
        MLPTrainer(torch.nn.Linear(2, 2), torch.ones(4, 2), torch.ones(4, 2), batch_size=2)  # type: ignore[arg-type]


def test_adam_in_pure_float16_is_refused() -> None:
    net = make_net((24, 40, 3), torch.float16)
    inputs, targets = make_data(net, 40)
    with pytest.raises(InputError, match="master_weights must be True"):
        make_trainer(net, inputs, targets, 20, optimizer="adam", master_weights=False)


@pytest.mark.cuda
def test_what_a_gpu_cannot_train_is_refused() -> None:
    net = make_net((24, 3), torch.float64, "cuda")
    inputs, targets = make_data(net, 40)
    with pytest.raises(InputError, match="dtype must be one of"):
        make_trainer(net, inputs, targets, 20)
