"""Row formulas with the eight lanes along the axis.

The axis is cut into blocks of ``BLOCK`` elements. Within a block, element i belongs to lane i mod 8
and a lane folds its elements in order; the lanes join by a tree, then the blocks in order. That
order depends on the extent alone: the columns schedule builds the same one.

What all functions need to know of a row goes by one name:
``line = (p, const, row, addresses, strides, kept)``, the parameter block, the op's constants, the
row's operands, where all operands begin and how far apart their positions lie, and where what is
lifted of a block is kept for ``apply``.
"""

from __future__ import annotations

from typing import Any

from ...formulas.record import LIFTED, RowFormula, is_pointwise, reads_neighbours, repeats
from ..codegen.bind import any_element, per_element, per_row
from ..codegen.block import least
from ..codegen.bounded import bounded_call, shorter_call
from ..codegen.elementary import primitives_for
from ..codegen.extremes import TOGETHER, elements_of, extreme_of, is_extreme
from ..codegen.fold import group_at
from ..codegen.functions import inlined, inner
from ..codegen.lanes import LANES
from ..codegen.memory import word
from ..codegen.neighbours import fetch_along, neighbours_of
from ..codegen.operands import Operands, fence
from ..codegen.passes import BoundPass
from ..codegen.registers import foresees_rows, registers
from ..codegen.single_calls import SingleCall, elements_known, lift_call, single_call
from ..codegen.sixteen import SIXTEEN as GROUP
from ..codegen.sixteen import Spread, apply_sixteen, forget, per_eight
from ..codegen.vectors import (
    counting,
    first_lanes,
    no_vectors,
    stack,
    state_emitters,
    zero_vectors,
)
from ..words import BLOCK as BLOCK
from ..words import BLOCKS, EXTENT, FAR
from .four_rows import ROWS, leading, longest_for, make_four
from .row_stretches import RowStretch

# Elements of a row up to which four rows go through every pass together. What ends a pass, joining
# lanes and a logarithm, is a chain in which an instruction waits for the one before, and the next
# row need not: log_softmax of 64x256 float32 took 7.9 microseconds instead of 10.0.
STAGED = BLOCK // ROWS

# Elements computed by eight, at most, before sixteen are tried again.
LONGEST_SPAN = 256

# Inputs of the next row are asked for while a row is written, when memory would have nothing to
# read, up to this many bytes.
AHEAD_BYTES = 1 << 18


