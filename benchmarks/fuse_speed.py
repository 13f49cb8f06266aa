"""ResNet-50 for inference: convtime.nn.fuse now, at commit d316f84, and torch.compile alone.

All are compiled by inductor. A row is a batch size and a dtype, in channels-last layout, with
PyTorch's defaults (TF32 in fp32 convolutions). Each of the three has a process of its own, and they
take turns: in each round, each times a burst of calls that follow each other without waiting.
"fused" has the number of convolutions that each reports as fused.

Needs d316f84 installed (pip install --target DIR), in the directory that the environment variable
CONVTIME_D316F84 names. Compiling is done by all processes at once.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import results
from common import running, summaries

if TYPE_CHECKING:
    from convtime.core.child import Child

NOW, EARLIER, ALONE = WAYS = "fuse", "fuse at d316f84", "torch.compile alone"
CASES = {
    f"{dtype} batch {batch}": (dtype, batch)
    for dtype in ("float16", "float32")
    for batch in (1, 32, 256)
}
SIDE = 224  # of the images, in pixels
ROUNDS = 15
BURST = 0.1  # seconds
PATIENCE = 3600.0  # seconds for a model to be compiled


def serve(way: str, case: str, descriptor: str) -> None:
    """Compile one model; then, for each number that is received, time as many calls."""
    import torch
    from common.cuda import seconds_per_call
    from common.resnet import ResNet50

    import convtime

    pipe: Connection[Any, Any] = Connection(int(descriptor))
    pipe.send_bytes(b"")  # it has started
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
        pipe.send_bytes(str(len(found.fused) if found else 0).encode())
        while count := pipe.recv_bytes():
            call(images)
            seconds = seconds_per_call(lambda: call(images), int(count))
            pipe.send_bytes(str(seconds).encode())


def start(way: str, case: str) -> Child:
    from convtime.core.child import Child

    sites = os.environ.get("PYTHONPATH", "")
    if way == EARLIER:
        sites = os.environ["CONVTIME_D316F84"] + os.pathsep + sites
    # One process compiles per server, since all compile at once.
    variables = {"PYTHONPATH": sites, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    server = Child(command=[sys.executable, __file__, "--serve", way, case], variables=variables)
    server.start()
    return server


def _count_fused(server: Child) -> int:
    server.await_start()
    return int(server.receive(PATIENCE))


def _time(server: Child, count: int) -> float:
    server.send(str(count).encode())
    return float(server.receive(PATIENCE))


def _measure(servers: dict[str, Child]) -> results.Row:
    count = max(3, math.ceil(BURST / _time(servers[NOW], 5)))
    seconds: dict[str, list[float]] = {way: [] for way in servers}
    for index in range(ROUNDS):
        for way in servers if index % 2 else reversed(servers):
            seconds[way].append(_time(servers[way], count))
    for server in servers.values():
        server.end()
    return {"calls": count, "seconds": seconds}


def speedup(row: results.Row, over: str) -> float:
    return summaries.median_ratio(row["seconds"][over], row["seconds"][NOW])


def summarise(rows: list[results.Row]) -> dict[str, float]:
    least = min((speedup(row, EARLIER) for row in rows), default=None)
    return summaries.known(cases=len(rows), over_d316f84_min=least)


def table(rows: list[results.Row]) -> str:
    def line(row: results.Row) -> results.Row:
        median = statistics.median(row["seconds"][NOW])
        return {**row, "median": median, "over": [speedup(row, each) for each in (EARLIER, ALONE)]}

    return summaries.filled(
        "case | fuse (µs per call): | speed over d316f84: | over torch.compile alone: "
        "| fused, now: | at d316f84:",
        f"{{key}} | {{median:.1fµ}} | {{over[0]:.3f}} | {{over[1]:.3f}} | {{fused[{NOW}]}} "
        f"| {{fused[{EARLIER}]}}",
        map(line, rows),
    )


def main() -> None:
    parser = results.argument_parser(__doc__)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    if "CONVTIME_D316F84" not in os.environ:
        raise SystemExit("error: CONVTIME_D316F84 must name a directory with commit d316f84 in it")

    file = running.open_file("fuse_speed", options, running.find_device(options.device))
    pending = [*file.pending(CASES)]
    with contextlib.ExitStack() as stack:
        servers = {
            case: {way: stack.enter_context(start(way, case)) for way in WAYS} for case in pending
        }
        # All first: nothing may compile while times are taken.
        fused = {
            case: {way: _count_fused(server) for way, server in ways.items()}
            for case, ways in servers.items()
        }
        for case, ways in servers.items():
            file.add(case, {"fused": fused[case], **_measure(ways)})
    print(results.describe_file(file.path))


if __name__ == "__main__":
    main()
