"""The end of a tile of columns: one value per column, or one per element."""

from __future__ import annotations

from typing import Any

from ...formulas.record import RowFormula, parameters
from ..codegen.bind import per_row
from ..codegen.block import is_streamed, least
from ..codegen.column_choices import choice_of
from ..codegen.elementary import primitives_for
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.memory import word
from ..codegen.neighbours import fetch_across, neighbours_of
from ..codegen.operands import Operands, fence
from ..codegen.sixteen import Boxed, apply_sixteen
from ..codegen.vectors import counting, no_vectors, state_emitters
from ..words import EXTENT
from .flush import flush, put_bytes
from .rows import doubtful_span, element_functions, lifted_call, writes_pairs
from .tile import PITCH, keeps_columns, kept_at, kept_pitch, row_emitters


def make_tile_finish(formula: RowFormula, element: str, operands: Operands, known):
    """Write one value per column, or one per element."""
    read_known = state_emitters(len(known))[0]
    read_row, put_columns = row_emitters(operands)[0], operands.put_columns
    outputs = len(operands.outputs)
    if formula.finish:
        primitives = primitives_for(element)
        finish = per_row(formula.finish, primitives, operands.row, known, (), outputs)

        @inner
        def finish_tile(tile, width):
            p, const, addresses, _, steps, left, (row_box, known_box, _, _, _) = tile
            for c in range(0, width, LANES):
                count = least(LANES, width - c)
                row = read_row(row_box + 8 * c, PITCH)
                found = read_known(known_box + 8 * c, PITCH)
                values = finish(const, row, found, no_vectors())
                put_columns(p, addresses, steps, left + c, count, values)

        return finish_tile

    boxed = Boxed(len(operands.row), len(known), PITCH)
    apply, sixteen = element_functions(formula, element, operands, known, boxed)
    split = boxed.split()
    places, fetch = operands.places, fetch_across(operands, neighbours_of(formula, operands))

    @inner
    def apply_some(tile, at, c, count, i):
        p, const, _, strides, steps, left, boxes = tile
        full = fetch(p, at, strides, steps, left + c, count, i)
        row = read_row(boxes[0] + 8 * c, PITCH)
        known = read_known(boxes[1] + 8 * c, PITCH)
        values = apply(counting(i, 0), const, full, row, known)
        put_columns(p, at, steps, left + c, count, values)

    if not operands.packed:

        @inner
        def apply_strided(tile, width):
            p, _, addresses, strides, _, _, _ = tile
            for i in range(word(p, EXTENT)):
                at = places(addresses, strides, i)
                for c in range(0, width, LANES):
                    apply_some(tile, at, c, least(LANES, width - c), i)

        return apply_strided

    if is_constant(formula, operands):
        return _make_repeat(operands, apply_some)

    prefetch, stream, item = operands.prefetch(), operands.stream_outputs(), operands.edge.item
    one, other, may_stream = operands.output_at[0], operands.output_at[-1], operands.may_stream()
    pairs = writes_pairs(formula, operands)
    fetch_pair, put_pair = operands.fetch_pair(), operands.put_pair()
    group, lingers = 2 * LANES if pairs or sixteen else LANES, operands.bounded

    @inner
    def apply_whole(tile, at, c, i, streamed):
        p, const, _, strides, steps, left, boxes = tile
        full = fetch(p, at, strides, steps, left + c, LANES, i)
        row = read_row(boxes[0] + 8 * c, PITCH)
        known = read_known(boxes[1] + 8 * c, PITCH)
        values = apply(counting(i, 0), const, full, row, known)
        if streamed:
            stream(at, left + c, values)
        else:
            put_columns(p, at, steps, left + c, LANES, values)
        return True

    @inlined
    def apply_pair(tile, at, c, i, streamed):
        _, const, _, _, _, left, boxes = tile
        full, next_full = fetch_pair(at, left + c)
        row = read_row(boxes[0] + 8 * c, PITCH)
        known = read_known(boxes[1] + 8 * c, PITCH)
        values = apply(counting(i, 0), const, full, row, known)
        c += LANES
        row = read_row(boxes[0] + 8 * c, PITCH)
        known = read_known(boxes[1] + 8 * c, PITCH)
        next_values = apply(counting(i, 0), const, next_full, row, known)
        put_pair(at, left + c - LANES, values, next_values, streamed)
        return True

    lifted: Any = None
    if keeps_columns(formula, operands):
        earlier = known[: -len(formula.passes[-1].names)]
        lifted = apply_sixteen(lifted_call(formula, operands, earlier), operands, boxed, True)

    chooses = sixteen and operands.singles
    choice = choice_of(formula.apply, operands, known, boxed) if chooses else None
    prepare_choice: Any = choice.prepare() if choice else None
    put_chosen: Any = choice.apply() if choice else None

    @inlined
    def apply_choice(tile, at, c, i, streamed):
        _, _, _, _, _, left, (row_box, known_box, _, _, split_box) = tile
        numbers = (row_box + 8 * c, known_box + 8 * c, split_box + 4 * c)
        put_chosen(at, left + c, numbers, split_box + item * c, streamed)
        return True

    @inlined
    def apply_singles(tile, at, c, i, streamed):
        _, const, _, _, _, left, (row_box, known_box, _, _, split_box) = tile
        numbers = (row_box + 8 * c, known_box + 8 * c, split_box + 4 * c)
        return sixteen(at, left + c, i, const, numbers, streamed, None)

    @inlined
    def apply_lifted(tile, at, c, i, pitch):
        _, const, _, _, _, left, (row_box, known_box, _, _, split_box) = tile
        numbers = (row_box + 8 * c, known_box + 8 * c, split_box + 4 * c)
        return lifted(at, left + c, i, const, numbers, False, kept_at(tile, i, pitch, c))

    apply_group = apply_singles if sixteen else apply_pair if pairs else apply_whole
    if choice:
        apply_group = apply_choice

    @inlined
    def apply_next(tile, at, c, i, streamed, pitch):
        if lifted is None:
            sure = apply_group(tile, at, c, i, streamed)
        elif pitch > 0 and not streamed:
            sure = apply_lifted(tile, at, c, i, pitch)
        else:
            sure = apply_group(tile, at, c, i, streamed)
        return sure

    @inner
    def apply_ragged(tile, at, start, stop, i):
        for c in range(start, stop, LANES):
            apply_some(tile, at, c, least(LANES, stop - c), i)

    @inner
    def apply_tile(tile, width):
        p, _, addresses, strides, _, left, _ = tile
        vector = group * item
        alike = addresses[one] % vector == addresses[other] % vector
        alike = alike and (strides[one] - strides[other]) % vector == 0
        if sixteen is not None:
            row_box, known_box, _, _, split_box = tile[6]
            for c in range(0, width, LANES):
                split(row_box + 8 * c, known_box + 8 * c, split_box + 4 * c)
                if prepare_choice is not None:
                    prepare_choice(row_box, known_box, split_box, c)
        pitch = kept_pitch(p, width // group * group)
        for i in range(word(p, EXTENT)):
            at = places(addresses, strides, i)
            streamed = alike and may_stream(p, at)
            below = places(addresses, strides, i + 1)
            inside = 0
            if streamed:
                inside = least(-(at[one] // item + left) % group, width)
                apply_ragged(tile, at, 0, inside, i)
            whole = inside + (width - inside) // group * group
            c, span = inside, group
            while c < width:
                tried = c
                while c < whole:
                    prefetch(below, left + c)
                    if not apply_next(tile, at, c, i, streamed, pitch):
                        break
                    c += group
                if lingers:
                    span = doubtful_span(span, group, whole - c, c > tried)
                until = c + span if c < whole else width
                apply_ragged(tile, at, c, until, i)
                c = until
        fence()

    return apply_tile


def is_constant(formula: RowFormula, operands: Operands) -> bool:
    """Whether all positions of the axis get the same value of one output, as those of a mean do."""
    changing = {"index", "first", *operands.full} & set(parameters(formula.apply))
    return not changing and len(operands.output_at) == 1


def _make_repeat(operands: Operands, apply_some):
    """Write one row of a tile in a box, and from there to all positions of the axis."""
    move, places, item = operands.staged(), operands.places, operands.edge.item

    @inner
    def repeat_tile(tile, width):
        p, _, addresses, strides, _, left, (_, _, box, _, _) = tile
        staged, _ = move(addresses, left, left + width, box)
        for c in range(0, width, LANES):
            apply_some(tile, staged, c, least(LANES, width - c), 0)
        size = width * item
        for i in range(word(p, EXTENT)):
            _, place = move(places(addresses, strides, i), left, left + width, box)
            if is_streamed(p, place):
                flush(place, box, size)
            else:
                put_bytes(place, box, size)
        fence()

    return repeat_tile
