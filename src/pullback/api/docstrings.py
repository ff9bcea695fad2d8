"""Docstrings of the functions, written from the catalog."""

from __future__ import annotations

from ..core.declare import Op

_ARRAY = "array"

_PARAMETERS = {
    "x": (
        "x : array\n    Input of the forward pass: NumPy, torch, JAX or DLPack, of float32,"
        "\n    float64, float16 or bfloat16, any rank and strides."
    ),
    "y": "y : array\n    Saved output of the forward pass.",
    "dy": "dy : array\n    Gradient by the output of the forward pass.",
    "a": "a : array\n    Value at weight 0.",
    "b": "b : array\n    Value at weight 1, of the same shape.",
    "weight": "weight : float\n    A constant; no gradient flows to it.",
    "shape": "shape : tuple of int\n    Shape of the forward's input.",
    "scan axis": "axis : int, default -1\n    The axis; negative counts from the end.",
    "reduce axis": "axis : int, tuple of int or None\n    The axes; None means all of them.",
    "keepdims": "keepdims : bool, default False\n    Keep the reduced axes at length 1.",
    "correction": "correction : int or float, default 1\n    m = max(n - correction, 1).",
    "reverse": "reverse : bool, default False\n    The forward scan runs from the end.",
    "out": "out : array, optional\n    Where to write; may be an input of the same shape.",
    "pair": "out : pair of arrays, optional\n    Where to write da and db.",
    "input": "input : array\n    Rows to add, of any number of further dimensions.",
    "d_output": "d_output : array\n    Gradient by the output, one row a segment.",
    "segment_ids": "segment_ids : array of int32 or int64\n    The segment of each row.",
    "num_segments": "num_segments : int\n    Rows of the output.",
    "sorted": "sorted : bool, default False\n    The ids ascend, which saves ordering them.",
    "out_of_range": (
        'out_of_range : {"raise", "drop"}\n    What to do with an id outside [0, num_segments).'
    ),
}

_EXAMPLES = {
    "cumsum": ("cumsum(np.array([1.0, 2.0, 3.0]))", "array([1., 3., 6.])"),
    "cumsum_backward": ("cumsum_backward(np.array([1.0, 2.0, 3.0]))", "array([6., 5., 3.])"),
    "cumprod": ("cumprod(np.array([2.0, 0.0, 4.0]))", "array([2., 0., 0.])"),
    "cumprod_backward": (
        "cumprod_backward(np.ones(3), x=np.array([2.0, 0.0, 4.0]), y=np.array([2.0, 0.0, 0.0]))",
        "array([ 1., 10.,  0.])",
    ),
    "cummax": ("cummax(np.array([1.0, 3.0, 2.0]))", "array([1., 3., 3.])"),
    "cummax_backward": (
        "cummax_backward(np.ones(3), x=np.array([1.0, 3.0, 2.0]))",
        "array([1., 2., 0.])",
    ),
    "cummin": ("cummin(np.array([3.0, 1.0, 2.0]))", "array([3., 1., 1.])"),
    "cummin_backward": (
        "cummin_backward(np.ones(3), x=np.array([3.0, 1.0, 2.0]))",
        "array([1., 2., 0.])",
    ),
    "logcumsumexp": ("logcumsumexp(np.zeros(2))", "array([0.        , 0.69314718])"),
    "logcumsumexp_backward": (
        "logcumsumexp_backward(np.ones(2), x=np.zeros(2), y=np.log([1.0, 2.0]))",
        "array([1.5, 0.5])",
    ),
    "sum": ("sum(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=1)", "array([3., 7.])"),
    "sum_backward": (
        "sum_backward(np.array([1.0, 2.0]), shape=(2, 2), axis=1)",
        "array([[1., 1.],\n       [2., 2.]])",
    ),
    "mean": ("mean(np.array([[1.0, 2.0], [3.0, 4.0]]), axis=1)", "array([1.5, 3.5])"),
    "mean_backward": (
        "mean_backward(np.array([1.0, 2.0]), shape=(2, 2), axis=1)",
        "array([[0.5, 0.5],\n       [1. , 1. ]])",
    ),
    "max": ("max(np.array([1.0, 3.0, 3.0]))", "array(3.)"),
    "max_backward": (
        "max_backward(np.array(1.0), x=np.array([1.0, 3.0, 3.0]), y=np.array(3.0))",
        "array([0. , 0.5, 0.5])",
    ),
    "min": ("min(np.array([1.0, 3.0, 1.0]))", "array(1.)"),
    "min_backward": (
        "min_backward(np.array(1.0), x=np.array([1.0, 3.0, 1.0]), y=np.array(1.0), ties='first')",
        "array([1., 0., 0.])",
    ),
    "prod": ("prod(np.array([2.0, 0.0, 4.0]))", "array(0.)"),
    "prod_backward": (
        "prod_backward(np.array(1.0), x=np.array([2.0, 0.0, 4.0]), y=np.array(0.0))",
        "array([0., 8., 0.])",
    ),
    "norm2": ("norm2(np.array([3.0, 4.0]))", "array(5.)"),
    "norm2_backward": (
        "norm2_backward(np.array(5.0), x=np.array([3.0, 4.0]), y=np.array(5.0))",
        "array([3., 4.])",
    ),
    "logsumexp": ("logsumexp(np.array([-np.inf, 0.0]))", "array(0.)"),
    "logsumexp_backward": (
        "logsumexp_backward(np.array(2.0), x=np.array([-np.inf, 0.0]), y=np.array(0.0))",
        "array([0., 2.])",
    ),
    "var": ("var(np.array([1.0, 3.0]))", "array(2.)"),
    "var_backward": ("var_backward(np.array(1.0), x=np.array([1.0, 3.0]))", "array([-2.,  2.])"),
    "std": ("std(np.array([1.0, 1.0]))", "array(0.)"),
    "std_backward": (
        "std_backward(np.array(1.0), x=np.array([1.0, 1.0]), y=np.array(0.0))",
        "array([0., 0.])",
    ),
    "softmax": ("softmax(np.array([0.0, 0.0]))", "array([0.5, 0.5])"),
    "softmax_backward": (
        "softmax_backward(np.array([1.0, 0.0]), y=np.array([0.5, 0.5]))",
        "array([ 0.25, -0.25])",
    ),
    "log_softmax": (
        "log_softmax(np.array([0.0, 0.0]))",
        "array([-0.69314718, -0.69314718])",
    ),
    "log_softmax_backward": (
        "log_softmax_backward(np.array([1.0, 0.0]), y=np.array([0.0, -np.inf]))",
        "array([0., 0.])",
    ),
    "lerp": ("lerp(np.array([0.0, 2.0]), np.array([4.0, 4.0]), 0.25)", "array([1. , 2.5])"),
    "lerp_backward": (
        "lerp_backward(np.array([4.0]), weight=0.25)",
        "(array([3.]), array([1.]))",
    ),
    "segment_sum": (
        "segment_sum(np.array([[1.0], [2.0], [4.0]]), np.array([1, 0, 1]), 2)",
        "array([[2.],\n       [5.]])",
    ),
    "segment_sum_backward": (
        "segment_sum_backward(np.array([[2.0], [5.0]]), np.array([1, 0, 1]))",
        "array([[5.],\n       [2.],\n       [5.]])",
    ),
}


