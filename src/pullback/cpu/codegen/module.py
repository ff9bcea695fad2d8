"""A module of LLVM code: functions translated from Python, and machine code of it all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir

from ..loader import ENTRY
from .functions import Emitter, Inlined, Inner
from .lanes import I32, I64
from .translate import Body, Value, at_run_time, leaves, like

VOID = ir.VoidType()


class Module:
    """Functions that are translated once for arguments of some types."""

    def __init__(self, name: str):
        self.module = ir.Module(name)
        self.module.triple = llvm.get_process_triple()
        # Functions of C that LLVM calls by itself, such as memcpy, are called by address: its
        # loader keeps room for these, and none for the tables that a shorter call needs.
        by_address = self.module.add_metadata([I32(7), "RtLibUseGOT", I32(1)])
        self.module.add_named_metadata("llvm.module.flags", by_address)
        self._made: dict[Any, tuple[ir.Function, Value]] = {}

    def entry(self, function: Any) -> None:
        """The function that C calls: words in, a word out, 0 where nothing is returned."""
        words = [I64(0)] * function.__code__.co_argcount
        self._define(function, words, ENTRY, is_entry=True)

    def call(self, builder: ir.IRBuilder, called: Any, values: Sequence[Value]) -> Value:
        """Translate a call; NotImplemented of what cannot be called."""
        if isinstance(called, Emitter):
            return called.function(builder, *(at_run_time(v) for v in values))
        if isinstance(called, Inlined):
            return self._body(builder, called.function, values)
        if isinstance(called, Inner):
            return self._called(builder, called.function, [at_run_time(v) for v in values])
        return NotImplemented

    def _body(self, builder: ir.IRBuilder, function: Any, values: Sequence[Value]) -> Value:
        return Body(self.call, builder, function, values).translated()

    def _called(self, builder: ir.IRBuilder, function: Any, values: Sequence[Value]) -> Value:
        key = (function, _kinds(tuple(values)))
        if key not in self._made:
            name = self.module.get_unique_name(function.__name__)
            self._made[key] = self._define(function, values, name)
        made, result = self._made[key]
        found = builder.call(made, leaves(tuple(values)))
        if not isinstance(found.type, ir.LiteralStructType):
            return like(result, iter([found]))
        parts = (builder.extract_value(found, k) for k in range(len(found.type.elements)))
        return like(result, parts)

    def _define(
        self, function: Any, values: Sequence[Value], name: str, is_entry: bool = False
    ) -> tuple[ir.Function, Value]:
        """A function for arguments like these values; with it, a value like its result."""
        kinds = [leaf.type for leaf in leaves(tuple(values))]
        made = ir.Function(self.module, ir.FunctionType(VOID, kinds), name)
        # As if others might call it, too: one that nobody else can call, LLVM takes into its caller
        # whatever its size, and then takes twice the time for the whole.
        made.linkage = "external" if is_entry else "linkonce_odr"
        entry, begin = made.append_basic_block(), made.append_basic_block()
        ir.IRBuilder(entry).branch(begin)
        builder = ir.IRBuilder(begin)
        result = self._body(builder, function, like(tuple(values), iter(made.args)))
        result = at_run_time(0 if is_entry and result is None else result)
        parts = leaves(result)
        if not parts:
            builder.ret_void()
            return made, result
        returned = parts[0]
        if len(parts) != 1:
            returned = ir.LiteralStructType([p.type for p in parts])(ir.Undefined)
            for k, part in enumerate(parts):
                returned = builder.insert_value(returned, part, k)
        elif is_entry and returned.type != I64:
            returned = builder.zext(returned, I64)
        builder.ret(returned)
        _set_result(made, returned.type)
        return made, result


def _kinds(value: Value) -> Any:
    if isinstance(value, tuple):
        return tuple(_kinds(v) for v in value)
    return None if value is None else str(value.type)


def _set_result(made: ir.Function, kind: ir.Type) -> None:
    """Give a function its result's type, which is known only when its body is there."""
    made.ftype = ir.FunctionType(kind, made.ftype.args)
    made.type = made.ftype.as_pointer()
    made.return_value = type(made.return_value)(made, kind)
