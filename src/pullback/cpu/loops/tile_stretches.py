"""Stretches down the columns of a tile: a shorter way, with one test behind many rows.

What is carried along a stretch lies behind the states of its lane. A lane's rows are few at a time,
and looked at only as often as must be.
"""

from __future__ import annotations

from ..codegen.block import least
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.operands import Operands
from ..codegen.passes import BoundPass
from ..codegen.vectors import counting
from .tile import PITCH

APART = LANES * PITCH


def make_tile_stretches(bound: BoundPass, operands: Operands, fetch, read_row, read_known, rows):
    """``fold(tile, width, start, stop)`` of whole eights of columns into the lanes of a tile.

    ``rows`` are walked side by side.
    """
    fold, way = bound.fold, bound.fold.stretch
    read, write, identity, combine = fold.read, fold.write, fold.identity, fold.combine
    lift_one, lift, join, look, end = fold.lift, way.lift, way.join, way.look, way.end
    begin, holds, far_holds = way.begin, way.holds, way.far_holds
    end_far, brought_near = way.end_far, way.brought_near
    meet, read_carried, write_carried = way.meet, way.read, way.write
    places, behind, most = operands.places, fold.size * APART, way.most
    all_rows = tuple(range(0, rows, LANES))
    # Rows of a stretch in which what is carried stays in registers: prod of 8x4096 float32 took 9.7
    # microseconds so and 13.2 otherwise.
    few = 2 * rows
    seldom = max(1, way.every // len(all_rows))  # times, of which the last looks
    steps = tuple((k, (n + 1) % way.every == 0) for n, k in enumerate(all_rows))

    @inlined
    def state_of(lane_box, c, fresh):
        state = identity()
        if not fresh:
            state = read(lane_box + 8 * c, APART)
        return state

    @inlined
    def fetched(tile, c, i):
        _, _, addresses, strides, steps, left, _ = tile
        return fetch(tile[0], places(addresses, strides, i), strides, steps, left + c, LANES, i)

    @inlined
    def joined(tile, c, i, carried):
        const, (row_box, known_box, _, _, _) = tile[1], tile[6]
        row, known = read_row(row_box + 8 * c, PITCH), read_known(known_box + 8 * c, PITCH)
        return join(carried, lift(counting(i, 0), const, fetched(tile, c, i), row, known))

    @inlined
    def join_rows(tile, c, first, carried):
        for k, looks_here in steps:
            carried = joined(tile, c, first + k, carried)
            if looks_here:
                carried = look(carried)
        return carried

    @inlined
    def join_whole(tile, c, first, lane_box, anew, fresh, looks):
        """As many rows of a lane as there are at a time."""
        if anew:
            carried = begin(state_of(lane_box, c, fresh))
        else:
            carried = read_carried(lane_box + behind + 8 * c, APART)
        carried = join_rows(tile, c, first, carried)
        if looks:
            carried = look(carried)
        write_carried(lane_box + behind + 8 * c, APART, carried)

    @inner
    def join_lane(tile, width, first, lane_box, anew, fresh, looks):
        if anew and looks:
            for c in range(0, width, LANES):
                join_whole(tile, c, first, lane_box, True, fresh, True)
        elif anew:
            for c in range(0, width, LANES):
                join_whole(tile, c, first, lane_box, True, fresh, False)
        elif looks:
            for c in range(0, width, LANES):
                join_whole(tile, c, first, lane_box, False, False, True)
        else:
            for c in range(0, width, LANES):
                join_whole(tile, c, first, lane_box, False, False, False)

    @inner
    def join_last(tile, width, first, stop, lane_box, anew, fresh):
        """Fewer rows than there are at a time."""
        for c in range(0, width, LANES):
            carried = read_carried(lane_box + behind + 8 * c, APART)
            if anew:
                carried = begin(state_of(lane_box, c, fresh))
            for i in range(first, stop, LANES):
                carried = look(joined(tile, c, i, carried))
            write_carried(lane_box + behind + 8 * c, APART, carried)

    @inner
    def combined(tile, c, first, stop, state, carried):
        if far_holds(state, carried):
            return end_far(state, carried)
        const, (row_box, known_box, _, _, _) = tile[1], tile[6]
        row, known = read_row(row_box + 8 * c, PITCH), read_known(known_box + 8 * c, PITCH)
        for i in range(first, stop, LANES):
            lifted = lift_one(counting(i, 0), const, fetched(tile, c, i), row, known)
            state = combine(state, lifted)
        return brought_near(state)

    @inlined
    def ended(tile, c, first, stop, state, carried):
        after = end(state, carried)
        if not holds(state, carried):
            after = combined(tile, c, first, stop, state, carried)
        return after

    @inner
    def end_lane(tile, width, first, stop, lane_box, fresh):
        for c in range(0, width, LANES):
            carried = read_carried(lane_box + behind + 8 * c, APART)
            state = state_of(lane_box, c, fresh)
            write(lane_box + 8 * c, APART, ended(tile, c, first, stop, state, carried))

    @inner
    def fold_few(tile, width, first, stop, lane_box, fresh):
        """A stretch of few rows."""
        whole = first + (stop - first + LANES - 1) // rows * rows
        for c in range(0, width, LANES):
            state = state_of(lane_box, c, fresh)
            carried = begin(state)
            for i in range(first, whole, rows):
                carried = look(join_rows(tile, c, i, carried))
            for i in range(whole, stop, LANES):
                carried = look(joined(tile, c, i, carried))
            write(lane_box + 8 * c, APART, ended(tile, c, first, stop, state, carried))

    @inlined
    def met_four(at):
        """Every other lane."""
        here = meet(read(at, APART), read(at + 4 * PITCH, APART))
        return meet(here, meet(read(at + 2 * PITCH, APART), read(at + 6 * PITCH, APART)))

    @inner
    def join_lanes(lanes_box, width, count):
        """The first lanes as one, into the first, by the tree of all."""
        if count == LANES:
            for at in range(lanes_box, lanes_box + 8 * width, 8 * LANES):
                write(at, APART, brought_near(meet(met_four(at), met_four(at + PITCH))))
            return
        for half in (4, 2, 1):
            for lane in range(least(half, count - half)):
                low = lanes_box + lane * PITCH
                for at in range(low, low + 8 * width, 8 * LANES):
                    write(at, APART, meet(read(at, APART), read(at + half * PITCH, APART)))
        for at in range(lanes_box, lanes_box + 8 * width, 8 * LANES):
            write(at, APART, brought_near(read(at, APART)))

    @inner
    def fold_stretch(tile, width, first, last, fresh):
        lanes_box = tile[6][2]
        for at in range(first, last, rows):
            until = least(at + rows, last)
            looks = until == last or ((at - first) // rows + 1) % seldom == 0
            for lane in range(least(LANES, until - at)):
                lane_box = lanes_box + lane * PITCH
                if at + lane + rows - LANES < until:
                    join_lane(tile, width, at + lane, lane_box, at == first, fresh, looks)
                else:
                    join_last(tile, width, at + lane, until, lane_box, at == first, fresh)
        for lane in range(least(LANES, last - first)):
            end_lane(tile, width, first + lane, last, lanes_box + lane * PITCH, fresh)

    @inner
    def fold_stretches(tile, width, start, stop):
        lanes_box = tile[6][2]
        for first in range(start, stop, most):
            last = least(first + most, stop)
            if last - first > few:
                fold_stretch(tile, width, first, last, first == start)
            else:
                for lane in range(least(LANES, last - first)):
                    lane_box = lanes_box + lane * PITCH
                    fold_few(tile, width, first + lane, last, lane_box, first == start)
        join_lanes(lanes_box, width, least(LANES, stop - start))

    return fold_stretches
