"""The functions: each finds or makes the plan for its arguments and runs it once.

A function of the catalog gets its signature from its family and its docstring from its row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..core.catalog import catalog
from ..core.declare import Op
from ..core.vocabulary import BackendKind, PlanPreference
from ..errors import InvalidProblemError, UnsupportedError
from ..memory.dimensions import merge
from ..memory.overlap import overlaps, self_overlaps
from ..memory.view import (
    View,
    empty,
    empty_like,
    is_writable_kind,
    mark_written,
    output_view,
    restore,
)
from ..memory.view import view as view_of
from ..threads import get_num_threads
from . import descriptors as d
from . import plan as p
from .parameters import (
    parse_axes,
    parse_axis,
    parse_correction,
    parse_flag,
    parse_out_of_range,
    parse_shape,
    parse_ties,
    parse_weight,
)
from .repeated import (
    reduce_again,
    reduce_backward_again,
    remember,
    run_again,
    run_both_again,
)

# Plans by (op.name, device, shape, dtype and parsed parameters), so that a repeated call does not
# validate again.
_plans: dict[tuple[Any, ...], p.Plan] = {}
_MOST_PLANS = 4096


def _plan(key: tuple[Any, ...], make: Callable[[PlanPreference], p.Plan], device: str) -> p.Plan:
    plan = _plans.get(key)
    if plan is None:
        plan = make(PlanPreference()) if device == "cpu" else _plan_on_gpu(make, device)
        if len(_plans) >= _MOST_PLANS:
            _plans.clear()
        _plans[key] = plan
    return plan


def _plan_on_gpu(make: Callable[[PlanPreference], p.Plan], device: str) -> p.Plan:
    from ..gpu.device import on_device

    with on_device(device):
        return make(PlanPreference(backend=BackendKind.TRITON))


def _float_view(array: Any, name: str) -> View:
    v = view_of(array, name)
    if v.element is None:
        raise UnsupportedError(f"{name}: expected a float array, got {v.dtype}")
    return v


def _execute(plan: p.Plan, views: dict[str, View]) -> None:
    plan.check_views(views, in_function=True)
    plan.check_values(views)
    plan.execute(views, 0, 0, plan.preference.threads or get_num_threads())


class _Output:
    """Where a result goes: the caller's ``out``, or a new array like an operand."""

    def __init__(
        self,
        out: Any,
        like: Any,
        shape: tuple[int, ...],
        v: View,
        name: str,
        called: str = "out",
    ):
        self.given, self.like = out, like
        if out is not None:
            self.array = out
        elif shape == v.shape and is_writable_kind(like):
            self.array = empty_like(like, name=name)
        else:
            self.array = empty(like, shape, v.dtype, name=name)
        self.view = output_view(self.array, called if out is not None else name)

    def result(self) -> Any:
        if self.given is not None:
            mark_written(self.given)
            return self.given
        return self.array if is_writable_kind(self.like) else restore(self.like, self.array)


def _run_same_shape(
    op: Op,
    make: Callable[[PlanPreference], p.Plan],
    parameters: tuple[Any, ...],
    arrays: dict[str, Any],
    views: dict[str, View],
    out: Any,
) -> Any:
    """Ops whose operands all have one shape and whose only output has it too."""
    lead = next(iter(views))
    v = views[lead]
    plan = _plan((op.name, v.device, v.shape, v.dtype, *parameters), make, v.device)
    target = _Output(out, arrays[lead], v.shape, v, op.outputs[0])
    views[op.outputs[0]] = target.view
    _execute(plan, views)
    remember(op, arrays[lead], v.shape, parameters, plan)
    return target.result()


