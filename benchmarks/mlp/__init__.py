"""How long a training step of a multi-layer perceptron takes, beside PyTorch, and what it learns.

Training: losses of 2,000 steps on a task to fit and one to classify, with weights in 32 bits and
dynamic scaling: by convtime, and by PyTorch's autocast and GradScaler. Weights after 100 steps are
compared with those of float64.

Speed: forward pass, loss, backward pass and SGD with momentum, in float16 with weights and momentum
of that dtype too, on another batch of resident data each step. convtime's steps are tuned. "eager"
and "compiled" (max-autotune, fullgraph) call PyTorch step by step; "eager graph" and "compiled
graph" replay the whole step as one CUDA graph, and so does convtime. Seconds are those of one step,
of many between two idle states of the device. The roofline is what a step's products or its least
traffic to memory take at the rates that the GPU reaches in a large matmul and a large copy.

Nets are those named below, and nets that are drawn by a seed: 16 to 2048 wide, of 2 to 8 layers, on
batches of 256 to 262,144 rows. Drawn nets are compared with PyTorch's two graphs, its fastest ways.

Compile in parallel first: for i in $(seq 8); do mlp --compile $i/8 & done; wait
"""

import results
from common import families, summaries

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
SECONDS = 1.0  # of a comparison, beyond its least samples
DRAWN = 16
WIDTHS, LAYERS, ROWS = (16, 2048), (2, 8), (256, 262_144)
MOST_VALUES = 2**26  # of a drawn net's layer's outputs
# Name: a learning rate at which losses fall, and go the same way whatever is rounded
TASKS = {"mse": 1e-1, "cross_entropy": 1e-2}
LAST = 100  # losses that the final one is the mean of

Net = tuple[int, int, int]  # width, layers, batch


def draw(seed: int, index: int) -> Net:
    source = families.chance("mlp", seed, index)
    width = round(families.log_uniform(source, *WIDTHS))
    if source.random() < 0.75:
        width = 8 * round(width / 8)
    rows = families.log_uniform(source, *ROWS)
    # An even number, as the steps need.
    return width, source.randint(*LAYERS), 2 * int(min(rows, MOST_VALUES / width) / 2)


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """Speedups over the fastest that PyTorch has; the worst task of the two."""
    speeds = _of(rows, "speed")
    drawn = [over_best(row) for row in speeds if "seed" in row]
    named = {row["shape"]: row for row in speeds if "seed" not in row}
    summary: dict[str, float] = {"drawn_nets": len(drawn)}
    if drawn:
        summary["drawn_over_best_pytorch_min"] = summaries.least(drawn)
        summary["drawn_over_best_pytorch_geomean"] = summaries.geomean(drawn)
    summary |= {f"{shape}_over_best_pytorch": over_best(row).value for shape, row in named.items()}
    if "w64_l4_b1024" in named:
        over = summaries.speedup(named["w64_l4_b1024"], "compiled").value
        summary["w64_l4_b1024_over_compile_max_autotune"] = over
    trained = _of(rows, "training")
    if len(trained) == len(TASKS):
        losses = [[_final(row, name) for name in ("convtime", "pytorch")] for row in trained]
        errors = [row["weight_error"] for row in trained]
        summary["final_loss_difference"] = max(abs(a - b) / b for a, b in losses)
        summary["weight_error_over_pytorch_fp16"] = max(
            each["convtime"] / each["pytorch"] for each in errors
        )
    return summary


def _of(rows: list[results.Row], kind: str) -> list[results.Row]:
    return [row for row in rows if row["kind"] == kind]


def over_best(row: results.Row) -> summaries.Speedup:
    peers = [summaries.speedup(row, peer) for peer in row["seconds"] if peer != "convtime"]
    return min(peers, key=lambda each: each.value)


def distribution_table(rows: list[results.Row]) -> str:
    speeds = _of(rows, "speed")
    groups = {
        f"{origin} nets, {size}": [
            over_best(row)
            for row in speeds
            if ("seed" in row, row["net"][0] > ON_CHIP) == (is_drawn, is_wide)
        ]
        for origin, is_drawn in (("drawn", True), ("named", False))
        for size, is_wide in ((f"up to {ON_CHIP} wide", False), ("wider", True))
    }
    table = summaries.distribution("convtime's speed over PyTorch's best", groups)
    return f"{table}\n\n{summaries.describe_seeds(speeds)}"


def _final(row: results.Row, name: str) -> float:
    """The mean loss of the last steps."""
    last: list[float] = row["losses"][name][-LAST:]
    return sum(last) / len(last)


def table(rows: list[results.Row]) -> str:
    speeds, trained = [], []
    for row in _of(rows, "speed"):
        rate = 1e-12 * flops(*row["net"]) / row["seconds"]["convtime"]
        peers = dict.fromkeys(PEERS) | row["seconds"]
        speeds.append(row | {"rate": rate, "roofline": roofline(row), "of": peers})
    for row in _of(rows, "training"):
        losses = [_final(row, name) for name in ("convtime", "pytorch")]
        trained.append(row | {"loss": losses})
    header = "width × layers, batch | convtime (µs): | TFLOP/s: | roofline (µs):"
    speed = summaries.filled(
        header + "".join(f" | {peer} (µs):" for peer in PEERS),
        "{net[0]} × {net[1]}, {net[2]} | {of[convtime]:.1fµ} | {rate:.0f} | {roofline:.1fµ}"
        + "".join(f" | {{of[{peer}]:.1fµ}}" for peer in PEERS),
        speeds,
    )
    training = summaries.filled(
        "task | final loss, convtime: | PyTorch: | error of the weights, convtime: | PyTorch:",
        "{task} | {loss[0]:.5f} | {loss[1]:.5f} | {weight_error[convtime]:.2e} "
        "| {weight_error[pytorch]:.2e}",
        trained,
    )
    return f"{speed}\n\n{training}"


def flops(width: int, layers: int, batch: int) -> int:
    """Of a step: nobody needs the gradient of the first layer's input."""
    return 2 * batch * width * width * (3 * layers - 1)


def roofline(row: results.Row) -> float:
    """Seconds that a step takes at least, at the rates that the GPU reached."""
    width, layers, batch = row["net"]
    # From memory and to it: a batch, and weights and momentum read and written; in float16
    least_bytes = 2 * (2 * batch * width + 4 * layers * width * width)
    rates = row["ceilings"]
    at_least = (
        flops(width, layers, batch) / rates["flops_per_second"],
        least_bytes / rates["bytes_per_second"],
    )
    return float(max(at_least))