def make_block_fold(formula: RowFormula, bound: BoundPass, operands: Operands):
    """Fold the elements [start, stop) of one row; lane 0 of the result holds their state."""
    fold, lift_pair, counts, keeps = bound.fold, bound.lift_pair, bound.counts, bound.keeps
    lift, combine, identity, keep = fold.lift, fold.combine, fold.identity, fold.keep
    join_lanes, write = fold.join_lanes, fold.write
    fetch_full = fetch_along(operands, neighbours_of(formula, operands))
    if fold.stretch is not None:
        return _make_stretched_fold(RowStretch(fold, fetch_full), identity)
    keeps_doubles = keeps and lift_pair is None

    @inlined
    def fold_eight(line, known, state, i, place):
        p, const, row, addresses, strides, _ = line
        full = fetch_full(p, addresses, strides, i, LANES)
        if counts is None or counts(counting(i, 1), const, full, row, known):
            lifted = lift(counting(i, 1), const, full, row, known)
            if keeps_doubles:
                write(place, 8, lifted)
            state = combine(state, lifted)
        return state

    @inlined
    def fold_whole(line, known, start, whole):
        state = identity()
        for i in range(start, whole, LANES):
            state = fold_eight(line, known, state, i, line[5] + 8 * (i - start))
        return state

    @inlined
    def fold_pairs(line, known, start, whole):
        """The same by sixteen, but for those that are left over or doubtful."""
        _, const, row, addresses, _, kept = line
        state = identity()
        pairs = start + (whole - start) // GROUP * GROUP
        if keeps:
            forget(kept + 4 * (pairs - start))
        i = start
        while i < whole:
            while i < pairs:
                place = kept + 4 * (i - start)
                first, second, sure = lift_pair(addresses, i, const, row, known, place)
                if not sure:
                    break
                state = combine(combine(state, first), second)
                i += GROUP
            if keeps:
                forget(kept + 4 * (i - start))
            until = least(i + GROUP, whole)
            for k in range(i, until, LANES):
                state = fold_eight(line, known, state, k, kept)
            i = until
        return state

    fold_most = fold_whole if lift_pair is None else fold_pairs
    if fold.lift_away is not None:
        lift_away, combine_away, group = fold.lift_away, fold.combine_away, group_at(fold.position)

        @inlined
        def fold_away(line, known, state, start, stop):
            p, const, row, addresses, strides, _ = line
            for i in range(start, stop, LANES):
                full = fetch_full(p, addresses, strides, i, LANES)
                state = combine_away(state, lift_away(counting(i, 1), const, full, row, known))
            return state

        @inlined
        def fold_around(line, known, start, whole):
            hit = group(line[2], start, whole)
            state = fold_away(line, known, identity(), start, hit)
            if hit < whole:
                state = fold_eight(line, known, state, hit, 0)
                state = fold_away(line, known, state, hit + LANES, whole)
            return state

        fold_most = fold_around
    if is_extreme(bound.monoid, operands):
        begin, step, end = extreme_of(bound.monoid, operands)
        at_a_time = TOGETHER * elements_of(operands)

        @inlined
        def fold_extreme(line, known, start, whole):
            """The extreme of many elements in any order, if that is sure; then the others."""
            most = start + (whole - start) // at_a_time * at_a_time
            found, seen = begin(), 0
            for i in range(start, most, at_a_time):
                found, seen = step(found, seen, line[3], i)
            state, sure = end(found, seen)
            if not sure:
                state, most = identity(), start
            for i in range(most, whole, LANES):
                state = fold_eight(line, known, state, i, 0)
            return state

        fold_most = fold_extreme

    def block_fold(line, known, start, stop):
        p, const, row, addresses, strides, kept = line
        whole = start + (stop - start) // LANES * LANES
        state = fold_most(line, known, start, whole)
        if whole < stop:
            full = fetch_full(p, addresses, strides, whole, stop - whole)
            lifted = lift(counting(whole, 1), const, full, row, known)
            if keeps_doubles:
                write(kept + 8 * (whole - start), 8, lifted)
            state = keep(first_lanes(stop - whole), combine(state, lifted), state)
        return join_lanes(state)

    # One that keeps what it lifts is called again where a row has several blocks.
    return inner(block_fold) if keeps else inlined(block_fold)


def _make_stretched_fold(way: RowStretch, identity):
    """The same by stretches."""
    most, together = way.most, way.together

    @inlined
    def block_fold(line, known, start, stop):
        state = identity()
        for first in range(start, stop, most):
            last = least(first + most, stop)
            carried = way.begin(state)
            until = first + (last - first) // together * together
            for i in range(first, until, together):
                carried = way.join_some(line, known, carried, i)
            carried = way.join_rest(line, known, carried, until, last)
            state = way.ended(line, known, state, carried, first, last)
        return way.join_lanes(state)

    return block_fold


def make_summary(formula: RowFormula, steps, element: str, operands: Operands, known=("",)):
    """Some passes over one row: ``summary(line, known)``, and the names of what it gives.

    And, if the last of the formula's passes is one that keeps what it lifts, its ``block_fold``.
    """

    @inlined
    def nothing(line, known):
        return known

    summary, lifts = nothing, None
    for step in steps:
        keeps = step is formula.passes[-1] and keeps_lifted(formula, operands, known)
        bound = BoundPass(formula, step, element, operands, known, keeps=keeps)
        block_fold = make_block_fold(formula, bound, operands) if bound.fold else None
        summary = _with_pass(summary, bound, block_fold)
        known = known + step.names
        lifts = block_fold if keeps else None
    return summary, known, lifts


def keeps_lifted(formula: RowFormula, operands: Operands, known) -> bool:
    """Whether ``apply`` is given what the last pass lifts, a block at a time."""
    if formula.from_lifted is None or not operands.packed or reads_neighbours(formula):
        return False
    return not operands.singles or lifted_call(formula, operands, known) is not None


