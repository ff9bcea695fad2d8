"""The one table of ops. Plans, functions, tests, benchmarks, docs and integrations walk it.

Adding an op touches three places: its formula, a row here, its definition in the oracle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ..formulas import lerp, reduce, scan, segment, softmax
from ..formulas.record import Formula

DTYPES = ("f32", "f64", "f16", "bf16")
BACKENDS = ("numba", "triton")


@dataclass(frozen=True)
class Op:
    """One direction of one op.

    Attributes
    ----------
    name
        Name of the function, e.g. ``"cumprod_backward"``.
    family
        ``"scan"``, ``"reduce"``, ``"softmax"``, ``"lerp"`` or ``"segment"``.
    kind
        The op without direction, e.g. ``"cumprod"``.
    direction
        ``"forward"`` or ``"backward"``.
    formula
        The formula in one line.
    full, row
        Operands that are read: with an element for every position of the axis, and (of a
        reduction) with one for each row.
    outputs
        Operands that are written.
    records
        Formula records by ties policy; the key is None where ties mean nothing.
    needs
        Tensors saved by the forward pass that a backward wants.
    edges
        What happens at zeros, ties, infinities and the like.
    """

    name: str
    family: str
    kind: str
    direction: str
    formula: str
    full: tuple[str, ...]
    outputs: tuple[str, ...]
    records: Mapping[str | None, Formula] = field(repr=False, hash=False)
    row: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset()
    edges: str = ""
    dtypes: tuple[str, ...] = DTYPES
    backends: tuple[str, ...] = BACKENDS

    @property
    def ties(self) -> tuple[str, ...]:
        """The ties policies, the default first; empty where ties mean nothing."""
        return tuple(t for t in self.records if t is not None)

    @property
    def inputs(self) -> tuple[str, ...]:
        """All operands that are read."""
        return self.full + self.row

    def record(self, ties: str | None = None) -> Formula:
        """The formula record for a ties policy (the default one where None)."""
        return self.records[ties if self.ties and ties else next(iter(self.records))]


def _by_ties(records: Formula | Mapping[str, Formula]) -> dict[str | None, Formula]:
    return dict(records.items()) if isinstance(records, Mapping) else {None: records}


def _scan(
    kind: str,
    formula: str,
    backward: str,
    edges: str,
    record: Formula,
    backward_record: Formula | Mapping[str, Formula],
    saves: tuple[str, ...] = (),
) -> Iterator[Op]:
    yield Op(kind, "scan", kind, "forward", formula, ("x",), ("y",), {None: record}, edges=edges)
    yield Op(
        f"{kind}_backward",
        "scan",
        kind,
        "backward",
        backward,
        ("dy", *saves),
        ("dx",),
        _by_ties(backward_record),
        needs=frozenset(saves),
        edges=edges,
    )


def _reduce(
    kind: str,
    formula: str,
    backward: str,
    edges: str,
    record: Formula,
    backward_record: Formula | Mapping[str, Formula],
    saves: tuple[str, ...] = (),
) -> Iterator[Op]:
    yield Op(kind, "reduce", kind, "forward", formula, ("x",), ("y",), {None: record}, edges=edges)
    yield Op(
        f"{kind}_backward",
        "reduce",
        kind,
        "backward",
        backward,
        ("x",) if "x" in saves else (),
        ("dx",),
        _by_ties(backward_record),
        row=("dy", "y") if "y" in saves else ("dy",),
        needs=frozenset(saves),
        edges=edges,
    )


def _softmax(
    kind: str, formula: str, backward: str, edges: str, record: Formula, backward_record: Formula
) -> Iterator[Op]:
    yield Op(kind, "softmax", kind, "forward", formula, ("x",), ("y",), {None: record}, edges=edges)
    yield Op(
        f"{kind}_backward",
        "softmax",
        kind,
        "backward",
        backward,
        ("dy", "y"),
        ("dx",),
        {None: backward_record},
        needs=frozenset({"y"}),
        edges=edges,
    )


_EXTREME_SCAN = "ties 'first' or 'last'; the first NaN wins from there on"
_EXTREME = "ties 'split', 'all', 'first' or 'last'; NaN equals NaN"

_ROWS = (
    *_scan(
        "cumsum",
        "y[j] = Σ_{i≤j} x[i]",
        "dx[j] = Σ_{i≥j} dy[i]",
        "",
        scan.CUMSUM,
        scan.CUMSUM_BACKWARD,
    ),
    *_scan(
        "cumprod",
        "y[j] = Π_{i≤j} x[i]",
        "dx[j] = P[j]·R[j], P[j] = Π_{i<j} x[i], R[j] = dy[j] + x[j+1]·R[j+1]",
        "exact at any number of zeros; no overflow inside where the result has none",
        scan.CUMPROD,
        scan.CUMPROD_BACKWARD,
        ("x", "y"),
    ),
    *_scan(
        "cummax",
        "y[j] = max_{i≤j} x[i]",
        "dx[j] = Σ dy[i] over the i whose running maximum sits at j",
        _EXTREME_SCAN,
        scan.CUMMAX,
        scan.CUMMAX_BACKWARD,
        ("x",),
    ),
    *_scan(
        "cummin",
        "y[j] = min_{i≤j} x[i]",
        "dx[j] = Σ dy[i] over the i whose running minimum sits at j",
        _EXTREME_SCAN,
        scan.CUMMIN,
        scan.CUMMIN_BACKWARD,
        ("x",),
    ),
    *_scan(
        "logcumsumexp",
        "y[j] = log Σ_{i≤j} exp(x[i])",
        "dx[k] = exp(x[k]−y[k])·S[k], S[k] = dy[k] + exp(y[k]−y[k+1])·S[k+1]",
        "every exponent ≤ 0; x = −inf gives 0; a −inf prefix gives 0, never NaN",
        scan.LOGCUMSUMEXP,
        scan.LOGCUMSUMEXP_BACKWARD,
        ("x", "y"),
    ),
    *_reduce("sum", "y = Σ x", "dx = dy", "empty: 0", reduce.SUM, reduce.SUM_BACKWARD),
    *_reduce(
        "mean",
        "y = Σ x / n",
        "dx = dy / n",
        "empty: NaN; divided in f64 before the cast",
        reduce.MEAN,
        reduce.MEAN_BACKWARD,
    ),
    *_reduce(
        "max",
        "y = max x",
        "dx = dy where x = y",
        f"{_EXTREME}; empty: InvalidProblemError",
        reduce.MAX,
        reduce.EXTREME_BACKWARD,
        ("x", "y"),
    ),
    *_reduce(
        "min",
        "y = min x",
        "dx = dy where x = y",
        f"{_EXTREME}; empty: InvalidProblemError",
        reduce.MIN,
        reduce.EXTREME_BACKWARD,
        ("x", "y"),
    ),
    *_reduce(
        "prod",
        "y = Π x",
        "dx[j] = dy·Π_{i≠j} x[i]",
        "exact with any number of zeros, no division by x; empty: 1",
        reduce.PROD,
        reduce.PROD_BACKWARD,
        ("x", "y"),
    ),
    *_reduce(
        "norm2",
        "y = √Σ x²",
        "dx = dy·x/y",
        "y = 0 gives 0; no overflow or underflow inside; empty: 0",
        reduce.NORM2,
        reduce.NORM2_BACKWARD,
        ("x", "y"),
    ),
    *_reduce(
        "logsumexp",
        "y = log Σ exp(x)",
        "dx = dy·exp(x−y)",
        "y = −inf gives 0; empty: −inf",
        reduce.LOGSUMEXP,
        reduce.LOGSUMEXP_BACKWARD,
        ("x", "y"),
    ),
    *_reduce(
        "var",
        "y = Σ (x−mean)² / m, m = max(n−correction, 1)",
        "dx = dy·2(x−mean)/m",
        "no overflow or underflow inside; empty: NaN",
        reduce.VAR,
        reduce.VAR_BACKWARD,
        ("x",),
    ),
    *_reduce(
        "std",
        "y = √(Σ (x−mean)² / m), m = max(n−correction, 1)",
        "dx = dy·(x−mean)/(m·y)",
        "y = 0 gives 0; no overflow or underflow inside; empty: NaN",
        reduce.STD,
        reduce.STD_BACKWARD,
        ("x", "y"),
    ),
    *_softmax(
        "softmax",
        "y = exp(x) / Σ exp(x)",
        "dx = y·(dy − Σ y·dy)",
        "",
        softmax.SOFTMAX,
        softmax.SOFTMAX_BACKWARD,
    ),
    *_softmax(
        "log_softmax",
        "y = x − log Σ exp(x)",
        "dx = dy − exp(y)·Σ dy",
        "y = −inf: exp(y) is 0",
        softmax.LOG_SOFTMAX,
        softmax.LOG_SOFTMAX_BACKWARD,
    ),
    Op(
        "lerp",
        "lerp",
        "lerp",
        "forward",
        "y = a + w·(b−a)",
        ("a", "b"),
        ("y",),
        {None: lerp.LERP},
        edges="the weight is a constant; NaN and inf propagate",
    ),
    Op(
        "lerp_backward",
        "lerp",
        "lerp",
        "backward",
        "da = (1−w)·dy, db = w·dy",
        ("dy",),
        ("da", "db"),
        {None: lerp.LERP_BACKWARD},
        edges="the weight is a constant; NaN and inf propagate",
    ),
    Op(
        "segment_sum",
        "segment",
        "segment_sum",
        "forward",
        "output[s] = Σ input[n] over ids[n] = s",
        ("input", "segment_ids"),
        ("output",),
        {None: segment.SEGMENT_SUM},
        edges="an id out of range raises, or drops its row",
    ),
    Op(
        "segment_sum_backward",
        "segment",
        "segment_sum",
        "backward",
        "d_input[n] = d_output[ids[n]]",
        ("d_output", "segment_ids"),
        ("d_input",),
        {None: segment.SEGMENT_SUM_BACKWARD},
        edges="an id out of range raises, or gives zeros",
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
