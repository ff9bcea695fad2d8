"""Formulas on terminals and in files that are not UTF-8."""

from __future__ import annotations

import codecs
import sys

# How the characters of formulas and tables are written where an encoding lacks them.
ASCII = {
    "·": "*",
    "×": "x",
    "−": "-",
    "∂": "d",
    "Σ": "sum",
    "Π": "prod",
    "√": "sqrt",
    "γ": "gamma",
    "δ": "delta",
    "λ": "lambda",
    "μ": "mu",
    "′": "'",
    "²": "^2",
    "ᵀ": "^T",
    "≤": "<=",
    "≥": ">=",
    "≠": "!=",
    "…": "...",
}


def in_ascii(text: str) -> str:
    """A text without the characters that an encoding may lack."""
    return "".join(ASCII.get(c, c) for c in text)


def _in_ascii(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(ASCII.get(c, "?") for c in error.object[error.start : error.end]), error.end


codecs.register_error("pullback.ascii", _in_ascii)


def write_anything() -> None:
    """Let standard output and standard error write what their encoding lacks in ASCII."""
    for stream in (sys.stdout, sys.stderr):
        # A notebook's streams, or none at all, cannot be set and do not encode.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="pullback.ascii")


def has_all_characters() -> bool:
    """Whether standard output can write any character."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return codecs.lookup(encoding).name.startswith("utf")
