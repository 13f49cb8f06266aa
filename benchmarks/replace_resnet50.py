"""ResNet-50 trained by PyTorch, and from the same start after convtime.nn.replace, bit by bit.

fp32, with PyTorch's deterministic flags; 50 steps of SGD with momentum, each on new random images.
After each step both losses, and every parameter and buffer of both models, are compared by their
bits. "different" names the parameters and buffers that are not the same.
"""

import functools
import itertools
import os
from typing import Any

import results
from common import running, summaries

CONVOLUTIONS = 53  # of the model


def make_cases(
    device: running.Device, steps: int, batch: int, side: int
) -> dict[str, running.Measure]:
    # One row for all steps, since each follows from the one before.
    return {"training": functools.partial(measure, device, steps=steps, batch=batch, side=side)}


def measure(device: Any, *, steps: int, batch: int, side: int) -> results.Row:
    import torch
    from common.resnet import ResNet50

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
        for _ in range(steps):
            images = torch.randn(batch, 3, side, side, device=device)
            classes = torch.randint(1000, (batch,), device=device)
            losses = [_train(model, optimizer, images, classes) for model, optimizer in trained]
            state = ours.state_dict()
            different = [
                name
                for name, theirs in pytorch.state_dict().items()
                if not same_bits(theirs, state[name])
            ]
            step = {"loss": [loss.item() for loss in losses], "same_loss": same_bits(*losses)}
            found.append(step | {"different": different})
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


def summarise(rows: list[results.Row]) -> dict[str, float]:
    """How many steps, from the first on, were the same; none where layers were not replaced."""
    return {"bit_identical_steps": min(map(_identical_steps, rows))}


def _identical_steps(row: results.Row) -> int:
    if row["replaced"] != CONVOLUTIONS:
        return 0
    same = (step["same_loss"] and not step["different"] for step in row["steps"])
    return sum(itertools.takewhile(bool, same))


def table(rows: list[results.Row]) -> str:
    return summaries.filled(
        "step: | loss, PyTorch: | loss, convtime: | same bits of the loss | weights that differ:",
        "{index} | {loss[0]:.7g} | {loss[1]:.7g} | {same} | {differ}",
        (
            step
            | {"index": index, "differ": len(step["different"])}
            | {"same": summaries.yes(step["same_loss"])}
            for row in rows
            for index, step in enumerate(row["steps"], start=1)
            if index == 1 or index % 10 == 0
        ),
    )


if __name__ == "__main__":
    # cuBLAS repeats its bits only with this, and reads it when it is first used.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    running.run("replace_resnet50", make_cases, steps=50, batch=32, side=224)
