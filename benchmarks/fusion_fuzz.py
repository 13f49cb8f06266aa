"""Whether fused models compute what models without fusion do, whatever users do with them.

A row is a sequence that a seed draws: an architecture, a dtype, a backend of torch.compile, and
actions, such as training by one of several optimizers, evaluation by a fused copy that is new or
was made before the last changes, hooks, autocast, threads, checkpoints, averages of parameters, or
writes through `.data`. Each is done with a model and with its twin without fusion, whose results
and gradients are compared. What PyTorch refuses without fusion, too, ends a sequence early.

Further rows list the convolutions of each architecture that are fused in evaluation, and that
convtime.nn.fuse fused at commit d316f84, where it traced models symbolically
(data/fused_at_d316f84.json).

Sequences run on the CPU and on the GPU, unless --device names one of them.
"""

import collections
import functools
import json
import logging
import warnings
from typing import Any

import results
from common import running, summaries

SEQUENCES = 510  # on each device, a multiple of the number of architectures
DEVICES = ("cpu", "cuda")
# Compiling by inductor takes long, so few do.
BACKENDS = {"cpu": ("eager", "aot_eager"), "cuda": ("eager", "aot_eager") * 20 + ("inductor",)}
_CHAINS = "chains of "


def summarise(rows: list[results.Row]) -> dict[str, float]:
    chains = [row for row in rows if row["key"].startswith(_CHAINS)]
    sequences = [row for row in rows if not row["key"].startswith(_CHAINS)]
    counts = collections.Counter(row["key"].split()[0] for row in sequences)
    summary: dict[str, float] = {
        "sequences": min(counts[device] for device in DEVICES),
        "architectures": len({row["architecture"] for row in sequences}),
        "differences": sum(len(row["differences"]) for row in sequences),
    }
    if before := sum(len(set(row["before"])) for row in chains):
        kept = sum(len(set(row["before"]) & set(row["now"])) for row in chains)
        summary["chains_kept"] = kept / before
    return summary


def table(rows: list[results.Row]) -> str:
    groups: dict[tuple[str, ...], list[results.Row]] = collections.defaultdict(list)
    for row in rows:
        if not row["key"].startswith(_CHAINS):
            groups[row["key"].split()[0], row["dtype"], row["backend"]].append(row)
    lines = []
    for group, those in sorted(groups.items()):
        compared = sum(row["compared"] for row in those)
        lines.append((*group, len(those), compared, sum(len(row["differences"]) for row in those)))
    header = "device | dtype | backend | sequences: | results compared: | differences:"
    return summaries.markdown(header, lines)


def chains_table(rows: list[results.Row]) -> str:
    lines = []
    for row in rows:
        if row["key"].startswith(_CHAINS):
            before, now = set(row["before"]), set(row["now"])
            name = row["key"].removeprefix(_CHAINS)
            lines.append((name, len(before), len(before & now), len(now - before)))
    header = "architecture | convolutions fused at d316f84: | still fused: | others fused now:"
    return summaries.markdown(header, lines)


def _chains(architecture: str) -> results.Row:
    """The fused convolutions of an architecture in evaluation, before and now."""
    import torch
    from fusion_fuzz_parts.architectures import ARCHITECTURES, draw_images

    from convtime.nn import fuse

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


def make_cases(devices: list[Any]) -> dict[str, running.Measure]:
    from fusion_fuzz_parts.architectures import ARCHITECTURES
    from fusion_fuzz_parts.sequences import run_sequence

    return {f"{_CHAINS}{name}": functools.partial(_chains, name) for name in ARCHITECTURES} | {
        f"{device.type} {seed}": functools.partial(
            run_sequence, seed, BACKENDS[device.type], device
        )
        for seed in range(SEQUENCES)
        for device in devices
    }


def _tell(row: results.Row) -> str:
    return "; ".join(row.get("differences", ())) or "the same"


def main() -> None:
    options = results.argument_parser(__doc__).parse_args()

    import torch

    from convtime.device.resolve import resolve_device

    here = [name for name in DEVICES if name == "cpu" or torch.cuda.is_available()]
    devices = [resolve_device(name) for name in ([options.device] if options.device else here)]
    torch.set_num_threads(1)  # the models are small, and shards run side by side
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False
    torch._dynamo.config.recompile_limit = 64
    torch._inductor.config.fallback_random = True  # the same random numbers as without it
    logging.getLogger("torch._dynamo").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    file = running.open_file("fusion_fuzz", summarise, options, devices[-1])
    running.measure_pending(file, make_cases(devices), _tell)


if __name__ == "__main__":
    main()
