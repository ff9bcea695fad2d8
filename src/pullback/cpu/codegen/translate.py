"""Python functions straight to LLVM code.

Loop nests and what runs between Python and kernels are written in Python, with integers, branches,
loops, tuples, and calls of functions that emit LLVM code by themselves. That needs no inference of
types: they follow from the arguments, statement by statement. A compiler of Python at large, Numba,
took 0.5 s longer for a kernel of the same machine code.

A value is an LLVM value (int64, bool, or a vector, which only emitting functions look into), a
tuple of values, or anything else, which is known while compiling: integers of a module, None, a
function of the closure. What is known decides branches, and only the one taken is translated.

What is not understood is refused with its line.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from llvmlite import ir

from .lanes import I1, I64
from .sources import RefusedError, definition_of, returns_early, varying_names

Value = Any  # an LLVM value, a tuple of values, or what is known


def is_known(value: Value) -> bool:
    return not isinstance(value, ir.Value) and (
        not isinstance(value, tuple) or all(is_known(v) for v in value)
    )


def at_run_time(value: Value) -> Value:
    """A value as LLVM has it: known integers and bools become constants, None stays nothing."""
    if value is None or isinstance(value, ir.Value):
        return value
    if isinstance(value, tuple):
        return tuple(at_run_time(v) for v in value)
    if isinstance(value, bool):
        return I1(int(value))
    if isinstance(value, int) or hasattr(value, "__index__"):
        return I64(int(value))
    raise RefusedError(f"{value!r} is known while compiling only")


def leaves(value: Value) -> list[ir.Value]:
    """The LLVM values in a value, in order."""
    if isinstance(value, tuple):
        return [leaf for v in value for leaf in leaves(v)]
    return [] if value is None else [value]


def like(shape: Value, found: Iterator[ir.Value]) -> Value:
    """Other LLVM values in the tuples of a value."""
    if isinstance(shape, tuple):
        return tuple(like(s, found) for s in shape)
    return None if shape is None else next(found)


# How a module translates the call of something that is known: a builder, what is called, values.
# It gives NotImplemented where that cannot be called.
Call = Callable[[ir.IRBuilder, Any, list[Value]], Value]

_ARITHMETIC: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("add", lambda a, b: a + b),
    ast.Sub: ("sub", lambda a, b: a - b),
    ast.Mult: ("mul", lambda a, b: a * b),
    ast.BitAnd: ("and_", lambda a, b: a & b),
    ast.BitOr: ("or_", lambda a, b: a | b),
    ast.BitXor: ("xor", lambda a, b: a ^ b),
    ast.LShift: ("shl", lambda a, b: a << b),
    ast.RShift: ("ashr", lambda a, b: a >> b),
    ast.FloorDiv: ("", lambda a, b: a // b),
    ast.Mod: ("", lambda a, b: a % b),
}
_COMPARED: dict[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Eq: ("==", lambda a, b: a == b),
    ast.NotEq: ("!=", lambda a, b: a != b),
    ast.Lt: ("<", lambda a, b: a < b),
    ast.LtE: ("<=", lambda a, b: a <= b),
    ast.Gt: (">", lambda a, b: a > b),
    ast.GtE: (">=", lambda a, b: a >= b),
    ast.Is: ("", lambda a, b: a is b),
    ast.IsNot: ("", lambda a, b: a is not b),
}


class Body:
    """The statements of a function, translated where a builder stands."""

    def __init__(self, call: Call, builder: ir.IRBuilder, function: Any, values: Sequence[Value]):
        self._call, self.builder = call, builder
        self._function = function
        self._tree = definition_of(function)
        self._places, early = varying_names(self._tree), returns_early(self._tree)
        self._names: dict[str, Value] = {}
        self._loops: list[tuple[Any, Any]] = []  # where continue and break lead
        self._result: Value = None
        self._exit = builder.append_basic_block() if early else None
        arguments = self._tree.args.args
        if len(arguments) != len(values):
            raise RefusedError(f"{function.__qualname__} takes {len(arguments)} arguments")
        for argument, value in zip(arguments, values, strict=True):
            self._set(argument.arg, value)

    def translated(self) -> Value:
        """Translate; what the function returns."""
        self._statements(self._tree.body)
        if self._exit is None:
            return self._result
        self._go_to(self._exit)
        self.builder.position_at_end(self._exit)
        return self._loaded(self._result)

    def refused(self, node: ast.AST) -> RefusedError:
        text = ast.unparse(node).splitlines()[0]
        return RefusedError(f"{self._function.__qualname__}: cannot translate {text!r}")

    # Names

    def _set(self, name: str, value: Value) -> None:
        if name not in self._places:
            self._names[name] = value
            return
        value = at_run_time(value)
        if name not in self._names:
            self._names[name] = self._placed(value)
        self._store(value, self._names[name])

    def _placed(self, value: Value) -> Value:
        """Room for a value on the stack, which LLVM turns into registers; made once, in front."""
        with self.builder.goto_entry_block():
            return like(value, iter([self.builder.alloca(v.type) for v in leaves(value)]))

    def _clear(self, places: Value) -> None:
        """Zeros where nothing may be stored: a return without a value, the end of a function."""
        with self.builder.goto_entry_block():
            for room in leaves(places):
                self.builder.store(ir.Constant(room.type.pointee, None), room)

    def _store(self, value: Value, places: Value) -> None:
        found, rooms = leaves(value), leaves(places)
        kinds = [room.type.pointee for room in rooms]
        if len(found) == len(rooms):
            found = [self.word(v) if k == I64 else v for v, k in zip(found, kinds, strict=True)]
        if [v.type for v in found] != kinds:
            raise RefusedError(f"{self._function.__qualname__}: values of two types in one name")
        for leaf, room in zip(found, rooms, strict=True):
            self.builder.store(leaf, room)

    def _loaded(self, places: Value) -> Value:
        if places is None:
            return None
        return like(places, iter([self.builder.load(p) for p in leaves(places)]))

    # Statements

    def _statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if self.builder.block.is_terminated:
                return
            handler = getattr(self, f"on_{type(statement).__name__}", None)
            if handler is None:
                raise self.refused(statement)
            handler(statement)

    def on_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def on_Pass(self, node: ast.Pass) -> None:
        pass

    def on_Return(self, node: ast.Return) -> None:
        value = None if node.value is None else self.value(node.value)
        if self._exit is None:
            self._result = value
            return
        if value is not None:
            value = at_run_time(value)
            value = like(value, iter([self.word(v) for v in leaves(value)]))
            if self._result is None:
                self._result = self._placed(value)
                self._clear(self._result)
            self._store(value, self._result)
        self.builder.branch(self._exit)

    def on_Assign(self, node: ast.Assign) -> None:
        value = self.value(node.value)
        for target in node.targets:
            self._assign(target, value)

    def _assign(self, target: ast.expr, value: Value) -> None:
        if isinstance(target, ast.Name):
            if target.id != "_":
                self._set(target.id, value)
        elif (
            isinstance(target, ast.Tuple)
            and isinstance(value, tuple)
            and len(target.elts) == len(value)
        ):
            for part, item in zip(target.elts, value, strict=True):
                self._assign(part, item)
        else:
            raise self.refused(target)

    def on_AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise self.refused(node)
        read = ast.Name(node.target.id, ast.Load())
        self._set(node.target.id, self.value(ast.BinOp(read, node.op, node.value)))

    def on_If(self, node: ast.If) -> None:
        test = self._truth(node.test)
        if is_known(test):
            self._statements(node.body if test else node.orelse)
            return
        then, otherwise, after = (self.builder.append_basic_block() for _ in range(3))
        self.builder.cbranch(test, then, otherwise)
        for block, body in ((then, node.body), (otherwise, node.orelse)):
            self.builder.position_at_end(block)
            self._statements(body)
            self._go_to(after)
        self.builder.position_at_end(after)

    def _go_to(self, block: Any) -> None:
        if not self.builder.block.is_terminated:
            self.builder.branch(block)

    def on_While(self, node: ast.While) -> None:
        if node.orelse:
            raise self.refused(node)
        test, body, after = (self.builder.append_basic_block() for _ in range(3))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        self.builder.cbranch(at_run_time(self._truth(node.test)), body, after)
        self._loop(body, node.body, test, after)

    def on_For(self, node: ast.For) -> None:
        if node.orelse:
            raise self.refused(node)
        over = node.iter
        if isinstance(over, ast.Call) and ast.unparse(over.func) == "range":
            self._count(node, [self.value(v) for v in over.args])
            return
        items = self.value(over)
        if not isinstance(items, tuple) or any(
            isinstance(n, (ast.Break, ast.Continue)) for n in ast.walk(node)
        ):
            raise self.refused(node)
        for item in items:
            self._assign(node.target, item)
            self._statements(node.body)

    def _count(self, node: ast.For, bounds: list[Value]) -> None:
        """A loop over a range, which counts by itself whatever the body does.

        A step that is not known is taken for positive.
        """
        start, stop, step = {1: (0, *bounds, 1), 2: (*bounds, 1), 3: bounds}[len(bounds)]
        down = is_known(step) and step < 0
        start, stop, step = (self.word(at_run_time(v)) for v in (start, stop, step))
        before = self.builder.block
        test, body, again, after = (self.builder.append_basic_block() for _ in range(4))
        self.builder.branch(test)
        self.builder.position_at_end(test)
        at = self.builder.phi(I64)
        at.add_incoming(start, before)
        more = self.builder.icmp_signed(">" if down else "<", at, stop)
        self.builder.cbranch(more, body, after)
        self.builder.position_at_end(again)
        at.add_incoming(self.builder.add(at, step, flags=("nsw",)), again)
        self.builder.branch(test)
        self.builder.position_at_end(body)
        self._assign(node.target, at)
        self._loop(body, node.body, again, after)

    def _loop(self, body: Any, statements: list[ast.stmt], again: Any, after: Any) -> None:
        self.builder.position_at_end(body)
        self._loops.append((again, after))
        self._statements(statements)
        self._go_to(again)
        self._loops.pop()
        self.builder.position_at_end(after)

    def on_Break(self, node: ast.Break) -> None:
        self.builder.branch(self._loops[-1][1])

    def on_Continue(self, node: ast.Continue) -> None:
        self.builder.branch(self._loops[-1][0])

    # Expressions

    def word(self, value: ir.Value) -> ir.Value:
        """A bool as an integer."""
        return self.builder.zext(value, I64) if value.type == I1 else value

    def _truth(self, node: ast.expr) -> Value:
        value = self.value(node)
        if is_known(value):
            return bool(value)
        if value.type == I64:
            return self.builder.icmp_signed("!=", value, I64(0))
        return value

    def value(self, node: ast.expr) -> Value:
        handler = getattr(self, f"of_{type(node).__name__}", None)
        if handler is None:
            raise self.refused(node)
        return handler(node)

    def of_Constant(self, node: ast.Constant) -> Value:
        if node.value is None or isinstance(node.value, int):
            return node.value
        raise self.refused(node)

    def of_Name(self, node: ast.Name) -> Value:
        if node.id in self._names:
            value = self._names[node.id]
            return self._loaded(value) if node.id in self._places else value
        return self._outer(node)

    def _outer(self, node: ast.Name) -> Value:
        """What a name stands for outside of the function."""
        free = self._function.__code__.co_freevars
        if node.id in free:
            return self._function.__closure__[free.index(node.id)].cell_contents
        for names in (self._function.__globals__, vars(builtins)):
            if node.id in names:
                return names[node.id]
        raise self.refused(node)

    def of_Attribute(self, node: ast.Attribute) -> Value:
        value = self.value(node.value)
        if isinstance(value, (ir.Value, tuple)):
            raise self.refused(node)
        return getattr(value, node.attr)

    def of_Tuple(self, node: ast.Tuple) -> Value:
        return tuple(self.value(v) for v in node.elts)

    def of_Subscript(self, node: ast.Subscript) -> Value:
        value = self.value(node.value)
        if isinstance(node.slice, ast.Slice):
            ends = [node.slice.lower, node.slice.upper, node.slice.step]
            at: Any = slice(*(None if e is None else self.value(e) for e in ends))
        else:
            at = self.value(node.slice)
        if not isinstance(value, tuple) or isinstance(at, ir.Value):
            raise self.refused(node)
        return value[at]

    def of_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if type(node.op) not in _ARITHMETIC:
            raise self.refused(node)
        name, on_known = _ARITHMETIC[type(node.op)]
        both_tuples = isinstance(left, tuple) and isinstance(right, tuple)
        if both_tuples or (is_known(left) and is_known(right)):
            return on_known(left, right)
        if isinstance(left, tuple) or isinstance(right, tuple):
            raise self.refused(node)
        if name in ("and_", "or_", "xor") and all(
            isinstance(v, bool) or getattr(v, "type", None) == I1 for v in (left, right)
        ):
            return getattr(self.builder, name)(at_run_time(left), at_run_time(right))
        if not name:
            return self._divided(node, left, right)
        return getattr(self.builder, name)(*(self.word(at_run_time(v)) for v in (left, right)))

    def _divided(self, node: ast.BinOp, left: Value, right: Value) -> ir.Value:
        """Rounded down, as in Python."""
        b, rounded = self.builder, isinstance(node.op, ast.FloorDiv)
        left = self.word(at_run_time(left))
        if is_known(right) and right > 0 and right & (right - 1) == 0:
            shift, mask = I64(int(right).bit_length() - 1), I64(int(right) - 1)
            return b.ashr(left, shift) if rounded else b.and_(left, mask)
        right = self.word(at_run_time(right))
        # A division by zero would end the process.
        right = b.select(b.icmp_signed("==", right, I64(0)), I64(1), right)
        rest = b.srem(left, right)
        apart = b.icmp_signed("<", b.xor(rest, right), I64(0))
        low = b.and_(b.icmp_signed("!=", rest, I64(0)), apart)
        if rounded:
            return b.sub(b.sdiv(left, right), b.zext(low, I64))
        return b.add(rest, b.select(low, right, I64(0)))

    def of_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            truth = self._truth(node.operand)
            return (not truth) if is_known(truth) else self.builder.not_(truth)
        value = self.value(node.operand)
        if isinstance(node.op, ast.USub):
            return -value if is_known(value) else self.builder.neg(self.word(value))
        if isinstance(node.op, ast.Invert):
            return ~value if is_known(value) else self.builder.not_(self.word(value))
        raise self.refused(node)

    def of_Compare(self, node: ast.Compare) -> Value:
        found: Value = True
        left = self.value(node.left)
        for op, right_node in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _COMPARED:
                raise self.refused(node)
            right = self.value(right_node)
            one = self._compared(op, left, right)
            if is_known(one):
                found = found if one else False
            elif found is True:
                found = one
            elif found is not False:
                found = self.builder.and_(found, one)
            left = right
        return found

    def _compared(self, op: ast.cmpop, left: Value, right: Value) -> Value:
        sign, on_known = _COMPARED[type(op)]
        if is_known(left) and is_known(right):
            return on_known(left, right)
        if not sign:  # something that is computed is never None
            return isinstance(op, ast.IsNot)
        words = (self.word(at_run_time(v)) for v in (left, right))
        return self.builder.icmp_signed(sign, *words)

    def of_BoolOp(self, node: ast.BoolOp) -> Value:
        return self._all_or_any(node.values, isinstance(node.op, ast.Or))

    def _all_or_any(self, nodes: list[ast.expr], is_any: bool) -> Value:
        """Whether all or any hold; what comes after the one that decides is not computed."""
        first = self._truth(nodes[0])
        if len(nodes) == 1:
            return first
        if is_known(first):
            return first if first is is_any else self._all_or_any(nodes[1:], is_any)
        more, after = (self.builder.append_basic_block() for _ in range(2))
        decided = self.builder.block
        self.builder.cbranch(first, *((after, more) if is_any else (more, after)))
        self.builder.position_at_end(more)
        rest = at_run_time(self._all_or_any(nodes[1:], is_any))
        last = self.builder.block
        self.builder.branch(after)
        self.builder.position_at_end(after)
        return self._either(((I1(int(is_any)), decided), (rest, last)))

    def of_IfExp(self, node: ast.IfExp) -> Value:
        test = self._truth(node.test)
        if is_known(test):
            return self.value(node.body if test else node.orelse)
        then, otherwise, after = (self.builder.append_basic_block() for _ in range(3))
        self.builder.cbranch(test, then, otherwise)
        found = []
        for block, chosen in ((then, node.body), (otherwise, node.orelse)):
            self.builder.position_at_end(block)
            found.append((at_run_time(self.value(chosen)), self.builder.block))
            self.builder.branch(after)
        self.builder.position_at_end(after)
        return self._either(found)

    def _either(self, ways: Sequence[tuple[Value, Any]]) -> Value:
        """The value of the way that led here."""
        values = [leaves(value) for value, _ in ways]
        merged = []
        for parts in zip(*values, strict=True):
            phi = self.builder.phi(parts[0].type)
            for part, (_, block) in zip(parts, ways, strict=True):
                phi.add_incoming(part, block)
            merged.append(phi)
        return like(ways[0][0], iter(merged))

    def of_Call(self, node: ast.Call) -> Value:
        called = self.value(node.func)
        if node.keywords:
            raise self.refused(node)
        values = [self.value(v) for v in node.args]
        if called is len and len(values) == 1 and isinstance(values[0], tuple):
            return len(values[0])
        if called in (min, max) and len(values) == 2:
            words = [self.word(at_run_time(v)) for v in values]
            sign = "<" if called is min else ">"
            return self.builder.select(self.builder.icmp_signed(sign, *words), *words)
        result = self._call(self.builder, called, values)
        if result is NotImplemented:
            raise self.refused(node)
        return result
