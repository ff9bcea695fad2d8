"""Scans with the eight lanes across columns, chunk by chunk down a tile.

The carries of a tile are rows of states in scratch; the order of every combination is that of
:mod:`.scan_rows`.
"""

from __future__ import annotations

import textwrap
from typing import Any

from ...formulas.record import ScanFormula
from .access import Operands, constants
from .bind import Fold
from .jit import inner
from .lanes import LANES
from .memory import BLOCKS, COLUMNS, EXTENT, SCRATCH, STRAINED, TILE, TILES, least, set_word, word
from .scan_parts import SCAN_BLOCK, ScanParts, make_places
from .vectors import concatenate, counting, every_lane_if, no_vectors, stack
from .watch import nothing_seen

# Columns per tile at most: wide enough that memory is read in long runs (256 columns took a third
# longer at 4096 x 4096). Both ways, the carries of the 64 chunks of a block are kept on the stack:
# 256 KB a component.
WIDEST_ONE_WAY = 1024
WIDEST_BOTH_WAYS = 512
CHUNKS = SCAN_BLOCK // LANES


def make_scan_columns_kernel(formula: ScanFormula, element: str, operands: Operands, plain: bool):
    """``kernel(p, begin, end)`` over tiles of columns."""
    parts = ScanParts(formula, element, operands, plain)
    scan_tile = _both_ways(parts, operands) if parts.prefix else _one_way(parts, operands)
    all_addresses, all_strides = operands.addresses, operands.strides
    column_strides = operands.column_strides

    def kernel(p, begin, end):
        const = constants(p)
        strides, steps = all_strides(p), column_strides(p)
        tile, tiles, columns = word(p, TILE), word(p, TILES), word(p, COLUMNS)
        for unit in range(begin, end):
            outer = unit // tiles
            left = unit % tiles * tile
            width = least(tile, columns - left)
            scan_tile(p, const, all_addresses(p, outer), strides, steps, left, width, outer)

    return kernel


def _unrolled(name: str, parameters: str, before: str, each: str, after: str, tools):
    """A jitted function with a piece repeated for the eight positions ``{k}`` of a chunk.

    Written out, the states of a chunk stay in registers.
    """

    def indented(text: str) -> str:
        return textwrap.indent(textwrap.dedent(text).strip("\n"), "    ") + "\n"

    pieces = "".join(indented(each.format(k=k)) for k in range(LANES))
    source = f"def {name}({parameters}):\n{indented(before)}{pieces}{indented(after)}"
    made: dict = {}
    exec(source, dict(tools), made)
    return inner(made[name])


def _tools(fold: Fold, operands: Operands) -> dict[str, Any]:
    """What every chunk is put together from."""
    return {
        "LANES": LANES,
        "EXTENT": EXTENT,
        "word": word,
        "least": least,
        "counting": counting,
        "every_lane_if": every_lane_if,
        "no_vectors": no_vectors,
        "places": make_places(operands),
        "fetch_columns": operands.fetch_columns,
        "lift": fold.lift,
        "keep": fold.keep,
        "combine": fold.combine,
        "identity": fold.identity,
        "scan_eight": fold.scan_eight,
        "join_eight": fold.join_eight,
    }


def _in_turn(name: str, descending: bool) -> str:
    """The eight values of a name in the order of the scan."""
    order = range(LANES - 1, -1, -1) if descending else range(LANES)
    return "(" + ", ".join(f"{name}{k}" for k in order) + ")"


def _make_scan_chunk(parts: ScanParts, operands: Operands, descending: bool):
    """Scan up to eight positions of eight columns and write the outputs.

    Gives their total and what was seen. ``befores`` are the prefix states before each of the
    positions, where there are any.
    """
    fold, watch = parts.fold, parts.watch
    tools = {
        **_tools(fold, operands),
        "fetch_row_columns": operands.fetch_row_columns,
        "put_columns": operands.put_columns,
        "look_at_gradient": watch.gradient,
        "look_at_row": watch.row_gradient,
        "look_at_carry": watch.carry,
        "finish": parts.finish,
        "extended": parts.extended,
        "known_of": concatenate(1, parts.prefix.size) if parts.prefix else None,
        "wakes": parts.quiet.wakes,
        "quiet_lift": parts.quiet.fold.lift,
        "quiet_join": parts.quiet.fold.join_eight,
        "widened": parts.quiet.widened,
    }
    known = "known_of(no_vectors(), befores[{k}])" if parts.prefix else "no_vectors()"
    each = f"""
        at{{k}} = places(addresses, strides, least(start + {{k}}, extent - 1), extent)
        full{{k}} = fetch_columns(p, at{{k}}, steps, column, lanes)
        seen = look_at_gradient(seen, full{{k}})
        index{{k}} = counting(start + {{k}}, 0)
        known{{k}} = {known}
    """
    lifting = """
        lifted{k} = lift(index{k}, const, full{k}, row, known{k})
        lifted{k} = keep(every_lane_if({k} < count), lifted{k}, identity())
    """
    after = ""
    if parts.quiet.possible:
        after = _quiet_chunk(descending)
        after += "".join(textwrap.dedent(lifting.format(k=k)) for k in range(LANES))
    else:  # beside the loads, which takes fewer registers
        each += lifting
    after += f"states = scan_eight({_in_turn('lifted', descending)})\n"
    for turn in range(LANES):
        k = LANES - 1 - turn if descending else turn
        own = turn if parts.inclusive else turn - 1
        state = f"states[{own}]" if own >= 0 else "identity()"
        after += (
            f"if {k} < count:\n"
            f"    here = extended(known{k}, combine(before, {state}))\n"
            f"    value = finish(index{k}, const, full{k}, row, here)\n"
            f"    put_columns(p, at{k}, steps, column, lanes, value)\n"
        )
    return _unrolled(
        "scan_chunk",
        "p, const, addresses, strides, steps, start, count, column, lanes, before, befores, seen",
        """
        extent = word(p, EXTENT)
        row = fetch_row_columns(p, addresses, steps, column, lanes)
        seen = look_at_carry(look_at_row(seen, row), before)
        """,
        each,
        after + "return states[LANES - 1], seen",
        tools,
    )


