"""Four branches of an Inception block, in line and on four streams: which one is faster?"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import convtime

CHANNELS = (64, 96, 128, 32)
KERNELS = (1, 3, 3, 5)
BATCH, INPUTS, SIZE = 8, 192, 28


def main() -> None:
    """Compare both by the time in which anything runs, and by the sum of their kernels."""
    folder = Path(sys.argv[1])
    x = torch.randn(BATCH, INPUTS, SIZE, SIZE, device="cuda", dtype=torch.float16)
    x = x.to(memory_format=torch.channels_last)
    branches = [
        torch.nn.Conv2d(INPUTS, channels, kernel, padding=kernel // 2)
        .to(x)
        .to(memory_format=torch.channels_last)
        for channels, kernel in zip(CHANNELS, KERNELS, strict=True)
    ]
    streams = [torch.cuda.Stream() for _ in branches]

    def in_line() -> torch.Tensor:
        return torch.cat([branch(x) for branch in branches], 1)

    def on_streams() -> torch.Tensor:
        results = []
        current = torch.cuda.current_stream()
        for branch, stream in zip(branches, streams, strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                results.append(branch(x))
        for result, stream in zip(results, streams, strict=True):
            current.wait_stream(stream)
            result.record_stream(current)
        return torch.cat(results, 1)

    with torch.no_grad():
        for metric in ("sum", "span"):
            compared = convtime.compare(
                {"in line": in_line, "four streams": on_streams}, metric=metric
            )
            print(f"\nby the {metric} of a call's kernels:")
            print(compared)
            compared.save(folder / f"streams_{metric}.json")


if __name__ == "__main__":
    main()
