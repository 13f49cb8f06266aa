"""nn.fuse: what it finds, that models compute what they did, and that it can be undone."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import convtime
from convtime.nn import ConvEpilogue2d, fuse, unfuse


@pytest.fixture(autouse=True)
def without_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused and separate plans may differ in whether they use it."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


class Block(nn.Module):
    """A residual block, whose steps are layers and functions, some of them in place."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += x
        return self.relu(y)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.LeakyReLU(0.2))
        self.blocks = nn.Sequential(Block(), Block())
        self.last = nn.Conv2d(8, 4, 1)
        self.head = nn.Conv2d(4, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.last(self.blocks(self.stem(x))), approximate="tanh")
        return self.head(x).mean((2, 3))


def randomise(model: nn.Module) -> Any:
    """With statistics and affine parameters that matter."""
    torch.manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.uniform_(module.weight, 0.5, 2)
                nn.init.normal_(module.bias)
    return model


def check(model: nn.Module, *inputs: torch.Tensor) -> convtime.nn.Fusion:
    """Eval, training and gradients of a fused model against the model itself."""
    torch.manual_seed(1)
    twin = copy.deepcopy(model)
    fusion = fuse(model)
    for training in (False, True):
        losses = []
        for each in (model, twin):
            each.train(training)
            with torch.no_grad():
                quiet = each(*inputs)
            losses.append((quiet, loss := each(*inputs).square().sum()))
            loss.backward()
        for ours, theirs in zip(*losses, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor)
    return fusion


def test_a_model_computes_what_it_did(device: torch.device) -> None:
    model = randomise(Net()).to(device)
    fusion = check(model, torch.randn(2, 3, 12, 12, device=device))
    assert str(fusion).splitlines() == [
        "6 convolutions fused, 1 left",
        "  head is left: no batch norm, addition or activation follows it",
    ]
    assert [str(fused) for fused in fusion.fused] == [
        "last + [gelu_tanh]",
        "stem.0 + stem.1 + stem.2",
        "blocks.0.conv1 + blocks.0.bn1 + blocks.0.relu",
        "blocks.0.conv2 + blocks.0.bn2 + [add] + blocks.0.relu",
        "blocks.1.conv1 + blocks.1.bn1 + blocks.1.relu",
        "blocks.1.conv2 + blocks.1.bn2 + [add] + blocks.1.relu",
    ]
    for told in (fusion.details(), fusion._repr_html_()):
        assert "blocks.0.bn1 + blocks.0.relu" in told
        assert "head" in told
    assert repr(fusion) == "<convtime.nn.Fusion 6 convolutions fused, 1 left: head>"


def calls_of(model: nn.Module, *inputs: torch.Tensor) -> list[str]:
    """The ops of convolutions that a model calls."""
    from torch.utils._python_dispatch import TorchDispatchMode

    called: list[str] = []

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            del types
            name = func.name()
            if "conv" in name or "norm" in name or "relu" in name:
                called.append(name)
            return func(*args, **(kwargs or {}))

    with Recorder(), torch.no_grad():
        model(*inputs)
    return called


def test_a_fused_block_is_two_calls() -> None:
    block, x = randomise(Block()).eval(), torch.randn(1, 8, 5, 5)
    with fuse(block):
        block(x)  # folds
        assert calls_of(block, x) == ["convtime::convolution_epilogue"] * 2
        block.train()
        assert "convtime::convolution_epilogue" not in calls_of(block, x)
    assert "convtime::convolution_epilogue" not in calls_of(block.eval(), x)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "leaky_relu": lambda: nn.LeakyReLU(0.3),
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "silu": nn.SiLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