def _quiet_chunk(descending: bool) -> str:
    """Source that leaves a chunk the shorter way, if nothing happens in it."""
    given = [f"index{k}, const, full{k}, row, known{k}" for k in range(LANES)]
    awake = " | ".join(f"wakes({arguments})" for arguments in given)
    lifted = [f"quiet_lift({arguments})" for arguments in given]
    turns = ", ".join(reversed(lifted) if descending else lifted)
    source = f"if count == LANES and not ({awake}):\n"
    for k in range(LANES):
        source += f"    put_columns(p, at{k}, steps, column, lanes, no_vectors())\n"
    return source + f"    return widened(quiet_join(({turns}))), seen\n"


def _one_way(parts: ScanParts, operands: Operands):
    fold = parts.fold
    combine, identity, read, write = fold.combine, fold.identity, fold.read, fold.write
    scan_chunk = _make_scan_chunk(parts, operands, descending=False)
    pitch = 8 * WIDEST_ONE_WAY
    block_scratch = stack(WIDEST_ONE_WAY * fold.size)
    chunk_scratch = stack(WIDEST_ONE_WAY * fold.size)

    @inner
    def scan_tile(p, const, addresses, strides, steps, left, width, outer):
        extent = word(p, EXTENT)
        block_box, chunk_box = block_scratch(), chunk_scratch()
        for c in range(0, width, LANES):
            write(block_box + 8 * c, pitch, identity())
        for b in range(word(p, BLOCKS)):
            for c in range(0, width, LANES):
                write(chunk_box + 8 * c, pitch, identity())
            for start in range(b * SCAN_BLOCK, least((b + 1) * SCAN_BLOCK, extent), LANES):
                count = least(LANES, extent - start)
                for c in range(0, width, LANES):
                    carried = read(chunk_box + 8 * c, pitch)
                    before = combine(read(block_box + 8 * c, pitch), carried)
                    lanes = least(LANES, width - c)
                    total, _ = scan_chunk(
                        p, const, addresses, strides, steps, start, count, left + c, lanes, before,
                        no_vectors(), nothing_seen(),
                    )  # fmt: skip
                    write(chunk_box + 8 * c, pitch, combine(carried, total))
            for c in range(0, width, LANES):
                carry = combine(read(block_box + 8 * c, pitch), read(chunk_box + 8 * c, pitch))
                write(block_box + 8 * c, pitch, carry)

    return scan_tile


def _make_prefix_chunk(parts: ScanParts, operands: Operands, whole: bool):
    """The prefix of a chunk, and what was seen.

    The states before each position, the carry ``before`` included, if ``whole``; else the total.
    """
    prefix = parts.prefix
    assert prefix is not None
    tools = {
        **_tools(prefix, operands),
        "look_at_factor": parts.watch.factor,
        "keeps": prefix.keeps,
    }
    lifted = _in_turn("lifted", descending=False)
    after = f"return join_eight({lifted}), seen"
    if whole:
        states = [f"combine(before, states[{k - 1}])" for k in range(1, LANES)]
        befores = ", ".join(["combine(before, identity())", *states])
        after = f"states = scan_eight({lifted})\nreturn ({befores}), seen"
        if parts.selects:
            same = ", ".join(["before"] * LANES)
            after = f"if keeps(before, join_eight({lifted})):\n    return ({same}), seen\n" + after
    return _unrolled(
        "prefix_chunk",
        "p, const, addresses, strides, steps, start, count, column, lanes, before, seen",
        "extent = word(p, EXTENT)",
        """
        at{k} = places(addresses, strides, least(start + {k}, extent - 1), extent)
        full{k} = fetch_columns(p, at{k}, steps, column, lanes)
        seen = look_at_factor(seen, full{k})
        lifted{k} = lift(counting(start + {k}, 0), const, full{k}, no_vectors(), no_vectors())
        lifted{k} = keep(every_lane_if({k} < count), lifted{k}, identity())
        """,
        after,
        tools,
    )


