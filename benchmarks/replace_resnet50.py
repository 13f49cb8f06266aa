"""ResNet-50 trained by PyTorch, and from the same start after convtime.nn.replace, bit by bit.

fp32, with PyTorch's deterministic flags; 50 steps of SGD with momentum, each on new random images.
After each step both losses, and every parameter and buffer of both models, are compared by their
bits. "different" names the parameters and buffers that are not the same.
"""

import itertools
import os
from typing import Any

import results
from common import running, summaries

STEPS = 50
CONVOLUTIONS = 53  # of the model
BATCH = 32
SIDE = 224  # of the images, in pixels


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """How many steps, from the first on, were the same; none where layers were not replaced."""
    return {"bit_identical_steps": min(map(_identical_steps, rows))}


def _identical_steps(row: results.Row) -> int:
    if row["replaced"] != CONVOLUTIONS:
        return 0
    same = (step["same_loss"] and not step["different"] for step in row["steps"])
    return sum(itertools.takewhile(bool, same))


def table(rows: list[results.Row]) -> str:
    """Markdown, a line for every tenth step."""
    return summaries.markdown(
        "step: | loss, PyTorch: | loss, convtime: | same bits of the loss | weights that differ:",
        (
            (
                index,
                *(f"{loss:.7g}" for loss in step["loss"]),
                summaries.yes(step["same_loss"]),
                len(step["different"]),
            )
            for row in rows
            for index, step in enumerate(row["steps"], start=1)
            if index == 1 or index % 10 == 0
        ),
    )


def measure(device: Any, *, steps: int, batch: int, side: int) -> results.Row:
    import torch
    from resnet50 import ResNet50

    import convtime
    from convtime.conv.call import Flags, same_bits

    torch.manual_seed(0)
    pytorch, ours = (ResNet50().to(device) for _ in range(2))
    ours.load_state_dict(pytorch.state_dict())
    replaced = convtime.nn.replace(ours).replaced
    trained = [
        (model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9))
        for model in (pytorch, ours)
    ]
    found = []
    with Flags(deterministic=True, deterministic_algorithms=True).applied():
        for index in range(1, steps + 1):
            images = torch.randn(batch, 3, side, side, device=device)
            classes = torch.randint(1000, (batch,), device=device)
            losses = [_train(model, optimizer, images, classes) for model, optimizer in trained]
            state = ours.state_dict()
            different = [
                name
                for name, theirs in pytorch.state_dict().items()
                if not same_bits(theirs, state[name])
            ]
            told = {"loss": [loss.item() for loss in losses], "same_loss": same_bits(*losses)}
            found.append(told | {"different": different})
            if index % 10 == 0:
                print(f"step {index}: {found[-1]}", flush=True)
    return {"batch": batch, "side": side, "replaced": len(replaced), "steps": found}


def _train(model: Any, optimizer: Any, images: Any, classes: Any) -> Any:
    import torch
    from torch.nn import functional as F

    optimizer.zero_grad()
    # With classes as probabilities: for indices PyTorch promises no fixed order of its sums.
    wanted = (classes[:, None] == torch.arange(1000, device=classes.device)).to(images.dtype)
    loss: Any = F.cross_entropy(model(images), wanted)
    loss.backward()
    optimizer.step()
    return loss.detach()


def main() -> None:
    # cuBLAS repeats its bits only with this, and reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    from convtime.device.resolve import resolve_device

    parser = results.argument_parser(__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="for trying out")
    parser.add_argument("--batch", type=int, default=BATCH, help="for trying out")
    parser.add_argument("--side", type=int, default=SIDE, help="of the images, for trying out")
    options = parser.parse_args()
    device = resolve_device(options.device)
    file = running.open_file("replace_resnet50", summarise, options, device)
    # One row for all steps, since each follows from the one before.
    if file.pending({"training": None}):
        row = measure(device, steps=options.steps, batch=options.batch, side=options.side)
        file.add("training", row)
    print(file.path)


if __name__ == "__main__":
    main()
