"""The one table of ops. Plans, functions, tests, benchmarks, docs and integrations walk it.

Adding an op touches three places: its formula, a row here, its definition in the oracle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from ..formulas import lerp, reduce, scan, softmax
from ..formulas.record import Formula, names_read
from . import parse
from .declare import Op, Operand, Parameter, Role, Type

_CORRECTION = Parameter("correction", parse.correction, 1, is_data=True)
_OUT_OF_RANGE = Parameter("out_of_range", parse.out_of_range, "raise")


def _ties(records: Formula | Mapping[str, Formula]) -> tuple[Parameter, ...]:
    """The parameter that selects among records by ties policy, the default first."""
    if not isinstance(records, Mapping):
        return ()
    return (Parameter("ties", parse.ties, next(iter(records)), tuple(records)),)


def _by_ties(records: Formula | Mapping[str, Formula]) -> Callable[..., Formula]:
    if isinstance(records, Mapping):
        return lambda ties: records[ties]
    return lambda: records


def _elements(*names: str) -> tuple[Operand, ...]:
    return tuple(Operand(name) for name in names)


def _rows(*names: str) -> tuple[Operand, ...]:
    return tuple(Operand(name, Role.ROW) for name in names)


def declare_scan(
    kind: str,
    formula: str,
    backward: str,
    edges: str,
    record: Formula,
    backward_record: Formula | Mapping[str, Formula],
    saves: tuple[str, ...] = (),
) -> Iterator[Op]:
    """A scan and its backward, which reads ``saves``."""
    shared = (
        Parameter("axis", parse.axis, -1, is_positional=True),
        Parameter("reverse", parse.flag, False),
    )
    yield Op(
        kind,
        "scan",
        kind,
        "forward",
        formula,
        _elements("x"),
        _elements("y"),
        _by_ties(record),
        shared,
        edges=edges,
    )
    yield Op(
        f"{kind}_backward",
        "scan",
        kind,
        "backward",
        backward,
        _elements("dy", *saves),
        _elements("dx"),
        _by_ties(backward_record),
        (*_ties(backward_record), *shared),
        frozenset(saves),
        edges,
    )


def declare_reduce(
    kind: str,
    formula: str,
    backward: str,
    edges: str,
    record: Formula,
    backward_record: Formula | Mapping[str, Formula],
    saves: tuple[str, ...] = (),
    refuses_empty: bool = False,
) -> Iterator[Op]:
    """A reduction and its backward, which reads ``saves``."""
    axis = Parameter("axis", parse.axes, None, is_positional=True)
    corrected = (_CORRECTION,) if "correction" in names_read(record) else ()
    yield Op(
        kind,
        "reduce",
        kind,
        "forward",
        formula,
        _elements("x"),
        _rows("y"),
        _by_ties(record),
        (axis, Parameter("keepdims", parse.flag, False), *corrected),
        edges=edges,
        refuses_empty=refuses_empty,
    )
    full = ("x",) if "x" in saves else ()
    shape = () if full else (Parameter("shape", parse.shape),)
    yield Op(
        f"{kind}_backward",
        "reduce",
        kind,
        "backward",
        backward,
        (
            *_rows("dy"),
            *_elements(*full),
            *_rows(*(n for n in saves if n not in full)),
        ),
        _elements("dx"),
        _by_ties(backward_record),
        (*shape, axis, *corrected, *_ties(backward_record)),
        frozenset(saves),
        edges,
    )


def declare_softmax(
    kind: str, formula: str, backward: str, edges: str, record: Formula, backward_record: Formula
) -> Iterator[Op]:
    """A normalisation along one axis and its backward."""
    shared = (Parameter("axis", parse.axis, -1, is_positional=True),)
    yield Op(
        kind,
        "softmax",
        kind,
        "forward",
        formula,
        _elements("x"),
        _elements("y"),
        _by_ties(record),
        shared,
        edges=edges,
    )
    yield Op(
        f"{kind}_backward",
        "softmax",
        kind,
        "backward",
        backward,
        _elements("dy", "y"),
        _elements("dx"),
        _by_ties(backward_record),
        shared,
        frozenset({"y"}),
        edges,
    )


def declare_lerp(kind: str, formula: str, backward: str, edges: str) -> Iterator[Op]:
    """An element-wise op of two operands and a weight, and its backward."""
    weight = (Parameter("weight", parse.real, is_data=True, is_positional=True),)
    yield Op(
        kind,
        "lerp",
        kind,
        "forward",
        formula,
        _elements("a", "b"),
        _elements("y"),
        _by_ties(lerp.LERP),
        weight,
        edges=edges,
    )
    yield Op(
        f"{kind}_backward",
        "lerp",
        kind,
        "backward",
        backward,
        _elements("dy"),
        _elements("da", "db"),
        _by_ties(lerp.LERP_BACKWARD),
        weight,
        edges=edges,
    )


def declare_segment(
    kind: str,
    formula: str,
    backward: str,
    edges: tuple[str, str],
    record: Formula,
    backward_record: Formula | Mapping[str, Formula],
    saves: tuple[str, ...] = (),
) -> Iterator[Op]:
    """An op on rows that ids cut into segments, and its backward, which reads ``saves``."""
    ids = Operand("segment_ids", Role.IDS, Type.INDEX)
    rows = Operand("input", known_as="x")
    result = Operand("output", Role.ROW, known_as="y")
    yield Op(
        kind,
        "segment",
        kind,
        "forward",
        formula,
        (rows, ids),
        (result,),
        _by_ties(record),
        (
            Parameter("num_segments", parse.count, is_positional=True),
            Parameter("sorted", parse.flag, False),
            _OUT_OF_RANGE,
        ),
        edges=edges[0],
    )
    yield Op(
        f"{kind}_backward",
        "segment",
        kind,
        "backward",
        backward,
        (
            Operand("d_output", Role.ROW, known_as="dy"),
            ids,
            *(o for o in (rows, result) if o.name in saves),
        ),
        (Operand("d_input", known_as="dx"),),
        _by_ties(backward_record),
        (*_ties(backward_record), _OUT_OF_RANGE),
        frozenset(saves),
        edges[1],
    )


_EXTREME_SCAN = "ties 'first' or 'last'; the first NaN wins from there on"
_EXTREME = "ties 'split', 'all', 'first' or 'last'; NaN equals NaN"

_ROWS = (
    *declare_scan(
        "cumsum",
        "y[j] = Σ_{i≤j} x[i]",
        "dx[j] = Σ_{i≥j} dy[i]",
        "",
        scan.CUMSUM,
        scan.CUMSUM_BACKWARD,
    ),
    *declare_scan(
        "cumprod",
        "y[j] = Π_{i≤j} x[i]",
        "dx[j] = P[j]·R[j], P[j] = Π_{i<j} x[i], R[j] = dy[j] + x[j+1]·R[j+1]",
        "exact at any number of zeros; no overflow inside where the result has none",
        scan.CUMPROD,
        scan.CUMPROD_BACKWARD,
        ("x", "y"),
    ),
    *declare_scan(
        "cummax",
        "y[j] = max_{i≤j} x[i]",
        "dx[j] = Σ dy[i] over the i whose running maximum sits at j",
        _EXTREME_SCAN,
        scan.CUMMAX,
        scan.CUMMAX_BACKWARD,
        ("x",),
    ),
    *declare_scan(
        "cummin",
        "y[j] = min_{i≤j} x[i]",
        "dx[j] = Σ dy[i] over the i whose running minimum sits at j",
        _EXTREME_SCAN,
        scan.CUMMIN,
        scan.CUMMIN_BACKWARD,
        ("x",),
    ),
    *declare_scan(
        "logcumsumexp",
        "y[j] = log Σ_{i≤j} exp(x[i])",
        "dx[k] = exp(x[k]−y[k])·S[k], S[k] = dy[k] + exp(y[k]−y[k+1])·S[k+1]",
        "every exponent ≤ 0; x = −inf gives 0; a −inf prefix gives 0, never NaN",
        scan.LOGCUMSUMEXP,
        scan.LOGCUMSUMEXP_BACKWARD,
        ("x", "y"),
    ),
    *declare_reduce("sum", "y = Σ x", "dx = dy", "empty: 0", reduce.SUM, reduce.SUM_BACKWARD),
    *declare_reduce(
        "mean",
        "y = Σ x / n",
        "dx = dy / n",
        "empty: NaN; divided in f64 before the cast",
        reduce.MEAN,
        reduce.MEAN_BACKWARD,
    ),
    *declare_reduce(
        "max",
        "y = max x",
        "dx = dy where x = y",
        f"{_EXTREME}; empty: InvalidProblemError",
        reduce.MAX,
        reduce.EXTREME_BACKWARD,
        ("x", "y"),
        refuses_empty=True,
    ),
    *declare_reduce(
        "min",
        "y = min x",
        "dx = dy where x = y",
        f"{_EXTREME}; empty: InvalidProblemError",
        reduce.MIN,
        reduce.EXTREME_BACKWARD,
        ("x", "y"),
        refuses_empty=True,
    ),
    *declare_reduce(
        "prod",
        "y = Π x",
        "dx[j] = dy·Π_{i≠j} x[i]",
        "exact with any number of zeros, no division by x; empty: 1",
        reduce.PROD,
        reduce.PROD_BACKWARD,
        ("x", "y"),
    ),
    *declare_reduce(
        "norm2",
        "y = √Σ x²",
        "dx = dy·x/y",
        "y = 0 gives 0; no overflow or underflow inside; empty: 0",
        reduce.NORM2,
        reduce.NORM2_BACKWARD,
        ("x", "y"),
    ),
    *declare_reduce(
        "logsumexp",
        "y = log Σ exp(x)",
        "dx = dy·exp(x−y)",
        "y = −inf gives 0; empty: −inf",
        reduce.LOGSUMEXP,
        reduce.LOGSUMEXP_BACKWARD,
        ("x", "y"),
    ),
    *declare_reduce(
        "var",
        "y = Σ (x−mean)² / m, m = max(n−correction, 1)",
        "dx = dy·2(x−mean)/m",
        "no overflow or underflow inside; empty: NaN",
        reduce.VAR,
        reduce.VAR_BACKWARD,
        ("x",),
    ),
    *declare_reduce(
        "std",
        "y = √(Σ (x−mean)² / m), m = max(n−correction, 1)",
        "dx = dy·(x−mean)/(m·y)",
        "y = 0 gives 0; no overflow or underflow inside; empty: NaN",
        reduce.STD,
        reduce.STD_BACKWARD,
        ("x", "y"),
    ),
    *declare_softmax(
        "softmax",
        "y = exp(x) / Σ exp(x)",
        "dx = y·(dy − Σ y·dy)",
        "",
        softmax.SOFTMAX,
        softmax.SOFTMAX_BACKWARD,
    ),
    *declare_softmax(
        "log_softmax",
        "y = x − log Σ exp(x)",
        "dx = dy − exp(y)·Σ dy",
        "y = −inf: exp(y) is 0",
        softmax.LOG_SOFTMAX,
        softmax.LOG_SOFTMAX_BACKWARD,
    ),
    *declare_lerp(
        "lerp",
        "y = a + w·(b−a)",
        "da = (1−w)·dy, db = w·dy",
        "the weight is a constant; NaN and inf propagate",
    ),
    *declare_segment(
        "segment_sum",
        "output[s] = Σ input[n] over ids[n] = s",
        "d_input[n] = d_output[ids[n]]",
        (
            "an id out of range raises, or drops its row",
            "an id out of range raises, or gives zeros",
        ),
        reduce.SUM,
        reduce.SUM_BACKWARD,
    ),
)

_OPS: dict[str, Op] = {op.name: op for op in _ROWS}
OPS: Mapping[str, Op] = MappingProxyType(_OPS)


def catalog() -> tuple[Op, ...]:
    """Every op, forward beside backward.

    Examples
    --------
    >>> import pullback as pb
    >>> [op.name for op in pb.catalog() if op.family == "softmax"]
    ['softmax', 'softmax_backward', 'log_softmax', 'log_softmax_backward']
    """
    return tuple(_OPS.values())


def kinds(family: str) -> tuple[str, ...]:
    """The kinds of a family."""
    return tuple(dict.fromkeys(op.kind for op in _OPS.values() if op.family == family))


def find(kind: str, direction: str) -> Op:
    """The op of a kind and direction."""
    return _OPS[kind if direction == "forward" else f"{kind}_backward"]


def register(op: Op) -> None:
    """Add a row at run time; functions and plans find it like any other."""
    if op.name in _OPS:
        raise ValueError(f"an op named {op.name!r} is already in the catalog")
    _OPS[op.name] = op


def unregister(name: str) -> None:
    """Take a row that was added at run time out again."""
    del _OPS[name]
