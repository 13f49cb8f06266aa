"""The memory pages that tensors of timed calls are in.

The only place that knows whether convtime has the option `pages` yet. Once all versions of
interest have it, SETTINGS becomes ("fresh", "retained"), and both functions lose their first case.
"""

from __future__ import annotations

import contextlib
from typing import Any

AS_IS = "as-is"
SETTINGS = ("fresh", "retained")


def used_pages(setting: str) -> str:
    """A setting, or `as-is` where convtime has no option for it."""
    import dataclasses

    from convtime.timing.options import Options

    return setting if "pages" in {each.name for each in dataclasses.fields(Options)} else AS_IS


def pages_option(pages: str) -> dict[str, Any]:
    """The option for time_op and compare."""
    return {} if pages == AS_IS else {"pages": pages}


def governed(pages: str) -> contextlib.AbstractContextManager[object]:
    """Such pages for calls that the benchmark itself times."""
    if pages == AS_IS:
        return contextlib.nullcontext()
    import importlib

    # By name: type checkers do not find the module where the option is missing.
    manager: contextlib.AbstractContextManager[object] = importlib.import_module(
        "convtime.timing.pages"
    ).governed_pages(pages, on_gpu=False)
    return manager
