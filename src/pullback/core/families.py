"""The families, and the descriptors and plans that go by the name of one.

A descriptor holds a kind, sizes, an element type and parameters. Which of them, in which order and
under which names is said here; what a parameter is, its row says. Ops of a family without a row
here have the descriptor and plan that serve any op.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from .catalog import catalog, kinds
from .declare import Op, Role
from .vocabulary import OpCategory, Word

CATEGORIES: Mapping[str, OpCategory] = MappingProxyType(
    {
        "scan": OpCategory.SCAN,
        "reduce": OpCategory.REDUCTION,
        "softmax": OpCategory.SOFTMAX,
        "lerp": OpCategory.BINARY_ELEMENTWISE,
        "segment": OpCategory.SEGMENT,
        "recurrence": OpCategory.RECURRENCE,
        "loss": OpCategory.LOSS,
    }
)


def category_of(op: Op) -> OpCategory:
    """The category of an op."""
    return CATEGORIES.get(op.family, OpCategory.OTHER)


def _enum(name: str, members: Iterable[str], doc: str) -> type[Word]:
    made: type[Word] = Word(name, {m.upper(): m for m in members}, module=__name__)  # type: ignore[call-overload]
    made.__doc__ = doc
    return made


# A segment sum by unsorted ids goes by a name of its own among kinds.
KNOWN_AS: Mapping[str, str] = MappingProxyType({"unsorted_segment_sum": "segment_sum"})

ScanKind = _enum("ScanKind", kinds("scan"), "Prefix scans along one axis.")
ReduceKind = _enum("ReduceKind", kinds("reduce"), "Reductions over one or more axes.")
SoftmaxKind = _enum("SoftmaxKind", kinds("softmax"), "Normalisations along one axis.")
BinaryKind = _enum("BinaryKind", kinds("lerp"), "Binary elementwise ops with a weight.")
SegmentKind = _enum(
    "SegmentKind", (*kinds("segment"), *KNOWN_AS), "Ops on rows grouped into segments by ids."
)


@dataclass(frozen=True)
class Face:
    """A descriptor and a plan, each forward and backward, with names of their own.

    Attributes
    ----------
    stem
        ``"Scan"`` is that of ScanDescriptor, ScanBackwardPlan and so on.
    family
        Whose ops they serve.
    kinds
        The enum of those ops.
    text
        What they are, as one would go on after "a" or "the backward of a".
    fields
        The fields in order, each with what it is: kind, shape, rows, columns, segments, element, or
        else a parameter. The backward or the forward has those that its ops have.
    kind
        The only kind, where there is no choice.
    fixed
        Parameters that are no choice either.
    shapes
        Methods that tell the shape of operands of a role.
    example
        An expression and its value, for the docstring of the forward.
    """

    stem: str
    family: str
    kinds: type[Word]
    text: str
    fields: Mapping[str, str]
    kind: str = ""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    shapes: Mapping[str, Role] = field(default_factory=dict)
    example: tuple[str, str] | None = None

    def ops(self, direction: str) -> list[Op]:
        """The ops of a direction."""
        own = self.kind and KNOWN_AS.get(self.kind, self.kind)
        return [
            op
            for op in catalog()
            if (op.family, op.direction) == (self.family, direction) and own in ("", op.kind)
        ]


_TABLE = {"num_inputs": "rows", "embedding_dim": "columns", "num_segments": "segments"}
_TABLE_SHAPES = {"input_shape": Role.ELEMENT, "ids_shape": Role.IDS, "output_shape": Role.ROW}
_SUM = {**_TABLE, "element": "element", "out_of_range": "out_of_range"}

FACES = (
    Face(
        "Scan",
        "scan",
        ScanKind,
        "scan along one axis",
        {
            "kind": "kind",
            "input_shape": "shape",
            "scan_axis": "axis",
            "reverse": "reverse",
            "element": "element",
            "ties": "ties",
        },
        example=(
            'ScanDescriptor("cumsum", (2, 3)) == ScanDescriptor("Cumsum", [2, 3], scan_axis=1)',
            "True",
        ),
    ),
    Face(
        "Reduce",
        "reduce",
        ReduceKind,
        "reduction over one axis, several or all",
        {
            "kind": "kind",
            "input_shape": "shape",
            "reduce_axis": "axis",
            "element": "element",
            "correction": "correction",
            "ties": "ties",
        },
        shapes={"y_shape": Role.ROW, "dy_shape": Role.ROW},
        example=('ReduceDescriptor("sum", (2, 3, 4), reduce_axis=(-1, 0)).reduce_axis', "(0, 2)"),
    ),
    Face(
        "Softmax",
        "softmax",
        SoftmaxKind,
        "normalisation along one axis",
        {"kind": "kind", "input_shape": "shape", "softmax_axis": "axis", "element": "element"},
    ),
    Face(
        "BinaryParam",
        "lerp",
        BinaryKind,
        "binary elementwise op with a constant weight",
        {"kind": "kind", "shape": "shape", "element": "element", "param": "weight"},
    ),
    Face(
        "SegmentSum",
        "segment",
        SegmentKind,
        "sum of rows by id, the ids in ascending order",
        _SUM,
        kind="segment_sum",
        fixed={"sorted": True},
        shapes=_TABLE_SHAPES,
    ),
    Face(
        "UnsortedSegmentSum",
        "segment",
        SegmentKind,
        "sum of rows by id, the ids in any order",
        _SUM,
        kind="unsorted_segment_sum",
        fixed={"sorted": False},
        shapes=_TABLE_SHAPES,
    ),
    Face(
        "Segment",
        "segment",
        SegmentKind,
        "segment op on rows grouped by ids or offsets",
        {"kind": "kind", **_TABLE, "element": "element"},
        shapes=_TABLE_SHAPES,
    ),
)
