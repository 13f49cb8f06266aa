"""The stages: steps that are compiled and captured already."""

import functools

import results
import torch
from common.cuda import capture, compile_whole
from common.running import Measure, run
from mlp import steps
from mlp.steps import Step

from mlp_overhead import BATCHES, BUDGET, NETS, STAGES, TF32


def make_cases(device: torch.device) -> dict[str, Measure]:
    return {net: functools.partial(measure, net, device) for net in NETS}


def repeat_in_tf32(step: Step, count: int) -> None:
    """Takes steps of PyTorch whose products of float32 may be in TF32, as no others may."""
    torch.backends.cuda.matmul.allow_tf32 = True
    steps.repeat(step, count)
    torch.backends.cuda.matmul.allow_tf32 = False


def make_stages(shape: tuple[int, int, int], device: torch.device) -> dict[str, Step]:
    """What takes steps of each stage, as many as a sample has."""
    torch.compiler.reset()
    width, layers, batch = shape
    half_data = steps.make_data(width, width, BATCHES * batch, "mse", device)
    data = half_data[0].float(), half_data[1].float()
    torch.manual_seed(0)
    model = steps.make_model(width, layers, width, device=device)

    def copy_of_model(dtype: torch.dtype) -> torch.nn.Module:
        own = steps.make_model(width, layers, width, device=device, dtype=dtype)
        own.load_state_dict(model.state_dict())
        return own

    def pytorch(dtype: torch.dtype, mode: str | None = None) -> Step:
        own = copy_of_model(dtype)
        forward = steps.make_loss(own)
        if mode is not None:
            forward = compile_whole(forward, mode)
        x, y = half_data if dtype == half else data
        step = steps.make_step(forward, own, x, y, batch)
        steps.repeat(step, 5)
        return step

    half = torch.float16
    made: list[Step] = [
        pytorch(torch.float32),
        pytorch(torch.float32),
        pytorch(half),
        pytorch(half, "default"),
        pytorch(half, "max-autotune"),
        capture(steps.make_peer("compiled graph", copy_of_model(half), *half_data, batch)),
        steps.make_ours(model, *half_data, batch, tune=False),
        steps.make_ours(model, *half_data, batch, tune=True),
    ]
    count = steps.steps_of(shape)
    return {
        stage: functools.partial(repeat_in_tf32 if stage == TF32 else steps.repeat, step, count)
        for stage, step in zip(STAGES, made, strict=True)
    }


def measure(net: str, device: torch.device) -> results.Row:
    # Set even where it is so: what was compiled under another setting would be compiled anew.
    torch.backends.cuda.matmul.allow_tf32 = False
    compared = steps.compare_steps(make_stages(NETS[net], device), budget=BUDGET)
    return steps.row_of(compared, steps.steps_of(NETS[net]))


if __name__ == "__main__":
    run("mlp_overhead", make_cases)
