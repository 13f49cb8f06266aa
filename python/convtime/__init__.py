"""convtime measures the time of GPU operations and shows which kernels PyTorch's convolutions run.

Importing convtime registers the ops with torch. Every other name in ``__init__.pyi`` is loaded on
first use. In the command ``convtime``, only the subcommands that need torch import it.
"""

from convtime.core import interrupts as _interrupts

if _interrupts.is_command():
    _interrupts.exit_on_interrupt()  # before the imports, which take seconds
else:
    from convtime import ops as ops

import os as _os

import lazy_loader

from convtime._version import version as __version__
from convtime.timing import group_timer as _group_timer


def _load_group_timer() -> _group_timer.GroupTimer:
    from convtime.distributed import measure

    return measure


_group_timer.load = _load_group_timer

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ = ["__version__", *__all__]

if _os.environ.get("CONVTIME_PLANS"):
    from convtime.conv.plans import loading as _loading

    _loading.load_named()
