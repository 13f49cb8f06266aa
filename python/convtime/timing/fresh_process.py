"""What a fresh process does that is to confirm a comparison: see :mod:`convtime.timing.confirming`.

It compares what it is sent, and writes the comparison to the file that it is told.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import torch

from convtime.core import codec
from convtime.timing.stopwatch import compare


def main() -> None:
    """Reads from the standard input, and writes."""
    sent = pickle.load(sys.stdin.buffer)  # noqa: S301  # by the process that started this one
    torch.set_num_threads(sent["threads"])
    compared = compare(sent["candidates"], **sent["options"])
    Path(sys.argv[1]).write_text(codec.to_json(compared.to_dict()), encoding="utf-8")


if __name__ == "__main__":
    main()
