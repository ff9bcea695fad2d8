"""The running of a job whose inputs are open and checked: block by block, within the memory."""

from __future__ import annotations

import dataclasses
import math
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..bench.case import Case
from ..bench.warm import warm_up
from ..errors import InvalidProblemError
from ..formulas.record import RowFormula, ScanFormula
from ..interop import DTYPES
from ..threads import get_num_threads
from . import files
from .blocks import Cut, copy_mapped, cut, pieces
from .paging import Pager, supported
from .partial import Note, partial_path
from .resident import hand_back, peak_bytes, populate, resident_bytes
from .segments import SegmentCut, check_ids, cut_segments, pick_rows

if TYPE_CHECKING:
    from .job import Job

# The share of the memory beyond what the process itself takes that mapped files may occupy; the
# rest is for page tables, progress and the allocator.
MAPPED_SHARE = 0.6
LARGEST_BLOCK = 1 << 28
LEAST_ROOM = 24 << 20
# Of the room for a block that is copied, what is touched of the files before pages go back.
PICKING_SHARE = 0.2

Arrays = dict[str, np.ndarray]
Maps = dict[str, mmap.mmap | None]


class Interrupted(KeyboardInterrupt):
    """An interrupt, with what became of the work."""


@dataclass(frozen=True)
class Summary:
    """What a run did."""

    bytes: int
    seconds: float
    blocks: int
    resumed: int
    peak: int