def run_scan(op: Op, arrays: dict[str, Any], axis: Any, reverse: Any, ties: Any, out: Any) -> Any:
    # The usual types are let through here: a call to parse them takes 0.1 us each.
    if type(axis) is not int:
        axis = parse_axis(axis)
    if reverse is not False and reverse is not True:
        reverse = parse_flag(reverse, "reverse")
    if type(ties) is not str:
        ties = parse_ties(ties)
    parameters = (axis, reverse, ties)
    result = run_again(op, arrays, parameters, out)
    if result is not None:
        return result
    views = {n: _float_view(a, n) for n, a in arrays.items()}
    lead = next(iter(views.values()))

    def make(on: PlanPreference) -> p.Plan:
        place = d.normalize_axis(axis, len(lead.shape), "axis")
        fields: dict[str, Any] = {"scan_axis": place, "reverse": reverse, "element": lead.dtype}
        if op.direction == "forward":
            return p.ScanPlan.select(d.ScanDescriptor(op.kind, lead.shape, **fields), on)
        if ties is not None:
            fields["ties"] = ties
        descriptor = d.ScanBackwardDescriptor(op.kind, lead.shape, **fields)
        return p.ScanBackwardPlan.select(descriptor, on)

    return _run_same_shape(op, make, parameters, arrays, views, out)


def run_softmax(op: Op, arrays: dict[str, Any], axis: Any, out: Any) -> Any:
    if type(axis) is not int:
        axis = parse_axis(axis)
    result = run_again(op, arrays, (axis,), out)
    if result is not None:
        return result
    views = {n: _float_view(a, n) for n, a in arrays.items()}
    lead = next(iter(views.values()))

    def make(on: PlanPreference) -> p.Plan:
        place = d.normalize_axis(axis, len(lead.shape), "axis")
        fields: dict[str, Any] = {"softmax_axis": place, "element": lead.dtype}
        if op.direction == "forward":
            return p.SoftmaxPlan.select(d.SoftmaxDescriptor(op.kind, lead.shape, **fields), on)
        descriptor = d.SoftmaxBackwardDescriptor(op.kind, lead.shape, **fields)
        return p.SoftmaxBackwardPlan.select(descriptor, on)

    return _run_same_shape(op, make, (axis,), arrays, views, out)


def _kept(v: View, axes: tuple[int, ...], rank: int, name: str) -> View:
    """A view with the reduced axes at length 1, where they had been squeezed out."""
    if len(v.shape) == rank or len(v.shape) != rank - len(axes):
        return v
    shape, strides = list(v.shape), list(v.strides)
    for a in axes:
        shape.insert(a, 1)
        strides.insert(a, 0)
    return _moved(v, 0, tuple(shape), tuple(strides))