def _both_ways(parts: ScanParts, operands: Operands):
    """A prefix scan down the tile and the scan itself up, block by block from the end.

    The prefix carry into every block is kept in the workspace, the one into every chunk of the
    current block on the stack.
    """
    fold, prefix = parts.fold, parts.prefix
    assert prefix is not None
    combine, identity, read, write = fold.combine, fold.identity, fold.read, fold.write
    p_combine, p_identity, p_read, p_write = (
        prefix.combine,
        prefix.identity,
        prefix.read,
        prefix.write,
    )
    p_size, pitch = prefix.size, 8 * WIDEST_BOTH_WAYS
    look_at_carry, was_moderate = parts.watch.carry, parts.watch.was_moderate
    prefix_total = _make_prefix_chunk(parts, operands, whole=False)
    prefix_states = _make_prefix_chunk(parts, operands, whole=True)
    scan_chunk = _make_scan_chunk(parts, operands, descending=True)
    block_scratch = stack(WIDEST_BOTH_WAYS * fold.size)
    chunk_scratch = stack(WIDEST_BOTH_WAYS * fold.size)
    p_chunk_scratch = stack((CHUNKS + 1) * WIDEST_BOTH_WAYS * p_size)
    single_scratch = stack(WIDEST_BOTH_WAYS * p_size)
    row_of_chunks = pitch * p_size

    @inner
    def prefix_block(p, const, addresses, strides, steps, left, width, b, p_chunks, seen):
        """Carries of the block's own prefix into each chunk, and after the last."""
        first, stop = b * SCAN_BLOCK, least((b + 1) * SCAN_BLOCK, word(p, EXTENT))
        for c in range(0, width, LANES):
            p_write(p_chunks + 8 * c, pitch, p_identity())
        for start in range(first, stop, LANES):
            here = p_chunks + (start - first) // LANES * row_of_chunks
            count = least(LANES, stop - start)
            for c in range(0, width, LANES):
                lanes = least(LANES, width - c)
                carried = p_read(here + 8 * c, pitch)
                total, seen = prefix_total(
                    p, const, addresses, strides, steps, start, count, left + c, lanes, carried,
                    seen,
                )  # fmt: skip
                carried = p_combine(carried, total)
                p_write(here + row_of_chunks + 8 * c, pitch, carried)
        return seen

    @inner
    def scan_tile(p, const, addresses, strides, steps, left, width, outer):
        extent, blocks = word(p, EXTENT), word(p, BLOCKS)
        block_box, chunk_box, p_chunks = block_scratch(), chunk_scratch(), p_chunk_scratch()
        # Row b of the kept carries: for each component a plane of whole tiles. A single block
        # has none to keep, and its carry is read from the stack.
        plane = word(p, TILES) * word(p, TILE) * 8
        kept = word(p, SCRATCH) + outer * blocks * p_size * plane + left * 8
        if blocks == 1:
            kept, plane = single_scratch(), pitch
        seen = nothing_seen()
        for c in range(0, width, LANES):
            write(block_box + 8 * c, pitch, identity())
            p_write(kept + 8 * c, plane, p_identity())
        # All blocks but the last in order, for the carries into them; then all from the last.
        for step in range(2 * blocks - 1):
            back = step - (blocks - 1)
            b = step if back < 0 else blocks - 1 - back
            row = kept + b * p_size * plane
            seen = prefix_block(p, const, addresses, strides, steps, left, width, b, p_chunks, seen)
            if back < 0:
                for c in range(0, width, LANES):
                    total = p_read(p_chunks + CHUNKS * row_of_chunks + 8 * c, pitch)
                    after = p_combine(p_read(row + 8 * c, plane), total)
                    p_write(row + p_size * plane + 8 * c, plane, after)
                continue
            for c in range(0, width, LANES):
                write(chunk_box + 8 * c, pitch, identity())
            first = b * SCAN_BLOCK
            chunks = (least(SCAN_BLOCK, extent - first) + LANES - 1) // LANES
            for chunk_back in range(chunks):
                chunk = chunks - 1 - chunk_back
                start = first + chunk * LANES
                count = least(LANES, extent - start)
                for c in range(0, width, LANES):
                    lanes = least(LANES, width - c)
                    p_before = p_combine(
                        p_read(row + 8 * c, plane),
                        p_read(p_chunks + chunk * row_of_chunks + 8 * c, pitch),
                    )
                    seen = look_at_carry(seen, p_before)
                    befores, seen = prefix_states(
                        p, const, addresses, strides, steps, start, count, left + c, lanes,
                        p_before, seen,
                    )  # fmt: skip
                    carried = read(chunk_box + 8 * c, pitch)
                    before = combine(read(block_box + 8 * c, pitch), carried)
                    total, seen = scan_chunk(
                        p, const, addresses, strides, steps, start, count, left + c, lanes, before,
                        befores, seen,
                    )  # fmt: skip
                    carried = combine(carried, total)
                    write(chunk_box + 8 * c, pitch, carried)
            for c in range(0, width, LANES):
                carry = combine(read(block_box + 8 * c, pitch), read(chunk_box + 8 * c, pitch))
                write(block_box + 8 * c, pitch, carry)
        if not was_moderate(seen):
            set_word(p, STRAINED, 1)

    return scan_tile
