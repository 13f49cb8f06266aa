"""Explain PyTorch's convolutions, list cuDNN's engines for them, and choose plans.

The public names are in ``__init__.pyi``, and each is loaded on first use: the child process of
convtime.conv.plan_oracle imports this package without convtime's core.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
