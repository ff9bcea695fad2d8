"""Functions of words, from Python straight to LLVM.

What runs between Python and kernels needs integers, branches and loops and nothing else. Numba took
0.15 s for the first such function and 0.05 for each of the others; this takes a few milliseconds,
and a process that finds its kernels on disk compiles them without Numba.

A function is written in Python and marked ``@function_of_words``. Its values are int64, or bool
where two are compared. It may assign, loop with ``while`` and ``for … in range(n)``, branch, call
others of its kind and what is marked ``@emitter``, and use integers of its module. Anything else is
refused with the line it is in.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from ..loader import ENTRY, object_machine

I1, I64 = ir.IntType(1), ir.IntType(64)


class _Compiled:
    """What functions of words call, and Python does not."""

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def __call__(self, *words: Any) -> Any:
        raise TypeError(f"{self.name} is compiled, not called")


class Emitter(_Compiled):
    """What is written as LLVM code: called with a builder and words, gives a word or None."""


emitter = Emitter


class WordFunction(_Compiled):
    """A Python function to be compiled."""


function_of_words = WordFunction


def object_code(function: WordFunction) -> bytes:
    """The object file of a C function of words, with all that it calls inside."""
    module = ir.Module(function.name)
    module.triple = llvm.get_process_triple()
    _Module(module).entry(function)
    parsed = llvm.parse_assembly(str(module))
    machine = object_machine()
    _optimise(parsed, machine)
    code: bytes = machine.emit_object(parsed)
    return code


def _optimise(module: Any, machine: Any) -> None:
    if hasattr(llvm, "create_pass_builder"):
        options = llvm.create_pipeline_tuning_options(2)
        builder = llvm.create_pass_builder(machine, options)
        builder.getModulePassManager().run(module, builder)
        return
    passes = llvm.create_module_pass_manager()
    llvm.PassManagerBuilder().populate(passes)
    passes.run(module)


class _Module:
    def __init__(self, module: ir.Module):
        self.module = module
        self._made: dict[str, ir.Function] = {}

    def entry(self, function: WordFunction) -> None:
        self._define(function, ENTRY)

    def function(self, called: WordFunction) -> ir.Function:
        made = self._made.get(called.name)
        if made is None:
            made = self._define(called, called.name)
            made.linkage = "internal"
        return made

    def _define(self, function: WordFunction, name: str) -> ir.Function:
        source = textwrap.dedent(inspect.getsource(function.function))
        (tree,) = ast.parse(source).body
        assert isinstance(tree, ast.FunctionDef)
        kind = ir.FunctionType(I64, [I64] * len(tree.args.args))
        made = self._made[function.name] = ir.Function(self.module, kind, name)
        _Body(self, function, tree, made).emit()
        return made


_ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.BitAnd: "and_"}
_COMPARED = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}


class _Body:
    """One function: every name has a place on the stack, which LLVM turns into registers."""

    def __init__(self, module: _Module, function: WordFunction, tree: ast.FunctionDef, made: Any):
        self._module, self._tree, self._made = module, tree, made
        self._known = inspect.getclosurevars(function.function)
        self._where = function.name
        self._places: dict[str, Any] = {}
        self._loops: list[tuple[Any, Any]] = []  # where continue and break lead

    def emit(self) -> None:
        entry = self._made.append_basic_block()
        begin = self._made.append_basic_block()
        ir.IRBuilder(entry).branch(begin)
        self._builder = ir.IRBuilder(begin)
        for argument, value in zip(self._tree.args.args, self._made.args, strict=True):
            self._set(argument.arg, value)
        self._statements(self._tree.body)
        if not self._builder.block.is_terminated:
            self._builder.ret(I64(0))

    def _refuse(self, node: ast.AST) -> TypeError:
        text = ast.unparse(node).splitlines()[0]
        return TypeError(f"{self._where}: {text!r} is nothing that a function of words may say")

    def _set(self, name: str, value: Any) -> None:
        if name not in self._places:
            self._places[name] = self._place()
        self._builder.store(self._word(value), self._places[name])

    def _place(self, kind: ir.Type = I64) -> Any:
        """On the stack; made in front of everything, once."""
        with self._builder.goto_entry_block():
            return self._builder.alloca(kind)

    def _statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if self._builder.block.is_terminated:
                return
            handler = getattr(self, f"on_{type(statement).__name__}", None)
            if handler is None:
                raise self._refuse(statement)
            handler(statement)

    def on_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._value(node.value)

    def on_Pass(self, node: ast.Pass) -> None:
        pass

    def on_Return(self, node: ast.Return) -> None:
        self._builder.ret(I64(0) if node.value is None else self._word(self._value(node.value)))

    def on_Assign(self, node: ast.Assign) -> None:
        (target,) = node.targets
        if isinstance(target, ast.Name):
            self._set(target.id, self._value(node.value))
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            values = [self._value(v) for v in node.value.elts]
            for name, value in zip(target.elts, values, strict=True):
                if not isinstance(name, ast.Name):
                    raise self._refuse(node)
                self._set(name.id, value)
        else:
            raise self._refuse(node)

    def on_AugAssign(self, node: ast.AugAssign) -> None:
        if not isinstance(node.target, ast.Name):
            raise self._refuse(node)
        read = ast.Name(node.target.id, ast.Load())
        self._set(node.target.id, self._value(ast.BinOp(read, node.op, node.value)))

    def on_If(self, node: ast.If) -> None:
        then, otherwise, after = (self._made.append_basic_block() for _ in range(3))
        self._builder.cbranch(self._truth(node.test), then, otherwise)
        for block, body in ((then, node.body), (otherwise, node.orelse)):
            self._builder.position_at_end(block)
            self._statements(body)
            self._go_to(after)
        self._builder.position_at_end(after)

    def _go_to(self, block: Any) -> None:
        if not self._builder.block.is_terminated:
            self._builder.branch(block)

    def on_While(self, node: ast.While) -> None:
        if node.orelse:
            raise self._refuse(node)
        test, body, after = (self._made.append_basic_block() for _ in range(3))
        self._builder.branch(test)
        self._builder.position_at_end(test)
        self._builder.cbranch(self._truth(node.test), body, after)
        self._loop(body, node.body, test, after)

    def on_For(self, node: ast.For) -> None:
        name, count = node.target, node.iter
        ranged = isinstance(count, ast.Call) and ast.unparse(count.func) == "range"
        if not ranged or not isinstance(name, ast.Name) or node.orelse:
            raise self._refuse(node)
        assert isinstance(count, ast.Call)
        (stop,) = count.args
        last = self._word(self._value(stop))
        # Python's range counts by itself, whatever the body does to the name.
        counter = self._place()
        self._builder.store(I64(0), counter)
        test, body, step, after = (self._made.append_basic_block() for _ in range(4))
        self._builder.branch(test)
        self._builder.position_at_end(test)
        at = self._builder.load(counter)
        self._builder.cbranch(self._builder.icmp_signed("<", at, last), body, after)
        self._builder.position_at_end(step)
        self._builder.store(self._builder.add(self._builder.load(counter), I64(1)), counter)
        self._builder.branch(test)
        self._builder.position_at_end(body)
        self._set(name.id, at)
        self._loop(body, node.body, step, after)

    def _loop(self, body: Any, statements: list[ast.stmt], again: Any, after: Any) -> None:
        self._builder.position_at_end(body)
        self._loops.append((again, after))
        self._statements(statements)
        self._go_to(again)
        self._loops.pop()
        self._builder.position_at_end(after)

    def on_Break(self, node: ast.Break) -> None:
        self._builder.branch(self._loops[-1][1])

    def on_Continue(self, node: ast.Continue) -> None:
        self._builder.branch(self._loops[-1][0])

    def _word(self, value: Any) -> Any:
        return self._builder.zext(value, I64) if value.type == I1 else value

    def _truth(self, node: ast.expr) -> Any:
        value = self._value(node)
        return value if value.type == I1 else self._builder.icmp_signed("!=", value, I64(0))

    def _value(self, node: ast.expr) -> Any:
        handler = getattr(self, f"of_{type(node).__name__}", None)
        if handler is None:
            raise self._refuse(node)
        return handler(node)

    def of_Constant(self, node: ast.Constant) -> Any:
        if isinstance(node.value, bool):
            return I1(int(node.value))
        if isinstance(node.value, int):
            return I64(node.value)
        raise self._refuse(node)

    def of_Name(self, node: ast.Name) -> Any:
        if node.id in self._places:
            return self._builder.load(self._places[node.id])
        found = self._global(node)
        if isinstance(found, int):
            return I64(int(found))
        raise self._refuse(node)

    def _global(self, node: ast.Name) -> Any:
        for names in (self._known.nonlocals, self._known.globals, self._known.builtins):
            if node.id in names:
                return names[node.id]
        raise self._refuse(node)

    def of_BinOp(self, node: ast.BinOp) -> Any:
        left, right = (self._word(self._value(v)) for v in (node.left, node.right))
        if isinstance(node.op, ast.FloorDiv):
            return self._floor_divided(left, right)
        name = _ARITHMETIC.get(type(node.op))
        if name is None:
            raise self._refuse(node)
        return getattr(self._builder, name)(left, right)

    def _floor_divided(self, left: Any, right: Any) -> Any:
        b = self._builder
        quotient, rest = b.sdiv(left, right), b.srem(left, right)
        apart = b.icmp_signed("<", b.xor(rest, right), I64(0))
        low = b.and_(b.icmp_signed("!=", rest, I64(0)), apart)
        return b.sub(quotient, b.zext(low, I64))

    def of_UnaryOp(self, node: ast.UnaryOp) -> Any:
        if isinstance(node.op, ast.Not):
            return self._builder.not_(self._truth(node.operand))
        if isinstance(node.op, ast.USub):
            return self._builder.neg(self._word(self._value(node.operand)))
        raise self._refuse(node)

    def of_Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) != 1 or type(node.ops[0]) not in _COMPARED:
            raise self._refuse(node)
        left, right = (self._word(self._value(v)) for v in (node.left, node.comparators[0]))
        return self._builder.icmp_signed(_COMPARED[type(node.ops[0])], left, right)

    def of_BoolOp(self, node: ast.BoolOp) -> Any:
        """Whether all or any hold; what comes after the one that decides is not computed."""
        place, after = self._place(I1), self._made.append_basic_block()
        for value in node.values:
            truth = self._truth(value)
            self._builder.store(truth, place)
            more = self._made.append_basic_block()
            ends = (after, more) if isinstance(node.op, ast.Or) else (more, after)
            self._builder.cbranch(truth, *ends)
            self._builder.position_at_end(more)
        self._builder.branch(after)
        self._builder.position_at_end(after)
        return self._builder.load(place)

    def of_IfExp(self, node: ast.IfExp) -> Any:
        place = self._place()
        then, otherwise, after = (self._made.append_basic_block() for _ in range(3))
        self._builder.cbranch(self._truth(node.test), then, otherwise)
        for block, value in ((then, node.body), (otherwise, node.orelse)):
            self._builder.position_at_end(block)
            self._builder.store(self._word(self._value(value)), place)
            self._builder.branch(after)
        self._builder.position_at_end(after)
        return self._builder.load(place)

    def of_Call(self, node: ast.Call) -> Any:
        called = self._global(node.func) if isinstance(node.func, ast.Name) else None
        words = [self._word(self._value(v)) for v in node.args]
        if node.keywords:
            raise self._refuse(node)
        if isinstance(called, WordFunction):
            return self._builder.call(self._module.function(called), words)
        if isinstance(called, Emitter):
            found = called.function(self._builder, *words)
            return I64(0) if found is None else found
        if called in (min, max) and len(words) == 2:
            sign = "<" if called is min else ">"
            return self._builder.select(self._builder.icmp_signed(sign, *words), *words)
        raise self._refuse(node)
