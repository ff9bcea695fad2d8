"""The arguments of a torch function, from the rows of its kind and what torch has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..core import parse
from ..core.declare import REQUIRED, Operand, Parameter
from .forms import NAMES

if TYPE_CHECKING:
    from .operations import Kind

_DIMS = "int | Sequence[int] | None"


@dataclass(frozen=True)
class Argument:
    """An operand, a parameter, both where a number may stand for a tensor, or torch's own.

    Attributes
    ----------
    default
        ``REQUIRED`` where there is none.
    hint
        Its type.
    doc
        What it is, in a sentence.
    """

    name: str
    hint: str
    doc: str
    default: Any = REQUIRED
    operand: Operand | None = None
    parameter: Parameter | None = None

    @property
    def source(self) -> str:
        """As in a signature."""
        return self.name if self.default is REQUIRED else f"{self.name}={self.default!r}"


_DTYPE = Argument("dtype", "torch.dtype | None", "Type to cast the input to first.", None)
_OUT = Argument(
    "out",
    "Tensor | tuple[Tensor, ...] | None",
    "Buffer for the result, without a gradient; resized if its shape differs, as torch does.",
    None,
)
# What NumPy calls some arguments, which torch takes too.
NUMPYS = {"dim": "axis", "keepdim": "keepdims"}
_UNBIASED = Argument(
    "unbiased",
    "bool | None",
    "torch's older form of correction, for 1 or 0. May also be given in place of dim.",
    None,
)


def _operand(of: Kind, o: Operand) -> Argument:
    names = of.counterpart.names if of.counterpart else {}
    name = names.get(o.name, "input" if o.name == "x" else o.name)
    doc = o.doc
    if o is of.pair.forward.reads[0]:
        doc = "float32, float64, float16 or bfloat16, any rank and strides"
        doc += "; other dtypes go to torch." if of.counterpart else "."
    if o.optional:
        return Argument(name, "Tensor | None", doc, None, o)
    return Argument(name, "Tensor", doc, operand=o)


def _parameter(of: Kind, p: Parameter) -> Argument:
    torch_has = of.counterpart
    operand = next((o for o in of.pair.forward.reads if o.name == p.name), None)
    hint, default = p.kind.hint, p.default
    doc = p.doc.replace("axes", "dimensions").replace("axis", "dimension")
    if p.parse is parse.axes:
        hint, doc = _DIMS, "The dimensions; None and () mean all of them."
    if operand is not None:
        hint, doc = f"{hint} | Tensor", f"{doc} {operand.doc}".strip()
    if torch_has is not None:
        if p.name == "axis" and torch_has.needs_dim:
            default = None
            doc += " It or axis is wanted."
        if p.name == "axis" and torch_has.takes_unbiased:
            hint += " | bool"
        if p.name == "ties":
            default = torch_has.ties
        if p.name == "correction" and torch_has.takes_unbiased:
            hint, default = f"{hint} | None", None
            doc = "Subtracted from the count; 1 if neither it nor unbiased is given."
    if p.name == "ties":
        hint = "str"
    return Argument(NAMES.get(p.name, p.name), hint, doc, default, operand, p)


def arguments_of(of: Kind) -> tuple[list[Argument], list[Argument]]:
    """The arguments of a kind's function: by position too, and by keyword alone."""
    torch_has, reads = of.counterpart, of.pair.forward.reads
    parameters = {p.name: _parameter(of, p) for p in of.pair.parameters}
    first = [_operand(of, o) for o in reads if not o.optional or o.name in of.usual]
    later = [
        _operand(of, o)
        for o in reads
        if o.optional and o.name not in of.usual and o.name not in parameters
    ]
    for p in of.pair.parameters:
        (first if p.is_positional or p.name == "keepdims" else later).append(parameters[p.name])
        if p.name == "axis" and torch_has is not None and torch_has.takes_unbiased:
            first.append(_UNBIASED)
    if torch_has is not None and torch_has.dtype == "position":
        first.append(_DTYPE)
    elif torch_has is not None and torch_has.dtype:
        later.insert(0, _DTYPE)
    if torch_has is not None and torch_has.homes:
        later.append(_OUT)
        later += [
            Argument(NUMPYS[a.name], a.hint, f"Another name for {a.name}.", None)
            for a in first
            if a.name in NUMPYS
        ]
    # What follows a default has one: None, which is refused where a value is wanted after all.
    for k, argument in enumerate(first):
        if argument.default is REQUIRED and any(a.default is not REQUIRED for a in first[:k]):
            first[k] = replace(argument, default=None)
    return first, later
