"""FusedMLP and its op against PyTorch's own layers in 64 bits."""

from __future__ import annotations

import copy
import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch.autograd import forward_ad

from convtime.core.errors import InputError
from convtime.nn import FusedMLP
from convtime.ops import mlp
from tests.helpers.mlp_nets import (
    ON_CHIP,
    WIDE,
    error,
    exact_copy,
    linears,
    make_data,
    make_net,
    make_trainer,
)
from tests.helpers.op_examples import AMOUNTS, for_all

BIASES = pytest.mark.parametrize("bias", [False, True], ids=["", "biases"])
ACTIVATIONS = pytest.mark.parametrize("activation", ["relu", "tanh"])


def as_layers(net: FusedMLP, weights: torch.Tensor | None) -> list[torch.Tensor]:
    """The matrices and biases in weights of a net, such as their gradient."""
    assert weights is not None
    other = copy.deepcopy(net)
    other.weights.data = weights
    return [parameter.detach() for parameter in other.to_sequential().parameters()]


@BIASES
@ACTIVATIONS
def test_output_and_gradients_are_pytorchs(
    activation: str, bias: bool, device: torch.device
) -> None:
    """Whatever is written into the padding."""
    few = [(5, 7, 6, 3), (100, 40, 70, 90), (24, 40, 3), (24, 64, 3)]
    is_cpu = device.type == "cpu"
    for widths in [*ON_CHIP.values(), *few] if is_cpu else few:
        dtype, allowed = (torch.float64, 1e-12) if is_cpu else (torch.float32, 1e-5)
        net = make_net(widths, dtype, device, activation, bias=bias)
        torch.nn.init.normal_(net.weights, std=0.1)
        model = net.to_sequential()
        inputs, _ = make_data(net, 33)
        ours, theirs = inputs.clone().requires_grad_(), inputs.clone().requires_grad_()
        output, expected = net(ours), model(theirs)
        assert error(output, expected) < allowed
        output.backward(gradient := torch.randn_like(output))
        expected.backward(gradient)
        assert isinstance(ours.grad, torch.Tensor)
        assert error(ours.grad, theirs.grad) < allowed
        gradients = as_layers(net, net.weights.grad)
        for mine, parameter in zip(gradients, model.parameters(), strict=True):
            assert error(mine, parameter.grad) < allowed
        assert_padding_is_zero(net.weights.grad, gradients)


def assert_padding_is_zero(whole: torch.Tensor | None, layers: list[torch.Tensor]) -> None:
    assert whole is not None
    assert whole.count_nonzero() == sum(layer.count_nonzero() for layer in layers)


def assert_as_exact_as_pytorch(
    widths: tuple[int, ...], bias: bool, dtype: torch.dtype, activation: str, rows: int
) -> None:
    """Output and gradients on a GPU, of which 64 bits are the truth."""
    net = make_net(widths, dtype, "cuda", activation, bias=bias)
    model, exact = net.to_sequential(), exact_copy(net)
    inputs, gradient = make_data(net, rows)
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
    gradients = [[p.grad for p in one.parameters()] for one in (model, exact)]
    mine = as_layers(net, net.weights.grad)
    for own, theirs_grad, right in zip(mine, *gradients, strict=True):
        assert error(own, right) <= max(1.5 * error(theirs_grad, right), allowed)
    assert_padding_is_zero(net.weights.grad, mine)


@pytest.mark.cuda
@AMOUNTS
def test_a_gpu_is_as_exact_as_pytorch_on_it(amount: int) -> None:
    activations = st.sampled_from(["relu", "tanh"])
    on_chip = st.tuples(
        st.sampled_from(list(ON_CHIP.values())),
        st.just(False),
        st.sampled_from([torch.float16, torch.bfloat16]),
        activations,
        st.sampled_from([1, 33, 1000, 20_000]),
    )
    wide = st.tuples(
        st.sampled_from(list(WIDE.values())),
        st.booleans(),
        st.sampled_from([torch.float16, torch.bfloat16, torch.float32]),
        activations,
        st.just(1000),
    )
    for cases in (on_chip, wide):
        for_all(cases, lambda case: assert_as_exact_as_pytorch(*case), 5 if amount == 1 else 80)


def test_any_rows_are_taken(device: torch.device) -> None:
    """In more dimensions, from any address on, of any strides, and none at all."""
    net = make_net((24, 16, 3), torch.float16, device)
    inputs, _ = make_data(net, 30)
    output = net(inputs.reshape(5, 6, 24))
    assert output.shape == (5, 6, 3)
    assert torch.equal(output.reshape(30, 3), net(inputs))
    strided = torch.empty((24, 30), dtype=inputs.dtype, device=device).t().copy_(inputs)
    assert torch.equal(net(strided), net(inputs))
    odd = torch.empty(30 * 24 + 1, dtype=inputs.dtype, device=device)[1:].view(30, 24)
    assert torch.equal(net(odd.copy_(inputs)), net(inputs))  # not aligned to 16 bytes
    with torch.inference_mode():
        assert torch.equal(net(inputs), output.reshape(30, 3))
    none = torch.ones((5, 0, 24), dtype=torch.float16, device=device, requires_grad=True)
    output = net(none)
    assert output.shape == (5, 0, 3)
    output.sum().backward()
    assert none.grad is not None
    assert torch.equal(net.weights.grad, torch.zeros_like(net.weights))


