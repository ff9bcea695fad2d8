"""The command line: ``pullback`` and ``python -m pullback``."""

from .root import main

__all__ = ["main"]
