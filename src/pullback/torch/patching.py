"""Route torch's own functions to pullback for a while."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch import Tensor
from torch._C import _is_tracing as is_tracing
from torch.compiler import is_compiling
from torch.jit._builtins import _get_builtin_table as script_names

from .arrays import ELEMENTS
from .counterparts import COUNTERPARTS, Counterpart
from .functional import cross_entropy
from .functions import make_function
from .launches import PLAIN, is_dense

# Functions that are more than a kind of the catalog, by torch's home for them.
_COMPOSED: dict[str, Callable[..., Any]] = {"torch.nn.functional.cross_entropy": cross_entropy}

_lock = threading.RLock()
_depth = 0
_originals: list[tuple[Any, str, bool, Any, Any]] = []


def _is_served(x: Any) -> bool:
    return type(x) in PLAIN and x.is_cpu and x.dtype in ELEMENTS and is_dense(x)


def _fits(x: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether what we would be called with after the input is served."""
    dtype = kwargs.get("dtype", x.dtype)
    others = [t for t in args if isinstance(t, Tensor)]
    return dtype in ELEMENTS and all(_is_served(t) and t.dtype == x.dtype for t in others)


def _routed(
    original: Callable[..., Any], function: Callable[..., Any], counterpart: Counterpart
) -> Callable[..., Any]:
    arguments = counterpart.routed
    assert arguments is not None

    @functools.wraps(original)
    def routed(*args: Any, **kwargs: Any) -> Any:
        x: Any = args[0] if args else None
        if _is_served(x) and (is_compiling() or not is_tracing()):
            try:
                fitting = arguments(*args, **kwargs)
            except TypeError:
                fitting = None
            if fitting is not None and _fits(x, *fitting):
                return function(x, *fitting[0], **fitting[1])
        return original(*args, **kwargs)

    return routed


def _composed(original: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """A function with torch's own arguments, which leaves to torch what it does not serve."""

    @functools.wraps(original)
    def routed(*args: Any, **kwargs: Any) -> Any:
        serves = bool(args) and _is_served(args[0]) and (is_compiling() or not is_tracing())
        return (function if serves else original)(*args, **kwargs)

    return routed


def _owner(home: str) -> tuple[Any, str]:
    """The module or class that holds a function, and the name it has there."""
    path, name = home.rsplit(".", 1)
    if path == "torch.Tensor":
        return Tensor, name
    return importlib.import_module(path), name


def _install() -> None:
    # TorchScript knows torch's functions by their id. torch itself scripts its decompositions at
    # the first use of forward mode, and would not know the routed ones.
    names = script_names()
    for kind, counterpart in COUNTERPARTS.items():
        function = make_function(kind) if counterpart.homes else None
        for home in counterpart.homes:
            owner, name = _owner(home)
            original = getattr(owner, name)
            assert function is not None
            ours = _routed(original, function, counterpart)
            _replace(owner, name, original, ours)
            if id(original) in names:
                names[id(ours)] = names[id(original)]
    for home, function in _COMPOSED.items():
        owner, name = _owner(home)
        original = getattr(owner, name)
        _replace(owner, name, original, _composed(original, function))


def _replace(owner: Any, name: str, original: Any, ours: Any) -> None:
    _originals.append((owner, name, name in vars(owner), original, ours))
    setattr(owner, name, ours)


def _uninstall() -> None:
    while _originals:
        owner, name, own, original, ours = _originals.pop()
        script_names().pop(id(ours), None)
        if vars(owner).get(name) is not ours:
            continue  # someone else has patched it since; what they put there is theirs
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


class Patch:
    """torch's functions routed to pullback until :meth:`undo`, or the end of a ``with`` block."""

    def __init__(self) -> None:
        global _depth
        self._active = True
        with _lock:
            if _depth == 0:
                _install()
            _depth += 1

    def undo(self) -> None:
        """Put torch's functions back, once every patch is undone; a second call does nothing."""
        global _depth
        with _lock:
            if not self._active:
                return
            self._active = False
            _depth -= 1
            if _depth == 0:
                _uninstall()

    def __enter__(self) -> Patch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.undo()


def patch() -> Patch:
    """Route torch's functions to pullback for CPU tensors of the four dtypes.

    ``torch.cumsum``, ``torch.Tensor.cumsum``, ``torch.nn.functional.softmax`` and so on, for every
    function that torch has of those here. A call that pullback does not serve (another device,
    dtype or tensor type, ``out=``, a form of arguments not listed in the docstrings here) goes to
    torch as before. Code that took a reference to a function earlier (``from torch import cumsum``)
    keeps it.

    Returns
    -------
    Patch
        A context manager; or call its ``undo()``. Patches nest: torch is itself again when the
        last one is undone.

    Examples
    --------
    >>> import torch, pullback.torch as pt
    >>> own = torch.cumsum
    >>> with pt.patch():
    ...     torch.cumsum is own
    False
    >>> torch.cumsum is own
    True
    """
    return Patch()
