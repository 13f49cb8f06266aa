"""How long a training step of a multi-layer perceptron takes, beside PyTorch, and what it learns.

Training: losses of 2,000 steps on a task to fit and one to classify, with weights in 32 bits and
dynamic scaling: by convtime, and by PyTorch's autocast and GradScaler. Weights after 100 steps are
compared with those of float64.

Speed: forward pass, loss, backward pass and SGD with momentum, in float16 with weights and momentum
of that dtype too, on another batch of resident data each step, which every side chooses by a
counter on the device. convtime's steps are tuned. "eager" and
"compiled" (max-autotune, fullgraph) call PyTorch step by step; "eager graph" and "compiled graph"
replay the whole step as one CUDA graph, and so does convtime; what is compiled for that has the
choice of the batch in it, too. Seconds are those of one step, of many between two idle states of
the device, which is not let idle otherwise, as in training. The roofline is what a step's products
or its least traffic to memory take at the rates that the GPU reaches in a large matmul and a large
copy.

Nets are those named below, and nets that are drawn by a seed: 16 to 2048 wide, three of four in
multiples of 8, of 2 to 8 layers, on batches of 256 to 262,144 rows with at most 2**26 values in the
outputs of a layer. Drawn nets are compared with PyTorch's two graphs, the fastest of its ways.

Compile in parallel first: for i in $(seq 8); do mlp.py --probe compile $i/8 & done; wait
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import results
from common import families, summaries
from common.families import Case

if TYPE_CHECKING:
    import torch

# Name: width, layers, batch
SHAPES = {
    "w64_l4_b1024": (64, 4, 1024),
    "w64_l4_b65536": (64, 4, 65_536),
    "w128_l5_b65536": (128, 5, 65_536),
    "w1024_l4_b4096": (1024, 4, 4096),
    "w4096_l4_b8192": (4096, 4, 8192),
}
ON_CHIP = 128  # width
GRAPHS = ("eager graph", "compiled graph")
PEERS = ("eager", "compiled", *GRAPHS)
BATCHES, DRAWN_BATCHES = 16, 4  # of resident data
# Of a timed call, in which there are MOST_STEPS at most; values are those of all layers' outputs.
FLOPS, VALUES = 2e13, 2e9
LEAST_STEPS, MOST_STEPS = 5, 100
SAMPLES = 12, 100  # of a comparison, at least and at most
SECONDS = 1.0  # of a comparison, beyond its least samples
DRAWN = 16
WIDTHS, LAYERS, ROWS = (16, 2048), (2, 8), (256, 262_144)
MOST_VALUES = 2**26  # of a drawn net's layer's outputs
LR, MOMENTUM = 1e-2, 0.9
SCALE = 1024.0
# Name: a learning rate at which losses fall, and go the same way whatever is rounded
TASKS = {"mse": 1e-1, "cross_entropy": 1e-2}
TRAINING = (64, 4, 1024)
TRAINING_STEPS = 2000
COMPARED_STEPS = 100  # after which weights are compared
LAST = 100  # losses that the final one is the mean of
CLASSES = 10

Step = Callable[[], object]
Forward = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]
Net = tuple[int, int, int]  # width, layers, batch
LossOfNext = Callable[[], "torch.Tensor"]


def draw(seed: int, index: int) -> Net:
    source = families.chance("mlp", seed, index)
    width = round(families.log_uniform(source, *WIDTHS))
    if source.random() < 0.75:
        width = 8 * round(width / 8)
    rows = families.log_uniform(source, *ROWS)
    # An even number, as make_step needs.
    return width, source.randint(*LAYERS), 2 * int(min(rows, MOST_VALUES / width) / 2)


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Speedups over the fastest that PyTorch has; the worst task of the two.

    The minimum over the drawn nets is the least upper end of an interval.
    """
    speeds = [row for row in rows if row["kind"] == "speed"]
    drawn = [over_best(row) for row in speeds if "seed" in row]
    summary: dict[str, float] = {"drawn_nets": len(drawn)}
    if drawn:
        summary["drawn_over_best_pytorch_min"] = summaries.least(drawn)
        summary["drawn_over_best_pytorch_geomean"] = summaries.geomean(drawn)
    for row in speeds:
        if "seed" in row:
            continue
        summary[f"{row['shape']}_over_best_pytorch"] = over_best(row).value
        if row["shape"] == "w64_l4_b1024" and "compiled" in row["seconds"]:
            over = summaries.speedup(row, "compiled").value
            summary["w64_l4_b1024_over_compile_max_autotune"] = over
    trained = [row for row in rows if row["kind"] == "training"]
    if len(trained) == len(TASKS):
        summary["final_loss_difference"] = max(map(_loss_difference, trained))
        summary["weight_error_over_pytorch_fp16"] = max(
            row["weight_error"]["convtime"] / row["weight_error"]["pytorch"] for row in trained
        )
    return summary


