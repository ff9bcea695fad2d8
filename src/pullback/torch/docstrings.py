"""Docstrings of the torch functions, written from the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..core.declare import REQUIRED
from .forms import NAMES

if TYPE_CHECKING:
    from .operations import Kind
    from .signatures import Argument


def _head(argument: Argument) -> str:
    p = argument.parameter
    kind = argument.hint.replace(" | None", "").replace("Sequence[int]", "sequence of int")
    if p is not None and p.choices and p.kind.usual == "str":
        kind = f"{{{', '.join(repr(c) for c in p.choices)}}}".replace("'", '"')
    kind = kind.replace(" | ", " or ")
    if argument.default is REQUIRED:
        return f"{argument.name} : {kind}"
    if argument.default is None:
        return f"{argument.name} : {kind}, optional"
    return f"{argument.name} : {kind}, default {argument.default!r}".replace("'", '"')


def _example(of: Kind) -> list[str]:
    torch_has = of.counterpart
    if torch_has is None or not torch_has.homes:
        return _example_of_row(of)
    arguments = ["x"]
    if len(of.plain.forward.reads) > 1:
        arguments += ["x.flip(0)", "0.25"]
    else:
        arguments += ["dim=1"]
    call = ", ".join(arguments)
    own, ours = f"{torch_has.homes[0]}({call})", f"pt.{of.name}({call})"
    if torch_has.result is not None:
        own, ours = own + ".values", ours + ".values"
    return [
        ">>> import torch, pullback.torch as pt",
        ">>> x = torch.tensor([[1.0, 2.0], [4.0, 3.0]], requires_grad=True)",
        f">>> torch.allclose({ours}, {own})",
        "True",
    ]


def _example_of_row(of: Kind) -> list[str]:
    """The example of the row with tensors for arrays, where its result is one array."""
    if of.pair.forward.text.example is None:
        return []
    call, shown = of.pair.forward.text.example
    if not shown.startswith("array(") or "nan" in shown:
        return []
    alike = {f"np.{word}": f"torch.{word}" for word in ("zeros", "ones", "inf")}
    for ours, torchs in {"np.array": "torch.tensor", **alike, **NAMES}.items():
        call = call.replace(ours, torchs)
    if "np." in call:
        return []
    want = " ".join(shown.split()).replace("array", "torch.tensor", 1).replace("inf", "torch.inf")
    return [
        ">>> import torch, pullback.torch as pt",
        f">>> y = pt.{call}",
        f">>> torch.allclose(y, {want})",
        "True",
    ]


def docstring(of: Kind, arguments: Sequence[Argument]) -> str:
    """The docstring of a function, NumPy style."""
    torch_has, forward, backward = of.counterpart, of.pair.forward, of.pair.backward
    own = of.kind
    if torch_has is not None and torch_has.homes:
        own = f"``{torch_has.homes[0]}`` on pullback's kernels"
    lines = [f"{own}: {forward.formula}.", "", "Parameters", "----------"]
    for argument in arguments:
        lines += [_head(argument), f"    {argument.doc}"]
    lines += ["", "Returns", "-------"]
    if torch_has is not None and torch_has.result is not None:
        lines += [
            "values, indices : Tensor",
            "    As in torch; no gradient flows through the indices.",
        ]
    elif len(forward.writes) == 1:
        lines += ["Tensor", "    Same dtype as the input."]
    else:
        for o in forward.writes:
            asked = f" Only with {o.asked_by}." if o.asked_by else ""
            lines += [f"{o.name} : Tensor", f"    {o.doc or 'The result.'}{asked}"]
    gradient = f"Gradient: {backward.formula}." if backward else "The results are constants."
    lines += ["", "Notes", "-----", gradient]
    if forward.edges:
        lines.append(f"Edge cases: {forward.edges}.")
    example = _example(of)
    if example:
        lines += ["", "Examples", "--------", *example]
    return "\n".join(lines) + "\n"
