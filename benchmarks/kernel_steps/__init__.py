"""What each step on the way to a fast kernel gains, and what each compiler setting costs.

Rows of the subject "pool" are one comparison each, interleaved and after a flush of the L2 cache:
of all steps and builds of the tutorial's ReLU and max-pooling, of convtime's own kernel, of eager
PyTorch's two, and of a copy, which is torch.relu of as many elements as move as many bytes. So are
those of "activation", of ReLU, GELU and their gradients. "counters" is what the hardware counts of
the steps, where it may be read. "convolution" is one convolution in float32, TF32, float16 and
bfloat16, with how far each is from the one in 64 bits. Times are the sums of a call's kernels.
"""

from collections.abc import Iterable

import results
from common import summaries

PLAIN = "plain"


def summarise(rows: list[results.Row]) -> dict[str, float]:
    pools = _of(rows, "pool")
    return summaries.known(
        pool_kernels=sum(len(row["facts"]) for row in pools) if pools else None,
        pool_results_that_differ=sum(len(row["differ"]) for row in pools) if pools else None,
        activation_error_max=summaries.most(
            error
            for row in _of(rows, "activation")
            for name, error in row["errors"].items()
            if name.endswith(f"/{PLAIN}")
        ),
    )


def _of(rows: Iterable[results.Row], subject: str) -> list[results.Row]:
    return [row for row in rows if row["subject"] == subject]


def table(rows: list[results.Row]) -> str:
    lines = []
    for row in _of(rows, "pool"):
        steps = [name for name in row["facts"] if name.endswith(f"/{PLAIN}")]
        for name in [*steps, "convtime", "eager"]:
            seconds, facts = row["seconds"][name], row["facts"].get(name)
            taken = f"{facts['registers']} | {100 * facts['occupancy']:.0f} %" if facts else "– | –"
            rate, share = 1e-12 * row["bytes"] / seconds, row["seconds"]["copy"] / seconds
            step = {"step": name.partition("/")[0], "µs": seconds, "taken": taken}
            lines.append({**row, **step, "rate": rate, "share": 100 * share})
    return summaries.filled(
        "dtype | layout | step | µs: | TB/s: | of a copy's rate: | registers: "
        "| threads of a multiprocessor's:",
        "{dtype} | {layout} | {step} | {µs:.2fµ} | {rate:.2f} | {share:.0f} % | {taken}",
        lines,
    )


def builds_table(rows: list[results.Row]) -> str:
    pools = _of(rows, "pool")
    builds = list(dict.fromkeys(name.partition("/")[2] for row in pools for name in row["facts"]))
    lines = []
    for row in pools:
        for step in dict.fromkeys(name.partition("/")[0] for name in row["facts"]):
            cells = [row["dtype"], row["layout"], step]
            for name in (f"{step}/{build}" for build in builds):
                facts = row["facts"][name]
                spilled = f" + {facts['local_bytes']} B" if facts["local_bytes"] else ""
                microseconds = 1e6 * row["seconds"][name]
                cells.append(f"{microseconds:.2f} ({facts['registers']}{spilled})")
            lines.append(cells)
    header = " | ".join(["dtype | layout | step", *map("{}:".format, builds)])
    table = summaries.markdown(header, lines)
    return f"{table}\n\nMicroseconds (registers, and bytes that these had no room for)."


def counters_table(rows: list[results.Row]) -> str:
    counted = _of(rows, "counters")
    if unavailable := [row["reason"] for row in counted if row["reason"]]:
        return f"Not counted: {unavailable[0]}."
    lines = []
    for row in counted:
        for step, totals in row["totals"].items():
            sectors, requests = totals["load_sectors"], totals["load_requests"]
            per_load = sectors / requests if sectors and requests else None
            lines.append({**row, **totals, "step": step, "per_load": per_load})
    return summaries.filled(
        "dtype | layout | step | MB read: | MB written: | sectors per load: | bank conflicts: "
        "| million instructions:",
        "{dtype} | {layout} | {step} | {dram_read:.1fM} | {dram_written:.1fM} | {per_load:.1f} "
        "| {bank_conflicts:.0f} | {instructions:.2fM}",
        lines,
    )


def activations_table(rows: list[results.Row]) -> str:
    activations = _of(rows, "activation")
    names = list(dict.fromkeys(name for row in activations for name in row["errors"]))
    lines = []
    for row in activations:
        cells = [f"{1e6 * row['seconds'][name]:.2f} ({row['errors'][name]:.1e})" for name in names]
        function = row["function"] + (", gradient" if row["direction"] == "gradient" else "")
        lines.append((function, row["dtype"], f"{1e6 * row['seconds']['copy']:.2f}", *cells))
    header = " | ".join(["function | dtype | copy:", *map("{}:".format, names)])
    note = "error: by how much it is off, at most, of the larger of the number and 1"
    return f"{summaries.markdown(header, lines)}\n\nMicroseconds ({note})."


def convolutions_table(rows: list[results.Row]) -> str:
    table = summaries.filled(
        "convolution | precision | µs: | TFLOP/s: | root mean square of errors: | largest error:",
        "{label} | {precision} | {each:.2fµ} | {rate:.1f} | {rms:.1e} | {largest:.1e}",
        (
            {**row, "precision": precision, "each": seconds, "rate": 1e-12 * row["flops"] / seconds}
            | {"rms": row["errors"][precision], "largest": row["largest_errors"][precision]}
            for row in _of(rows, "convolution")
            for precision, seconds in row["seconds"].items()
        ),
    )
    return f"{table}\n\nErrors are of the root mean square of the outputs in 64 bits."
