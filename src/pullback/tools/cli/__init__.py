"""The command line: ``pullback`` and ``python -m pullback``."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["main"]

try:
    from .root import main
except ModuleNotFoundError as error:
    if error.name != "click":
        raise

    def main(*args: Any, **kwargs: Any) -> Any:  # type: ignore[misc]
        """Say what is missing: only the command line needs it, so nothing else has asked."""
        print("pullback: the command line needs click: pip install click", file=sys.stderr)
        sys.exit(2)
