"""convtime measures the time of GPU operations and shows which kernels PyTorch's convolutions run.

Importing convtime registers the ops with torch. Every other name in ``__init__.pyi`` is loaded on
first use. In the command ``convtime``, only the subcommands that need torch import it.
"""

import os as _os
import sys as _sys

import lazy_loader

from convtime._build_info import version as __version__

_argv = getattr(_sys, "argv", None) or [""]  # missing in some programs that embed Python
# While `python -m convtime` imports this, argv[0] is "-m", as for every other module.
if not (
    _os.path.basename(_argv[0]) == "convtime"
    or (_argv[0] == "-m" and _sys.orig_argv[-len(_argv)] == "convtime")
):
    from convtime import ops as ops

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ = ["__version__", *__all__]