@BIASES
def test_nan_spreads_as_with_pytorch(device: torch.device, bias: bool) -> None:
    net = make_net((24, 16, 16, 3), torch.float16, device, bias=bias)
    inputs, _ = make_data(net, 30)
    inputs[4, 7], inputs[20, 0] = math.nan, math.inf
    output = net(inputs)
    assert torch.equal(output.isnan(), net.to_sequential()(inputs).isnan())
    assert output[4].isnan().all()


@BIASES
@ACTIVATIONS
def test_a_net_is_made_of_pytorchs_layers_and_back(activation: str, bias: bool) -> None:
    torch.manual_seed(0)
    between = torch.nn.ReLU() if activation == "relu" else torch.nn.Tanh()
    first, second = torch.nn.Linear(5, 7, bias=bias), torch.nn.Linear(7, 2, bias=bias)
    model = torch.nn.Sequential(first, between, second)
    net = FusedMLP.from_sequential(model)
    assert net.widths == (5, 7, 2)
    assert net.weights.shape == (2, 16 + bias, 16)
    again = net.to_sequential()
    assert [type(module) for module in again] == [type(module) for module in model]
    assert all(map(torch.equal, again.parameters(), model.parameters()))
    torch.testing.assert_close(net(torch.ones(3, 5)), model(torch.ones(3, 5)))
    with pytest.raises(InputError, match="biases, like this net; got one"):
        FusedMLP((5, 7, 2), activation, bias=not bias).load_sequential(model)


def test_widths_are_padded_to_those_of_the_kernels() -> None:
    for width, padded in ((1, 16), (16, 16), (17, 32), (32, 32), (33, 64), (64, 64), (65, 128)):
        assert FusedMLP((3, width, 2)).weights.shape == (2, padded, padded)
    assert FusedMLP((3, 129, 2)).weights.shape == (2, 192, 192)


def test_weights_are_drawn_as_pytorchs_and_again() -> None:
    torch.manual_seed(3)
    net = FusedMLP((100, 60, 80), dtype=torch.float32, bias=True)
    for layer, bound in zip(linears(net.to_sequential()), (0.1, 60**-0.5), strict=True):
        for tensor in (layer.weight, layer.bias):
            assert 0.9 * bound < float(tensor.detach().abs().max()) <= bound
    before = net.weights.detach().clone()
    torch.nn.init.constant_(net.weights, 5)
    torch.manual_seed(3)
    net.reset_parameters()
    assert torch.equal(net.weights, before)
    assert net.weights.count_nonzero() <= 100 * 60 + 60 + 60 * 80 + 80


