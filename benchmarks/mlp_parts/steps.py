"""What mlp.py and mlp_overhead.py time: training steps of nets, by convtime and by PyTorch."""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import mlp
import results
import torch
from common import families
from common.compiled import compile_whole
from common.families import Case
from common.graphs import capture
from mlp import ON_CHIP, TASKS, Net, flops
from torch import nn
from torch.nn import functional as F

import convtime
from convtime.nn import FusedMLP, MLPTrainer

# Of a timed call, in which there are MOST_STEPS at most; values are those of all layers' outputs.
FLOPS, VALUES = 2e13, 2e9
LEAST_STEPS, MOST_STEPS = 5, 100
LR, MOMENTUM = 1e-2, 0.9
BATCHES, DRAWN_BATCHES = 16, 4  # of resident data
TRAINING = (64, 4, 1024)
TRAINING_STEPS = 2000
SAMPLES = 12, 100  # of a comparison, at least and at most
SCALE = 1024.0
COMPARED_STEPS = 100  # after which weights are compared
CLASSES = 10

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
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x), y)

    return loss_of


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


def repeat(step: Step, count: int) -> None:
    for _ in range(count):
        step()


def compare_steps(calls: Mapping[str, Step], **options: Any) -> convtime.Comparison:
    """`calls` are of many steps each, for which the device is not let idle otherwise."""
    compared: convtime.Comparison = convtime.compare(
        calls,
        method="sync",
        cache="warm",
        placement="as-is",  # the steps change what they read
        regime="as-is",
        check=None,
        interference=False,
        **options,
    )
    return compared


def told(compared: convtime.Comparison, count: int) -> results.Row:
    """Of a row: the seconds of one of `count` steps, and how many samples there are of them."""
    measured = compared.measurements
    return {
        "seconds": {who: one.median / count for who, one in measured.items()},
        "samples": {who: len(one.seconds) for who, one in measured.items()},
    }


def compile_beforehand(
    shape: Net, peers: Iterable[str], batches: int, device: torch.device
) -> None:
    """Take a step of each peer that is compiled, on data as measure_speed has it."""
    width, layers, batch = shape
    inputs, targets = make_data(width, width, batches * batch, "mse", device)
    torch.compiler.reset()
    for name in peers:
        if name.startswith("compiled"):
            model = make_model(width, layers, width, device=device, dtype=torch.float16)
            make_peer(name, model, inputs, targets, batch)()


def measure_speed(
    name: str, shape: Net, peers: Iterable[str], batches: int, device: torch.device, seconds: float
) -> results.Row:
    width, layers, batch = shape
    count = steps_of(shape)
    inputs, targets = make_data(width, width, batches * batch, "mse", device)
    torch.manual_seed(0)
    model = make_model(width, layers, width, device=device, dtype=torch.float16)
    trainer = MLPTrainer(
        FusedMLP.from_sequential(model),
        inputs,
        targets,
        batch_size=batch,
        lr=LR,
        momentum=MOMENTUM,
        master_weights=False,
        # To look for overflow takes a wide net another launch, and PyTorch's side does not look.
        loss_scale=None if width > ON_CHIP else SCALE,
        tune=True,
    )
    steps: dict[str, Step] = {"convtime": capture(trainer.step)}
    torch.compiler.reset()
    for peer in peers:
        own = make_model(width, layers, width, device=device, dtype=torch.float16)
        own.load_state_dict(model.state_dict())
        step = make_peer(peer, own, inputs, targets, batch)
        steps[peer] = capture(step) if peer.endswith("graph") else step
        repeat(steps[peer], 5)
    compared = compare_steps(
        {who: functools.partial(repeat, step, count) for who, step in steps.items()},
        stop="budget",
        min_samples=SAMPLES[0],
        max_samples=SAMPLES[1],
        budget=seconds,
    )
    rates = convtime.ceilings(device)
    return {
        "kind": "speed",
        "shape": name,
        "net": list(shape),
        "path": trainer.path_reason,
        "flops": flops(width, layers, batch),
        "ceilings": {
            "flops_per_second": rates.flops_per_second,
            "bytes_per_second": rates.bytes_per_second,
        },
        **told(compared, count),
        "speedups": families.speedups_of(compared),
        "skipped": trainer.steps_skipped,
    }


def training(
    model: nn.Module, inputs: torch.Tensor, targets: torch.Tensor, task: str, mixed: bool
) -> Iterator[torch.Tensor]:
    """Takes PyTorch's next step for each loss that is asked for; in mixed precision, or its own."""
    _, _, batch = TRAINING
    dtype = next(model.parameters()).dtype
    optimizer = torch.optim.SGD(model.parameters(), lr=TASKS[task], momentum=MOMENTUM)
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
    return [float(loss) for loss in torch.stack(list(itertools.islice(losses, steps))).cpu()]


def flat_weights(model: nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


def measure_training(task: str, device: torch.device) -> results.Row:
    width, layers, batch = TRAINING
    outputs = width if task == "mse" else CLASSES
    inputs, targets = make_data(width, outputs, BATCHES * batch, task, device)
    torch.manual_seed(0)
    net = FusedMLP.from_sequential(make_model(width, layers, outputs, device=device), torch.float16)
    model, exact = net.to_sequential().float(), net.to_sequential().double()  # as it was rounded
    start = flat_weights(exact)
    trainer = MLPTrainer(
        net, inputs, targets, batch_size=batch, loss=task, lr=TASKS[task], momentum=MOMENTUM
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
        "skipped": trainer.steps_skipped,
    }


def make_cases(device: torch.device, seed: int, seconds: float) -> dict[str, Case]:
    """The quick ones first: compiling takes long, and time on a GPU may end."""
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
            functools.partial(measure_speed, name, net, peers, batches, device, seconds),
            functools.partial(compile_beforehand, net, peers, batches, device),
            drawn_by,
        )
    return cases