@pytest.mark.parametrize("activation", LAYERS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_activation_and_rank(rank: int, activation: str) -> None:
    conv = getattr(nn, f"Conv{rank}d")(3, 4, 3, padding="same", dilation=2)
    norm = getattr(nn, f"BatchNorm{rank}d")(4, affine=activation != "relu")
    model = randomise(nn.Sequential(conv, norm, LAYERS[activation]()))
    fusion = check(model, torch.randn(2, 3, *(9, 8, 7)[:rank]))
    assert [str(fused) for fused in fusion.fused] == ["0 + 1 + 2"]


class Functions(nn.Module):
    """One convolution, and functions after it."""

    def __init__(self, function: Callable[..., torch.Tensor], channels: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, channels, 3, padding=1)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.conv(x), x)


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "function": (lambda y, _x: F.relu(y), "conv + [relu]"),
    "in place": (lambda y, _x: F.relu(y, inplace=True), "conv + [relu]"),
    "method": (lambda y, _x: y.relu(), "conv + [relu]"),
    "method in place": (lambda y, _x: y.sigmoid_(), "conv + [sigmoid]"),
    "torch's": (lambda y, _x: torch.tanh(y), "conv + [tanh]"),
    "slope": (lambda y, _x: F.leaky_relu(y, 0.4), "conv + [leaky_relu]"),
    "slope by name": (
        lambda y, _x: F.leaky_relu(y, negative_slope=0.4),
        "conv + [leaky_relu]",
    ),
    "gelu": (lambda y, _x: F.gelu(y), "conv + [gelu]"),
    "sum": (lambda y, x: F.silu(x + y), "conv + [add] + [silu]"),
    "sum with alpha": (lambda y, x: torch.add(y, x, alpha=0.3).relu(), "conv + [add] + [relu]"),
    "sum in place": (lambda y, x: y.add_(x, alpha=2), "conv + [add]"),
    "other shape": (lambda y, x: F.relu(y + x[:, :1]), "conv + [add] + [relu]"),
    "other dtype": (lambda y, x: F.relu(y + x.double()).float(), "conv + [add] + [relu]"),
}  # fmt: skip


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_are_found(case: str) -> None:
    function, expected = FUNCTIONS[case]
    fusion = check(Functions(function), torch.randn(2, 4, 6, 5))
    assert [str(fused) for fused in fusion.fused] == [expected]


