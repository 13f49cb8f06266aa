"""nn.fuse and nn.fusing: what they find, and that models compute what they did."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import convtime
from convtime.core.errors import InputError
from convtime.nn import ConvEpilogue2d, FusedModel, Fusion, fuse, fusing


@pytest.fixture(autouse=True)
def without_earlier_captures() -> None:
    """Dynamo counts how often it captures a function, over all tests."""
    torch._dynamo.reset()


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


def check(model: nn.Module, *inputs: Any, backend: str = "eager") -> Fusion:
    """Compare a fused model with the model itself, without and with gradients of the inputs."""
    expected = copy.deepcopy(model).eval()
    state = copy.deepcopy(model.state_dict())
    fused = fuse(model, backend=backend)
    for context in (torch.no_grad(), torch.enable_grad()):
        with context:
            torch.testing.assert_close(fused(*inputs), expected(*inputs), rtol=1e-4, atol=1e-4)
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(tensor, state[name], rtol=0, atol=0)
    return fused.report


def check_training(model: nn.Module, *inputs: torch.Tensor) -> Fusion:
    """Compare the outputs, gradients and statistics of a model that `fusing` compiles."""
    twin = copy.deepcopy(model)
    backend = fusing("eager")
    compiled = torch.compile(model, backend=backend)
    for training in (True, False):
        outputs = []
        for each, own in ((compiled, model), (twin, twin)):
            own.train(training)
            output = each(*inputs)
            output.square().sum().backward()
            outputs.append(output)
        torch.testing.assert_close(*outputs, rtol=1e-4, atol=1e-4)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3)
    for name, tensor in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor)
    return backend.report


def fused_in(fusion: Fusion) -> list[str]:
    return [str(each) for each in fusion.fused]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_model_computes_what_it_did(device: torch.device, backend: str) -> None:
    model = randomise(Net()).to(device)
    fusion = check(model, torch.randn(2, 3, 12, 12, device=device), backend=backend)
    assert str(fusion).splitlines() == [
        "6 convolutions fused, 1 left",
        "  head is left: no batch norm, addition or activation follows it",
    ]
    assert fused_in(fusion) == [
        "stem.0 + stem.1 + stem.2",
        "blocks.0.conv1 + blocks.0.bn1 + blocks.0.relu",
        "blocks.0.conv2 + blocks.0.bn2 + [add] + blocks.0.relu",
        "blocks.1.conv1 + blocks.1.bn1 + blocks.1.relu",
        "blocks.1.conv2 + blocks.1.bn2 + [add] + blocks.1.relu",
        "last + [gelu_tanh]",
    ]
    for told in (fusion.details(), fusion._repr_html_()):
        assert "blocks.0.bn1 + blocks.0.relu" in told
        assert "head" in told
    assert repr(fusion) == "<convtime.nn.Fusion 6 convolutions fused, 1 left: head>"


def test_a_compiled_model_trains_as_it_did(device: torch.device) -> None:
    model = randomise(Net()).to(device)
    fusion = check_training(model, torch.randn(2, 3, 12, 12, device=device))
    assert "last + [gelu_tanh]" in fused_in(fusion)
    assert "stem.0 + stem.1 + stem.2" in fused_in(fusion)  # in eval mode


@pytest.mark.parametrize("activation", [nn.LeakyReLU(0.2), nn.ReLU6()])
def test_a_result_that_changes_in_place_keeps_its_gradient(activation: nn.Module) -> None:
    """PyTorch computes these gradients from the activation's input."""

    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
            self.activation = activation

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.activation(self.norm(self.conv(x)))
            z = self.activation(self.conv(x))
            y -= x
            z[0].mul_(3)
            return y + z

    fusion = check_training(randomise(Changing()), torch.randn(2, 3, 4, 4))
    assert fused_in(fusion) == ["conv + norm"]
    assert "conv + norm + activation" in fused_in(check(Changing(), torch.randn(2, 3, 4, 4)))


