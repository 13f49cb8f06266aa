"""nn.fuse and nn.fusing: what they find, and that models compute what they did."""

from __future__ import annotations

import copy
import operator
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from convtime.nn import Fusion, fuse, fusing

thorough = pytest.mark.thorough


@pytest.fixture(autouse=True)
def without_tf32_and_earlier_captures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fused and separate plans may differ in TF32; Dynamo counts captures over all tests."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    torch._dynamo.reset()


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
            for statistics in module.buffers():
                if statistics.is_floating_point():
                    nn.init.uniform_(statistics, 0.5, 2)
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
            close(fused(*inputs), expected(*inputs))
    torch.testing.assert_close(model.state_dict(), state, rtol=0, atol=0)
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
            outputs.append(each(*inputs))
            outputs[-1].square().sum().backward()
        close(*outputs)
    ours, theirs = ([parameter.grad for parameter in each.parameters()] for each in (model, twin))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(model.state_dict(), twin.state_dict())
    return backend.report


def small() -> Any:
    """A model that is captured quickly."""
    return randomise(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))


def close(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def fused_in(fusion: Fusion) -> list[str]:
    return [str(each) for each in fusion.fused]


@pytest.mark.parametrize("backend", ["eager", pytest.param("aot_eager", marks=thorough)])
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


@thorough
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


@thorough
def test_modes_in_a_forward_are_kept() -> None:
    class Modes(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> Any:
            with torch.no_grad():
                y = F.relu(super().forward(x))
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                return y, F.relu(super().forward(x))

    y, z = torch.compile(Modes(3, 3, 3), backend=fusing("eager"))(torch.randn(2, 3, 6, 6))
    assert (y.requires_grad, z.requires_grad, z.dtype) == (False, True, torch.bfloat16)


@pytest.mark.parametrize(
    "rank", [pytest.param(1, marks=thorough), 2, pytest.param(3, marks=thorough)]
)
def test_every_activation_and_rank(rank: int) -> None:
    conv, norm = (getattr(nn, f"{name}{rank}d") for name in ("Conv", "BatchNorm"))
    model = nn.Sequential()
    activations = [nn.ReLU(), nn.ReLU6(inplace=True), nn.LeakyReLU(-0.3), nn.GELU()]
    activations += [nn.GELU(approximate="tanh"), nn.SiLU(inplace=True), nn.Sigmoid(), nn.Tanh()]
    for activation in activations:
        model.extend([conv(3, 3, 3, padding=1), norm(3), activation])
    fused = fused_in(check(randomise(model), torch.randn(2, 3, *[6] * rank)))
    assert fused == [f"{at} + {at + 1} + {at + 2}" for at in range(0, 24, 3)]


class Functions(nn.Module):
    """Convolutions, and for each a function of its result, its input and a norm."""

    def __init__(self, *functions: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.functions = functions
        self.convs = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in functions)
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in functions)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        results = []
        for function, conv, norm in zip(self.functions, self.convs, self.norms, strict=True):
            own = x.clone()
            results.append(function(conv(own), own, norm))
        return results


def test_functions_are_found() -> None:
    cases: dict[str, Callable[..., torch.Tensor]] = {
        "[relu]": lambda y, x, norm: y.relu(),
        "[sigmoid]": lambda y, x, norm: y.sigmoid_(),
        "[add]": lambda y, x, norm: y + x,
        "[add] + [relu]": lambda y, x, norm: F.relu(x + y),
        "[add] + [silu]": lambda y, x, norm: F.silu(torch.add(y, x, alpha=2)),
        "[add] + [tanh]": lambda y, x, norm: y.add_(x, alpha=-1.5).tanh(),
        "[leaky_relu]": lambda y, x, norm: F.leaky_relu(y, 0.25),
        "norms.7 + [add] + [silu]": lambda y, x, norm: F.silu(norm(y) + x),
    }
    fusion = check(randomise(Functions(*cases.values())), torch.randn(2, 3, 6, 6))
    assert fused_in(fusion) == [f"convs.{at} + {steps}" for at, steps in enumerate(cases)]


def test_what_does_not_fit_is_left() -> None:
    def write_to_input(y: torch.Tensor, x: torch.Tensor, norm: Any) -> torch.Tensor:
        x.add_(1)
        return F.relu(y)

    cases: list[tuple[Callable[..., torch.Tensor], str]] = [
        (lambda y, x, norm: F.relu(y) + y, "used more than once"),
        (write_to_input, "may be changed between"),
        (lambda y, x, norm: F.relu(operator.imul(y, 3.4)), "no batch norm"),
        (lambda y, x, norm: y + x[:1], "no batch norm"),  # broadcast
        (lambda y, x, norm: y + x.double(), "no batch norm"),
        (lambda y, x, norm: y + 1, "no batch norm"),
        (lambda y, x, norm: y + y, "no batch norm"),
        (lambda y, x, norm: operator.iadd(x.clone(), y), "no batch norm"),
        (lambda y, x, norm: F.hardtanh(y), "no batch norm"),
    ]
    model = Functions(*[function for function, _ in cases]).eval()
    fused = fuse(model)
    x = torch.randn(2, 3, 6, 6)
    with torch.no_grad():
        torch.testing.assert_close(fused(x), model(x), rtol=0, atol=0)
    assert fused.report.fused == ()
    for at, ((name, why), (_, reason)) in enumerate(zip(fused.report.left, cases, strict=True)):
        assert name == f"convs.{at}"
        assert reason in why


def test_norms_that_differ() -> None:
    class Norms(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)
            self.one, self.other = nn.BatchNorm2d(4), nn.BatchNorm2d(4, affine=False)
            self.of_batch = nn.Conv2d(4, 4, 1)
            self.norm = nn.BatchNorm2d(4, track_running_stats=False)
            self.transposed = nn.ConvTranspose2d(4, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.one(self.conv(x)) - self.other(self.conv(2 * x))
            return self.transposed(self.norm(self.of_batch(y))).relu()

    fusion = check(randomise(Norms()), torch.randn(2, 3, 4, 4))
    assert fused_in(fusion) == ["conv + one", "conv + other"]
    (batch, why), (transposed, reason) = fusion.left
    assert (batch, why) == ("of_batch", "its batch norm uses statistics of the batch")
    assert transposed == "transposed"
    assert "transposed" in reason


@thorough
def test_blocks_that_share_a_capture_have_their_own_weights() -> None:
    class Branching(nn.Module):
        """Its blocks share code; which of them runs depends on the input's values."""

        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = Block(), Block()
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return self.one(x) if x.sum() > 0 else self.other(x)

    model = randomise(Branching()).eval()
    fused = fuse(model)
    x = torch.randn(2, 8, 5, 5).abs()
    with torch.no_grad():
        for each in (x, -x, x, -x):
            close(fused(each), model(each))
    assert len(fused.report.fused) >= 2
    assert model.calls == fused._model.calls == 4


class Nested(nn.Module):
    """A checkpoint in a checkpoint, a convolution in each, and random depth."""

    def __init__(self) -> None:
        super().__init__()
        self.outer = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.inner = Block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.outer(x)
            return torch.utils.checkpoint.checkpoint(self.inner, y, use_reentrant=False), y

        z, y = torch.utils.checkpoint.checkpoint(both, x, use_reentrant=False)
        return (z + y) * F.dropout(torch.ones(()), 0.5, self.training)


@thorough
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_convolutions_in_checkpoints_are_fused(backend: str) -> None:
    model = randomise(Nested())
    for requires_grad in (False, True):
        fusion = check(model, torch.randn(2, 3, 9, 9, requires_grad=requires_grad))
        assert {each.name for each in fusion.fused} == {"outer.0", "inner.conv1", "inner.conv2"}
        assert not fusion.left
    compiled = torch.compile(copy.deepcopy(model).train(), backend=fusing(backend))
    outputs = [compiled(torch.randn(2, 3, 9, 9)).abs().sum().item() for _ in range(20)]
    assert 0 in outputs
    assert any(outputs)
    trained, whole = model.double().eval(), fusing(backend)
    x = torch.randn(2, 3, 9, 9, dtype=torch.float64)
    gradients = []
    for call in (trained, torch.compile(trained, backend=whole)):
        loss = call(x).square().sum()
        gradients.append(torch.autograd.grad(loss, [*trained.parameters()]))
    assert len(whole.report.fused) == 3
    torch.testing.assert_close(*gradients)


@thorough
def test_folded_tensors_have_no_symbolic_sizes() -> None:
    """AOTAutograd gave them some, where a size occurs elsewhere, and its guards raised errors."""
    model = randomise(nn.Sequential(nn.Conv1d(3, 6, 5), nn.BatchNorm1d(6), nn.ReLU())).eval()
    fused = fuse(model, backend="aot_eager")
    for count in (2, 3, 6):
        x = torch.randn(count, 3, 24)
        close(fused(x), model(x))


@thorough
def test_interleaved_chains_are_fused_where_norms_are_folded_in_each_call() -> None:
    class Diamond(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
            self.norm, self.norm_of_other = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            one, other = self.one(x), self.other(x)
            return self.norm(one) * self.norm_of_other(other)

    fusion = check_training(randomise(Diamond()), torch.randn(2, 3, 4, 4))
    assert fused_in(fusion) == ["one + norm", "other + norm_of_other"]


@thorough
def test_under_autocast_dtypes_are_kept(device: torch.device) -> None:
    model = randomise(Net()).to(device).eval()
    fused = fuse(model)
    x = torch.randn(2, 3, 12, 12, device=device)
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16):
        ours, theirs = fused(x), model(x)
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=0.1, atol=0.1)
    with torch.no_grad():
        close(fused(x), model(x))


def test_a_copy_has_a_state_of_its_own() -> None:
    model, x = small(), torch.randn(2, 3, 6, 6)
    state = copy.deepcopy(model.state_dict())
    fused = fuse(model)
    assert model.training
    assert not fused.training
    plain = small().eval()
    with torch.no_grad():
        before = fused(x)
        for tensor in model.state_dict().values():
            tensor.zero_()
        assert torch.equal(fused(x), before)
        plain.load_state_dict(fused.state_dict())
        close(plain(x), before)
        twins = copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))
        owner = nn.Sequential(fused, nn.Identity())
        owner.load_state_dict(nn.Sequential(model, nn.Identity()).state_dict())
        torch.testing.assert_close(fused(x), model.eval()(x))
        for twin in twins:
            close(twin(x), before)
        close(twins[0].double()(x.double()), plain.double()(x.double()))
    with pytest.raises(RuntimeError, match=r"0.weight"):
        fused.load_state_dict({})
    with pytest.raises(RuntimeError, match=r"Unexpected.*more"):
        fused.load_state_dict({**state, "more": x})
    fused.load_state_dict(state, assign=True)
    assert {tensor.data_ptr() for tensor in fused.state_dict().values()} == {
        tensor.data_ptr() for tensor in state.values()
    }


