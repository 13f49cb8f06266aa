"""Progress bars, on terminals and in notebooks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def progress_bar(
    items: Iterable[Any] | None = None, *, shown: bool | None = None, **options: Any
) -> tqdm[Any]:
    """Return a progress bar that disappears when it ends.

    In a notebook it is a widget where ipywidgets is installed, and text elsewhere.

    Args:
        items: the items to iterate over; None if the caller updates it.
        shown: whether to show it, on standard error. Default: on a terminal and in a notebook.
        options: other options of tqdm.
    """
    notebook = _in_notebook()
    if shown is None and not notebook:
        hidden = None if sys.stderr else True  # None hides it where no terminal is
    else:
        hidden = shown is False
    made = _of_notebooks() if notebook else tqdm
    return made(items, disable=hidden, leave=False, **options)


def _in_notebook() -> bool:
    get_shell: Any = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_shell is None else get_shell()
    return shell is not None and "IPKernelApp" in shell.config


def _of_notebooks() -> type[tqdm[Any]]:
    if importlib.util.find_spec("ipywidgets") is None:
        return tqdm
    from tqdm.notebook import tqdm as widgets

    return widgets