LAYERS: dict[str, nn.Module] = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(inplace=True),
    "leaky_relu": nn.LeakyReLU(-0.3),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "silu": nn.SiLU(inplace=True),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
}


@pytest.mark.parametrize("activation", LAYERS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_every_activation_and_rank(rank: int, activation: str) -> None:
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[rank - 1]
    model = randomise(nn.Sequential(conv(3, 4, 3, padding=1), norm(4), LAYERS[activation]))
    assert fused_in(check(model, torch.randn(2, 3, *[6] * rank))) == ["0 + 1 + 2"]


class Functions(nn.Module):
    """A convolution, and a function of its result and of another tensor."""

    def __init__(self, after: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.norm = nn.BatchNorm2d(3)
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.conv(x), x, self)


FUNCTIONS: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "method": (lambda y, x, m: y.relu(), "[relu]"),
    "method in place": (lambda y, x, m: y.sigmoid_(), "[sigmoid]"),
    "sum": (lambda y, x, m: y + x, "[add]"),
    "reversed sum": (lambda y, x, m: x + y, "[add]"),
    "alpha": (lambda y, x, m: torch.add(y, x, alpha=2), "[add]"),
    "alpha in place": (lambda y, x, m: y.add_(x, alpha=-1.5).tanh(), "[add] + [tanh]"),
    "slope": (lambda y, x, m: F.leaky_relu(y, 0.25), "[leaky_relu]"),
    "all": (lambda y, x, m: F.silu(m.norm(y) + x), "norm + [add] + [silu]"),
}


@pytest.mark.parametrize("case", FUNCTIONS)
def test_functions_are_found(case: str) -> None:
    after, steps = FUNCTIONS[case]
    fusion = check(randomise(Functions(after)), torch.randn(2, 3, 6, 6))
    assert fused_in(fusion) == [f"conv + {steps}"]


def multiply_in_place(y: torch.Tensor, factor: float) -> torch.Tensor:
    y *= factor
    return y


def write_to_input(y: torch.Tensor, x: torch.Tensor, model: Any) -> torch.Tensor:
    x.add_(1)
    return F.relu(y)


def add_to_input(y: torch.Tensor, x: torch.Tensor, model: Any) -> torch.Tensor:
    z = x.clone()
    z += y
    return z


LEFT: dict[str, tuple[Callable[..., torch.Tensor], str]] = {
    "used twice": (lambda y, x, m: F.relu(y) + y, "used more than once"),
    "multiplied in place": (lambda y, x, m: F.relu(multiply_in_place(y, 3.4)), "no batch norm"),
    "broadcast": (lambda y, x, m: y + x[:1], "no batch norm"),
    "other dtype": (lambda y, x, m: y + x.double(), "no batch norm"),
    "number": (lambda y, x, m: y + 1, "no batch norm"),
    "itself": (lambda y, x, m: y + y, "no batch norm"),
    "written between": (write_to_input, "may be changed between"),
    "added to another": (add_to_input, "no batch norm"),
    "other slope": (lambda y, x, m: F.hardtanh(y), "no batch norm"),
}


@pytest.mark.parametrize("case", LEFT)
def test_what_does_not_fit_is_left(case: str) -> None:
    after, reason = LEFT[case]
    model = randomise(Functions(after)).eval()
    fused = fuse(model)
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(fused(x.clone()), model(x.clone()), rtol=0, atol=0)
    assert fused.report.fused == ()
    ((name, why),) = fused.report.left
    assert name == "conv"
    assert reason in why


def test_a_norm_with_statistics_of_the_batch_is_left() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4, track_running_stats=False))
    ((_, why),) = check(model, torch.randn(2, 3, 4, 4)).left
    assert why == "its batch norm uses statistics of the batch"


def test_a_transposed_convolution_is_left() -> None:
    model = nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.ReLU())
    ((name, why),) = check(model, torch.randn(2, 3, 4, 4)).left
    assert name == "0"
    assert "transposed" in why


