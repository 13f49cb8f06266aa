"""Ctrl-C while the command `convtime` starts.

Libraries run C++ code and callbacks when they are imported. There, a KeyboardInterrupt is ignored,
or it aborts the process. Until the command is ready, Ctrl-C therefore ends the process immediately.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

MESSAGE = "convtime: interrupted"


def is_command() -> bool:
    """Return whether this process is starting the command `convtime`."""
    arguments = getattr(sys, "argv", None) or [""]  # missing in some programs that embed Python
    # While `python -m convtime` imports the package, argv[0] is "-m", as for every other module.
    return os.path.basename(arguments[0]) == "convtime" or (
        arguments[0] == "-m" and sys.orig_argv[-len(arguments)] == "convtime"
    )


def exit_on_interrupt() -> None:
    """Let Ctrl-C end the process, unless it is ignored, as in a shell's background."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit)


def raise_on_interrupt() -> None:
    """Undo :func:`exit_on_interrupt`: Ctrl-C raises KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit(number: int, _: FrameType | None) -> None:
    with contextlib.suppress(OSError):  # standard error is closed
        os.write(2, f"{MESSAGE}\n".encode())
    os._exit(128 + number)
