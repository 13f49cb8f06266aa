"""convtime measures the time of GPU operations and shows which kernels PyTorch's convolutions run.

Importing convtime registers the ops with torch. Every other name in ``__init__.pyi`` is loaded on
first use.
"""

import os as _os
import sys as _sys

try:
    import lazy_loader

    from convtime import ops as ops
except KeyboardInterrupt:
    # The console command starts with this import, which takes seconds. While `python -m convtime`
    # runs it, argv[0] is "-m", as for every other module.
    if _os.path.basename(_sys.argv[0]) == "convtime" or (
        _sys.argv[0] == "-m" and "convtime" in _sys.orig_argv
    ):
        from convtime.cli import interrupted

        raise SystemExit(interrupted()) from None
    raise
from convtime._build_info import version as __version__

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
__all__ = ["__version__", *__all__]
