"""A job on the workers of a dask cluster: a graph of :mod:`pullback.dask` between files.

Workers read and write the files themselves, so all of them must see these under the same names.
"""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ... import __version__
from ...core.declare import Role
from ...cpu.compile import source_digest
from ...cut import Cut as RowCut
from ...errors import InvalidProblemError, PullbackError, UnsupportedError
from ...formulas.record import repeats
from ...memory.view import DTYPES
from ...threads import get_num_threads
from ..case import Case
from . import files, zarrs
from .blocks import cut
from .boxes import Box
from .identity import identity_of
from .operands import Operands
from .partial import Note, Progress
from .publish import Publication
from .resident import peak_bytes
from .running import Interrupted, Summary, prepare_pieces
from .shares import Share, Source, Target, checksum, write
from .targets import note_path

if TYPE_CHECKING:
    from .job import Job

# Bytes of the operands of a task, unless the memory of a worker is smaller than so many of them.
TASK_BYTES, TASKS_IN_MEMORY = 1 << 25, 16
# Seconds until a scheduler that does not answer is given up.
PATIENCE = 15

Chunks = tuple[tuple[int, ...], ...]


def library() -> Any:
    """The package of dask's clusters, or an error that says how to get it."""
    try:
        import distributed
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"a cluster needs {error.name}: pip install 'dask[array,distributed]'"
        ) from None
    return distributed