def over_best(row: results.Row) -> summaries.Speedup:
    peers = [summaries.speedup(row, peer) for peer in row["seconds"] if peer != "convtime"]
    return min(peers, key=lambda each: each.value)


def net_of(row: results.Row) -> Net:
    """Width, layers and batch; rows that were stored without them are of a named net."""
    width, layers, batch = row["net"] if "net" in row else SHAPES[row["shape"]]
    return width, layers, batch


def distribution_table(rows: list[results.Row]) -> str:
    """Markdown: how speedups over the fastest of PyTorch's ways are distributed."""
    speeds = [row for row in rows if row["kind"] == "speed"]
    groups: dict[str, list[summaries.Speedup]] = {}
    for origin, is_drawn in (("drawn", True), ("named", False)):
        for size, is_wide in ((f"up to {ON_CHIP} wide", False), ("wider", True)):
            groups[f"{origin} nets, {size}"] = [
                over_best(row)
                for row in speeds
                if ("seed" in row, net_of(row)[0] > ON_CHIP) == (is_drawn, is_wide)
            ]
    table = summaries.distribution("convtime's speed over PyTorch's best", groups)
    return f"{table}\n\n{summaries.describe_seeds(speeds)}"


def _loss_difference(row: results.Row) -> float:
    """Of the means over the last steps, relative to PyTorch's."""
    ours, theirs = (_final(row, name) for name in ("convtime", "pytorch"))
    return abs(ours - theirs) / theirs


def _final(row: results.Row, name: str) -> float:
    last: list[float] = row["losses"][name][-LAST:]
    return sum(last) / len(last)


def table(rows: list[results.Row]) -> str:
    """Markdown: a line for each net's speed, and one for each task's training."""
    speeds, trained = [], []
    for row in rows:
        if row["kind"] == "speed":
            width, layers, batch = net_of(row)
            ours = row["seconds"]["convtime"]
            peers = (row["seconds"].get(peer) for peer in PEERS)
            speeds.append(
                (
                    f"{width} × {layers}, {batch}",
                    f"{1e6 * ours:.1f}",
                    f"{1e-12 * flops(width, layers, batch) / ours:.0f}",
                    f"{1e6 * roofline(row):.1f}",
                    *("–" if seconds is None else f"{1e6 * seconds:.1f}" for seconds in peers),
                )
            )
        elif row["kind"] == "training":
            losses = [f"{_final(row, name):.5f}" for name in ("convtime", "pytorch")]
            errors = [f"{row['weight_error'][name]:.2e}" for name in ("convtime", "pytorch")]
            trained.append((row["task"], *losses, *errors))
    header = "width × layers, batch | convtime (µs): | TFLOP/s: | roofline (µs):"
    speed = summaries.markdown(header + "".join(f" | {peer} (µs):" for peer in PEERS), speeds)
    training = summaries.markdown(
        "task | final loss, convtime: | PyTorch: | error of the weights, convtime: | PyTorch:",
        trained,
    )
    return f"{speed}\n\n{training}"


def flops(width: int, layers: int, batch: int) -> int:
    """Of a step: nobody needs the gradient of the first layer's input."""
    return 2 * batch * width * width * (3 * layers - 1)


def least_bytes(width: int, layers: int, batch: int) -> int:
    """Of a step, from memory and to it: a batch, and weights and momentum read and written."""
    numbers = 2 * batch * width + 4 * layers * width * width
    return 2 * numbers


def roofline(row: results.Row) -> float:
    """Seconds that a step takes at least, at the rates that the GPU reached."""
    shape = net_of(row)
    rates: dict[str, float] = row["ceilings"]
    return max(
        flops(*shape) / rates["flops_per_second"], least_bytes(*shape) / rates["bytes_per_second"]
    )


def steps_of(shape: Net) -> int:
    width, layers, batch = shape
    count = min(FLOPS / flops(*shape), VALUES / (width * layers * batch))
    return max(LEAST_STEPS, min(MOST_STEPS, int(count)))


# --- Both sides of a comparison
# -------------------------------------------------------------------


def make_model(width: int, layers: int, outputs: int, **options: Any) -> torch.nn.Sequential:
    import torch

    modules: list[torch.nn.Module] = []
    for layer in range(layers):
        columns = outputs if layer == layers - 1 else width
        modules += [torch.nn.Linear(width, columns, bias=False, **options), torch.nn.ReLU()]
    return torch.nn.Sequential(*modules[:-1])