def add_in_place(y: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    y += other
    return y


@pytest.mark.parametrize("add", [add_in_place, lambda y, other: y.add_(other)])
def test_an_addition_in_place_keeps_dtype_and_shape(add: Callable[..., torch.Tensor]) -> None:
    model = Functions(lambda y, x: add(y, x[0]))
    assert len(fuse(model).fused) == 1
    assert model(torch.randn(2, 4, 6, 5)).shape == (2, 4, 6, 5)
    wide = Functions(lambda y, x: add(y, x.double()))
    assert len(fuse(wide).fused) == 1
    assert wide(torch.randn(2, 4, 6, 5)).dtype == torch.float32
    stacked = Functions(lambda y, x: add(y, torch.stack([x, x])))
    assert len(fuse(stacked).fused) == 1
    with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
        stacked(torch.randn(2, 4, 6, 5))


def test_numbers_are_added_as_they_are() -> None:
    def with_numbers(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        number = x.size(0)
        other = number
        other += 3
        return F.relu(y) * number + other

    check(Functions(with_numbers), torch.randn(2, 4, 6, 5))


LEFT: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "nothing": (lambda y, _x: y, "no batch norm, addition or activation follows it"),
    "number": (lambda y, _x: y + 1, "no batch norm, addition or activation follows it"),
    "itself": (lambda y, _x: y + y, "no batch norm, addition or activation follows it"),
    "used twice": (lambda y, _x: F.relu(y) + y, "its result is used more than once"),
    "changes the other": (
        lambda y, x: (x * 1).add_(y).relu(),
        "no batch norm, addition or activation follows it",
    ),
    "between": (
        lambda y, x: y + F.relu(x.mul_(2)),
        "a tensor is or may be changed in place between it and its epilogue",
    ),
    "between, by out": (
        lambda y, x: y + torch.mul(x, 2, out=x),
        "a tensor is or may be changed in place between it and its epilogue",
    ),
    "control flow": (lambda y, _x: y if y.sum() > 0 else -y, "torch.fx cannot trace"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_what_does_not_fit_is_left(case: str) -> None:
    function, why = LEFT[case]
    model = Functions(function)
    fusion = fuse(model)
    assert fusion.fused == ()
    ((name, reason),) = fusion.left
    assert name == "conv"
    assert reason.startswith(why)
    assert "\n" not in reason
    assert "forward" not in vars(model)


class Doubling(nn.Module):
    """Writes into its argument, though nothing about the module tells."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


@pytest.mark.parametrize("inner", [Doubling(), nn.Sequential(Doubling()), nn.Sigmoid()])
def test_a_module_between_may_write_unless_it_is_known_not_to(inner: nn.Module) -> None:
    class Between(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.inner = nn.Conv2d(4, 4, 1), inner

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x) + self.inner(x)

    model = Between()
    x = torch.randn(2, 4, 5, 5)
    expected = model(x.clone())
    fusion = fuse(model)
    torch.testing.assert_close(model(x), expected, rtol=1e-4, atol=1e-4)
    assert len(fusion.fused) == isinstance(inner, nn.Sigmoid)


class Odd(nn.Module):
    """One convolution whose module differs in what `forward` does."""

    def __init__(self, conv: nn.Module | None = None) -> None:
        super().__init__()
        self.conv = conv or nn.Conv2d(4, 4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(x))


class Optional(Odd):
    def forward(self, x: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        y = F.relu(self.conv(x))
        return y if scale is None else scale * y


class Dropping(Odd):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.relu(self.conv(x)), training=self.training)


class DroppingAsAnother(Odd):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(F.relu(self.conv(x)), training=self.drop.training)


class Remembering(Odd):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = F.relu(self.conv(x))
        return self.last


class BuiltIn(Odd):
    forward = torch.relu  # type: ignore[assignment]


class Unused(Odd):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Subclass(nn.Conv2d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


def with_hook(module: nn.Module) -> nn.Module:
    module.get_submodule("conv").register_forward_hook(lambda *_arguments: None)
    return module


def with_own_forward(module: nn.Module) -> nn.Module:
    module.forward = lambda x: x
    return module


MODULES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "optional argument": (Optional, "takes optional arguments (scale)"),
    "attribute": (Remembering, "sets attributes (last)"),
    "training mode": (Dropping, "depends on the training mode"),
    "another's mode": (DroppingAsAnother, "depends on the training mode"),
    "built-in": (BuiltIn, "has no readable signature"),
    "not called": (Unused, "the forward of the module that has it does not call it"),
    "subclass": (lambda: Odd(Subclass(4, 4, 1)), "is not a class of torch.nn itself"),
    "lazy": (lambda: Odd(nn.LazyConv2d(4, 1)), "has no shapes before its first call"),
    "transposed": (lambda: Odd(nn.ConvTranspose2d(4, 4, 1)), "it is a transposed convolution"),
    "hook": (lambda: with_hook(Odd()), "conv has hooks"),
    "complex": (lambda: Odd(nn.Conv2d(4, 4, 1, dtype=torch.cfloat)), "torch.complex64"),
    "forward": (lambda: with_own_forward(Odd()), "is replaced on the object"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
@pytest.mark.parametrize("case", MODULES)
def test_modules_that_do_not_fit_are_left(case: str) -> None:
    make, why = MODULES[case]
    model = make()
    before = [dict(vars(module)) for module in model.modules()]
    fusion = fuse(model)
    assert [vars(module) for module in model.modules()] == before
    assert fusion.fused == ()
    ((name, reason),) = fusion.left
    assert name == "conv"
    assert why in reason


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_a_scripted_model_is_left() -> None:
    fusion = fuse(torch.jit.script(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())))
    assert fusion.left == (("0", "TorchScript has compiled the module that calls it"),)


def test_of_two_convolutions_that_are_added_one_takes_the_sum() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)
            self.bn1, self.bn2 = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.relu(self.bn1(self.conv1(x)) + self.bn2(self.conv2(x)))

    fusion = check(randomise(Two()), torch.randn(2, 4, 5, 5))
    assert [str(fused) for fused in fusion.fused] == [
        "conv1 + bn1",
        "conv2 + bn2 + [add] + [relu]",
    ]


def test_a_convolution_that_is_called_twice_and_lists_of_modules() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList([nn.Conv2d(4, 4, 1)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(2):
                x = F.relu(self.convs[0](x))
            return x

    fusion = check(Twice(), torch.randn(2, 4, 5, 5))
    assert [fused.name for fused in fusion.fused] == ["convs.0", "convs.0"]


def test_undoing_is_exact() -> None:
    model: Any = Net()
    before = {name: dict(vars(module)) for name, module in model.named_modules()}
    fusion = fuse(model)
    assert fuse(model).fused == ()  # what is fused is left as it is
    assert unfuse(model) == ("", "stem", "blocks.0", "blocks.1")
    assert unfuse(model) == ()
    for name, module in model.named_modules():
        assert vars(module) == before[name]
    with fuse(model) as again:
        assert again == fusion
        assert "forward" in vars(model.stem)
    assert "forward" not in vars(model.stem)


def test_a_model_is_left_as_it_was_where_fuse_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    from convtime.nn import fusion

    traced: list[nn.Module] = []
    trace = fusion._trace

    def second_raises(module: nn.Module) -> Any:
        traced.append(module)
        if len(traced) == 2:
            raise KeyboardInterrupt
        return trace(module)

    monkeypatch.setattr(fusion, "_trace", second_raises)
    model = Net()
    with pytest.raises(KeyboardInterrupt):
        fuse(model)
    assert not any("forward" in vars(module) for module in model.modules())


def test_hooks_see_what_they_saw() -> None:
    model = randomise(Net()).eval()
    x = torch.randn(1, 3, 8, 8)
    seen: list[torch.Tensor] = []
    model.blocks[0].register_forward_hook(lambda _module, _input, output: seen.append(output))
    model(x)
    fusion = fuse(model)
    model(x)
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-4)
    # One that comes later, on what is fused, is called as well.
    assert "blocks.0.conv1" in [fused.name for fused in fusion.fused]
    model.blocks[0].conv1.register_forward_hook(lambda _m, _i, output: seen.append(output))
    model(x)
    assert len(seen) == 4
    assert seen[2].shape == (1, 8, 6, 6)


def test_hooks_of_all_modules_see_what_they_saw() -> None:
    model, x = small()
    seen: list[nn.Module] = []
    hook = nn.modules.module.register_module_forward_hook(lambda part, _i, _o: seen.append(part))
    try:
        model(x)
    finally:
        hook.remove()
    assert seen == [*model, model]


def test_changed_parameters_are_folded_anew() -> None:
    model = randomise(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU())).eval()
    x = torch.randn(2, 3, 5, 5)
    conv: Any = model[0]
    norm: Any = model[1]
    conv.requires_grad_(False)
    norm.requires_grad_(False)

    def check_again() -> None:
        expected = F.relu(norm(conv(x)))
        torch.testing.assert_close(model(x), expected)

    fuse(model)
    check_again()
    conv.weight.mul_(2)
    check_again()
    norm.running_var.add_(1)
    check_again()
    conv.weight = nn.Parameter(torch.randn_like(conv.weight), requires_grad=False)
    check_again()
    model.load_state_dict({name: 2 * tensor for name, tensor in model.state_dict().items()})
    check_again()
    model.double()
    x = x.double()
    check_again()
    with torch.inference_mode():
        norm.weight.mul_(3)
        check_again()
    check_again()


def test_folded_weights_are_kept_and_stay_where_they_are() -> None:
    from convtime.nn.fusion import _folded

    model = randomise(nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))).eval()
    conv: Any = model[0]
    fuse(model)
    with torch.no_grad():
        model(torch.randn(2, 3, 5, 5))
        first = _folded[conv]
        model(torch.randn(2, 3, 5, 5))
        assert _folded[conv] is first
        conv.weight.mul_(2)
        model(torch.randn(2, 3, 5, 5))
    assert _folded[conv] is not first
    assert _folded[conv].weight.data_ptr() == first.weight.data_ptr()


def small() -> tuple[Any, torch.Tensor]:
    """A fused model whose folded weights may be kept, and an input."""
    model = randomise(nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU())).eval()
    fuse(model.requires_grad_(False))
    return model, torch.randn(2, 4, 6, 6)


def steps_of(model: Any, x: torch.Tensor) -> torch.Tensor:
    return F.relu(model[1](model[0](x)))


class Wrapped(nn.Module):
    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * self.conv(x)


def with_twice_the_forward(module: nn.Module) -> nn.Module:
    module.forward = lambda x: 2 * type(module).forward(module, x)
    return module


SWAPS: dict[str, tuple[int, Callable[[nn.Module], nn.Module]]] = {
    "another activation": (2, lambda _old: nn.Sigmoid()),
    "another slope": (2, lambda _old: nn.LeakyReLU(0.7)),
    "an activation's forward": (2, with_twice_the_forward),
    "no batch norm": (1, lambda _old: nn.Identity()),
    "a batch norm's forward": (1, with_twice_the_forward),
    "a wrapped convolution": (0, Wrapped),
    "another convolution": (0, lambda _old: nn.Conv2d(4, 4, 1, stride=2)),
    "a transposed convolution": (0, lambda _old: nn.ConvTranspose2d(4, 4, 3)),
}


@pytest.mark.parametrize("case", SWAPS)
def test_parts_may_be_replaced(case: str) -> None:
    place, swap = SWAPS[case]
    layers: Any = [nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(0.2)]
    model = randomise(nn.Sequential(*layers)).eval()
    fuse(model)
    model[place] = swap(model[place])
    x = torch.randn(2, 4, 6, 6)
    torch.testing.assert_close(model(x), model[2](model[1](model[0](x))))


def test_another_eps_is_folded_anew() -> None:
    model, x = small()
    model(x)
    model[1].eps = 1.0
    torch.testing.assert_close(model(x), steps_of(model, x))


def test_inference_tensors_are_folded_in_each_call() -> None:
    with torch.inference_mode():
        model, x = small()
        model(x)
        model.load_state_dict({name: 2 * tensor for name, tensor in model.state_dict().items()})
        torch.testing.assert_close(model(x), steps_of(model, x))


def test_parameters_that_become_inference_tensors_are_folded_in_each_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    model, x = small()
    model(x)
    weight = model[0].weight
    with torch.inference_mode():
        model.double()
    assert model[0].weight is weight
    assert weight.is_inference()
    x = x.double()
    for _ in range(2):
        torch.testing.assert_close(model(x), steps_of(model, x))
        with torch.inference_mode():
            weight.mul_(-3)


def test_fake_tensors_are_not_kept() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    model, x = small()
    with FakeTensorMode(allow_non_fake_inputs=True):
        model(x)
    torch.testing.assert_close(model(x), steps_of(model, x))


@pytest.mark.filterwarnings("ignore:`torch.jit.script")
def test_under_transforms_of_functions() -> None:
    model, x = small()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tangents = {name: torch.ones_like(state[name]) for name in ("0.weight", "1.bias")}
    stacked = {name: torch.stack([tensor, 2 * tensor]) for name, tensor in state.items()}

    def call(state: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, state, (x,))

    def transform() -> tuple[Any, ...]:
        batched = torch.func.vmap(call)(stacked)
        return batched, *torch.func.jvp(lambda some: call({**state, **some}), *pair)

    pair = ({name: state[name] for name in tangents},), (tangents,)
    ours = transform()
    unfuse(model)
    for actual, expected in zip(ours, transform(), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace")
def test_traces_and_exports_read_the_parameters() -> None:
    model, x = small()
    with torch.no_grad():
        model(x)
        traced: Any = torch.jit.trace(model, x)
        exported = torch.export.export(model, (x,)).module()
    for each in (traced, exported):
        each.load_state_dict({name: 2 * tensor for name, tensor in each.state_dict().items()})
    twin, _ = small()
    twin.load_state_dict(exported.state_dict())
    for each in (traced, exported):
        torch.testing.assert_close(each(x), steps_of(twin, x))


def test_copies_are_of_their_own() -> None:
    model = randomise(Net()).eval()
    x = torch.randn(1, 3, 8, 8)
    fuse(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.head.weight.mul_(2)
        for block in twin.blocks:
            block.conv1.weight.zero_()
        expected = copy.deepcopy(twin)
        unfuse(expected)
        torch.testing.assert_close(twin(x), expected(x), rtol=1e-4, atol=1e-4)
        assert not torch.allclose(model(x), twin(x))
    plain = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(plain(x), model(x), rtol=1e-4, atol=1e-4)


def test_a_pickled_model_is_not_fused_and_can_be() -> None:
    model, x = small()
    loaded = pickle.loads(pickle.dumps(model))
    assert "convtime::convolution_epilogue" not in calls_of(loaded, x)
    assert len(fuse(loaded).fused) == 1
    loaded = pickle.loads(pickle.dumps(loaded))
    assert unfuse(loaded) == ()
    assert vars(loaded).keys() == vars(nn.Sequential()).keys()


def test_replicas_compute_with_their_own_parameters() -> None:
    model, x = small()
    for each in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        # As DataParallel does, for which it takes two devices.
        replica = each._replicate_for_data_parallel()
        replica._modules["0"] = nn.Conv2d(4, 4, 1)
        torch.testing.assert_close(replica(x), steps_of(replica, x))
        torch.testing.assert_close(each(x), steps_of(each, x))


def test_fused_models_compile() -> None:
    model = randomise(Net()).eval()
    fuse(model)
    x = torch.randn(1, 3, 8, 8)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-4)


def test_under_autocast() -> None:
    model = randomise(Net()).eval()
    twin = copy.deepcopy(model)
    fuse(model)
    x = torch.randn(1, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        ours, theirs = model(x), twin(x)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("of", ["layer", "class"])
def test_replaced_layers_keep_their_policy(of: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())
    if of == "class":
        monkeypatch.setattr(convtime.nn.Conv2d, "policy", "eng0")
    convtime.nn.replace(model, policy="eng0" if of == "layer" else None)
    if of == "class":
        vars(model[0]).pop("policy", None)
    fuse(model)
    with pytest.raises(RuntimeError, match="conv2d_epilogue: policy names cuDNN's engine 0, but"):
        model(torch.randn(1, 3, 5, 5))


@pytest.mark.parametrize("function", [fuse, unfuse])
def test_what_is_no_module_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match=f"{function.__name__}: model must be a torch.nn.Module"):
        function(3)


def test_a_model_that_is_a_convolution_is_left() -> None:
    assert fuse(nn.Conv2d(3, 4, 1)).left == (("", "nothing follows it"),)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
def test_a_cuda_graph_reads_what_was_folded_last() -> None:
    model = randomise(Block()).cuda().half().to(memory_format=torch.channels_last).eval()
    fuse(model)
    x = torch.randn(2, 8, 16, 16, device="cuda").half().to(memory_format=torch.channels_last)
    with torch.no_grad():
        for _ in range(2):
            model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(x)
        model.conv1.weight.mul_(-1)
        model.bn2.bias.add_(1)
        expected = model(x)
        graph.replay()
    assert torch.equal(captured, expected)


@pytest.mark.cuda
@pytest.mark.filterwarnings("ignore:.*cuDNN has no engine for")
def test_the_first_call_may_be_captured() -> None:
    model = randomise(Block()).cuda().half().to(memory_format=torch.channels_last).eval()
    twin = copy.deepcopy(model)
    fuse(twin)
    x = torch.randn(2, 8, 16, 16, device="cuda").half().to(memory_format=torch.channels_last)
    with torch.no_grad():
        expected = twin(x)  # which also selects plans
        fuse(model)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = model(x)
        graph.replay()
    assert torch.equal(captured, expected)


# --- Layers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_layers_are_convolutions_with_an_epilogue(
    rank: int, padding_mode: str, device: torch.device
) -> None:
    options: dict[str, Any] = {"padding": 1, "padding_mode": padding_mode, "device": device}
    ours = getattr(convtime.nn, f"ConvEpilogue{rank}d")(
        3, 4, 3, **options, activation="leaky_relu", negative_slope=0.3, alpha=0.5
    )
    theirs = getattr(nn, f"Conv{rank}d")(3, 4, 3, **options)
    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, 3, *(6, 5, 4)[:rank], device=device)
    y = theirs(x)
    z = torch.randn_like(y)
    torch.testing.assert_close(ours(x), F.leaky_relu(y, 0.3), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ours(x, z), F.leaky_relu(y + 0.5 * z, 0.3), rtol=1e-4, atol=1e-4)
    assert "activation='leaky_relu'" in repr(ours)


def test_layers_can_be_copied_and_pickled() -> None:
    layer = ConvEpilogue2d(3, 4, 3, activation="silu")
    x = torch.randn(2, 3, 5, 5)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(twin(x), layer(x))


def test_a_layer_refuses_an_activation_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="ConvEpilogue2d: activation must be one of .*'swish'"):
        ConvEpilogue2d(3, 4, 3, activation="swish")  # type: ignore[arg-type]