@BIASES
@ACTIVATIONS
def test_derivatives_are_the_numeric_ones(activation: str, bias: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    small = tuple(  # without padding between the layers
        torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
        for size in ((2, 3), (2, 3 + bias, 3))
    )

    def apply(input: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return mlp(input, weights, 2, activation)

    assert torch.autograd.gradcheck(apply, small, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(
        apply, small, check_fwd_over_rev=True, check_rev_over_rev=True
    )


@BIASES
@ACTIVATIONS
def test_torch_func_derives_as_pytorchs_layers(activation: str, bias: bool) -> None:
    net = make_net((5, 7, 6, 3), torch.float64, activation=activation, bias=bias)
    model = net.to_sequential()
    inputs, _ = make_data(net, 4)
    ours, theirs = (
        torch.func.hessian(lambda x, module=module: module(x).square().sum(0))(inputs)
        for module in (net, model)
    )
    assert theirs.count_nonzero() > 0
    torch.testing.assert_close(ours, theirs)

    def each(module: torch.nn.Module) -> dict[str, torch.Tensor]:
        """The gradients of each row."""

        def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
            output = torch.func.functional_call(module, parameters, (row.unsqueeze(0),))
            return output.square().sum()

        parameters = {name: p.detach() for name, p in module.named_parameters()}
        return torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, inputs)

    gradients, expected = each(net)["weights"], each(model)
    torch.testing.assert_close(gradients[:, 0, :7, :5], expected["0.weight"])
    torch.testing.assert_close(gradients[:, 2, :3, :6], expected["4.weight"])


@ACTIVATIONS
def test_forward_mode_and_gradient_penalties_are_pytorchs(
    device: torch.device, activation: str
) -> None:
    dtype = torch.float32 if device.type == "cuda" else torch.float64
    allowed = 1e-2 if device.type == "cuda" else 1e-12
    net = make_net((24, 16, 3), dtype, device, activation, bias=True)
    model = net.to_sequential()
    inputs, _ = make_data(net, 30)
    tangents = []
    for module in (net, model):
        with forward_ad.dual_level():
            output = module(forward_ad.make_dual(inputs, torch.ones_like(inputs)))
            tangents.append(forward_ad.unpack_dual(output).tangent)
    assert error(*tangents) < allowed
    inputs.requires_grad_()
    for module in (net, model):
        output = module(inputs)
        (gradient,) = torch.autograd.grad(output.square().sum(), inputs, create_graph=True)
        (gradient.norm(dim=1) - 1).square().sum().backward()
    for mine, linear in zip(as_layers(net, net.weights.grad)[::2], linears(model), strict=True):
        assert error(mine, linear.weight.grad) < allowed


def test_vmap_over_rows_and_over_nets(device: torch.device) -> None:
    nets = [make_net((24, 16, 3), torch.float32, device, bias=True) for _ in range(3)]
    for i, net in enumerate(nets):
        net.weights.data.mul_(i + 1)
    inputs, _ = make_data(nets[0], 30)
    parameters, _ = torch.func.stack_module_state(nets)
    outputs = torch.vmap(lambda p: torch.func.functional_call(nets[0], p, (inputs,)))(parameters)
    torch.testing.assert_close(outputs, torch.stack([net(inputs) for net in nets]))
    groups, expected = inputs.reshape(5, 6, 24), nets[0](inputs).reshape(5, 6, 3)
    torch.testing.assert_close(torch.vmap(nets[0])(groups), expected)
    by_columns = torch.vmap(nets[0], in_dims=1)(groups)
    torch.testing.assert_close(by_columns, expected.transpose(0, 1))


def test_autocast_casts_as_linear_layers_do(device: torch.device) -> None:
    before = torch.nn.Linear(24, 24, device=device)
    for dtype in (torch.bfloat16, torch.float16):
        net = make_net((24, 16, 3), torch.float32, device)
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
        net, wide = make_net((24, 16, 3)), make_net((24, 16, 3), torch.float64)
        inputs, targets = make_data(net, 30)
        output = net(inputs)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            (gradient,) = torch.autograd.grad(output.sum(), net.weights)
            make_trainer(net, inputs, targets, 10).step()
            results.append((gradient, net.weights, wide(inputs.double())))
    assert all(map(torch.equal, *results))


def test_padding_is_known_wherever_the_weights_come_from() -> None:
    net = make_net((24, 40, 3), bias=True)
    torch.nn.init.normal_(net.weights)
    assert list(net.state_dict()) == ["weights"]
    empty = FusedMLP((24, 40, 3), dtype=torch.float32, bias=True, device="meta")
    assigned = copy.deepcopy(empty)
    assigned.load_state_dict(net.state_dict(), assign=True)
    empty.to_empty(device="cpu").load_state_dict(net.state_dict())
    inputs, _ = make_data(net, 30)
    for other in (assigned, empty, pickle.loads(pickle.dumps(net)), copy.deepcopy(net)):
        assert torch.equal(other(inputs), net(inputs))


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: FusedMLP((64,)), "widths must be two or more whole numbers"),
    (lambda: FusedMLP((64, 0)), r"got \(64, 0\)"),
    (lambda: FusedMLP((64, 64), "gelu"), "activation must be one of 'relu', 'tanh', got 'gelu'"),
    (lambda: FusedMLP((64, 64), "relu", torch.int8), "dtype must be one of"),
    (lambda: of_layers(), "got nothing"),
    (lambda: of_layers(4, torch.nn.ReLU(), 4, bias_of=2), "layer 0 without and layer 2 with"),
    (lambda: of_layers(4, torch.nn.ReLU()), "got Linear, ReLU"),
    (lambda: of_layers(4, torch.nn.GELU(), 4), "GELU"),
    (lambda: of_layers(4, torch.nn.ReLU(), 5), "got 5 after 4 in layer 2"),
    (
        lambda: FusedMLP((4, 5)).load_sequential(torch.nn.Sequential(torch.nn.Linear(4, 6))),
        re.escape("must have widths (4, 5)"),
    ),
    (lambda: make_net((24, 3))(torch.tensor(1.0)), r"24 columns.*got shape \(\)"),
    (lambda: make_net((24, 3))(torch.ones(3, 25)), "must have 24 columns"),
]


def of_layers(*modules: Any, bias_of: int | None = None) -> FusedMLP:
    """A net of a model, whose numbers are the inputs of linear layers with four outputs."""
    layers = [
        torch.nn.Linear(module, 4, bias=i == bias_of) if isinstance(module, int) else module
        for i, module in enumerate(modules)
    ]
    return FusedMLP.from_sequential(torch.nn.Sequential(*layers))


def test_nets_and_models_that_cannot_be_are_refused() -> None:
    for call, sentence in REFUSED:
        with pytest.raises(InputError, match=sentence):
            call()


def test_inputs_that_do_not_fit_are_refused(device: torch.device) -> None:
    net = make_net((24, 16, 3), torch.float16, device)
    rows = torch.ones(3, 24, device=device)
    with pytest.raises(RuntimeError, match="at least one row"):
        mlp(rows.half()[:0], net.weights, 3)
    with pytest.raises(RuntimeError, match="weights' dtype Half, got Float"):
        net(rows)
    with pytest.raises(RuntimeError, match="must be 'relu' or 'tanh', got 'sine'"):
        mlp(rows.half(), net.weights, 3, "sine")


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
