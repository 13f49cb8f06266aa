"""Speed and training of nets, as rows."""

import functools
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import results
import torch
from common import families
from common.cuda import capture
from common.running import Case, counted, run
from torch import nn
from torch.nn import functional as F

import convtime
import mlp
from convtime.nn import FusedMLP, MLPTrainer
from mlp import ON_CHIP, TASKS, Net, steps

BATCHES, DRAWN_BATCHES = 16, 4  # of resident data
TRAINING = (64, 4, 1024)
TRAINING_STEPS = 2000
SAMPLES = 12, 100  # of a comparison, at least and at most
SCALE = 1024.0
COMPARED_STEPS = 100  # after which weights are compared
CLASSES = 10


def make_cases(device: torch.device, seed: int, budget: float) -> dict[str, Case]:
    cases = {
        f"training {task}": Case(functools.partial(measure_training, task, device))
        for task in TASKS
    }
    nets: list[tuple[str, Net, tuple[str, ...], int, int | None]]
    nets = [(name, net, mlp.PEERS, BATCHES, None) for name, net in mlp.SHAPES.items()]
    for index in range(mlp.DRAWN):
        net = mlp.draw(seed, index)
        nets.append((f"drawn {index}", net, mlp.GRAPHS, DRAWN_BATCHES, seed))
    for name, net, peers, batches, drawn_by in nets:
        cases[name] = Case(
            functools.partial(measure_speed, name, net, peers, batches, device, budget),
            functools.partial(compile_beforehand, net, peers, batches, device),
            drawn_by,
        )
    return cases


def compile_beforehand(
    shape: Net, peers: Iterable[str], batches: int, device: torch.device
) -> None:
    width, layers, batch = shape
    inputs, targets = steps.make_data(width, width, batches * batch, "mse", device)
    torch.compiler.reset()
    for name in peers:
        if name.startswith("compiled"):
            model = steps.make_model(width, layers, width, device=device, dtype=torch.float16)
            steps.make_peer(name, model, inputs, targets, batch)()


def measure_speed(
    name: str, shape: Net, peers: Iterable[str], batches: int, device: torch.device, seconds: float
) -> results.Row:
    width, layers, batch = shape
    count = steps.steps_of(shape)
    inputs, targets = steps.make_data(width, width, batches * batch, "mse", device)
    torch.manual_seed(0)
    model = steps.make_model(width, layers, width, device=device, dtype=torch.float16)
    # To look for overflow takes a wide net another launch, and PyTorch's side does not look.
    scale = None if width > ON_CHIP else SCALE
    sides = {"convtime": steps.make_ours(model, inputs, targets, batch, loss_scale=scale)}
    torch.compiler.reset()
    for peer in peers:
        own = steps.make_model(width, layers, width, device=device, dtype=torch.float16)
        own.load_state_dict(model.state_dict())
        step = steps.make_peer(peer, own, inputs, targets, batch)
        sides[peer] = capture(step) if peer.endswith("graph") else step
        steps.repeat(sides[peer], 5)
    compared = steps.compare_steps(
        {who: functools.partial(steps.repeat, step, count) for who, step in sides.items()},
        **counted(*SAMPLES) | {"stop": "budget", "budget": seconds},
    )
    rates = convtime.ceilings(device)
    return {
        "kind": "speed",
        "shape": name,
        "net": list(shape),
        "ceilings": {
            "flops_per_second": rates.flops_per_second,
            "bytes_per_second": rates.bytes_per_second,
        },
        **steps.row_of(compared, count),
        "speedups": families.speedups_of(compared),
    }


def training(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, task: str, mixed: bool
) -> Iterator[torch.Tensor]:
    """Takes PyTorch's next step for each loss that is asked for; in mixed precision, or its own."""
    _, _, batch = TRAINING
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.SGD(model.parameters(), lr=TASKS[task], momentum=steps.MOMENTUM)
    scaler = torch.amp.GradScaler("cuda", enabled=mixed)
    for step in itertools.count():
        begin = step % BATCHES * batch
        x, y = inputs[begin : begin + batch], targets[begin : begin + batch]
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=mixed):
            output = model(x.to(dtype)).to(dtype)
        loss = F.mse_loss(output, y.to(dtype)) if task == "mse" else F.cross_entropy(output, y)
        scaled: Any = scaler.scale(loss)
        scaled.backward()
        scaler.step(optimizer)
        scaler.update()
        yield loss.detach()


def take(losses: Iterator[torch.Tensor], steps: int) -> list[float]:
    taken: list[float] = torch.stack(list(itertools.islice(losses, steps))).tolist()
    return taken


def flat_weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


def measure_training(task: str, device: torch.device) -> results.Row:
    width, layers, batch = TRAINING
    outputs = width if task == "mse" else CLASSES
    inputs, targets = steps.make_data(width, outputs, BATCHES * batch, task, device)
    torch.manual_seed(0)
    sequential = steps.make_model(width, layers, outputs, device=device)
    net = FusedMLP.from_sequential(sequential, torch.float16)
    model, exact = net.to_sequential().float(), net.to_sequential().double()  # as it was rounded
    start = flat_weights(exact)
    trainer = MLPTrainer(
        net, inputs, targets, batch_size=batch, loss=task, lr=TASKS[task], momentum=steps.MOMENTUM
    )
    trainer.steps(COMPARED_STEPS)
    trained = FusedMLP(net.widths, net.activation, torch.float32, device=device)
    trained.weights.data.copy_(trainer.state_dict()["master"])
    trainer.steps(TRAINING_STEPS - COMPARED_STEPS)

    theirs = training(model, inputs, targets, task, mixed=True)
    losses = take(theirs, COMPARED_STEPS)
    after = {"convtime": flat_weights(trained.to_sequential()), "pytorch": flat_weights(model)}
    losses += take(theirs, TRAINING_STEPS - COMPARED_STEPS)
    take(training(exact, inputs, targets, task, mixed=False), COMPARED_STEPS)
    truth = flat_weights(exact)
    return {
        "kind": "training",
        "task": task,
        "losses": {"convtime": trainer.losses().tolist(), "pytorch": losses},
        "weight_error": {
            name: float((weights - truth).norm() / (truth - start).norm())
            for name, weights in after.items()
        },
    }


if __name__ == "__main__":
    run("mlp", make_cases, seed=families.SEED, budget=mlp.SECONDS)