def _moved(v: View, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> View:
    """A view of the same memory at another place with other dimensions."""
    return View(
        v.address + offset, shape, strides, v.element, v.dtype, v.itemsize, v.device, v.writable,
        v.owner,
    )  # fmt: skip


def run_reduce(op: Op, x: Any, axis: Any, keepdims: Any, correction: Any, out: Any) -> Any:
    if type(axis) is not int:
        axis = parse_axes(axis)
    if keepdims is not False and keepdims is not True:
        keepdims = parse_flag(keepdims, "keepdims")
    if type(correction) is not int:
        correction = parse_correction(correction)
    parameters = (axis, correction)
    result = reduce_again(op, x, parameters, keepdims, out)
    if result is not None:
        return result
    v = _float_view(x, "x")

    def make(on: PlanPreference) -> p.Plan:
        axes = d.normalize_axes(axis, len(v.shape), "axis")
        return p.ReducePlan.select(
            d.ReduceDescriptor(op.kind, v.shape, axes, v.dtype, correction), on
        )

    plan = _plan((op.name, v.device, v.shape, v.dtype, *parameters), make, v.device)
    axes, kept = plan.descriptor.axes, plan.descriptor.y_shape()
    shape = kept if keepdims else tuple(n for k, n in enumerate(v.shape) if k not in axes)
    target = _Output(out, x, shape, v, "y")
    if target.view.shape != shape:
        raise InvalidProblemError(f"out: expected shape {shape}, got {target.view.shape}")
    _execute(plan, {"x": v, "y": _kept(target.view, axes, len(v.shape), "out")})
    remember(op, x, v.shape, parameters, plan)
    return target.result()


def run_reduce_backward(
    op: Op, arrays: dict[str, Any], shape: Any, axis: Any, correction: Any, ties: Any, out: Any
) -> Any:
    if type(axis) is not int:
        axis = parse_axes(axis)
    if type(correction) is not int:
        correction = parse_correction(correction)
    if type(ties) is not str:
        ties = parse_ties(ties)
    like = "x" if "x" in arrays else "dy"
    if like == "dy":
        shape = parse_shape(shape)
    parameters = (axis, correction, ties)
    result = reduce_backward_again(op, arrays, shape, parameters, out)
    if result is not None:
        return result
    views = {n: _float_view(a, n) for n, a in arrays.items()}
    dy = views["dy"]
    if like == "x":
        shape = views["x"].shape

    def make(on: PlanPreference) -> p.Plan:
        d.normalize_shape(shape, "shape", dy.itemsize)
        fields: dict[str, Any] = {
            "reduce_axis": d.normalize_axes(axis, len(shape), "axis"),
            "element": dy.dtype,
            "correction": correction,
        }
        if ties is not None:
            fields["ties"] = ties
        descriptor = d.ReduceBackwardDescriptor(op.kind, shape, **fields)
        return p.ReduceBackwardPlan.select(descriptor, on)

    plan = _plan((op.name, dy.device, shape, dy.dtype, *parameters), make, dy.device)
    target = _Output(out, arrays[like], shape, views[like], "dx")
    for name in ("dy", "y"):
        if name in views:
            views[name] = _kept(views[name], plan.descriptor.axes, len(shape), name)
    views["dx"] = target.view
    _execute(plan, views)
    remember(op, arrays[like], shape, parameters, plan)
    return target.result()


def run_lerp(op: Op, a: Any, b: Any, weight: Any, out: Any) -> Any:
    if type(weight) is not float:
        weight = parse_weight(weight)
    parameters = (_weight_key(weight),)
    result = run_again(op, {"a": a, "b": b}, parameters, out)
    if result is not None:
        return result
    views = {"a": _float_view(a, "a"), "b": _float_view(b, "b")}
    lead = views["a"]

    def make(on: PlanPreference) -> p.Plan:
        return p.BinaryParamPlan.select(
            d.BinaryParamDescriptor(op.kind, lead.shape, lead.dtype, weight), on
        )

    return _run_same_shape(op, make, parameters, {"a": a, "b": b}, views, out)


def run_lerp_backward(op: Op, dy: Any, weight: Any, out: Any) -> tuple[Any, Any]:
    if type(weight) is not float:
        weight = parse_weight(weight)
    if out is None:
        out = (None, None)
    elif not isinstance(out, (tuple, list)) or len(out) != 2:
        raise InvalidProblemError(f"out: expected a pair (da, db), got {type(out).__name__}")
    parameters = (_weight_key(weight),)
    results = run_both_again(op, dy, parameters, out)
    if results is not None:
        return results
    v = _float_view(dy, "dy")

    def make(on: PlanPreference) -> p.Plan:
        return p.BinaryParamBackwardPlan.select(
            d.BinaryParamBackwardDescriptor(op.kind, v.shape, v.dtype, weight), on
        )

    plan = _plan((op.name, v.device, v.shape, v.dtype, *parameters), make, v.device)
    targets = [
        _Output(o, dy, v.shape, v, n, f"out[{k}]")
        for k, (o, n) in enumerate(zip(out, op.outputs, strict=True))
    ]
    _execute(plan, {"dy": v, "da": targets[0].view, "db": targets[1].view})
    remember(op, dy, v.shape, parameters, plan)
    return targets[0].result(), targets[1].result()


def _weight_key(weight: float) -> Any:
    """A key under which NaN finds itself and -0.0 is not 0.0."""
    return weight.hex()


def _cut_into_rows(a: View, b: View) -> Iterator[tuple[View, View]]:
    """Two views of (rows, anything) as pairs of (rows, columns).

    The dimensions after the first are the same in both. Those that merge into one in both become
    the columns; any further ones are walked here.
    """
    sizes, (steps, others) = merge(a.shape[1:], [a.strides[1:], b.strides[1:]])
    if not sizes:
        sizes, steps, others = [1], [a.itemsize], [b.itemsize]
    offsets = [(0, 0)]
    for n, s, t in zip(sizes[:-1], steps[:-1], others[:-1], strict=True):
        offsets = [(u + k * s, v + k * t) for u, v in offsets for k in range(n)]
    width, step, other = sizes[-1], steps[-1], others[-1]
    for u, v in offsets:
        yield (
            _moved(a, u, (a.shape[0], width), (a.strides[0], step)),
            _moved(b, v, (b.shape[0], width), (b.strides[0], other)),
        )


def _rows(v: View, name: str) -> tuple[int, tuple[int, ...]]:
    if not v.shape:
        raise InvalidProblemError(f"{name}: expected at least one dimension, got shape ()")
    return v.shape[0], v.shape[1:]


def run_segment(
    op: Op, input: Any, segment_ids: Any, num_segments: Any, is_sorted: Any, policy: Any, out: Any
) -> Any:
    is_sorted, policy = parse_flag(is_sorted, "sorted"), parse_out_of_range(policy)
    v = _float_view(input, "input")
    rows, rest = _rows(v, "input")
    ids = view_of(segment_ids, "segment_ids")
    names: tuple[Any, type[p.Plan]] = (d.UnsortedSegmentSumDescriptor, p.UnsortedSegmentSumPlan)
    if is_sorted:
        names = (d.SegmentSumDescriptor, p.SegmentSumPlan)
    shape = d.normalize_shape((num_segments, *rest), "num_segments", v.itemsize)
    segments = shape[0]
    target = _Output(out, input, shape, v, "output")
    _check_shape(target.view, shape)
    pairs = [
        {"input": a, "segment_ids": ids, "output": b} for a, b in _cut_into_rows(v, target.view)
    ]
    if len(pairs) > 1:
        _check_apart(target.view, {"input": v})

    def make(on: PlanPreference, width: int) -> p.Plan:
        return names[1].select(names[0](rows, width, segments, v.dtype, policy), on)

    _execute_pairs(make, (op.name, v.device, rows, segments, v.dtype, is_sorted, policy), pairs)
    return target.result()


def run_segment_backward(op: Op, d_output: Any, segment_ids: Any, policy: Any, out: Any) -> Any:
    policy = parse_out_of_range(policy)
    v = _float_view(d_output, "d_output")
    segments, rest = _rows(v, "d_output")
    ids = view_of(segment_ids, "segment_ids")
    if len(ids.shape) != 1:
        raise InvalidProblemError(f"segment_ids: expected one dimension, got shape {ids.shape}")
    rows = ids.shape[0]
    target = _Output(out, d_output, (rows, *rest), v, "d_input")
    _check_shape(target.view, (rows, *rest))
    pairs = [
        {"d_output": a, "segment_ids": ids, "d_input": b} for a, b in _cut_into_rows(v, target.view)
    ]
    if len(pairs) > 1:
        _check_apart(target.view, {"d_output": v})

    def make(on: PlanPreference, width: int) -> p.Plan:
        return p.UnsortedSegmentSumBackwardPlan.select(
            d.UnsortedSegmentSumBackwardDescriptor(rows, width, segments, v.dtype, policy), on
        )

    _execute_pairs(make, (op.name, v.device, rows, segments, v.dtype, policy), pairs)
    return target.result()


def _execute_pairs(
    make: Callable[[PlanPreference, int], p.Plan],
    key: tuple[Any, ...],
    pairs: list[dict[str, View]],
) -> None:
    """Run one plan on every pair; all are checked before the first is written."""
    if not pairs:
        return
    first = next(iter(pairs[0].values()))
    width = first.shape[1]
    plan = _plan((*key, width), lambda on: make(on, width), first.device)
    for views in pairs:
        plan.check_views(views, in_function=True)
    plan.check_values(pairs[0])
    for views in pairs:
        plan.execute(views, 0, 0, plan.preference.threads or get_num_threads())


def _check_shape(v: View, shape: tuple[int, ...]) -> None:
    if v.shape != shape:
        raise InvalidProblemError(f"out: expected shape {shape}, got {v.shape}")


def _check_apart(out: View, operands: dict[str, View]) -> None:
    """Raise for an output whose pairs, each in order alone, overlap each other or an operand."""
    if self_overlaps(out):
        raise InvalidProblemError(
            f"out: expected an output without overlapping elements, got strides {out.strides} for "
            f"shape {out.shape}"
        )
    for name, v in operands.items():
        if overlaps(out, v):
            raise InvalidProblemError(
                f"out: expected an output apart from {name}, got memory that overlaps it"
            )


def _signature(op: Op) -> tuple[str, str]:
    """Parameters and body of an op's function."""
    saves = "".join(f"{n}, " for n in ("x", "y") if n in op.needs)
    held = ", ".join(f'"{n}": {n}' for n in ("dy", *(n for n in ("x", "y") if n in op.needs)))
    ties = f'ties="{op.ties[0]}", ' if op.ties else ""
    ties_value = "ties" if op.ties else "None"
    corrected = op.kind in ("var", "std")
    correction = "correction=1, " if corrected else ""
    correction_value = "correction" if corrected else "1"
    match op.family, op.direction:
        case "scan", "forward":
            return (
                "x, axis=-1, *, reverse=False, out=None",
                'run_scan(op, {"x": x}, axis, reverse, None, out)',
            )
        case "scan", "backward":
            return (
                f"dy, *, {saves}{ties}axis=-1, reverse=False, out=None",
                f"run_scan(op, {{{held}}}, axis, reverse, {ties_value}, out)",
            )
        case "reduce", "forward":
            return (
                f"x, axis=None, *, keepdims=False, {correction}out=None",
                f"run_reduce(op, x, axis, keepdims, {correction_value}, out)",
            )
        case "reduce", "backward":
            shape = "" if "x" in op.needs else "shape, "
            given = "None" if "x" in op.needs else "shape"
            return (
                f"dy, *, {saves}{shape}axis=None, {correction}{ties}out=None",
                f"run_reduce_backward(op, {{{held}}}, {given}, axis, {correction_value}, "
                f"{ties_value}, out)",
            )
        case "softmax", "forward":
            return "x, axis=-1, *, out=None", 'run_softmax(op, {"x": x}, axis, out)'
        case "softmax", "backward":
            return "dy, *, y, axis=-1, out=None", f"run_softmax(op, {{{held}}}, axis, out)"
        case "lerp", "forward":
            return "a, b, weight, *, out=None", "run_lerp(op, a, b, weight, out)"
        case "lerp", "backward":
            return "dy, *, weight, out=None", "run_lerp_backward(op, dy, weight, out)"
        case "segment", "forward":
            return (
                'input, segment_ids, num_segments, *, sorted=False, out_of_range="raise", out=None',
                "run_segment(op, input, segment_ids, num_segments, sorted, out_of_range, out)",
            )
        case "segment", "backward":
            return (
                'd_output, segment_ids, *, out_of_range="raise", out=None',
                "run_segment_backward(op, d_output, segment_ids, out_of_range, out)",
            )
    raise AssertionError(op)


def make_function(op: Op) -> Callable[..., Any]:
    """The function of an op, with the signature of its family."""
    from .docstrings import docstring

    parameters, body = _signature(op)
    made: dict[str, Any] = {}
    exec(f"def {op.name}({parameters}):\n    return {body}", {**globals(), "op": op}, made)
    function: Callable[..., Any] = made[op.name]
    function.__module__ = "pullback"
    function.__doc__ = docstring(op)
    return function


FUNCTIONS: dict[str, Callable[..., Any]] = {op.name: make_function(op) for op in catalog()}
