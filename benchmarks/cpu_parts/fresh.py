"""Calls of functions in fresh processes that have imported PyTorch and convtime already.

A process keeps its memory allocator's state and its thread pools, and both move times. Importing
PyTorch takes seconds, so processes are forked from one that imported it and did nothing else.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from common import running


def run_forked(function: Callable[..., Any], *arguments: Any, timeout: float = 120) -> Any:
    """What a function of a module returns in a fresh process.

    RuntimeError where it raised an exception, or its process ended or ran longer than the timeout.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "convtime.timing.time_op"])
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(sending, function, arguments))
    process.start()
    sending.close()  # so that the end of the process ends the pipe
    try:
        if not receiving.poll(timeout):
            raise RuntimeError(f"{function.__name__} ran longer than {timeout:g} s")
        result, error = receiving.recv()
    except EOFError:
        process.join()
        raise RuntimeError(
            f"the process of {function.__name__} ended with {process.exitcode}"
        ) from None
    finally:
        process.kill()
        process.join()
        receiving.close()
    if error:
        raise RuntimeError(error)
    return result


def _run(sending: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    threading.Thread(target=_end_with_starter, daemon=True).start()
    try:
        sending.send((function(*arguments), ""))
    except Exception as error:  # of whatever kind, the case failed
        if not isinstance(error, (RuntimeError, ValueError)):
            traceback.print_exc()
        sending.send((None, running.first_line(error)))


def _end_with_starter() -> None:
    """Kill this process when the one that called run_forked has ended.

    The kernel's signal does not tell: the parent is the process that forks, which waits for this.
    """
    starter = multiprocessing.parent_process()
    assert starter is not None
    starter.join()
    os.kill(os.getpid(), signal.SIGKILL)