def _parameter_names(op: Op) -> list[str]:
    saves = [n for n in ("x", "y") if n in op.needs]
    corrected = ["correction"] if op.kind in ("var", "std") else []
    ties = ["ties"] if op.ties else []
    match op.family, op.direction:
        case "scan", "forward":
            return ["x", "scan axis", "reverse", "out"]
        case "scan", "backward":
            return ["dy", *saves, *ties, "scan axis", "reverse", "out"]
        case "reduce", "forward":
            return ["x", "reduce axis", "keepdims", *corrected, "out"]
        case "reduce", "backward":
            shape = [] if "x" in op.needs else ["shape"]
            return ["dy", *saves, *shape, "reduce axis", *corrected, *ties, "out"]
        case "softmax", "forward":
            return ["x", "scan axis", "out"]
        case "softmax", "backward":
            return ["dy", "y", "scan axis", "out"]
        case "lerp", "forward":
            return ["a", "b", "weight", "out"]
        case "lerp", "backward":
            return ["dy", "weight", "pair"]
        case "segment", "forward":
            return ["input", "segment_ids", "num_segments", "sorted", "out_of_range", "out"]
    return ["d_output", "segment_ids", "out_of_range", "out"]


def docstring(op: Op) -> str:
    """The docstring of an op's function, NumPy style."""
    what = op.kind if op.direction == "forward" else f"Backward of {op.kind}"
    lines = [f"{what}: {op.formula}.", "", "Parameters", "----------"]
    for name in _parameter_names(op):
        if name == "ties":
            choices = ", ".join(f'"{t}"' for t in op.ties)
            lines += [
                f'ties : {{{choices}}}, default "{op.ties[0]}"',
                "    Who takes the gradient where several elements hold the extreme.",
            ]
        else:
            lines += _PARAMETERS[name].splitlines()
    outputs = ", ".join(op.outputs)
    lines += ["", "Returns", "-------", f"{outputs}", "    Of the same kind as the first operand."]
    notes = [f"Saves: {', '.join(sorted(op.needs)) or 'none'}."]
    if op.edges:
        notes.append(f"Edges: {op.edges}.")
    lines += ["", "Notes", "-----", *notes]
    if op.name in _EXAMPLES:
        call, shown = _EXAMPLES[op.name]
        lines += ["", "Examples", "--------", ">>> import numpy as np, pullback as pb"]
        lines += [f">>> pb.{call}", *shown.splitlines()]
    return "\n".join(lines) + "\n"
