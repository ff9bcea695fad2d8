"""Docstrings of the torch functions, written from the catalog."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .counterparts import Counterpart
from .operations import Operation

_PARAMETERS = {
    "input": (
        "input : Tensor",
        "float32, float64, float16 or bfloat16, any rank and strides; other dtypes go to torch.",
    ),
    "dim": ("dim : int", "The dimension; negative counts from the end."),
    "dims": (
        "dim : int, sequence of int or None",
        "The dimensions; None and () mean all of them.",
    ),
    "keepdim": ("keepdim : bool, default False", "Keep the reduced dimensions at length 1."),
    "unbiased": (
        "unbiased : bool, optional",
        "torch's older form: a correction of 1 or 0. May stand in the place of dim.",
    ),
    "correction": (
        "correction : int or float, optional",
        "Subtracted from the count; 1 if neither it nor unbiased is given.",
    ),
    "dtype": ("dtype : torch.dtype, optional", "Type the input is cast to first."),
    "reverse": ("reverse : bool, default False", "Scan from the end."),
    "end": ("end : Tensor", "Value at weight 1; broadcast against the input."),
    "weight": ("weight : float", "A constant. A tensor is handed to torch.lerp."),
    "segment_ids": ("segment_ids : Tensor of int32 or int64", "The segment of each row."),
    "num_segments": ("num_segments : int", "Rows of the result."),
    "sorted": ("sorted : bool, default False", "The ids ascend, which saves ordering them."),
    "out_of_range": (
        'out_of_range : {"raise", "drop"}',
        "What to do with an id outside [0, num_segments).",
    ),
}


def _parameter(name: str, operation: Operation, default: Any) -> tuple[str, str]:
    if name == "ties":
        choices = ", ".join(f'"{t}"' for t in operation.family.ties)
        return (
            f'ties : {{{choices}}}, default "{default}"',
            "Who takes the gradient where several elements hold the extreme.",
        )
    if name == "dim" and operation.family.parameters["dim"] == "int[]":
        name = "dims"
    return _PARAMETERS[name]


def _example(name: str, operation: Operation, torch_has: Counterpart) -> list[str]:
    lines = [
        ">>> import torch, pullback.torch as pt",
        ">>> x = torch.tensor([[1.0, 2.0], [4.0, 3.0]], requires_grad=True)",
    ]
    if not torch_has.homes:
        if operation.kind != "segment_sum":
            return []
        return [
            *lines,
            ">>> pt.segment_sum(x, torch.tensor([1, 1]), 2).detach()",
            "tensor([[0., 0.],",
            "        [5., 5.]])",
        ]
    arguments = ["x"]
    if operation.family.tensors == ("a", "b"):
        arguments += ["x.flip(0)", "0.25"]
    else:
        arguments += ["dim=1"]
    call = ", ".join(arguments)
    own, ours = f"{torch_has.homes[0]}({call})", f"pt.{name}({call})"
    if torch_has.result is not None:
        own, ours = own + ".values", ours + ".values"
    return [*lines, f">>> torch.allclose({ours}, {own})", "True"]


def docstring(function: Callable[..., Any], operation: Operation, torch_has: Counterpart) -> str:
    """The docstring of a function, NumPy style."""
    name = function.__name__
    forward, backward = operation.family.forward, operation.family.backward
    own = f"``{torch_has.homes[0]}`` on pullback's kernels" if torch_has.homes else forward.kind
    lines = [f"{own}: {forward.formula}.", "", "Parameters", "----------"]
    for parameter in inspect.signature(function).parameters.values():
        head, text = _parameter(parameter.name, operation, parameter.default)
        lines += [head, f"    {text}"]
    lines += ["", "Returns", "-------"]
    if torch_has.result is not None:
        lines += ["values, indices : Tensor", "    As torch returns them; no gradient by indices."]
    else:
        lines += ["Tensor", "    Of the input's dtype."]
    lines += ["", "Notes", "-----", f"Gradient: {backward.formula}."]
    if forward.edges:
        lines.append(f"Edges: {forward.edges}.")
    example = _example(name, operation, torch_has)
    if example:
        lines += ["", "Examples", "--------", *example]
    return "\n".join(lines) + "\n"