@thorough
def test_layers_are_imported_without_dynamo() -> None:
    program = "import sys, convtime.nn; assert 'torch._dynamo' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


@thorough
def test_models_with_hooks_other_layers_and_parametrized_weights() -> None:
    seen: list[float] = []
    model, x = randomise(Net()), torch.randn(2, 3, 12, 12)
    convtime.nn.replace(model)
    model.blocks[0].conv1.register_forward_hook(lambda *a: seen.append(a[2].sum().item()))
    assert check(model, x).fused
    assert seen == [pytest.approx(seen[0], rel=1e-3)] * 4
    for parametrize in ("weight_norm", "spectral_norm"):
        model = small()
        getattr(nn.utils.parametrizations, parametrize)(model[0])
        check(model, x)


@thorough
def test_transforms_and_threads_compute_the_same() -> None:
    model = randomise(Net()).eval()
    fused = fuse(model)
    x = torch.randn(4, 2, 3, 12, 12)
    torch.testing.assert_close(torch.vmap(fused)(x), torch.vmap(model)(x))
    ours, theirs = (torch.func.jvp(each, (x[0],), (x[1],))[1] for each in (fused, model))
    torch.testing.assert_close(ours, theirs)
    traced = torch.jit.trace(fused, (x[0],))
    torch.testing.assert_close(traced(x[1]), model(x[1]))
    with torch.no_grad():
        outer = torch.compile(nn.Sequential(fused, nn.ReLU()), backend="aot_eager")
        close(outer(x[0]), F.relu(model(x[0])))
    assert len(fused.report.fused) == 6, "compiled again, it stays fused"
    with ThreadPoolExecutor(4) as pool, torch.no_grad():
        close([*pool.map(torch.no_grad()(fused), [x[2]] * 20)], [model(x[2])] * 20)


