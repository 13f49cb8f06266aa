"""Main program of a process that races candidates; see :mod:`convtime.tuning.isolation`.

It receives the plan through the pipe with the given file descriptor, and reports through it.
"""

from __future__ import annotations

import pickle
import sys
from multiprocessing.connection import Connection
from typing import Any

import torch

from convtime.core.errors import one_line
from convtime.tuning.heats import UnusableError
from convtime.tuning.race import run


def main() -> None:
    """Race, and send what happens: stages, then the result or why there is none."""
    pipe: Connection[Any, Any] = Connection(int(sys.argv[1]))
    sent = pickle.loads(pipe.recv_bytes())  # noqa: S301  # sent by the parent process
    torch.set_num_threads(sent["threads"])
    try:
        race = run(sent["options"]["plan"], lambda stage, names: pipe.send((stage, [*names])))
    except UnusableError as error:
        pipe.send(("unusable", (error.name, one_line(error.__context__ or error))))
    except (RuntimeError, ValueError) as error:
        pipe.send(("failed", one_line(error)))
    else:
        pipe.send(("race", race.to_dict()))


if __name__ == "__main__":
    main()
