"""Kernels written as text: lines with indentation, made into a jitted function.

Triton reads the source of what it compiles. A generated kernel has no file, so its text is put
where ``inspect`` looks next, in ``linecache``, under a name with a digest of the text.
"""

from __future__ import annotations

import hashlib
import linecache
from contextlib import contextmanager

import triton


class Source:
    """Lines of a function body."""

    def __init__(self):
        self.lines: list[str] = []
        self._depth = 1

    def __call__(self, *lines: str) -> None:
        """Add lines at the present depth."""
        self.lines += [f"{'    ' * self._depth}{line}" for line in lines]

    @contextmanager
    def block(self, head: str):
        """A ``for`` or ``if`` around the lines that follow."""
        self(head)
        self._depth += 1
        yield
        self._depth -= 1


def compile_source(name: str, parameters: list[str], body: Source, names: dict):
    """The jitted function ``name(parameters)`` whose body finds ``names`` as globals."""
    text = f"def {name}({', '.join(parameters)}):\n" + "\n".join(body.lines) + "\n"
    filename = f"<pullback {name} {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    space = {"__name__": "pullback.kernels", **names}
    # By itself: as part of this module its annotations would be strings of strings, of which Triton
    # does not take the type of an argument.
    exec(compile(text, filename, "exec", dont_inherit=True), space)
    return triton.jit(space[name])
