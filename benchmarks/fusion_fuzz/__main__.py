"""The rows: sequences on the CPU and on the GPU, and what is fused in each architecture."""

import functools
import json
import logging
import warnings

import results
import torch
from common import running

from convtime.device.resolve import resolve_device
from convtime.nn import fuse
from fusion_fuzz import CHAINS, DEVICES
from fusion_fuzz.architectures import ARCHITECTURES, draw_images
from fusion_fuzz.sequences import run_sequence

SEQUENCES = 510  # on each device, a multiple of the number of architectures
# Compiling by inductor takes long, so few do.
BACKENDS = {"cpu": ("eager", "aot_eager"), "cuda": ("eager", "aot_eager") * 20 + ("inductor",)}


def make_cases(_: torch.device) -> dict[str, running.Measure]:
    torch.set_num_threads(1)  # the models are small, and shards run side by side
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch._dynamo.config.recompile_limit = 64
    torch._inductor.config.fallback_random = True  # the same random numbers as without it
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    names = DEVICES if torch.cuda.is_available() else DEVICES[:1]
    return {f"{CHAINS}{name}": functools.partial(_chains, name) for name in ARCHITECTURES} | {
        f"{each.type} {seed}": functools.partial(run_sequence, seed, BACKENDS[each.type], each)
        for seed in range(SEQUENCES)
        for each in map(resolve_device, names)
    }


def _chains(architecture: str) -> results.Row:
    """The fused convolutions of an architecture in evaluation, before and now."""
    known = json.loads((results.HERE / "data" / "fused_at_d316f84.json").read_text("utf-8"))
    model = ARCHITECTURES[architecture](4).double()
    fused = fuse(model)
    images = draw_images(model, 2, 1, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for each in (images.abs(), -images.abs()):  # some models branch by their sign
            fused(each)
    return {
        "before": [chain.partition(" + ")[0] for chain in known[architecture]],
        "now": [each.name for each in fused.report.fused],
    }


if __name__ == "__main__":
    running.run("fusion_fuzz", make_cases, on="any")
