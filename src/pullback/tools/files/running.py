"""The running of a job whose inputs are open and checked: block by block, within the memory."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ...core.declare import Role
from ...cut import warm
from ...errors import InvalidProblemError, PullbackError
from ...formulas.record import repeats
from ...memory.view import DTYPES
from ...threads import get_num_threads
from ..bench.warm import warm_up
from ..case import Case
from . import files, zarrs
from .blocks import Cut, cut, folds, gathers, pieces, restored_cut
from .identity import identity_of
from .long_rows import LongRows, fold_segments
from .operands import Operands
from .partial import Note, Progress
from .publish import Publication
from .resident import available_bytes, peak_bytes, resident_bytes
from .segments import SegmentCut, check_ids, cut_segments, pick_rows, restored_segments
from .tables import TableCut, TableRun, column_bytes, cut_columns, restored_table
from .targets import note_path

if TYPE_CHECKING:
    from .job import Job

# The share of the memory beyond what the process itself takes that operands may occupy; the rest is
# for page tables, progress and the allocator.
OPERAND_SHARE = 0.6
LARGEST_BLOCK = 1 << 28
# Without a limit, a row that is longer than a block is still read as a whole up to this.
LARGEST_ROW = 1 << 30
LEAST_ROOM = 24 << 20
# Of the elements that rows have in memory, what the states of their blocks take at most: five
# float64 for 512 elements of two bytes, in front of a block and behind it.
STATES_SHARE = 0.08
# Of the room for a block of segments, what is read of the table at a time.
PICKING_SHARE = 0.2

_ELEMENTS = {dtype: name for name, dtype in DTYPES.items()}

Arrays = dict[str, np.ndarray]
Plan = Cut | SegmentCut | TableCut


class Interrupted(KeyboardInterrupt):
    """An interrupt, with what became of the work."""


@dataclass(frozen=True)
class Summary:
    """What a run did; ``discarded`` are blocks of an earlier run that it did not make use of.

    ``moved`` are the bytes of the blocks that it did itself, ``bytes`` those of all.
    """

    bytes: int
    moved: int
    seconds: float
    blocks: int
    resumed: int
    discarded: int
    peak: int


@dataclass(frozen=True)
class Step:
    """One block: its bytes, the parts of the outputs it writes, and what runs it.

    ``run`` is given the bytes of the blocks before, and gives a checksum of what was written.
    """

    bytes: int
    outputs: Arrays
    run: Callable[[int], int]


class Run:
    """The running of a job whose inputs are open and checked.

    Parameters
    ----------
    job, case
        What to do.
    stored
        The inputs as they lie in their files.
    arrays
        The inputs in the shapes the plan wants.
    progress
        Called with the bytes done and in all.
    """

    def __init__(
        self,
        job: Job,
        case: Case,
        stored: Mapping[str, files.AnyStored],
        arrays: Arrays,
        progress: Callable[[int, int], None] | None,
    ):
        self.job, self.case, self.arrays = job, case, arrays
        self.operands = Operands(stored)
        self.progress = progress or (lambda done, total: None)
        self.threads = job.threads or get_num_threads()
        self.room = self.taken = 0
        self.names = [n for n in case.outputs if n in job.outputs]
        by_role = {case.role(n): n for n in case.reads}
        self.ids = by_role.get(Role.IDS, "")
        self.table = by_role.get(Role.ROW if gathers(case) else Role.ELEMENT, "")
        self.gathers = gathers(case)
        self.publication = Publication({n: job.outputs[n] for n in self.names})
        self.total = sum(a.nbytes for a in arrays.values()) + sum(
            math.prod(case.shape_of(n)) * case.dtype_of(n).itemsize for n in self.names
        )

    def go(
        self, shapes: Mapping[str, tuple[int, ...]], resume: bool, force: bool, start: float
    ) -> Summary:
        """Run to the end, or keep what is finished and raise."""
        forms = {n: self._form(n, shapes[n]) for n in self.names}
        note = Note(
            note_path(self.publication.targets[0]),
            self.publication.parts.values(),
            identity_of(self.job, self.operands),
        )
        earlier = note.find() if resume else None
        discarded = 0 if resume else note.count_kept()
        self._check_ids()
        self.room = self._room()
        # The room differs from run to run, so that the same job may be cut otherwise now.
        plan = self._restored(note, earlier) if earlier else self._cut()
        in_pieces = isinstance(plan, TableCut) or (isinstance(plan, Cut) and not plan.fits)
        if self.job.memory is not None and in_pieces:
            self._prepare_pieces()
            self.room = self._room_beside(0)
            plan = plan if earlier else self._cut()
        done = earlier or Progress(dataclasses.asdict(plan))
        resumed = len(done.blocks)
        with ExitStack() as stack:
            if earlier is None:
                self._begin(note, forms, done)
            outputs = self._open_outputs(note, forms, stack)
            steps = self._steps(plan, outputs)
            if earlier is not None:
                self._verify(note, steps, done)
            try:
                moved = self._blocks(steps, note, done)
                self.operands.check_chunks()
                self.publication.publish(self.operands, note, force)
            except KeyboardInterrupt:
                if not self.publication.done:  # or else it comes too late
                    kept = self._keep(note, done, plan, "the same command with --resume")
                    raise Interrupted(kept) from None
            except OSError as error:
                kept = self._keep(note, done, plan, "the same command with --resume")
                # The user knows the name of the output, not that of the partial file.
                target = str(self.publication.targets[0])
                raise OSError(error.errno, f"{error.strerror}; {kept}", target) from None
            except PullbackError as error:
                kept = self._keep(note, done, plan, "when that is put right, --resume")
                raise InvalidProblemError(f"{error}; {kept}") from None
            except BaseException:
                self._keep(note, done, plan, "--resume")
                raise
        seconds = time.monotonic() - start
        return Summary(self.total, moved, seconds, plan.count, resumed, discarded, peak_bytes())

    def _form(self, name: str, shape: tuple[int, ...]) -> files.AnyForm:
        """What the file of an output is made of."""
        path, kind = self.job.outputs[name], _ELEMENTS[self.case.dtype_of(name)]
        if zarrs.is_zarr(path):
            inputs = self.operands.stored.values()
            return zarrs.form_like(inputs, shape, kind, self.job.zarr_format)
        return files.Form(shape, kind, files.is_raw(path))

    def _begin(self, note: Note, forms: Mapping[str, files.AnyForm], done: Progress) -> None:
        """Make the partial files and the first note, or leave nothing."""
        note.discard()
        try:
            for name, part in self.publication.parts.items():
                forms[name].create(part)
            note.save(done, now=True)
        except OSError as error:
            note.discard()
            raise OSError(error.errno, error.strerror, str(self.publication.targets[0])) from None
        except BaseException:
            note.discard()
            raise

    def _open_outputs(
        self, note: Note, forms: Mapping[str, files.AnyForm], stack: ExitStack
    ) -> Arrays:
        outputs = {}
        for name, part in self.publication.parts.items():
            try:
                held = forms[name].open(part, stack)
            except InvalidProblemError as error:
                raise note.refuse(error) from None
            self.operands.stored[name] = held
            outputs[name] = held.array.reshape(self.case.shape_of(name))
        return outputs

    def _restored(self, note: Note, earlier: Progress) -> Plan:
        """The cut of an earlier run."""
        plan: Plan | None = (
            restored_segments(earlier.cut, self.case.segments or 0)
            if "bounds" in earlier.cut
            else restored_table(earlier.cut, self._tail)
            if "tail" in earlier.cut
            else restored_cut(earlier.cut, self.case)
        )
        if plan is None or len(earlier.blocks) > plan.count:
            raise note.refuse(f"{note.path} is of another job")
        return plan

    def _verify(self, note: Note, steps: Iterable[Step], done: Progress) -> None:
        """Raise unless the finished blocks are what the earlier run has written."""
        for k, (step, checksum) in enumerate(zip(steps, done.blocks, strict=False)):
            if self.operands.checksum(step.outputs) != checksum:
                raise note.refuse(
                    f"block {k + 1} in {note.partials[0]} is not what the run had written"
                )

    def _keep(self, note: Note, done: Progress, plan: Plan, how: str) -> str:
        """Keep what is finished for another run, or leave nothing; says where and how to go on."""
        return "the output is whole" if self.publication.done else note.keep(done, plan.count, how)

    def _check_ids(self) -> None:
        """An id out of range is found before anything is written, whatever block it is in."""
        if self.ids and self.case.get("out_of_range") == "raise":
            check_ids(self.arrays[self.ids], self.case.segments or 0, self._load_ids)

    def _load_ids(self, part: np.ndarray) -> np.ndarray:
        """A part of the ids in memory."""
        return self.operands.load(self.ids, part)

    def _room(self) -> int:
        """Bytes that operands may occupy at a time."""
        job, case = self.job, self.case
        segments = None if case.segments is None else min(case.segments, 8)
        tiny = case.but(shape=small(case), segments=segments)
        if 0 not in tiny.shape:
            warm_up(tiny)  # what compiling takes is part of what the process takes
        if job.memory is None:
            return max(LARGEST_BLOCK, min(available_bytes() // 2, LARGEST_ROW))
        self.taken = resident_bytes() + self._beside
        workspace = 0 if self._sums_unsorted else self._workspace
        if not case.is_segmented:
            # States of blocks: of a part of the rows there are as many fewer.
            workspace = min(workspace, int((job.memory - self.taken) * STATES_SHARE))
        return self._room_beside(max(0, workspace))

    def _prepare_pieces(self) -> None:
        """Count what compiling the kernels of pieces takes."""
        before = resident_bytes()
        prepare_pieces(self.case)
        self.taken += max(0, resident_bytes() - before)

    @property
    def _grain(self) -> tuple[int, ...]:
        """Lengths of the chunks of an input of the full shape, if one has chunks."""
        stored = self.operands.stored.values()
        found = (s.grain for s in stored if s.grain and s.array.shape == self.case.shape)
        return next(found, ())

    @property
    def _beside(self) -> int:
        """Bytes that reading and writing takes beside buffers."""
        into = zarrs.KEPT + zarrs.COPIES * zarrs.TOGETHER
        writes = any(zarrs.is_zarr(p) for p in self.publication.targets)
        found = [s.beside for s in self.operands.stored.values()]
        return max([*found, into if writes else 0])

    @property
    def _workspace(self) -> int:
        return int(self.case.plan(self.threads).workspace_size)

    @property
    def _sums_unsorted(self) -> bool:
        """Whether the rows of a segment lie anywhere in the table."""
        return folds(self.case) and not self.case.is_sorted

    def _room_beside(self, workspace: int) -> int:
        memory = self.job.memory
        if memory is None:
            return self.room
        taken = self.taken + workspace
        room = int((memory - taken) * OPERAND_SHARE)
        if room < LEAST_ROOM:
            least = taken + int(LEAST_ROOM / OPERAND_SHARE)
            raise InvalidProblemError(
                f"memory: expected at least {-(-least // 10**6)} MB, of which the process takes "
                f"{taken // 10**6} for itself, got {memory // 10**6} MB"
            )
        return room

    def _cut(self) -> Plan:
        case = self.case
        budget = min(self.room, LARGEST_BLOCK)
        strides = self._strides()
        elements = max(1, math.prod(case.shape))
        if self._scattered:
            return self._cut_table()
        if self.gathers:  # it reads anywhere in its table, whatever the block
            table = self.arrays[self.table].nbytes
            each = (self.total - table) / elements
            if table <= self.room // 2:
                return cut(case, strides, each, budget // 2)
            # A quarter for the rows in the order of their ids, a quarter for them in their own.
            return dataclasses.replace(cut(case, strides, each, budget // 4), fits=False)
        if self._sums_unsorted:
            return self._cut_sums()
        if case.is_segmented and not folds(case):
            return self._cut_table()
        each = self.total / elements
        grain = self._grain
        made = cut(case, strides, each, budget, grain=grain)
        if made.fits:
            return made
        if math.prod(made.block) * each <= self.room:
            return dataclasses.replace(made, fits=True)
        # Narrow columns that fit are read once, pieces of wide ones once for every sweep.
        narrow = cut(case, strides, each, int(budget * (1 - PICKING_SHARE)), 1, grain)
        if not narrow.fits and repeats(case.formula):
            self._refuse("is not cut along its axis", int(math.prod(narrow.block) * each))
        return narrow if narrow.fits else made

    def _cut_sums(self) -> Plan:
        """One block if everything fits, or else blocks of segments."""
        case = self.case
        if self.total + self._workspace <= self.room:
            return self._whole()
        segments = case.segments or 0
        self.room = self._room_beside(24 * segments)  # for counting
        budget = int(self.room * (1 - PICKING_SHARE))
        ids = self.arrays[self.ids]
        return cut_segments(ids, segments, self._row_bytes, budget, self._load_ids)

    @property
    def _scattered(self) -> bool:
        """Whether the columns of a table are not in the order of memory."""
        return self.case.is_segmented and any(a.ndim > 2 for a in self.arrays.values())

    @property
    def _tail(self) -> tuple[int, ...]:
        """Dimensions of the columns of a table."""
        shapes = (a.shape[1:] for a in self.arrays.values() if a.ndim > 2)
        return next(shapes, self.case.shape[1:])

    def _cut_table(self) -> Plan:
        """One block if everything fits, also twice where it must be put in order; else columns."""
        case = self.case
        if self.total * (1 + self._scattered) + self._workspace <= self.room:
            return Cut(case.shape, tuple(max(1, n) for n in case.shape), True)
        made = cut_columns(case, self._tail, self.room)
        if made is None:
            self._refuse("needs the states of all segments", 2 * column_bytes(case))
        return made

    def _refuse(self, why: str, needed: int) -> NoReturn:
        """Raise for what needs more bytes at a time than there is room for."""
        least = self.taken + int(needed / OPERAND_SHARE)
        raise InvalidProblemError(
            f"memory: {self.case.op.name} {why} and takes "
            f"{-(-least // 10**6)} MB in all, got {(self.job.memory or self.room) // 10**6} MB"
        )

    def _whole(self) -> Plan:
        """All in one block, or an error where that does not fit."""
        needed = self.total + self._workspace
        if needed > self.room:
            self._refuse("is not cut into blocks", needed)
        return Cut(self.case.shape, tuple(max(1, n) for n in self.case.shape), True)

    @property
    def _row_bytes(self) -> int:
        return self.case.shape[1] * DTYPES[self.case.element].itemsize

    def _strides(self) -> tuple[int, ...]:
        """Strides of a full operand, or those the output will have."""
        case = self.case
        full = next((n for n in case.op.names(Role.ELEMENT) if n in self.arrays), None)
        if full is not None and not case.is_segmented:
            return self.arrays[full].strides
        item = DTYPES[case.element].itemsize
        return tuple(item * math.prod(case.shape[k + 1 :]) for k in range(len(case.shape)))

    def _blocks(self, steps: Iterable[Step], note: Note, done: Progress) -> int:
        """Do what is not done; the bytes of it."""
        moved, before, own = 0, len(done.blocks), 0
        self.progress(0, self.total)
        for k, step in enumerate(steps):
            if k >= before:
                checksum = step.run(moved)
                self.operands.check_inputs()
                done.blocks.append(checksum)
                with suppress(OSError):  # an older note is as true, and the run may well succeed
                    note.save(done)
                own += step.bytes
            moved += step.bytes
            self.progress(min(moved, self.total), self.total)
        return min(own, self.total)

    def _steps(self, plan: Plan, outputs: Arrays) -> list[Step]:
        """The blocks in order."""
        if isinstance(plan, SegmentCut):
            return list(self._segment_steps(plan, outputs))
        if isinstance(plan, TableCut):
            return list(self._table_steps(plan, outputs))
        return [self._step(where, plan, outputs) for where in plan.slices()]

    def _segment_steps(self, plan: SegmentCut, outputs: Arrays) -> Iterator[Step]:
        rows = max(1, self.case.shape[0])
        for segments, count in plan.parts():
            size = int(self.total * (count / rows))
            part = {n: outputs[n][segments] for n in self.names}
            alone = count * self._row_bytes > self.room
            run = self._run_long_segment if alone else self._run_segments
            yield Step(size, part, partial(run, segments, count, part))

    def _table_steps(self, plan: TableCut, outputs: Arrays) -> Iterator[Step]:
        def whole(arrays: Arrays) -> Arrays:
            return {
                n: a if a.ndim != 2 else a.reshape(len(a), *plan.tail) for n, a in arrays.items()
            }

        arrays, results = whole(self.arrays), whole(outputs)
        for columns in plan.boxes():
            where = (slice(None), *columns)
            parts = {n: a[where] for n, a in results.items()}
            size = self.total // plan.count
            run = partial(self._run_table, arrays, results, columns, parts, size)
            yield Step(size, parts, run)

    def _run_table(
        self,
        arrays: Arrays,
        results: Arrays,
        columns: tuple[slice, ...],
        parts: Arrays,
        size: int,
        moved: int,
    ) -> int:
        """Run a block of columns, its rows in pieces."""

        def tell(share: float) -> None:
            self.progress(moved + int(size * min(share, 0.99)), self.total)

        case, room = self.case, self.room
        TableRun(self.operands, case, arrays, results, columns, room, _in_thread, tell).go()
        return self.operands.checksum(parts)

    def _step(self, where: tuple[slice, ...], plan: Cut, outputs: Arrays) -> Step:
        block = pieces(self.case, self.arrays, where)
        parts = pieces(self.case, outputs, where)
        size = _size(self.case, block | parts, plan.count)
        lengths = tuple(part.stop - part.start for part in where)
        if plan.fits:
            return Step(size, parts, partial(self._run_block, lengths, block, parts))
        if self.gathers:
            return Step(size, parts, partial(self._run_gather, block, parts))
        return Step(size, parts, partial(self._run_pieces, lengths, block, parts, size))

    def _run_block(self, lengths: tuple[int, ...], block: Arrays, parts: Arrays, moved: int) -> int:
        """Run a block on copies of its operands."""
        inputs = {n: self.operands.load(n, a) for n, a in block.items()}
        if self._scattered:
            inputs = {n: a.reshape(self.case.shape_of(n)) for n, a in inputs.items()}
        results = self.operands.buffers(parts)
        plan = self.case.but(shape=lengths).plan(self.threads)
        _in_thread(lambda: plan.run(**inputs, **results))
        return self.operands.save(parts, results)

    def _run_segments(self, segments: slice, count: int, parts: Arrays, moved: int) -> int:
        """Sum the rows of a block of segments, picked from the whole table."""
        window = int(self.room * PICKING_SHARE)
        values, ids = self.arrays[self.table], self.arrays[self.ids]
        load = partial(self.operands.load, self.table)
        picked, near = pick_rows(values, ids, segments, count, window, load, self._load_ids)
        shape, length = (count, self.case.shape[1]), segments.stop - segments.start
        plan = self.case.but(shape=shape, segments=length).plan(self.threads)
        results = self.operands.buffers(parts)
        _in_thread(lambda: plan.run(**{self.table: picked, self.ids: near}, **results))
        return self.operands.save(parts, results)

    def _run_long_segment(self, segments: slice, count: int, parts: Arrays, moved: int) -> int:
        """Fold a segment whose rows do not fit, as they come."""
        values, ids = self.arrays[self.table], self.arrays[self.ids]
        step = max(1, int(self.room * PICKING_SHARE) // max(1, self._row_bytes))

        def chunks() -> Iterator[tuple[np.ndarray, np.ndarray]]:
            seen = 0
            for start in range(0, ids.shape[0], step):
                near = self._load_ids(ids[start : start + step])
                places = np.flatnonzero(near == segments.start)
                if places.size:
                    table = self.operands.load(self.table, values[start : start + step])
                    yield np.take(table, places, axis=0), np.zeros(places.size, np.int64)
                seen += places.size
            if seen != count:
                raise InvalidProblemError("ids: were changed during the run")

        case = self.case.but(shape=(count, self.case.shape[1]), segments=1)
        found = fold_segments(case, chunks, self.table, self.ids, _in_thread)
        results = self.operands.buffers(parts)
        for name, result in results.items():
            result[...] = found[name]
        return self.operands.save(parts, results)

    def _run_gather(self, block: Arrays, parts: Arrays, moved: int) -> int:
        """Gather a block of rows in the order of their ids, from parts of a table."""
        near, table = self._load_ids(block[self.ids]), block[self.table]
        order = np.argsort(near, kind="stable")
        ids = near[order]
        results = self.operands.buffers(parts)
        (result,) = results.values()
        found = np.zeros_like(result)
        step = max(1, self.room // 4 // max(1, self._row_bytes))
        at, end = np.searchsorted(ids, [0, table.shape[0]]).tolist()
        while at < end:
            low = int(ids[at])
            stop = at + int(np.searchsorted(ids[at:end], low + step))
            rows = self.operands.load(self.table, table[low : int(ids[stop - 1]) + 1])
            # With "raise" NumPy would fill a copy first.
            np.take(rows, ids[at:stop] - low, axis=0, out=found[at:stop], mode="clip")
            at = stop
        result[order] = found
        return self.operands.save(parts, results)

    def _run_pieces(
        self, lengths: tuple[int, ...], block: Arrays, parts: Arrays, size: int, moved: int
    ) -> int:
        """Run a block that does not fit, in pieces along the axis."""

        def tell(walked: int) -> None:
            self.progress(moved + min(walked, int(size * 0.99)), self.total)

        case = self.case.but(shape=lengths)
        LongRows(self.operands, case, block, parts, self.room, _in_thread, tell).go()
        return self.operands.checksum(parts)


def _in_thread(call: Callable[[], Any]) -> Any:
    """Run beside this thread, which an interrupt reaches at once; gives the result.

    After an interrupt a kernel is waited for, since that takes no longer than a moment.
    """
    result: list[Any] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            result.append(call())
        except BaseException as error:
            failure.append(error)

    worker = threading.Thread(target=work, daemon=True, name="pullback-run")
    worker.start()
    try:
        while worker.is_alive():
            worker.join(0.1)
    except BaseException:
        worker.join()
        raise
    if failure:
        raise failure[0]
    return result[0]


def prepare_pieces(case: Case) -> None:
    """Have the kernels of pieces."""
    warm(case.problem, tuple((n, str(case.dtype_of(n))) for n in case.reads))


def small(case: Case) -> tuple[int, ...]:
    """The shape of a case that is run to have its kernels."""
    return tuple(min(n, 64) if k > 3 else min(n, 32) for k, n in enumerate(case.shape))


def _size(case: Case, block: Mapping[str, np.ndarray], count: int) -> int:
    """Bytes of a block; a table that every block reads counts in parts."""
    read = [n for n in case.reads if case.is_segmented and case.role(n) is Role.ROW]
    return sum(a.nbytes // count if n in read else a.nbytes for n, a in block.items())
