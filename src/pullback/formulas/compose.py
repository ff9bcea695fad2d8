"""Formula functions written out from others: the same formula with a mask, or cut into runs.

Parameters of a formula function are found by name, and Triton reads its source. So what is made
here is source, put where ``inspect`` finds it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import linecache
from collections.abc import Callable, Sequence
from typing import Any

from .record import parameters


def compose(name: str, asks: Sequence[str], lines: Sequence[str], **names: Any) -> Callable:
    """The function ``name`` of what it ``asks`` for, whose ``lines`` use ``names``."""
    text = f"def {name}({', '.join(asks)}):\n" + "".join(f"    {line}\n" for line in lines)
    filename = f"<pullback {name} {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    scope = {"__name__": __name__, **names}
    exec(compile(text, filename, "exec"), scope)
    made: Callable = scope[name]
    return made


def changed(record: Any, change: Callable[[Callable], Callable]) -> Any:
    """A record, or a part of one, with every function it is made of changed."""
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        fields = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
        return dataclasses.replace(record, **{n: changed(v, change) for n, v in fields.items()})
    if isinstance(record, tuple):
        return tuple(changed(v, change) for v in record)
    return change(record) if callable(record) else record


def asking(function: Callable, more: Sequence[str] = (), **renamed: str) -> list[str]:
    """What a function asks for, under other names, and what else one made of it asks for."""
    asked = [renamed.get(n, n) for n in parameters(function)]
    return [*asked, *(n for n in more if n not in asked)]


def renamed(function: Callable, **names: str) -> Callable:
    """The same function asking for other names; itself, if it asks for none of them."""
    asks = asking(function, **names)
    if asks == list(parameters(function)):
        return function
    suffix = "_".join(names.values())
    call = f"return {function.__name__}({', '.join(asks)})"
    return compose(
        f"{function.__name__}_of_{suffix}", asks, [call], **{function.__name__: function}
    )
