"""Nets of linear layers, their data, and their training by PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.nn import functional as F

from convtime.nn import FusedMLP, MLPTrainer

# What one kernel computes on a GPU, of 16 bits and without biases.
ON_CHIP = {
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
# What runs by cuBLASLt on a GPU, the narrow ones with biases or in 32 bits.
WIDE = {
    "square": (256,) * 4,
    "uneven": (100, 200, 512, 37),
    "narrow ends": (8, 320, 1),
    "16": (16,) * 3,
    "11": (11, 9, 3),
    "32": (32,) * 4,
    "20": (20, 20, 7),
}
SCALE = 1024.0  # of losses in 16 bits
LOSSES: dict[str, Any] = {"mse": F.mse_loss, "cross_entropy": F.cross_entropy}


def make_net(
    widths: tuple[int, ...],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    activation: str = "relu",
    bias: bool = False,
) -> FusedMLP:
    torch.manual_seed(0)
    net = FusedMLP(widths, activation, dtype, bias=bias, device=device)
    with torch.no_grad():
        net.weights.mul_(2)  # PyTorch's own draw shrinks what goes through it
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
# Each with torch's own weight decay.
DEFAULTS: dict[str, dict[str, Any]] = {
    f"{name} as it is": {"lr": 1e-2} for name in ("sgd", "adam", "adamw")
}
TORCHS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def options_of(optimizer: str) -> tuple[str, dict[str, Any]]:
    """The name in torch.optim, in small letters, and the options."""
    name = optimizer.replace("momentum", "sgd").partition(" ")[0]
    return name, (OPTIMIZERS | DEFAULTS)[optimizer]


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
    name, options = options_of(optimizer)
    learner: Any = TORCHS[name](model.parameters(), **options)
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
    name, given = options_of(optimizer)
    options = given | options
    return MLPTrainer(net, inputs, targets, batch_size=batch, loss=loss, optimizer=name, **options)


def make_all(
    widths: tuple[int, ...] = (24, 40, 3),
    dtype: torch.dtype = torch.float16,
    device: torch.device | str = "cuda",
    rows: int = 40,
    batch: int = 20,
    *,
    of_inputs: float = 1.0,
    of_targets: float = 1.0,
    bias: bool = False,
    **options: Any,
) -> MLPTrainer:
    """A trainer of a net and of data that are made for it, times these factors."""
    net = make_net(widths, dtype, device, bias=bias)
    inputs, targets = make_data(net, rows)
    return make_trainer(net, of_inputs * inputs, of_targets * targets, batch, **options)


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