def make_data(
    width: int, outputs: int, rows: int, task: str, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs, and what another random net makes of them."""
    import torch

    generator = torch.Generator(device).manual_seed(1)
    inputs = torch.randn((rows, width), generator=generator, device=device)
    teacher = torch.randn((width, outputs), generator=generator, device=device) / width**0.5
    answers = (inputs @ teacher).sin()
    return inputs.half(), answers.half() if task == "mse" else answers.argmax(1)


def make_loss(model: torch.nn.Module) -> Forward:
    from torch.nn import functional as F

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x), y)

    return loss_of


def make_step(
    forward: Forward,
    model: torch.nn.Module,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    batch: int,
    compile_: Callable[[LossOfNext], LossOfNext] | None = None,
) -> Step:
    """A step of PyTorch's, which takes the next batch by a counter on the device.

    Inputs and targets are those of all batches, of an even number of rows. `compile_` compiles the
    choice of the batch and what follows to the loss.
    """
    import torch

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
    name: str, model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor, batch: int
) -> Step:
    """A step of the peer of that name, not captured yet."""
    from common.compiled import compile_whole

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


def compile_beforehand(
    shape: Net, peers: Iterable[str], batches: int, device: torch.device
) -> None:
    """Take a step of each peer that is compiled, on data as measure_speed has it."""
    import torch

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
    import torch
    from common.graphs import capture

    from convtime import ceilings, compare
    from convtime.nn import FusedMLP, MLPTrainer

    width, layers, batch = shape
    is_wide = width > ON_CHIP
    count = steps_of(shape)
    inputs, targets = make_data(width, width, batches * batch, "mse", device)
    torch.manual_seed(0)
    model = make_model(width, layers, width, device=device, dtype=torch.float16)
    net = FusedMLP.from_sequential(model)
    trainer = MLPTrainer(
        net,
        inputs,
        targets,
        batch_size=batch,
        lr=LR,
        momentum=MOMENTUM,
        master_weights=False,
        # To look for overflow takes a wide net another launch, and PyTorch's side does not look.
        loss_scale=None if is_wide else SCALE,
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
    compared = compare(
        {who: functools.partial(repeat, step, count) for who, step in steps.items()},
        method="sync",
        cache="warm",
        placement="as-is",  # the steps change what they read
        regime="as-is",
        check=None,
        interference=False,
        stop="budget",
        min_samples=SAMPLES[0],
        max_samples=SAMPLES[1],
        budget=seconds,
    )
    measured = compared.measurements
    rates = ceilings(device)
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
        "seconds": {who: one.median / count for who, one in measured.items()},
        "speedups": families.speedups_of(compared),
        "samples": {who: len(one.seconds) for who, one in measured.items()},
        "skipped": trainer.steps_skipped,
    }


def training(
    model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor, task: str, mixed: bool
) -> Iterator[torch.Tensor]:
    """Takes PyTorch's next step for each loss that is asked for; in mixed precision, or its own."""
    import torch
    from torch.nn import functional as F

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
    import torch

    return [float(loss) for loss in torch.stack(list(itertools.islice(losses, steps))).cpu()]


def flat_weights(model: torch.nn.Module) -> torch.Tensor:
    import torch

    return torch.cat([weight.detach().double().flatten() for weight in model.parameters()])


def measure_training(task: str, device: torch.device) -> results.Row:
    import torch

    from convtime.nn import FusedMLP, MLPTrainer

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

    def make_case(
        name: str, shape: Net, peers: Iterable[str], batches: int, seed: int | None
    ) -> Case:
        return Case(
            functools.partial(measure_speed, name, shape, peers, batches, device, seconds),
            functools.partial(compile_beforehand, shape, peers, batches, device),
            seed,
        )

    cases = {
        f"training {task}": Case(functools.partial(measure_training, task, device))
        for task in TASKS
    }
    for name, shape in SHAPES.items():
        cases[name] = make_case(name, shape, PEERS, BATCHES, None)
    for index in range(DRAWN):
        name = f"drawn {index}"
        cases[name] = make_case(name, draw(seed, index), GRAPHS, DRAWN_BATCHES, seed)
    return cases


def tell(row: results.Row) -> str:
    if row["kind"] == "speed":
        return families.tell(row)
    return ", ".join(
        f"{name}: loss {_final(row, name):.5f}, weights off by {error:.2e}"
        for name, error in row["weight_error"].items()
    )


if __name__ == "__main__":
    families.run("mlp", __doc__, summarise, make_cases, seconds=SECONDS, tell=tell)