def lifted_call(formula: RowFormula, operands: Operands, known) -> SingleCall | None:
    """``from_lifted`` on float32 lanes, where the last pass and ``apply`` are on those too."""
    monoid, full, row = formula.passes[-1].monoid, operands.full, operands.row
    if monoid is None or lift_call(formula, monoid, full, row, known) is None:
        return None
    known = known + formula.passes[-1].names
    if single_call(formula.apply, full, row, known) is None:
        return None
    return single_call(formula.from_lifted, (*full, LIFTED), row, known)


def _with_pass(before, bound: BoundPass, block_fold):
    close = bound.close
    if bound.fold is None:

        @inlined
        def prepared(line, known):
            return close(line[1], line[2], before(line, known), no_vectors())

        return prepared

    fold = bound.fold
    combine, begin, spread = fold.combine, bound.begin, fold.spread

    @inlined
    def folded(line, known):
        p, const, row, _, _, _ = line
        extent = word(p, EXTENT)
        state = begin(const, row)
        for b in range(word(p, BLOCKS)):
            start = b * BLOCK
            stop = least(start + BLOCK, extent)
            state = combine(state, block_fold(line, known, start, stop))
        return close(const, row, known, spread(state, 0))

    if not bound.most:

        @inlined
        def passed(line, known):
            return folded(line, before(line, known))

        return passed

    most, first, rests = bound.most, bound.first, bound.rests

    @inlined
    def repeated(line, known):
        values = first(line[1], line[2], before(line, known))
        for _ in range(most):
            earlier, values = values, folded(line, values)
            if rests(earlier, values):
                break
        return values

    return repeated


