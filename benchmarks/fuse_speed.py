"""ResNet-50 for inference: convtime.nn.fuse now, at commit d316f84, and torch.compile alone.

All are compiled by inductor. A row is a batch size and a dtype, in channels-last layout, with
PyTorch's defaults (TF32 in fp32 convolutions). Each of the three has a process of its own, and they
take turns: in each round, each times a burst of calls that follow each other without waiting.
"fused" has the number of convolutions that each reports as fused.

Needs d316f84 installed (pip install --target DIR), in the directory that the environment variable
CONVTIME_D316F84 names. Compiling is done by all processes at once.
"""

import argparse
import contextlib
import math
import os
import statistics
import sys
from typing import Any

import results
from common import running, summaries
from common.served import Server

NOW, EARLIER, ALONE = "fuse", "fuse at d316f84", "torch.compile alone"
CASES = {
    f"{dtype} batch {batch}": (dtype, batch)
    for dtype in ("float16", "float32")
    for batch in (1, 32, 256)
}
SIDE = 224  # of the images, in pixels
ROUNDS = 15
BURST = 0.1  # seconds


def summarise(rows: list[results.Row]) -> dict[str, float]:
    summary: dict[str, float] = {"cases": len(rows)}
    if rows:
        summary["over_d316f84_min"] = min(speedup(row, EARLIER) for row in rows)
    return summary


def speedup(row: results.Row, over: str) -> float:
    return summaries.median_ratio(row["seconds"][over], row["seconds"][NOW])


def table(rows: list[results.Row]) -> str:
    def told(row: results.Row) -> results.Row:
        median = statistics.median(row["seconds"][NOW])
        return {**row, "median": median, "over": [speedup(row, each) for each in (EARLIER, ALONE)]}

    return summaries.filled(
        "case | fuse (µs per call): | speed over d316f84: | over torch.compile alone: "
        "| fused, now: | at d316f84:",
        f"{{key}} | {{median:.1fµ}} | {{over[0]:.3f}} | {{over[1]:.3f}} | {{fused[{NOW}]}} "
        f"| {{fused[{EARLIER}]}}",
        map(told, rows),
    )


def serve(way: str, case: str) -> None:
    """Compile one model; then, for each number that is read, time as many calls."""
    import torch
    from common.events import seconds_per_call
    from common.resnet import ResNet50

    import convtime

    dtype, batch = CASES[case]
    torch.manual_seed(0)
    images = torch.randn(batch, 3, SIDE, SIDE, device="cuda", dtype=getattr(torch, dtype))
    images = images.contiguous(memory_format=torch.channels_last)
    model: Any = ResNet50().to(images).eval().to(memory_format=torch.channels_last)
    # In place, as it was there.
    found: Any = convtime.nn.fuse(model) if way == EARLIER else None
    call: Any
    call = convtime.nn.fuse(model, backend="inductor") if way == NOW else torch.compile(model)
    with torch.no_grad():
        for _ in range(3):
            call(images)
        if way == NOW:
            found = call.report
        torch.cuda.synchronize()
        running.print_result({"fused": len(found.fused) if found else 0})
        for line in sys.stdin:
            call(images)
            seconds = seconds_per_call(lambda: call(images), int(line))
            running.print_result({"seconds": seconds})


def start(way: str, case: str) -> Server:
    sites = os.environ.get("PYTHONPATH", "")
    if way == EARLIER:
        sites = os.environ["CONVTIME_D316F84"] + os.pathsep + sites
    # One process compiles per server, since all compile at once.
    environment = {"PYTHONPATH": sites, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    return Server(f"{way}, {case},", [__file__, "--serve", way, case], environment)


def _time(server: Server, count: int) -> float:
    """Seconds per call, of as many calls."""
    return float(server.ask(str(count))["seconds"])


def _measure(servers: dict[str, Server]) -> results.Row:
    count = max(3, math.ceil(BURST / _time(servers[NOW], 5)))
    seconds: dict[str, list[float]] = {way: [] for way in servers}
    for index in range(ROUNDS):
        for way in servers if index % 2 else reversed(servers):
            seconds[way].append(_time(servers[way], count))
    for server in servers.values():
        server.stop()
    return {"calls": count, "seconds": seconds}


def main() -> None:
    parser = results.argument_parser(__doc__)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    if "CONVTIME_D316F84" not in os.environ:
        raise SystemExit("error: CONVTIME_D316F84 must name a directory with commit d316f84 in it")

    device = running.find_gpu(options.device)
    file = running.open_file("fuse_speed", summarise, options, device)
    with contextlib.ExitStack() as stack:
        servers: dict[str, dict[str, Server]] = {}
        for case in file.pending(CASES):
            servers[case] = {way: start(way, case) for way in (NOW, EARLIER, ALONE)}
            for server in servers[case].values():
                stack.callback(server.stop)
        # All first: nothing may compile while times are taken.
        fused = {
            case: {way: server.read()["fused"] for way, server in ways.items()}
            for case, ways in servers.items()
        }
        for case, ways in servers.items():
            file.add(case, {"fused": fused[case], **_measure(ways)})
    print(results.describe_file(file.path))


if __name__ == "__main__":
    main()
