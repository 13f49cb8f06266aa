"""Records cpu_evidence.json, which tests of a diagnosis' rules read, on a CPU with other load.

    python tests/data/record_cpu_evidence.py > tests/data/cpu_evidence.json

The file has, by name, what convtime.diagnose saw of calls with one thing about them.
"""

from __future__ import annotations

import functools
import time

import torch

import convtime
from convtime.core import codec


def slept(x: torch.Tensor) -> torch.Tensor:
    time.sleep(0.003)
    return x + 1


@functools.cache
def scale() -> float:
    time.sleep(0.6)
    return 2.0


def built(x: torch.Tensor) -> torch.Tensor:
    return x * scale()


def main() -> None:
    torch.set_num_threads(1)
    small, square = torch.randn(1 << 16), torch.randn(1024, 1024)
    budget = 6.0
    found = {
        "sleep": convtime.diagnose(slept, small, device="cpu", budget=budget),
        "built at first": convtime.diagnose(built, small, device="cpu", budget=budget),
        "transposed": convtime.diagnose(torch.add, square.t(), square, device="cpu", budget=budget),
    }
    print(codec.to_json({name: codec.encode(each.evidence) for name, each in found.items()}))


if __name__ == "__main__":
    main()