def test_each_of_two_norms_after_one_convolution_is_folded() -> None:
    class TwoNorms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.one, self.other = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.one(self.conv(x)) - self.other(self.conv(2 * x))

    fusion = check(randomise(TwoNorms()), torch.randn(2, 3, 4, 4))
    assert fused_in(fusion) == ["conv + one", "conv + other"]


class Branching(nn.Module):
    """Its blocks share code; which of them runs depends on the input's values."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Block(), Block()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if x.sum() > 0:
            return self.one(x)
        return self.other(x)


def test_blocks_that_share_a_capture_have_their_own_weights() -> None:
    model = randomise(Branching()).eval()
    fused = fuse(model)
    x = torch.randn(2, 8, 5, 5).abs()
    with torch.no_grad():
        for each in (x, -x, x, -x):
            torch.testing.assert_close(fused(each), model(each), rtol=1e-4, atol=1e-4)
    assert len(fused.report.fused) >= 2
    assert model.calls == fused._model.calls == 4


class Modes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            y = F.relu(self.conv(x))
        with torch.autocast(x.device.type, dtype=torch.bfloat16):
            z = F.relu(self.conv(x))
        return y, z


def test_modes_in_a_forward_are_kept() -> None:
    model = Modes()
    compiled = torch.compile(model, backend=fusing("eager"))
    y, z = compiled(torch.randn(2, 3, 6, 6))
    assert not y.requires_grad
    assert z.requires_grad
    assert z.dtype == torch.bfloat16


def test_checkpoints_and_random_depth_are_kept() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = torch.utils.checkpoint.checkpoint(self.block, x, use_reentrant=False)
            return y * F.dropout(torch.ones(()), 0.5, self.training)

    model = randomise(Checkpointed())
    x = torch.randn(2, 8, 5, 5)
    check(model, x)
    compiled = torch.compile(model.train(), backend=fusing("eager"))
    outputs = [compiled(x).abs().sum().item() for _ in range(20)]
    assert 0 in outputs
    assert any(outputs)


def test_folded_tensors_have_no_symbolic_sizes() -> None:
    """AOTAutograd gave them some, where a size occurs elsewhere, and its guards raised errors."""
    model = randomise(nn.Sequential(nn.Conv1d(3, 6, 5), nn.BatchNorm1d(6), nn.ReLU())).eval()
    fused = fuse(model, backend="aot_eager")
    for count in (2, 3, 6):
        x = torch.randn(count, 3, 24)
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)


class Nested(nn.Module):
    """A checkpoint in a checkpoint, and a convolution in each."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.inner = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.outer(x)
            return torch.utils.checkpoint.checkpoint(self.inner, y, use_reentrant=False), y

        z, y = torch.utils.checkpoint.checkpoint(both, x, use_reentrant=False)
        return z + y


@pytest.mark.parametrize("requires_grad", [False, True])
def test_convolutions_in_checkpoints_are_fused(requires_grad: bool) -> None:
    model = randomise(Nested())
    fused = fuse(model)
    x = torch.randn(2, 3, 9, 9, requires_grad=requires_grad)
    torch.testing.assert_close(fused(x), model.eval()(x), rtol=1e-4, atol=1e-4)
    assert {each.name for each in fused.report.fused} == {"outer.0", "inner.conv1", "inner.conv2"}
    assert not fused.report.left


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_checkpoints_are_fused_in_training(backend: str) -> None:
    model = randomise(Nested()).double().eval()
    backend_of_torch = fusing(backend)
    trained = copy.deepcopy(model)
    compiled = torch.compile(trained, backend=backend_of_torch)
    x = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    for each in (model, compiled):
        each(x).square().sum().backward()
    assert len(backend_of_torch.report.fused) == 3
    for ours, theirs in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_under_autocast_dtypes_are_kept(device: torch.device) -> None:
    model = randomise(Net()).to(device).eval()
    fused = fuse(model)
    x = torch.randn(2, 3, 12, 12, device=device)
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
        ours, theirs = fused(x), model(x)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.1)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=1e-4, atol=1e-4)


