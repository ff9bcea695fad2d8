"""The exceptions pullback raises.

Every one derives from :class:`PullbackError` and also from the built-in exception a NumPy user
would expect, so both ``except PullbackError`` and ``except ValueError`` work. Messages name the
operand or field, what was expected and what came.
"""

from __future__ import annotations

from typing import ClassVar


class PullbackError(Exception):
    """Base class of every error raised by pullback."""


class UnsupportedError(PullbackError, NotImplementedError):
    """A dtype, kind, backend or kind of array that pullback does not handle here."""


class InvalidProblemError(PullbackError, ValueError):
    """Shapes, axes, dtypes, devices or memory that do not make a valid problem."""


class MisalignedOperandError(PullbackError, ValueError):
    """An address or stride that is not a multiple of the item size."""


class _TooSmallError(PullbackError, ValueError):
    """Something is shorter than needed; carries both lengths.

    Parameters
    ----------
    message : str or int, optional
        The text. An int stands for `needed`, so ``Error(needed, got)`` works as well as
        ``Error("text", needed=..., got=...)``; the text is then written from the lengths.
    got : int, optional
        The length that is there.
    needed : int, optional
        The length that is needed.
    operand : str, optional
        Name of the operand, used when the text is written from the lengths.
    """

    _noun: ClassVar[str] = "buffer"
    _unit: ClassVar[str] = "elements"

    needed: int | None
    got: int | None
    operand: str | None

    def __init__(
        self,
        message: str | int | None = None,
        got: int | None = None,
        *,
        needed: int | None = None,
        operand: str | None = None,
    ) -> None:
        if isinstance(message, int):
            if needed is not None:
                raise TypeError("needed was given twice, by position and by keyword")
            needed, message = message, None
        if message is None:
            whose = f"{operand}: " if operand else ""
            message = f"{whose}{self._noun} too small: needs {needed} {self._unit}, got {got}"
        super().__init__(message)
        self.needed = needed
        self.got = got
        self.operand = operand


class BufferTooSmallError(_TooSmallError):
    """A ``TensorRef`` reaches outside its buffer; `needed` and `got` count elements."""


class WorkspaceTooSmallError(_TooSmallError):
    """A workspace shorter than ``plan.workspace_size``; `needed` and `got` count bytes."""

    _noun = "workspace"
    _unit = "bytes"