class Run:
    """The running of a job whose inputs are open and checked."""

    def __init__(self, job: Job, case: Case, arrays: Arrays, maps: Maps, progress: Any):
        self.job, self.case, self.arrays, self.maps = job, case, arrays, maps
        self.progress = progress or (lambda done, total: None)
        self.threads = job.threads or get_num_threads()
        self.finished = 0
        self.room = self.taken = 0
        self.names = [n for n in case.op.outputs if n in job.outputs]
        self.total = sum(a.nbytes for a in arrays.values()) + sum(
            math.prod(case.shape_of(n)) * DTYPES[case.element].itemsize for n in self.names
        )

    def go(self, shapes: Mapping[str, tuple[int, ...]], resume: bool, start: float) -> Summary:
        job, case = self.job, self.case
        targets = list(dict.fromkeys(job.outputs[n] for n in self.names))
        for target in targets:
            _check_target(target)
        archives = [t for t in targets if t.suffix.lower() == ".npz"]
        parts = {
            n: partial_path(
                job.outputs[n].with_name(f"{job.outputs[n].name}.{n}")
                if job.outputs[n] in archives
                else job.outputs[n]
            )
            for n in self.names
        }
        self._check_ids()
        self.room = self._room()
        note = Note(targets[0], list(parts.values()), self._identity())
        earlier = note.earlier() if resume else None
        # The room differs from run to run, so that the same job may be cut otherwise now.
        done, plan = (earlier[0], _restored(earlier[1])) if earlier else (0, self._cut())
        try:
            if not done:
                note.discard()
                for n, part in parts.items():
                    raw = files.is_raw(job.outputs[n])
                    files.create(part, shapes[n], case.element, raw)
            outputs = {}
            for n, part in parts.items():
                raw = files.is_raw(job.outputs[n])
                mapped = files.map_output(part, shapes[n], case.element, raw)
                outputs[n] = mapped.array.reshape(case.shape_of(n))
                self.maps[n] = mapped.map
            self._blocks(plan, outputs, note, done)
            del outputs
            for part in parts.values():
                files.settle(part)
            self._publish(parts, archives)
        except KeyboardInterrupt:
            self._interrupted(note, plan)
        except OSError as error:
            note.discard()
            # The user knows the name of the output, not that of the partial file.
            raise OSError(error.errno, error.strerror, str(targets[0])) from None
        except BaseException:
            note.discard()
            raise
        note.remove()
        return Summary(self.total, time.monotonic() - start, plan.count, done, peak_bytes())

    def _interrupted(self, note: Note, plan: Cut | SegmentCut) -> NoReturn:
        """Keep what is finished for another run; where that is nothing, leave nothing."""
        if not self.finished:
            note.discard()
            raise Interrupted("nothing was finished, nothing is left behind") from None
        note.save(self.finished, dataclasses.asdict(plan), now=True)
        raise Interrupted(
            f"{self.finished} of {plan.count} blocks are kept; "
            "the same command with --resume does the rest"
        ) from None

    def _check_ids(self) -> None:
        """An id out of range is found before anything is written, whatever block it is in."""
        ids = self.arrays.get("segment_ids")
        if ids is not None and self.case.out_of_range == "raise":
            check_ids(ids, self.case.segments, self._hand_back)

    def _hand_back(self) -> None:
        if self.job.memory is not None:
            hand_back(self.maps.values())

    def _room(self) -> int:
        """Bytes that the mapped files may occupy at a time."""
        job, case = self.job, self.case
        tiny = dataclasses.replace(case, shape=_small(case), segments=min(case.segments, 8))
        if 0 not in tiny.shape:
            warm_up(tiny)  # what compiling takes is part of what the process takes
        if job.memory is None:
            return LARGEST_BLOCK
        self.taken = resident_bytes()
        return self._room_beside(0 if self._sums_unsorted else self._workspace)

    @property
    def _workspace(self) -> int:
        return int(self.case.plan(self.threads).workspace_size)

    @property
    def _sums_unsorted(self) -> bool:
        """Whether the rows of a segment lie anywhere in the table."""
        case = self.case
        forward = case.op.direction == "forward"
        return case.family == "segment" and forward and case.order == "random"

    def _room_beside(self, workspace: int) -> int:
        memory = self.job.memory
        assert memory is not None
        taken = self.taken + workspace
        room = int((memory - taken) * MAPPED_SHARE)
        if room < LEAST_ROOM:
            least = taken + int(LEAST_ROOM / MAPPED_SHARE)
            raise InvalidProblemError(
                f"memory: expected at least {-(-least // 10**6)} MB, of which the process takes "
                f"{taken // 10**6} for itself, got {memory // 10**6} MB"
            )
        return room

    def _cut(self) -> Cut | SegmentCut:
        case = self.case
        budget = min(self.room, LARGEST_BLOCK)
        strides = self._strides()
        elements = max(1, math.prod(case.shape))
        if "d_output" in self.arrays:  # a gather reads anywhere in its table, whatever the block
            table = self.arrays["d_output"].nbytes
            each = (self.total - table) / elements
            made = cut(case, strides, each, budget // 2)
            if table <= budget // 2 or self.job.memory is None:
                return made
            # A quarter for the rows in the order of their ids, a quarter for them in their own.
            return dataclasses.replace(cut(case, strides, each, budget // 4), fits=False)
        if self._sums_unsorted and self.job.memory is not None:
            return self._cut_sums()
        made = cut(case, strides, self.total / elements, budget)
        if made.fits or self.job.memory is None:
            return made
        # Through windows, a kernel that walks narrow columns would open each window again for every
        # walk along every few columns: a softmax of 768 MB took minutes, copied it takes seconds.
        within = int(budget * (1 - PICKING_SHARE))
        packed = cut(case, strides, self.total / elements, within, packed=True)
        return packed if packed.fits else made

    def _cut_sums(self) -> Cut | SegmentCut:
        """One block if everything fits, or else blocks of segments."""
        case = self.case
        if self.total + self._workspace <= self.room:
            return Cut(case.shape, tuple(max(1, n) for n in case.shape), True)
        counting = 24 * case.segments
        self.room = self._room_beside(counting)
        budget = int(self.room * (1 - PICKING_SHARE))
        ids = self.arrays["segment_ids"]
        return cut_segments(ids, case.segments, self._row_bytes, budget, self._hand_back)

    @property
    def _row_bytes(self) -> int:
        return self.case.shape[1] * DTYPES[self.case.element].itemsize

    def _strides(self) -> tuple[int, ...]:
        """Strides of a full operand, or those the output will have."""
        case = self.case
        full = next((n for n in case.op.full if n in self.arrays), None)
        if full is not None and case.family != "segment":
            return self.arrays[full].strides
        item = DTYPES[case.element].itemsize
        return tuple(item * math.prod(case.shape[k + 1 :]) for k in range(len(case.shape)))

    def _identity(self) -> dict[str, Any]:
        job = self.job
        return {
            "op": job.op.name,
            "options": _plain(dataclasses.asdict(job.options)),
            "inputs": {n: files.describe(p) for n, p in sorted(job.inputs.items())},
            "outputs": {n: str(p) for n, p in sorted(job.outputs.items())},
            "memory": job.memory,
        }

    def _blocks(self, plan: Cut | SegmentCut, outputs: Arrays, note: Note, done: int) -> None:
        moved = 0
        self.finished = done
        self.progress(0, self.total)
        for k, (size, run) in enumerate(self._steps(plan, self.arrays | outputs)):
            if k >= done:
                run(moved)
                self.finished = k + 1
                note.save(k + 1, dataclasses.asdict(plan))
            moved += size
            self.progress(min(moved, self.total), self.total)

    def _steps(
        self, plan: Cut | SegmentCut, arrays: Arrays
    ) -> Iterator[tuple[int, Callable[[int], None]]]:
        """The bytes of every block, and what runs it, given the bytes of those before."""
        if isinstance(plan, SegmentCut):
            rows = max(1, self.case.shape[0])
            for segments, count in plan.parts():
                size = int(self.total * (count / rows))
                alone = count * self._row_bytes > self.room
                run = self._run_long_segment if alone else self._run_segments
                yield size, partial(run, segments, count, arrays)
            return
        for where in plan.slices():
            block = pieces(self.case, arrays, where)
            size = _size(self.case, block, plan.count)
            if plan.packed:
                yield size, partial(self._run_packed, where, block)
            elif "d_output" in arrays and not plan.fits:
                yield size, partial(self._run_gather, block)
            else:
                yield size, partial(self._run_block, where, block, plan.fits, size)

    def _run_packed(self, where: tuple[slice, ...], block: Arrays, moved: int) -> None:
        """Run a block on copies of its operands."""
        window = int(self.room * PICKING_SHARE)
        held = {n: np.empty(a.shape, a.dtype) for n, a in block.items()}
        for name in self.arrays:
            copy_mapped(held[name], block[name], block[name], window, self._hand_back)
        lengths = tuple(part.stop - part.start for part in where)
        plan = dataclasses.replace(self.case, shape=lengths).plan(self.threads)
        _in_thread(lambda: plan.run(**held))
        for name in self.names:
            copy_mapped(block[name], held[name], block[name], window, self._hand_back)

    def _run_segments(self, segments: slice, count: int, arrays: Arrays, moved: int) -> None:
        """Sum the rows of a block of segments, picked from the whole table."""
        window = int(self.room * PICKING_SHARE)
        values, ids = arrays["input"], arrays["segment_ids"]
        picked, near = pick_rows(values, ids, segments, count, window, self._hand_back)
        part = dataclasses.replace(
            self.case,
            shape=(count, self.case.shape[1]),
            segments=segments.stop - segments.start,
        ).plan(self.threads)
        output = arrays["output"][segments]
        _in_thread(lambda: part.run(input=picked, segment_ids=near, output=output))
        self._hand_back()

    def _run_long_segment(self, segments: slice, count: int, arrays: Arrays, moved: int) -> None:
        """Sum a segment whose rows do not fit: all other rows are dropped, and none is copied."""
        near = np.full(arrays["segment_ids"].shape, -1, np.int32)
        near[arrays["segment_ids"] == segments.start] = 0
        self._hand_back()
        part = dataclasses.replace(self.case, segments=1, out_of_range="drop").plan(self.threads)
        room = self._room_beside(near.nbytes + part.workspace_size)
        output = arrays["output"][segments]
        with self._windows(["input"], room):
            _in_thread(lambda: part.run(input=arrays["input"], segment_ids=near, output=output))
        self._hand_back()

    def _run_gather(self, block: Arrays, moved: int) -> None:
        """Gather a block of rows in the order of their ids, from a table seen through windows."""
        order = np.argsort(block["segment_ids"], kind="stable")
        ids = block["segment_ids"][order]
        found = np.empty_like(block["d_input"])
        shape = (ids.shape[0], self.case.shape[1])
        plan = dataclasses.replace(self.case, shape=shape).plan(self.threads)
        with self._windows(["d_output"], self.room // 2):
            _in_thread(lambda: plan.run(d_output=block["d_output"], segment_ids=ids, d_input=found))
        block["d_input"][order] = found
        self._hand_back()

    def _windows(self, names: Iterable[str], room: int) -> AbstractContextManager[Pager | None]:
        """Let operands be seen through windows only, where the system can do that."""
        if not supported():
            return nullcontext()
        held = [(self.maps[n], n in self.names) for n in names]
        return Pager([(m, written) for m, written in held if m is not None], room)

    def _run_block(
        self,
        where: tuple[slice, ...],
        block: Arrays,
        fits: bool,
        size: int,
        moved: int,
    ) -> None:
        """Run a block; one that does not fit sees the files through windows."""
        lengths = tuple(part.stop - part.start for part in where)
        plan = dataclasses.replace(self.case, shape=lengths).plan(self.threads)

        def call() -> None:
            plan.run(**block)

        if fits or self.job.memory is None:
            if self.job.memory is not None:
                self._populate(block)
            _in_thread(call)
        else:
            passes = _passes(self.case)
            with self._windows(self.maps, self.room) as pager:

                def tell() -> None:
                    walked = pager.touched // passes if pager else 0
                    self.progress(moved + min(walked, int(size * 0.99)), self.total)

                _in_thread(call, tell)
        self._hand_back()

    def _populate(self, block: Mapping[str, np.ndarray]) -> None:
        """Fault the pages of contiguous operands in, which is quicker than one by one."""
        for name, array in block.items():
            held = self.maps.get(name)
            if held is None or not array.flags.c_contiguous or not array.nbytes:
                continue
            base = np.frombuffer(held, np.uint8).ctypes.data
            start = array.ctypes.data - base
            populate(held, start, array.nbytes, write=name in self.case.op.outputs)

    def _publish(self, parts: Mapping[str, Path], archives: list[Path]) -> None:
        for archive in archives:
            inside = {n: p for n, p in parts.items() if self.job.outputs[n] == archive}
            packed = partial_path(archive)
            try:
                files.pack(inside, packed)
                os.replace(packed, archive)
            finally:
                packed.unlink(missing_ok=True)
            for part in inside.values():
                part.unlink()
        for name, part in parts.items():
            if self.job.outputs[name] not in archives:
                os.replace(part, self.job.outputs[name])


def _in_thread(call: Callable[[], None], tell: Callable[[], None] = lambda: None) -> None:
    """Run beside this thread, which an interrupt reaches at once and which tells how far it is."""
    failure: list[BaseException] = []

    def work() -> None:
        try:
            call()
        except BaseException as error:
            failure.append(error)

    worker = threading.Thread(target=work, daemon=True, name="pullback-run")
    worker.start()
    while worker.is_alive():
        worker.join(0.1)
        tell()
    if failure:
        raise failure[0]


def _passes(case: Case) -> int:
    """How often a kernel walks along the axis: once for each fold, and once to write."""
    formula = case.op.record(case.ties)
    if isinstance(formula, RowFormula):
        return sum(p.monoid is not None for p in formula.passes) + (formula.apply is not None)
    return 2 if isinstance(formula, ScanFormula) and formula.prefix else 1


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in options.items()}


def _restored(state: dict[str, Any]) -> Cut | SegmentCut:
    """A cut from a note."""
    held: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in state.items()}
    return SegmentCut(**held) if "bounds" in held else Cut(**held)


def _small(case: Case) -> tuple[int, ...]:
    return tuple(min(n, 64) if k > 3 else min(n, 32) for k, n in enumerate(case.shape))


def _size(case: Case, block: Mapping[str, np.ndarray], count: int) -> int:
    """Bytes of a block; a table that every block reads counts in parts."""
    table = "d_output" if case.family == "segment" and case.op.direction == "backward" else None
    return sum(a.nbytes // count if n == table else a.nbytes for n, a in block.items())


def _check_target(target: Path) -> None:
    folder = target.parent
    if not folder.is_dir():
        raise InvalidProblemError(f"{target}: the folder {folder} does not exist")
    if target.is_dir():
        raise InvalidProblemError(f"{target}: is a folder")
    if not os.access(target if target.exists() else folder, os.W_OK):
        raise InvalidProblemError(f"{target}: is not writable")
