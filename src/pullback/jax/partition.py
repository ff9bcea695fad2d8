"""Partitioning rules: what XLA does with a call whose operands are sharded over devices.

Dimensions that an op does not work along stay sharded, and every device runs the op on its shard.
A sharded op axis becomes :mod:`.pieces`: local work and gathers of states, never of the tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from ..core.declare import Operand, Role
from ..core.problem import Problem
from ..errors import UnsupportedError
from .pairs import Pair

try:
    # The primitives that are told the devices when they are lowered, and whether collectives note
    # what varies over devices: the program of a partitioned op has no mesh to note it of.
    from jax._src.config import _check_vma
    from jax._src.dispatch import prim_requires_devices_during_lowering as _devices
    from jax.experimental.custom_partitioning import SdyShardingRule, custom_partitioning

    _told: set[Any] | None = _devices
except ImportError:  # another JAX: calls on several devices are not partitioned
    _told = None

Shape = tuple[int, ...]


def tell_devices(primitive: Any) -> None:
    """Have a primitive lowered with the devices known, if this JAX can."""
    if _told is not None:
        _told.add(primitive)


def is_partitioned(context: Any) -> bool:
    """Whether what is lowered in a context runs on several devices and XLA cuts it."""
    if _told is None:
        return False
    axes = context.axis_context
    manual = getattr(axes, "manual_axes", None)
    if manual is not None:
        return set(manual) != set(axes.mesh.axis_names) and axes.mesh.size > 1
    devices = getattr(axes, "device_assignment", None)
    return devices is not None and len(devices) > 1


@lru_cache(4096)
def partitioned(
    pair: Pair, direction: str, inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> Callable[..., Any]:
    """The call as a function that XLA may partition."""
    from .primitives import run_p

    rules = Rules(pair, direction, inputs, outputs)

    def call(*operands: Any) -> Any:
        how = {"direction": direction, "inputs": inputs, "outputs": outputs}
        return tuple(run_p.bind(*operands, pair=pair, **how))

    function = custom_partitioning(call)
    function.def_partition(
        rules.partition,
        infer_sharding_from_operands=rules.infer,
        sharding_rule=rules.factors,
    )
    return function


@lru_cache(4096)
def _resized(pair: Pair, local: Shape) -> Pair:
    return pair.grown(lambda problem: replace(problem, shape=local))


class Rules:
    """How the operands and results of a call lie on devices."""

    def __init__(
        self, pair: Pair, direction: str, inputs: tuple[str, ...], outputs: tuple[str, ...]
    ):
        self.pair, self.direction, self.inputs, self.outputs = pair, direction, inputs, outputs
        self.problem: Problem = pair.problem(direction, inputs)
        works_along = self.problem.is_segmented or self.problem.op.parameter("axis") is not None
        self.axes = self.problem.axes if works_along else ()

    def _dims(self, name: str, shape: Sequence[int]) -> list[int | None]:
        """The dimension of the problem that each dimension of an array is."""
        o: Operand = self.problem.op.operand(name)
        if o.role is Role.OFFSETS:
            return [None]
        if o.role is Role.IDS:
            return [0]
        found: list[int | None] = list(range(len(self.problem.shape)))
        for d in range(len(found)):
            if (o.role is Role.ROW and d in self.axes) or shape[d] == 1 != self.problem.shape[d]:
                found[d] = None
        return found

    def typed(self, avals: Sequence[Any]) -> list[Any]:
        """Shardings of the results, where JAX keeps them in types; None where it does not."""
        mesh = getattr(getattr(avals[0], "sharding", None), "mesh", None)
        if mesh is None or mesh.empty:
            return [None] * len(self.outputs)
        where = self._where(list(zip(self.inputs, avals, strict=True)))
        found = []
        for name in self.outputs:
            dims = self._dims(name, self.problem.shape_of(name))
            spec = PartitionSpec(*(where.get(at) if at is not None else None for at in dims))
            found.append(NamedSharding(mesh, spec))
        return found

    def factors(self, mesh: Any, operands: Any, results: Any) -> Any:
        """How dimensions of operands and results belong together."""
        mapped = []
        for side, names in ((operands, self.inputs), (results, self.outputs)):
            rows = []
            for k, (kind, name) in enumerate(zip(side, names, strict=True)):
                dims = self._dims(name, kind.shape)
                own = f"{'r' if side is results else 'o'}{k}"
                rows.append(
                    tuple(f"{own}x{d}" if at is None else f"d{at}" for d, at in enumerate(dims))
                )
            mapped.append(tuple(rows))
        made: Any = SdyShardingRule
        return made(*mapped)

    def _where(self, sides: Sequence[tuple[str, Any]]) -> dict[int, tuple[Any, ...]]:
        """The mesh axes that shard each dimension of the problem."""
        found: dict[int, tuple[Any, ...]] = {}
        taken: set[Any] = set()
        order = {Role.ELEMENT: 0, Role.ROW: 1, Role.IDS: 2, Role.OFFSETS: 3}
        for name, given in sorted(sides, key=lambda s: order[self.problem.op.operand(s[0]).role]):
            sharding = given.sharding
            if sharding is None:
                continue
            if not isinstance(sharding, NamedSharding):
                raise UnsupportedError(
                    f"{self.problem.op.name}: {name} is sharded without a mesh; use NamedSharding"
                )
            spec = (*sharding.spec, *[None] * (len(given.shape) - len(sharding.spec)))
            for at, axes in zip(self._dims(name, given.shape), spec, strict=True):
                names = axes if isinstance(axes, tuple) else (axes,) if axes is not None else ()
                if at is not None and names and at not in found and not taken & set(names):
                    found[at] = names
                    taken |= set(names)
        return found

    def _shardings(self, mesh: Any, names: Sequence[str], given: Any, where: Any) -> tuple:
        return tuple(
            NamedSharding(
                mesh,
                PartitionSpec(*(where.get(at) if at is not None else None for at in dims)),
            )
            for dims in (self._dims(n, g.shape) for n, g in zip(names, given, strict=True))
        )

    def infer(self, mesh: Any, given: Any, results: Any) -> Any:
        """Where results lie, of where operands do."""
        where = self._where(list(zip(self.inputs, given, strict=True)))
        return self._shardings(mesh, self.outputs, results, where)

    def partition(self, mesh: Any, given: Any, results: Any) -> Any:
        """What runs on every device, and where operands and results lie."""
        sides = [*zip(self.inputs, given, strict=True), *zip(self.outputs, results, strict=True)]
        where = self._cuttable(self._where(sides))
        problem = self.problem
        sizes = {d: math.prod(mesh.shape[n] for n in names) for d, names in where.items()}
        local = tuple(-(-n // sizes.get(d, 1)) for d, n in enumerate(problem.shape))
        cutting = [d for d in self.axes if sizes.get(d, 1) > 1]
        run = self._cut(local, where, sizes, cutting) if cutting else self._whole(local)
        placed = (
            self._shardings(mesh, names, side, where)
            for names, side in ((self.outputs, results), (self.inputs, given))
        )
        return mesh, run, *placed

    def _cuttable(self, where: dict[int, tuple[Any, ...]]) -> dict[int, tuple[Any, ...]]:
        """The same, with no other of the op's axes sharded than the first that has a length.

        The elements of a row lie in the order of its axes, so that shards along a later one are not
        pieces of it. XLA exchanges them for some that are, which costs no device more memory.
        """
        cutting = [d for d in self.axes if d in where]
        lead = next((d for d in self.axes if self.problem.shape[d] > 1), None)
        if lead is None or cutting in ([], [lead]):
            return where
        names = tuple(n for d in cutting for n in where[d])
        return {**{d: n for d, n in where.items() if d not in cutting}, lead: names}

    def _whole(self, local: Shape) -> Callable[..., Any]:
        from .primitives import run_p

        pair = _resized(self.pair, local)

        def run(*operands: Any) -> Any:
            how = {"direction": self.direction, "inputs": self.inputs, "outputs": self.outputs}
            return tuple(run_p.bind(*operands, pair=pair, **how))

        return run

    def _cut(
        self, local: Shape, where: dict[int, tuple], sizes: dict[int, int], cutting: list[int]
    ) -> Callable[..., Any]:
        from .pieces import CutCall
        from .primitives import dtype_of
        from .segment_pieces import SegmentCutCall

        (axis,) = cutting
        dtypes = [dtype_of(self.problem, n) for n in self.outputs]
        how = (self.problem, self.inputs, self.outputs, local, where[axis], sizes[axis], dtypes)
        call = SegmentCutCall(*how) if self.problem.is_segmented else CutCall(*how, axis)

        def run(*operands: Any) -> Any:
            with _check_vma(False):
                return tuple(call.run(operands))

        return run