def test_the_original_and_the_copy_do_not_affect_each_other() -> None:
    model = randomise(Net())
    x = torch.randn(2, 3, 12, 12)
    fused = fuse(model)
    assert model.training
    assert not fused.training
    with torch.no_grad():
        before = fused(x)
        for tensor in model.state_dict().values():
            tensor.zero_()
        assert torch.equal(fused(x), before)
        twin = copy.deepcopy(fused)
        fused.load_state_dict(model.state_dict())
        torch.testing.assert_close(fused(x), model.eval()(x))
        torch.testing.assert_close(twin(x), before)


def test_state_is_loaded_without_convtime_and_as_part_of_a_model() -> None:
    model = randomise(Net()).eval()
    fused = fuse(model)
    plain = Net().eval()
    plain.load_state_dict(fused.state_dict())
    x = torch.randn(2, 3, 12, 12)
    torch.testing.assert_close(plain(x), model(x))
    owner = nn.Sequential(fuse(Net()), nn.Identity())
    owner.load_state_dict(nn.Sequential(model, nn.Identity()).state_dict())
    with torch.no_grad():
        torch.testing.assert_close(owner(x), model(x), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="last.weight"):
        fused.load_state_dict({})
    with pytest.raises(RuntimeError, match=r"Unexpected.*more"):
        fused.load_state_dict({**model.state_dict(), "more": x})


def test_state_is_assigned_where_that_is_asked_for() -> None:
    fused = fuse(Net())
    state = randomise(Net()).double().state_dict()
    fused.load_state_dict(state, assign=True)
    assert {tensor.data_ptr() for tensor in fused.state_dict().values()} == {
        tensor.data_ptr() for tensor in state.values()
    }


def test_interleaved_chains_are_fused_where_norms_are_folded_in_each_call() -> None:
    class Diamond(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
            self.norm, self.norm_of_other = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one, other = self.one(x), self.other(x)
            one = self.norm(one)
            return one * self.norm_of_other(other)

    model = randomise(Diamond()).eval()
    backend = fusing("eager")
    x = torch.randn(2, 3, 4, 4)
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x))
    assert fused_in(backend.report) == ["one + norm", "other + norm_of_other"]


def test_layers_are_imported_without_dynamo() -> None:
    program = "import sys, convtime.nn; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_it_can_be_cast_and_pickled() -> None:
    model = randomise(Net()).eval()
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    fused = fuse(model)
    with torch.no_grad():
        fused(x.float())
        expected = copy.deepcopy(model).double()(x)
        torch.testing.assert_close(fused.double()(x), expected)
        torch.testing.assert_close(pickle.loads(pickle.dumps(fused))(x), expected)


def test_hooks_see_what_they_saw() -> None:
    seen: list[float] = []
    model = randomise(Net()).eval()
    model.blocks[0].conv1.register_forward_hook(lambda *a: seen.append(a[2].sum().item()))
    x = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        model(x)
        fuse(model)(x)
    assert len(seen) == 2
    assert seen[1] == pytest.approx(seen[0], rel=1e-3)


def test_gradients_of_inputs() -> None:
    model = randomise(Net()).eval()
    gradients = []
    for each in (fuse(model), model):
        x = torch.ones(2, 3, 12, 12, requires_grad=True)
        (gradient,) = torch.autograd.grad(each(x).sum(), x)
        gradients.append(gradient)
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-3)


def test_threads_compute_the_same() -> None:
    model = randomise(Net()).eval()
    fused = fuse(model)
    x = torch.randn(2, 3, 12, 12)
    outputs: list[torch.Tensor] = []

    def call() -> None:
        with torch.no_grad():
            outputs.extend(fused(x) for _ in range(5))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 20
    for output in outputs:
        torch.testing.assert_close(output, model(x), rtol=1e-4, atol=1e-4)


