"""Main program of a process that confirms a comparison; see :mod:`convtime.timing.confirming`.

It compares the candidates that it receives, and writes the comparison to the given file.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import torch

from convtime.core import codec
from convtime.timing.compare import compare


def main() -> None:
    """Read from standard input, and write the file."""
    sent = pickle.load(sys.stdin.buffer)  # noqa: S301  # sent by the parent process
    torch.set_num_threads(sent["threads"])
    compared = compare(sent["candidates"], **sent["options"])
    Path(sys.argv[1]).write_text(codec.to_json(compared.to_dict()), encoding="utf-8")


if __name__ == "__main__":
    main()