class ClusterRun:
    """The running of a job whose inputs are open and checked, by the workers of a cluster.

    Parameters
    ----------
    job, case
        What to do.
    stored
        The inputs as they lie in their files.
    progress
        Called with the bytes done and in all.
    """

    def __init__(
        self,
        job: Job,
        case: Case,
        stored: Mapping[str, files.AnyStored],
        progress: Callable[[int, int], None] | None,
    ):
        self.job, self.case, self.operands = job, case, Operands(stored)
        self.progress = progress or (lambda done, total: None)
        self.names = [n for n in case.outputs if n in job.outputs]
        self.publication = Publication({n: job.outputs[n] for n in self.names})
        for path in (*job.inputs.values(), *self.publication.targets):
            if path.suffix.lower() == ".npz":
                raise UnsupportedError(f"{path}: workers cannot share an archive; use .npy or zarr")

    def go(
        self, shapes: Mapping[str, tuple[int, ...]], resume: bool, force: bool, start: float
    ) -> Summary:
        """Run to the end, or keep what is finished and raise."""
        parts = self.publication.parts.values()
        identity = identity_of(self.job, self.operands)
        note = Note(note_path(self.publication.targets[0]), parts, identity)
        earlier = note.find() if resume else None
        discarded = 0 if resume else note.count_kept()
        prepare_pieces(self.case)  # kernels are on the disk before workers look for them
        graph = self._graph(shapes)
        done = earlier or Progress({"chunks": graph.chunks, "done": []})
        if earlier and not graph.has_done(earlier):
            raise note.refuse(f"{note.path} is of another job")
        resumed = len(done.blocks)
        with ExitStack() as stack:
            client = stack.enter_context(_client(self.job))
            _check_workers(client)
            self._open_outputs(graph, note, done, stack, anew=earlier is None)
            _verify(client, graph, note, done)
            how = "the same command with --resume"
            try:
                moved = self._compute(client, graph, note, done)
                peak = max(client.run(peak_bytes).values(), default=0)
                self.operands.check_inputs()
                self.operands.check_chunks()
                self.publication.publish(self.operands, note, force)
            except KeyboardInterrupt:
                if not self.publication.done:  # or else it comes too late
                    raise Interrupted(note.keep(done, len(graph.writes), how)) from None
            except OSError as error:
                kept = note.keep(done, len(graph.writes), how)
                target = str(self.publication.targets[0])
                raise OSError(error.errno, f"{error.strerror or error}; {kept}", target) from None
            except PullbackError as error:
                kept = note.keep(done, len(graph.writes), "when that is put right, --resume")
                raise InvalidProblemError(f"{error}; {kept}") from None
            except BaseException:
                note.keep(done, len(graph.writes), how)
                raise
        seconds = time.monotonic() - start
        count = len(graph.writes)
        return Summary(self._total, moved, seconds, count, resumed, discarded, peak)

    def _open_outputs(
        self, graph: Graph, note: Note, done: Progress, stack: ExitStack, anew: bool
    ) -> None:
        """Make the partial files and the first note, or find those of an earlier run."""
        if anew:
            note.discard()
        try:
            for name, target in graph.targets.items():
                if anew:
                    target.form.create(Path(target.path))
                self.operands.stored[name] = target.form.open(Path(target.path), stack)
            if anew:
                note.save(done, now=True)
        except InvalidProblemError as error:
            raise note.refuse(error) from None
        except OSError as error:
            if anew:
                note.discard()
            target_path = str(self.publication.targets[0])
            raise OSError(error.errno, f"{error.strerror or error}", target_path) from None

    # What is computed.

    def _arrays(self) -> dict[str, Any]:
        """The inputs as dask arrays, chunked alike."""
        case, stored = self.case, self.operands.stored
        full = case.shape if not case.is_segmented else None
        chunks = self._chunks()
        found = {}
        for name, held in list(stored.items()):
            shape, role = held.array.shape, case.role(name)
            own: Chunks = tuple((n,) for n in shape)
            if role is Role.ELEMENT and shape == full:
                own = chunks
            elif case.is_segmented and role in (Role.ELEMENT, Role.IDS):
                own = (chunks[0], *own[1:])
            elif role is Role.ROW and not case.is_segmented and shape == case.shape_of(name):
                own = tuple((1,) if d in case.axes else c for d, c in enumerate(chunks))
            found[name] = _lazy(self._source(name), held.array.dtype, own)
        return found

    def _source(self, name: str) -> Source:
        path, (dtype, shape) = self.job.inputs[name], self.job.layout(name)
        word = "ids" if name == "segment_ids" else name
        return Source(str(path.absolute()), word, dtype, shape)

    @property
    def _budget(self) -> int:
        """Bytes of the operands of a task."""
        memory, workers = self.job.memory, self.job.workers
        if memory is None or workers is None:
            return TASK_BYTES
        return max(1 << 20, min(TASK_BYTES, memory // workers // TASKS_IN_MEMORY))

    @property
    def _total(self) -> int:
        case = self.case
        made = sum(math.prod(case.shape_of(n)) * case.dtype_of(n).itemsize for n in self.names)
        return made + sum(s.array.nbytes for s in self.operands.stored.values())

    def _chunks(self) -> Chunks:
        """Chunks of the operands with an element for every position, on the grid of blocks."""
        case, budget = self.case, self._budget
        each = self._total / max(1, math.prod(case.shape))
        if case.is_segmented:
            count = max(1, int(budget // max(1, each * case.shape[1])))
            return (_equal(case.shape[0], count), (case.shape[1],))
        full = next((n for n in case.reads if case.role(n) is Role.ELEMENT), None)
        stored = self.operands.stored[full] if full else None
        grain: tuple[int, ...] = ()
        item = DTYPES[case.element].itemsize
        strides = tuple(item * math.prod(case.shape[d + 1 :]) for d in range(len(case.shape)))
        if stored is not None and stored.array.shape == case.shape:
            strides, grain = stored.array.strides, stored.grain
        made = cut(case, strides, each, budget, grain=grain)
        found = [_equal(n, b) for n, b in zip(case.shape, made.block, strict=True)]
        if made.fits or case.is_pointwise or repeats(case.formula) or not case.axes:
            return tuple(found)
        rows = RowCut(case.problem)
        first, *others = case.axes
        inner = math.prod(case.shape[a] for a in others)
        step = rows.block // math.gcd(rows.block, inner)
        if grain and math.lcm(step, grain[first]) * inner * each <= 4 * budget:
            step = math.lcm(step, grain[first])
        a_position = math.prod(made.block) / made.block[first] * each
        lengths = _equal(case.shape[first], max(step, int(budget / a_position) // step * step))
        found[first] = lengths[::-1] if rows.from_end else lengths
        return tuple(found)

    def _graph(self, shapes: Mapping[str, tuple[int, ...]]) -> Graph:
        """All there is to compute, and to write."""
        from ... import dask as functions

        case = self.case
        function = getattr(functions, case.op.name)
        arrays = self._arrays()
        found = case.call(arrays, function=lambda out=None, **given: function(**given))
        several = found if isinstance(found, tuple) else (found,)
        names = case.op.outputs if len(several) == len(case.op.outputs) else case.outputs
        results = dict(zip(names, several, strict=True))
        graph = Graph()
        for name in self.names:
            self._write(graph, name, results[name], shapes[name])
        return graph

    def _compute(self, client: Any, graph: Graph, note: Note, done: Progress) -> int:
        """Have what is not done computed and written; the bytes of it."""
        distributed = library()
        finished = {*done.cut["done"]}
        keys = {w.key: k for k, w in enumerate(graph.writes) if k not in finished}
        made = sum(w.bytes for w in graph.writes)
        before = sum(graph.writes[k].bytes for k in finished)
        share = self._total / max(1, made)
        written = 0
        self.progress(int(before * share), self._total)
        futures = client.get(graph.layers, list(keys), sync=False)
        try:
            for future in distributed.as_completed(futures):
                size, checksum = future.result()
                done.cut["done"].append(keys[future.key])
                done.blocks.append(checksum)
                with suppress(OSError):  # an older note is as true, and the run may well succeed
                    note.save(done)
                written += size
                self.progress(int((before + written) * share), self._total)
        except distributed.KilledWorker as error:
            reason = " ".join(str(error).split())
            raise InvalidProblemError(
                f"cluster: workers died, perhaps for want of memory: {reason[:200]}"
            ) from None
        finally:
            client.cancel(futures, force=True)
        return int(written * share)

    def _write(self, graph: Graph, name: str, result: Any, shape: tuple[int, ...]) -> None:
        """Add tasks that write the chunks of a result to its file."""
        path, part = self.job.outputs[name], self.publication.parts[name]
        dtype = np.dtype(self.case.dtype_of(name))
        kind = {d: n for n, d in DTYPES.items()}[dtype]
        result = result.reshape(shape) if result.shape != shape else result
        form: files.AnyForm = files.Form(shape, kind, files.is_raw(path))
        if zarrs.is_zarr(path):
            # No two tasks may write to one chunk of a store.
            lengths = tuple(max(max(c, default=1), 1) for c in result.chunks)
            result = result.rechunk(lengths) if result.ndim else result
            form = zarrs.form_like(
                self.operands.stored.values(), shape, kind, self.job.zarr_format
            ).rechunked(lengths)
        graph.add(name, Target(str(part.absolute()), form), result, dtype.itemsize)


class Write(NamedTuple):
    """A chunk that a task writes: where to, and the key of that task."""

    target: Target
    where: Box
    key: Any
    bytes: int


class Graph:
    """What is computed and written.

    Attributes
    ----------
    layers
        All tasks.
    targets, chunks
        The files that outputs are written to, and the chunks in which that is done, by name.
    writes
        The chunks in order, empty ones left out.
    """

    def __init__(self) -> None:
        self.layers: dict[Any, Any] = {}
        self.targets: dict[str, Target] = {}
        self.chunks: dict[str, Any] = {}
        self.writes: list[Write] = []

    def add(self, name: str, target: Target, result: Any, item: int) -> None:
        """Have an output written."""
        self.targets[name], self.chunks[name] = target, [list(c) for c in result.chunks]
        self.layers.update(result.__dask_graph__())
        for place, where in _boxes(result.chunks):
            size = math.prod(s.stop - s.start for s in where) * item
            if size:
                key = (f"write-{name}-{result.name}", *place)
                self.layers[key] = (write, target, where, (result.name, *place))
                self.writes.append(Write(target, where, key, size))

    def has_done(self, progress: Progress) -> bool:
        """Whether what was done is a part of this."""
        if {*progress.cut} != {"chunks", "done"} or progress.cut["chunks"] != self.chunks:
            return False
        done = progress.cut["done"]
        return (
            isinstance(done, list)
            and len(done) == len(progress.blocks)
            and all(type(k) is int and 0 <= k < len(self.writes) for k in done)
            and len({*done}) == len(done)
        )


def _verify(client: Any, graph: Graph, note: Note, done: Progress) -> None:
    """Raise unless the finished chunks are what the earlier run has written."""
    asked = {
        ("checksum", k): (checksum, graph.writes[k].target, graph.writes[k].where)
        for k in done.cut["done"]
    }
    found = client.get(asked, list(asked)) if asked else []
    for (_, k), seen, kept in zip(asked, found, done.blocks, strict=True):
        if seen != kept:
            path = graph.writes[k].target.path
            raise note.refuse(f"block {k + 1} in {path} is not what the run had written")


def _equal(n: int, length: int) -> tuple[int, ...]:
    """Chunks of one length, and a shorter one for the rest."""
    if not n:
        return (0,)
    return (*(length,) * (n // length), *((n % length,) if n % length else ()))


def _boxes(chunks: Chunks) -> Iterator[tuple[tuple[int, ...], Box]]:
    """The place of every chunk, and where it lies."""
    ends = [list(itertools.accumulate(c, initial=0)) for c in chunks]
    for place in itertools.product(*(range(len(c)) for c in chunks)):
        yield place, tuple(slice(e[k], e[k + 1]) for e, k in zip(ends, place, strict=True))


def _lazy(source: Source, dtype: Any, chunks: Chunks) -> Any:
    """A dask array of shares of a file."""
    import dask.array as da
    from dask.base import tokenize

    name = f"file-{tokenize(source, chunks)}"
    graph = {(name, *place): Share(source, where) for place, where in _boxes(chunks)}
    return da.Array(graph, name, chunks, meta=np.empty((0,) * len(chunks), dtype))


def _identity() -> tuple[str, str]:
    """What workers must have alike for their bytes to be."""
    return __version__, source_digest()


def _check_workers(client: Any) -> None:
    """Raise if a worker would not do as this process does."""
    try:
        found = client.run(_identity)
    except ModuleNotFoundError as error:
        raise InvalidProblemError(f"cluster: a worker has no {error.name}") from None
    if not found:
        raise InvalidProblemError("cluster: has no workers")
    own = _identity()
    for worker, theirs in found.items():
        if theirs != own:
            raise InvalidProblemError(
                f"cluster: {worker} runs pullback {theirs[0]} from other sources than this "
                f"process, which is {own[0]}; install the same release everywhere"
            )


@contextmanager
def _client(job: Job) -> Iterator[Any]:
    """A client of the cluster that is asked for, or of one that is started for the run."""
    distributed = library()
    with ExitStack() as stack:
        address: Any = job.cluster
        if address is None:
            threads = job.threads or max(1, get_num_threads() // (job.workers or 1))
            limit = "auto" if job.memory is None else job.memory // (job.workers or 1)
            address = stack.enter_context(
                distributed.LocalCluster(
                    n_workers=job.workers,
                    threads_per_worker=1,
                    memory_limit=limit,
                    dashboard_address=None,
                    # Or else the scheduler listens at 8787, and warns where another one does.
                    scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                    silence_logs=logging.CRITICAL,
                    env={"PULLBACK_NUM_THREADS": str(threads)},
                )
            )
        try:
            client = distributed.Client(address, timeout=PATIENCE)
        except (OSError, ValueError, TimeoutError) as error:
            reason = " ".join(str(error).split())
            raise InvalidProblemError(f"cluster: {job.cluster}: {reason[:200]}") from None
        try:
            yield client
        finally:
            with suppress(Exception):  # a cluster that is gone has nothing to say any more
                client.close()
