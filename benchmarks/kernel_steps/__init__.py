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
            facts = row["facts"].get(name)
            taken = (facts["registers"], f"{100 * facts['occupancy']:.0f} %") if facts else "––"
            seconds = row["seconds"][name]
            rates = (f"{1e6 * seconds:.2f}", f"{1e-12 * row['bytes'] / seconds:.2f}")
            share = f"{100 * row['seconds']['copy'] / seconds:.0f} %"
            step = name.partition("/")[0]
            lines.append((row["dtype"], row["layout"], step, *rates, share, *taken))
    return summaries.markdown(
        "dtype | layout | step | µs: | TB/s: | of a copy's rate: | registers: "
        "| threads of a multiprocessor's:",
        lines,
    )


def builds_table(rows: list[results.Row]) -> str:
    pools = _of(rows, "pool")
    builds = list(dict.fromkeys(name.partition("/")[2] for row in pools for name in row["facts"]))
    lines = []
    for row in pools:
        for step in dict.fromkeys(name.partition("/")[0] for name in row["facts"]):
            cells = [_build_cell(row, f"{step}/{build}") for build in builds]
            lines.append((row["dtype"], row["layout"], step, *cells))
    header = " | ".join(["dtype | layout | step", *map("{}:".format, builds)])
    table = summaries.markdown(header, lines)
    return f"{table}\n\nMicroseconds (registers, and bytes that these had no room for)."


def _build_cell(row: results.Row, name: str) -> str:
    facts = row["facts"][name]
    spilled = f" + {facts['local_bytes']} B" if facts["local_bytes"] else ""
    return f"{1e6 * row['seconds'][name]:.2f} ({facts['registers']}{spilled})"


def counters_table(rows: list[results.Row]) -> str:
    counted = _of(rows, "counters")
    if unavailable := [row["reason"] for row in counted if row["reason"]]:
        return f"Not counted: {unavailable[0]}."
    lines = []
    for row in counted:
        for step, totals in row["totals"].items():
            sectors, requests = totals["load_sectors"], totals["load_requests"]
            cells = (
                _count(totals["dram_read"], 1e-6, 1),
                _count(totals["dram_written"], 1e-6, 1),
                _count(sectors / requests if sectors and requests else None, 1, 1),
                _count(totals["bank_conflicts"], 1, 0),
                _count(totals["instructions"], 1e-6, 2),
            )
            lines.append((row["dtype"], row["layout"], step, *cells))
    return summaries.markdown(
        "dtype | layout | step | MB read: | MB written: | sectors per load: | bank conflicts: "
        "| million instructions:",
        lines,
    )


def _count(value: float | None, factor: float, digits: int) -> str:
    return "–" if value is None else f"{factor * value:.{digits}f}"


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
    lines = [
        (
            row["label"],
            precision,
            f"{1e6 * seconds:.2f}",
            f"{1e-12 * row['flops'] / seconds:.1f}",
            *(f"{row[errors][precision]:.1e}" for errors in ("errors", "largest_errors")),
        )
        for row in _of(rows, "convolution")
        for precision, seconds in row["seconds"].items()
    ]
    header = "convolution | precision | µs: | TFLOP/s: | root mean square of errors:"
    table = summaries.markdown(f"{header} | largest error:", lines)
    return f"{table}\n\nErrors are of the root mean square of the outputs in 64 bits."