def test_transforms_see_the_models_own_code() -> None:
    model = randomise(Net()).eval()
    fused = fuse(model)
    x = torch.randn(4, 2, 3, 12, 12)
    torch.testing.assert_close(torch.vmap(fused)(x), torch.vmap(model)(x))
    tangent = torch.func.jvp(fused, (x[0],), (x[1],))[1]
    torch.testing.assert_close(tangent, torch.func.jvp(model, (x[0],), (x[1],))[1])
    traced = torch.jit.trace(fused, (x[0],))
    torch.testing.assert_close(traced(x[1]), model(x[1]))


def test_compiled_again_it_stays_fused() -> None:
    model = randomise(Net()).eval()
    fused = fuse(model)
    x = torch.randn(2, 3, 12, 12)
    with torch.no_grad():
        outer = torch.compile(nn.Sequential(fused, nn.ReLU()), backend="aot_eager")
        torch.testing.assert_close(outer(x), F.relu(model(x)), rtol=1e-4, atol=1e-4)
    assert len(fused.report.fused) == 6


def test_layers_that_were_replaced_are_fused() -> None:
    model = randomise(Net())
    convtime.nn.replace(model)
    assert len(check(model, torch.randn(2, 3, 12, 12)).fused) == 6


@pytest.mark.parametrize("parametrize", ["weight_norm", "spectral_norm"])
def test_parametrized_weights(parametrize: str) -> None:
    model = randomise(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    getattr(nn.utils.parametrizations, parametrize)(model[0])
    check(model, torch.randn(2, 3, 6, 6))


def test_before_the_first_call_nothing_is_known() -> None:
    fusion = fuse(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU())).report
    assert fusion.left == (("0", "no call of it was captured"),)


REFUSED: dict[str, tuple[Callable[[FusedModel], object], str]] = {
    "train": (lambda fused: fused.train(), "must stay in eval mode"),
    "requires_grad_": (lambda fused: fused.requires_grad_(), "must not require gradients"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_training_is_refused(case: str) -> None:
    act, message = REFUSED[case]
    fused = fuse(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()))
    with pytest.raises(InputError, match=message):
        act(fused)
    assert fused.eval() is fused
    assert fused.requires_grad_(False) is fused
    assert not [*fused.parameters()]


class Uncopyable(nn.Module):
    def __deepcopy__(self, memory: object) -> None:
        raise RuntimeError("there is only one")


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (torch.relu, TypeError, "must be a torch.nn.Module"),
        (nn.DataParallel(nn.Conv2d(3, 3, 1)), TypeError, "fuse its attribute module"),
        (fuse(nn.Conv2d(3, 3, 1)), TypeError, "must not be fused"),
        (Uncopyable(), InputError, "must be copyable.*only one"),
    ],
)
def test_what_cannot_be_fused_is_refused(model: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        fuse(model)


@pytest.mark.cuda
def test_a_cuda_graph_captures_a_call() -> None:
    model = randomise(Net()).cuda().eval()
    fused = fuse(model)
    x = torch.randn(2, 3, 12, 12, device="cuda")
    with torch.no_grad():
        fused(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fused(x)
        x.normal_()
        graph.replay()
        torch.testing.assert_close(y, model(x), rtol=1e-4, atol=1e-4)


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


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def in_ddp(model: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(model)


def in_fsdp(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    for each in (model.get_submodule("blocks"), model):
        fully_shard(each, mesh=mesh)
    return model


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrap", [in_ddp, in_fsdp])
def test_models_on_several_devices_are_trained_alike(wrap: Callable[..., nn.Module]) -> None:
    backend = fusing("aot_eager")
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    outputs: list[list[torch.Tensor]] = []
    original = randomise(Net()).double()
    for wrapped in (False, True):
        model = copy.deepcopy(original)
        if wrapped:
            model = wrap(model)
        call = torch.compile(model, backend=backend) if wrapped else model
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
        outputs.append([])
        for training in (True, True, False, False):
            model.train(training)
            outputs[-1].append(call(x))
            outputs[-1][-1].square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(outputs[1], outputs[0])
    assert backend.report.fused


@pytest.mark.usefixtures("process_group")
def test_divided_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="must not be divided among devices, got a DTensor for"):
        fuse(in_fsdp(Net()))