def test_what_cannot_be_fused_or_trained_is_refused() -> None:
    class Uncopyable(nn.Module):
        def __deepcopy__(self, memory: object) -> None:
            raise RuntimeError("there is only one")

    model: Any
    for model, error, message in (
        (torch.relu, TypeError, "must be a torch.nn.Module"),
        (nn.DataParallel(nn.Conv2d(3, 3, 1)), TypeError, "fuse its attribute module"),
        (fuse(nn.Conv2d(3, 3, 1)), TypeError, "must not be fused"),
        (Uncopyable(), InputError, "must be copyable.*only one"),
    ):
        with pytest.raises(error, match=message):
            fuse(model)
    fused = fuse(nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()))
    with pytest.raises(InputError, match="must stay in eval mode"):
        fused.train()
    with pytest.raises(InputError, match="must not require gradients"):
        fused.requires_grad_()
    assert fused.eval() is fused
    assert fused.requires_grad_(False) is fused
    assert not [*fused.parameters()]
    assert fused.report.left == (("0", "no call of it was captured"),)


@pytest.mark.cuda
def test_a_cuda_graph_captures_a_call() -> None:
    model = small().cuda().eval()
    fused = fuse(model)
    x = torch.randn(2, 3, 12, 12, device="cuda")
    with torch.no_grad():
        fused(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = fused(x)
        x.normal_()
        graph.replay()
        close(y, model(x))


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    store = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def in_fsdp(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (1,))
    for each in (model.get_submodule("blocks"), model):
        fully_shard(each, mesh=mesh)
    return model


@thorough
@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("wrap", [nn.parallel.DistributedDataParallel, in_fsdp])
def test_models_on_several_devices_are_trained_alike(wrap: Callable[..., nn.Module]) -> None:
    backend = fusing("aot_eager")
    x = torch.randn(2, 3, 12, 12, dtype=torch.float64)
    original = randomise(Net()).double()
    wrapped = wrap(copy.deepcopy(original))
    outputs = []
    for model, call in ((original, original), (wrapped, torch.compile(wrapped, backend=backend))):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, eps=1e-4)
        for training in (True, True, False, False):
            model.train(training)
            outputs.append(call(x))
            outputs[-1].square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(outputs[4:], outputs[:4])
    assert backend.report.fused


@thorough
@pytest.mark.usefixtures("process_group")
def test_divided_parameters_are_refused() -> None:
    with pytest.raises(InputError, match="must not be divided among devices, got a DTensor for"):
        fuse(in_fsdp(Net()))
