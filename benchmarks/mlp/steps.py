"""Training steps of nets that mlp and mlp_overhead time, by convtime and by PyTorch."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import results
import torch
from common.cuda import capture, compile_whole
from common.running import AS_IS, PLAIN
from torch import nn
from torch.nn import functional as F

import convtime
from convtime.nn import FusedMLP, MLPTrainer
from mlp import Net, flops

# Of a timed call, in which there are MOST_STEPS at most; values are those of all layers' outputs.
FLOPS, VALUES = 2e13, 2e9
LEAST_STEPS, MOST_STEPS = 5, 100
LR, MOMENTUM = 1e-2, 0.9

Step = Callable[[], object]
Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
LossOfNext = Callable[[], torch.Tensor]


def steps_of(shape: Net) -> int:
    width, layers, batch = shape
    count = min(FLOPS / flops(*shape), VALUES / (width * layers * batch))
    return max(LEAST_STEPS, min(MOST_STEPS, int(count)))


def make_model(width: int, layers: int, outputs: int, **options: Any) -> nn.Sequential:
    modules: list[nn.Module] = []
    for layer in range(layers):
        columns = outputs if layer == layers - 1 else width
        modules += [nn.Linear(width, columns, bias=False, **options), nn.ReLU()]
    return nn.Sequential(*modules[:-1])


def make_data(
    width: int, outputs: int, rows: int, task: str, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs, and what another random net makes of them."""
    generator = torch.Generator(device).manual_seed(1)
    inputs = torch.randn((rows, width), generator=generator, device=device)
    teacher = torch.randn((width, outputs), generator=generator, device=device) / width**0.5
    answers = (inputs @ teacher).sin()
    return inputs.half(), answers.half() if task == "mse" else answers.argmax(1)


def make_loss(model: nn.Module) -> Forward:
    return lambda x, y: F.mse_loss(model(x), y)


def make_step(
    forward: Forward,
    model: nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    batch: int,
    compile_: Callable[[LossOfNext], LossOfNext] | None = None,
) -> Step:
    """A step of PyTorch's, which takes the next batch by a counter on the device.

    Inputs and targets are those of all batches, of an even number of rows. `compile_` compiles the
    choice of the batch and what follows to the loss.
    """
    batches = len(inputs) // batch
    # Halves of batches: PyTorch copies several of what is chosen in vectors, one number by number.
    x = inputs.view(2 * batches, batch // 2, -1)
    y = targets.view(2 * batches, batch // 2, -1)
    halves = torch.arange(2, device=inputs.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, fused=True)

    def loss_of_next() -> torch.Tensor:
        return forward(x[halves].view(batch, -1), y[halves].view(batch, -1))

    take_loss = compile_(loss_of_next) if compile_ else loss_of_next

    def step() -> None:
        optimizer.zero_grad()
        backward: Any = take_loss().backward
        backward()
        optimizer.step()
        halves.add_(2).remainder_(2 * batches)

    return step


def make_peer(
    name: str, model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, batch: int
) -> Step:
    """A step of the peer of that name, not captured yet."""
    forward = make_loss(model)
    if name == "compiled graph":
        # Inside of a graph, the compiler's own graphs cannot be.
        compile_ = functools.partial(compile_whole, mode="max-autotune-no-cudagraphs")
        return make_step(forward, model, inputs, targets, batch, compile_)
    if name == "compiled":
        # The compiler's own graphs copy what is given to them: a batch, rather than all of them.
        forward = compile_whole(forward, "max-autotune")
    return make_step(forward, model, inputs, targets, batch)


def make_ours(
    model: nn.Sequential,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    batch: int,
    *,
    tune: bool = True,
    loss_scale: float | None = None,
) -> Step:
    """A step of convtime's in float16, without other weights, as a CUDA graph."""
    trainer = MLPTrainer(
        FusedMLP.from_sequential(model, torch.float16),
        inputs,
        targets,
        batch_size=batch,
        lr=LR,
        momentum=MOMENTUM,
        master_weights=False,
        loss_scale=loss_scale,
        tune=tune,
    )
    return capture(trainer.step)


def repeat(step: Step, count: int) -> None:
    for _ in range(count):
        step()


def compare_steps(calls: Mapping[str, Step], **options: Any) -> convtime.Comparison:
    """`calls` are of many steps each, for which the device is not let idle otherwise."""
    # As they are: the steps change what they read.
    options |= {**PLAIN, **AS_IS}
    compared: convtime.Comparison = convtime.compare(calls, method="sync", cache="warm", **options)
    return compared


def row_of(compared: convtime.Comparison, count: int) -> results.Row:
    """Of a row: the seconds of one of `count` steps, and how many samples there are of them."""
    measured = compared.measurements
    return {
        "seconds": {who: one.median / count for who, one in measured.items()},
        "samples": {who: len(one.seconds) for who, one in measured.items()},
    }
