"""Whether fused models compute what models without fusion do, whatever users do with them.

A row is a sequence that a seed draws: an architecture, a dtype, a backend of torch.compile, and
actions, such as training by one of several optimizers, evaluation by a fused copy that is new or
was made before the last changes, hooks, autocast, threads, checkpoints, averages of parameters, or
writes through `.data`. Each is done with a model and with its twin without fusion, whose results
and gradients are compared. What PyTorch refuses without fusion, too, ends a sequence early.

Further rows list the convolutions of each architecture that are fused in evaluation, and that
convtime.nn.fuse fused at commit d316f84, where it traced models symbolically
(data/fused_at_d316f84.json).

Sequences run on the CPU, and on the GPU if there is one.
"""

import collections

import results
from common import summaries

DEVICES = ("cpu", "cuda")
CHAINS = "chains of "


def summarise(rows: list[results.Row]) -> dict[str, float]:
    chains = [row for row in rows if row["key"].startswith(CHAINS)]
    sequences = [row for row in rows if not row["key"].startswith(CHAINS)]
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
        if not row["key"].startswith(CHAINS):
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
        if row["key"].startswith(CHAINS):
            before, now = set(row["before"]), set(row["now"])
            name = row["key"].removeprefix(CHAINS)
            lines.append((name, len(before), len(before & now), len(now - before)))
    header = "architecture | convolutions fused at d316f84: | still fused: | others fused now:"
    return summaries.markdown(header, lines)
