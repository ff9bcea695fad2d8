"""Parameter types shared by the commands: ops, dtypes, shapes, axes, sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from ...core.catalog import OPS
from ...core.elements import FLOATS
from ...core.vocabulary import element_kind
from ...errors import PullbackError


class ListOf(click.ParamType):  # type: ignore[type-arg]
    """Comma-separated items, as a tuple."""

    def __init__(self, name: str, item: Callable[[str], Any], choices: tuple[str, ...] = ()):
        self.name = name
        self._item = item
        self._choices = choices

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        """The items of the text."""
        if isinstance(value, tuple):
            return value
        try:
            found = tuple(self._item(part) for part in str(value).split(",") if part.strip())
        except (ValueError, PullbackError) as error:
            self.fail(str(error), param, ctx)
        if not found:
            self.fail("expected at least one", param, ctx)
        return found

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Complete the last item of the list."""
        head, comma, last = incomplete.rpartition(",")
        return [CompletionItem(head + comma + c) for c in self._choices if c.startswith(last)]


def dtype(text: str) -> str:
    """An element type by any of its names."""
    return str(element_kind(text.strip()))


def shape(text: str) -> tuple[int, ...]:
    """A shape such as 4096x4096; "16e6" and "8_000_000" are numbers too."""
    try:
        numbers = [float(part) for part in re.split(r"[x×]", text.strip())]
        if all(n >= 0 and n.is_integer() for n in numbers):
            return tuple(map(int, numbers))
    except ValueError:
        pass
    raise ValueError(f"expected a shape such as 4096x4096, got {text!r}")


def axis(text: str) -> int:
    """A number of an axis."""
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"expected axes such as -1,0, got {text!r}") from None


_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY_UNITS = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes such as 2GB, 512MiB or 1500000."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Bytes."""
        if isinstance(value, int):
            return value
        found = re.fullmatch(r"\s*([\d.]+)\s*([kmgt]?)(i?)b?\s*", str(value), re.IGNORECASE)
        try:
            number, unit, binary = float(found[1]), found[2].lower(), found[3]  # type: ignore[index]
            bytes_each = _BINARY_UNITS[unit] if binary else _UNITS[unit]
        except (TypeError, ValueError, KeyError):
            self.fail(f"expected a size such as 2GB or 512MiB, got {str(value)[:40]!r}", param, ctx)
        if number * bytes_each >= 2**63:
            self.fail(f"expected less than 8 EiB, got {str(value)[:40]!r}", param, ctx)
        return int(number * bytes_each)


class Dtype(click.ParamType):  # type: ignore[type-arg]
    """An element type by any of its names."""

    name = "dtype"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        """Its short name."""
        try:
            return dtype(str(value))
        except PullbackError as error:
            self.fail(str(error), param, ctx)

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """The short names."""
        return [CompletionItem(name) for name in FLOATS if name.startswith(incomplete)]


class Shape(click.ParamType):  # type: ignore[type-arg]
    """A shape such as 4096x4096."""

    name = "shape"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Its lengths."""
        if isinstance(value, tuple):
            return value
        try:
            return shape(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class OpName(click.ParamType):  # type: ignore[type-arg]
    """The name of an op or of a kind; completion offers them all."""

    name = "op"

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[CompletionItem]:
        """Names that begin like this."""
        names = dict.fromkeys([*(op.kind for op in OPS.values()), *OPS])
        return [CompletionItem(n) for n in names if n.startswith(incomplete)]


DTYPE_LIST = ListOf("dtypes", dtype, FLOATS)
SHAPE_LIST = ListOf("shapes", shape)
AXIS_LIST = ListOf("axes", axis)
THREADS = click.IntRange(1, 4096)
DTYPE = Dtype()
SHAPE = Shape()
OP = OpName()
SIZE = Size()