def make_apply_range(
    formula: RowFormula, element: str, operands: Operands, known, asks: bool, lifted: bool = False
):
    """Write the elements [start, stop) of one row, everything about the row being known.

    If it ``asks``, the inputs of the row at ``ahead`` are brought near meanwhile. If ``lifted``,
    what the last pass lifted of these elements is kept.

    Outputs larger than the caches are written past them, eight aligned elements at a time: an
    ordinary store reads the line first, which costs a third of the traffic of a one-operand op.
    """
    apply, sixteen = element_functions(formula, element, operands, known, Spread(), lifted)
    fetch_full = fetch_along(operands, neighbours_of(formula, operands))
    put_outputs = operands.put_outputs

    @inlined
    def apply_chunk(line, known, start, count):
        p, const, row, addresses, strides, _ = line
        full = fetch_full(p, addresses, strides, start, count)
        values = apply(counting(start, 1), const, full, row, known)
        put_outputs(p, addresses, strides, start, count, values)

    if not operands.packed:

        @inlined
        def apply_strided(line, known, start, stop, ahead):
            for i in range(start, stop, LANES):
                apply_chunk(line, known, i, least(LANES, stop - i))

        return apply_strided

    stream, prefetch, item = operands.stream_outputs(), operands.prefetch(), operands.edge.item
    first, last, may_stream = operands.output_at[0], operands.output_at[-1], operands.may_stream()
    pairs = writes_pairs(formula, operands)
    fetch_pair, put_pair = operands.fetch_pair(), operands.put_pair()
    primitives, counts, zeros = primitives_for(element), None, zero_vectors(len(operands.outputs))
    if formula.counts:
        counts = any_element(formula.counts, primitives, operands.full, operands.row, known)
    apply_lifted: Any = None
    if lifted and not sixteen:
        full, outputs = (*operands.full, LIFTED), len(operands.outputs)
        apply_lifted = per_element(
            formula.from_lifted, primitives, full, operands.row, known, outputs
        )
    read_kept = state_emitters(1)[0]
    lingers = operands.bounded
    # Elements written at a time.
    group = GROUP if pairs or sixteen else LANES

    @inlined
    def apply_whole(line, known, i, start, streamed):
        p, const, row, addresses, strides, kept = line
        full = fetch_full(p, addresses, strides, i, LANES)
        values = zeros()
        if apply_lifted is not None:
            more = full + read_kept(kept + 8 * (i - start), 8)
            values = apply_lifted(counting(i, 1), const, more, row, known)
        elif counts is None or counts(counting(i, 1), const, full, row, known):
            values = apply(counting(i, 1), const, full, row, known)
        if streamed:
            stream(addresses, i, values)
        else:
            put_outputs(p, addresses, strides, i, LANES, values)
        return True

    @inlined
    def apply_pair(line, known, i, start, streamed):
        _, const, row, addresses, _, _ = line
        full, next_full = fetch_pair(addresses, i)
        values = next_values = zeros()
        if counts is None or counts(counting(i, 1), const, full, row, known):
            values = apply(counting(i, 1), const, full, row, known)
        if counts is None or counts(counting(i + LANES, 1), const, next_full, row, known):
            next_values = apply(counting(i + LANES, 1), const, next_full, row, known)
        put_pair(addresses, i, values, next_values, streamed)
        return True

    @inlined
    def apply_singles(line, known, i, start, streamed):
        _, const, row, addresses, _, kept = line
        return sixteen(addresses, i, const, row, known, streamed, kept + 4 * (i - start))

    apply_group = apply_singles if sixteen else apply_pair if pairs else apply_whole

    @inlined
    def apply_range(line, known, start, stop, ahead):
        p, _, _, addresses, _, _ = line
        alike = addresses[first] % (group * item) == addresses[last] % (group * item)
        streamed = alike and may_stream(p, addresses)
        # Up to here by eight: what lies before aligned groups, a doubtful one, what is left over.
        until = start
        if streamed:
            until = least(start + -(addresses[first] // item + start) % group, stop)
        whole = until + (stop - until) // group * group
        i, span = start, group
        while i < stop:
            while i < until:
                apply_chunk(line, known, i, least(LANES, until - i))
                i += LANES
            i = until
            while i < whole:
                if asks:
                    prefetch(ahead, i)
                if not apply_group(line, known, i, start, streamed):
                    break
                i += group
            if lingers:
                span = doubtful_span(span, group, whole - i, i > until)
            until = i + span if i < whole else stop

    return apply_range


@inlined
def doubtful_span(span, group, left, found_sure):
    """How many elements to compute by eight from a doubtful group on: more after each in a row.

    Where a rounding has to be sure, groups are doubtful here and there or, of numbers halfway
    between two elements, all of them.
    """
    return least(left, group if found_sure else least(2 * span, LONGEST_SPAN))


def element_functions(
    formula: RowFormula, element: str, operands: Operands, known, rows, lifted: bool = False
):
    """``apply`` of eight elements, and of sixteen packed ones or None; ``rows`` as there.

    If ``lifted``, sixteen are computed from what the last pass lifted.
    """
    primitives, outputs = primitives_for(element), len(operands.outputs)
    full, row = operands.full, operands.row
    call, known_elements = None, elements_known(formula, tuple(full))
    if operands.singles:
        call = single_call(formula.apply, full, row, known, known_elements)
    if call is None:
        sixteen = None
        if operands.bounded and operands.packed and not reads_neighbours(formula):
            bounded = bounded_call(formula.apply, full, row, known, element)
            sixteen = apply_sixteen(bounded, operands, rows) if bounded else None
        return per_element(formula.apply, primitives, full, row, known, outputs), sixteen
    apply = per_eight(call, formula.apply, primitives, operands, known, range(outputs))
    if not operands.packed or reads_neighbours(formula):
        return apply, None
    if lifted:
        wanted = single_call(formula.from_lifted, (*full, LIFTED), row, known)
    else:
        shorter = shorter_call(formula.apply, full, row, known, element, known_elements)
        wanted = shorter or call
    return apply, apply_sixteen(wanted, operands, rows, lifted)


def make_rows_kernel(formula: RowFormula, element: str, operands: Operands):
    """``kernel(p, begin, end)`` over whole rows."""
    if is_pointwise(formula):
        return _make_pointwise_kernel(formula, element, operands)
    write_strange, whole = _make_strange(formula, element, operands), formula
    if formula.usual:
        formula = formula.usual.formula
    # Passes over four rows at a time where they are short, then the others over each.
    count = leading(formula, operands)
    lead, names, _ = make_summary(formula, formula.passes[:count], element, operands)
    four: Any = make_four(formula, count, element, operands) if count else None
    stages, known, lifts = _make_stages(formula, formula.passes[count:], element, operands, names)
    write, read = state_emitters(len(names))[1], state_emitters(len(known))[0]
    box_of_four, size = stack(ROWS * len(known) * LANES), len(known) * LANES * 8
    longest = AHEAD_BYTES // (operands.edge.item * max(1, len(operands.full)))
    longest_four = longest_for(formula, operands.edge.item) if four and not lifts else STAGED
    if repeats(formula):
        longest_four = 0
    asked_from = 2 if foresees_rows() else 1
    reads_only = formula.finish is not None  # what is written asks for the next rows itself
    all_addresses, all_strides = operands.addresses, operands.strides
    fetch_rows = operands.fetch_rows
    write_row = _make_write_row(formula, element, operands, known, lifts)
    is_strange = strange_rows(whole, element, operands, known)
    # What is lifted of a block, or of four rows, with room behind each.
    single = 2 if operands.singles else 1
    box_of_lifted = stack((BLOCK + ROWS * GROUP) // single if lifts else 1)
    kept_size = 8 * (STAGED + GROUP) // single

    @inlined
    def line_of(p, const, strides, unit, kept):
        addresses = all_addresses(p, unit)
        return p, const, fetch_rows(addresses), addresses, strides, kept

    @inlined
    def four_at(p, unit):
        return (
            all_addresses(p, unit), all_addresses(p, unit + 1), all_addresses(p, unit + 2),
            all_addresses(p, unit + 3),
        )  # fmt: skip

    @inlined
    def fold_four(p, const, strides, unit, box):
        at, ahead = four_at(p, unit), four_at(p, unit + ROWS)
        far = reads_only and word(p, FAR) >= asked_from
        row = (fetch_rows(at[0]), fetch_rows(at[1]), fetch_rows(at[2]), fetch_rows(at[3]))
        a, b, c, d = four(p, const, strides, at, row, ahead, far)
        write(box, 64, a)
        write(box + size, 64, b)
        write(box + 2 * size, 64, c)
        write(box + 3 * size, 64, d)

    def run_stage(before, stage, read, write):
        """One more pass over some rows, each of which finds what is known of it in its box."""

        @inlined
        def staged(p, const, strides, first, together, box, kept):
            before(p, const, strides, first, together, box, kept)
            for k in range(together):
                line = line_of(p, const, strides, first + k, kept + k * kept_size)
                write(box + k * size, 64, stage(line, read(box + k * size, 64)))

        return staged

    @inlined
    def run_lead(p, const, strides, first, together, box, kept):
        if four is not None and together == ROWS:
            fold_four(p, const, strides, first, box)
        else:
            for k in range(together):
                line = line_of(p, const, strides, first + k, kept)
                write(box + k * size, 64, lead(line, no_vectors()))

    run_passes, held = run_lead, len(names)
    for stage, gives in stages:
        read_before, write_after = state_emitters(held)[0], state_emitters(held + gives)[1]
        run_passes, held = run_stage(run_passes, stage, read_before, write_after), held + gives

    def kernel(p, begin, end):
        const = operands.constants(p)
        strides = all_strides(p)
        extent = word(p, EXTENT)
        # Only a row that is still cached when its turn comes is worth asking for.
        ask = extent <= longest
        box, kept = box_of_four(), box_of_lifted()
        first = begin
        while first < end:
            together = ROWS if extent <= longest_four and first + ROWS <= end else 1
            run_passes(p, const, strides, first, together, box, kept)
            for k in range(together):
                unit = first + k
                line = line_of(p, const, strides, unit, kept + k * kept_size)
                next_unit = unit + together if ask and unit + together < end else unit
                known = read(box + k * size, 64)
                if is_strange is not None and is_strange(const, line[2], known):
                    write_strange(line, extent, all_addresses(p, next_unit))
                else:
                    write_row(line, known, extent, all_addresses(p, next_unit))
            first += together
        fence()

    return kernel


def _make_stages(formula: RowFormula, steps, element: str, operands: Operands, known):
    """Passes over one row as :func:`make_summary` makes them, each with how much it gives."""
    stages, lifts = [], None
    for step in steps:
        summary, after, lifts = make_summary(formula, (step,), element, operands, known)
        stages.append((summary, len(after) - len(known)))
        known = after
    return stages, known, lifts


def strange_rows(formula: RowFormula, element: str, operands: Operands, known):
    """``is_strange(const, row, known)``: whether the usual record does not do; None without one."""
    if formula.usual is None:
        return None
    primitives, row = primitives_for(element), operands.row
    unless = any_element(formula.usual.unless, primitives, (), row, known)

    @inlined
    def is_strange(const, row, known):
        return unless(counting(0, 1), const, no_vectors(), row, known)

    return is_strange


def _make_strange(formula: RowFormula, element: str, operands: Operands):
    """``write_strange(line, extent, ahead)``: a row for which the usual record does not do."""
    if formula.usual is None:
        return None
    summary, known, _ = make_summary(formula, formula.passes, element, operands)
    write_row = _make_write_row(formula, element, operands, known, None)

    @inner
    def write_strange(line, extent, ahead):
        write_row(line, summary(line, no_vectors()), extent, ahead)

    return write_strange


def _make_write_row(formula: RowFormula, element: str, operands: Operands, known, lifts):
    """``write_row(line, known, extent, ahead)``: what is to be written of one row.

    ``lifts`` is the ``block_fold`` that keeps what it lifts, if there is one.
    """
    if formula.finish:
        primitives, outputs = primitives_for(element), len(operands.outputs)
        finish = per_row(formula.finish, primitives, operands.row, known, (), outputs)
        store_rows = operands.store_rows

        @inlined
        def write_finish(line, known, extent, ahead):
            _, const, row, addresses, _, _ = line
            store_rows(addresses, finish(const, row, known, no_vectors()))

        return write_finish
    asks, lifted = True, lifts is not None
    apply_range = make_apply_range(formula, element, operands, known, asks, lifted)
    if lifted:
        earlier = len(known) - len(formula.passes[-1].names)

        @inlined
        def write_lifted(line, known, extent, ahead):
            for b in range(word(line[0], BLOCKS)):
                start, stop = b * BLOCK, least((b + 1) * BLOCK, extent)
                if stop - start < extent:  # others were kept since
                    lifts(line, known[:earlier], start, stop)
                apply_range(line, known, start, stop, ahead)

        return write_lifted

    @inlined
    def write_elements(line, known, extent, ahead):
        apply_range(line, known, 0, extent, ahead)

    return write_elements


def _make_pointwise_kernel(formula: RowFormula, element: str, operands: Operands):
    """Rows cut into blocks: no element depends on another."""
    summary, known, _ = make_summary(formula, formula.passes, element, operands)
    apply_range = make_apply_range(formula, element, operands, known, asks=False)
    all_addresses, all_strides = operands.addresses, operands.strides
    fetch_rows = operands.fetch_rows

    def kernel(p, begin, end):
        const = operands.constants(p)
        strides = all_strides(p)
        extent, blocks = word(p, EXTENT), word(p, BLOCKS)
        for unit in range(begin, end):
            index = unit if blocks == 1 else unit // blocks
            addresses = all_addresses(p, index)
            line = (p, const, fetch_rows(addresses), addresses, strides, 0)
            start = (unit - index * blocks) * BLOCK
            stop = least(start + BLOCK, extent)
            apply_range(line, summary(line, no_vectors()), start, stop, addresses)
        fence()

    return kernel


def writes_pairs(formula: RowFormula, operands: Operands) -> bool:
    """Whether to apply a formula to two vectors at a time.

    Two exp at a time are no gain where their numbers do not fit the registers.
    """
    if formula.heavy:
        pays = registers().of_lanes == 1 and operands.edge.element != "f64"
    else:
        pays = operands.edge.pairs
    return pays and not reads_neighbours(formula)
