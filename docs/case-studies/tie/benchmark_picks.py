"""Which plan does torch.backends.cudnn.benchmark pick for a convolution, in fresh processes?"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

CALL = """
import torch
torch.backends.cudnn.benchmark = True
n, c, h, k, r, stride = {sizes}
x = torch.randn(n, c, h, h, device="cuda", dtype=torch.float16)
w = torch.randn(k, c, r, r, device="cuda", dtype=torch.float16)
last = torch.channels_last
torch.nn.functional.conv2d(x.to(memory_format=last), w.to(memory_format=last), None, stride, r // 2)
torch.cuda.synchronize()
"""
TIMED = re.compile(r"Plan (\S+) took +(\S+)")


def pick(sizes: tuple[int, ...]) -> str:
    """The plan that took least in one process's search, by PyTorch's own log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        environment = os.environ | {
            "CUDNN_FRONTEND_LOG_INFO": "1",
            "CUDNN_FRONTEND_LOG_FILE": str(log),
        }
        code = CALL.format(sizes=sizes)
        subprocess.run([sys.executable, "-c", code], check=True, env=environment)
        times = {tag: float(milliseconds) for tag, milliseconds in TIMED.findall(log.read_text())}
        return min(times, key=lambda tag: times[tag])


def main() -> None:
    """Count picks: python benchmark_picks.py PROCESSES N C H K R STRIDE."""
    processes, *sizes = map(int, sys.argv[1:])
    picks = collections.Counter(pick(tuple(sizes)) for _ in range(processes))
    for tag, count in picks.most_common():
        print(f"{count} of {processes}: {tag}")


if __name__ == "__main__":
    main()
