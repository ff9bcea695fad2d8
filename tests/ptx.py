"""Runs PTX: the instructions that Triton's folds and scans come down to, on NumPy arrays.

The threads of a program go in step, an array element for each, and so do the blocks of a cluster.
What that would hide is looked for: between two barriers no warp may read or write bytes of memory
that another one has written, nor write what it has read; and no block what another block of the
cluster has, between two barriers of the cluster. Branches must be taken by all threads or none.
Copies to shared memory arrive when they are waited for, not before. An access outside of what was
given raises.
"""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np

WARP = 32
SHARED_BYTES = 2**18
KINDS = {
    "f32": np.float32, "f64": np.float64, "s32": np.int32, "u32": np.uint32, "b32": np.uint32,
    "s64": np.int64, "u64": np.uint64, "b64": np.uint64, "b16": np.uint16, "u16": np.uint16,
    "s16": np.int16, "bf16": ml_dtypes.bfloat16, "f16": np.float16, "pred": np.bool_,
}  # fmt: skip
COMPARED = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "hi": np.greater, "lo": np.less,
}  # fmt: skip
ARITHMETIC = {
    "add": np.add, "sub": np.subtract, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


class Memory:
    """Bytes at addresses from ``base`` on, of which only those that were given may be touched."""

    def __init__(self, size: int, base: int):
        self.bytes, self.base = np.zeros(size, np.uint8), base
        self.given = np.zeros(size, bool)
        # By warps since their last barrier, and by blocks since that of the cluster.
        self.warps, self.blocks = Marks(size), Marks(size)

    def synchronise(self, cluster: bool = True) -> None:
        """Forget who has read and written, of all blocks or within each."""
        for marks in (self.warps, self.blocks) if cluster else (self.warps,):
            marks.forget()

    def _places(self, addresses: np.ndarray, size: int) -> np.ndarray:
        places = addresses.astype(np.int64)[:, None] - self.base + np.arange(size)
        inside = (places >= 0) & (places < len(self.bytes))
        if not (inside.all() and self.given[places].all()):
            raise AssertionError("an access outside of what was given")
        if (addresses % size).any():
            raise AssertionError(f"an address that is no multiple of {size}")
        return places

    def load(self, addresses: np.ndarray, size: int, by: np.ndarray) -> np.ndarray:
        places = self._places(addresses, size)
        self.warps.read(places, by[0])
        self.blocks.read(places, by[1])
        return self.bytes[places]

    def store(self, addresses: np.ndarray, values: np.ndarray, by: np.ndarray) -> None:
        places = self._places(addresses, values.shape[1])
        self.warps.write(places, by[0])
        self.blocks.write(places, by[1])
        self.bytes[places] = values


class Marks:
    """Who has written and read each byte since the last barrier."""

    def __init__(self, size: int):
        self.writer, self.reader = np.full(size, -1, np.int32), np.full(size, -1, np.int32)

    def forget(self) -> None:
        self.writer[:], self.reader[:] = -1, -1

    def read(self, places: np.ndarray, by: np.ndarray) -> None:
        if ((self.writer[places] != -1) & (self.writer[places] != by[:, None])).any():
            raise AssertionError("a warp reads what another has written, without a barrier")
        others = (self.reader[places] != -1) & (self.reader[places] != by[:, None])
        self.reader[places] = np.where(others, -2, by[:, None])

    def write(self, places: np.ndarray, by: np.ndarray) -> None:
        for before, what in ((self.writer, "written"), (self.reader, "read")):
            if ((before[places] != -1) & (before[places] != by[:, None])).any():
                raise AssertionError(f"a warp writes what another has {what}, without a barrier")
        self.writer[places] = by[:, None]


def parse(text: str) -> tuple[list[tuple[str, str, list[str]]], dict[str, int], int, int]:
    """Instructions as guard, opcode, operands; places of labels; threads of a block; blocks."""
    threads = int(re.search(r"\.(?:req|max)ntid (\d+)", text)[1])
    cluster = re.search(r"\.reqnctapercluster (\d+)", text)
    body = text[text.index("{", text.index("ntid")) + 1 :]
    body = re.sub(r"//[^\n]*", "", body)
    found: list[tuple[str, str, list[str]]] = []
    labels: dict[str, int] = {}
    for line in body.splitlines():
        line = line.strip()
        if line.endswith(":"):
            labels[line[:-1]] = len(found)
            continue
        matched = re.match(r"(?:@(!?%p\d+)\s+)?([a-z][\w.:]*)\s*(.*);$", line)
        if not matched:
            if line and not re.match(r"[.{}]|\}", line):
                raise NotImplementedError(line)
            if line == "}":
                break
            continue
        guard, opcode, rest = matched[1] or "", matched[2], matched[3]
        operands = [o.strip() for o in re.findall(r"\{[^}]*\}|\[[^]]*\]|[^,{}\[\]]+", rest)]
        found.append((guard, opcode, [o for o in operands if o]))
    return found, labels, threads, int(cluster[1]) if cluster else 1


class Program:
    """The threads of one program, which may be a cluster of blocks."""

    def __init__(self, code: Any, memory: Memory, parameters: list[np.ndarray], number: int):
        self.code, self.labels, threads, blocks = code
        self.count = threads * blocks
        self.memory, self.parameters = memory, parameters
        self.shared = Memory(SHARED_BYTES * blocks, 0)
        self.shared.given[:] = True
        self.registers: dict[str, np.ndarray] = {}
        self.thread = np.arange(self.count, dtype=np.uint32)
        self.warps, self.lanes = (self.thread // WARP).astype(np.int32), self.thread % WARP
        self.block = self.thread // threads
        self.by = np.stack([self.warps, self.block.astype(np.int32)])
        here = np.full(self.count, number, np.uint32)
        self.known = {
            "%tid.x": self.thread % threads,
            "%ctaid.x": here * blocks + self.block,
            "%clusterid.x": here,
            "%cluster_ctarank": self.block,
        }
        self.copies: list[list[Any]] = [[]]

    def run(self) -> None:
        at = 0
        while at < len(self.code):
            guard, opcode, operands = self.code[at]
            if opcode in ("ret", "exit"):
                return
            mask = np.ones(self.count, bool)
            if guard:
                mask = self.registers[guard.lstrip("!")] ^ guard.startswith("!")
            at += 1
            if opcode.startswith("bra"):
                if mask.any() != mask.all():
                    raise NotImplementedError("a branch that some threads take")
                at = self.labels[operands[0]] if mask.all() else at
                continue
            self.step(opcode, operands, mask)

    # Operands.

    def value(self, text: str, kind: Any) -> np.ndarray:
        """An operand of every thread."""
        kind = np.dtype(kind)
        if text in self.known:
            return self.known[text].astype(kind)
        if text.startswith("%"):
            held = self.registers[text]
            return held if held.dtype == bool else held.view(kind)
        if re.match(r"0[fd][0-9A-F]+$", text):
            bits = {"f": np.uint32, "d": np.uint64}[text[1]](int(text[2:], 16))
            return np.full(self.count, bits).view(kind)
        if text == "global_smem":
            return np.zeros(self.count, kind)
        number = int(text, 0)
        if kind.kind in "fV":
            kind = np.dtype(f"u{kind.itemsize}")
        return np.full(self.count, number % 2 ** (8 * kind.itemsize), f"u{kind.itemsize}").view(
            kind
        )

    def put(self, name: str, value: np.ndarray, mask: np.ndarray) -> None:
        bits = value if value.dtype == bool else value.view(f"u{value.dtype.itemsize}")
        before = self.registers.get(name)
        if before is None:
            before = np.zeros(self.count, bits.dtype)
        self.registers[name] = np.where(mask, bits, before)

    def address(self, text: str) -> np.ndarray:
        base, _, offset = text.strip("[] ").partition("+")
        wide = np.uint64 if base.strip().startswith("%rd") else np.uint32
        return self.value(base.strip(), wide).astype(np.int64) + int(offset.strip() or "0", 0)

    def place(self, text: str, parts: list[str]) -> tuple[Memory, np.ndarray]:
        """The memory that an instruction means, and where: a block's shared one is its own."""
        if "shared" in parts:
            return self.shared, self.address(text) + SHARED_BYTES * self.block.astype(np.int64)
        return self.shared if "shared::cluster" in parts else self.memory, self.address(text)

    @staticmethod
    def names(text: str) -> list[str]:
        return [n.strip() for n in text.strip("{} ").split(",")]

    # Instructions.

    def step(self, opcode: str, operands: list[str], mask: np.ndarray) -> None:
        with np.errstate(all="ignore"):
            parts = opcode.replace("::cta", "").split(".")
            act = getattr(self, f"do_{parts[0]}", None)
            if act is None:
                act = self.do_arithmetic
            act(parts, operands, mask)

    def do_ld(self, parts, operands, mask) -> None:
        if parts[1] == "param":
            place = int(operands[1].strip("[] ").rsplit("_", 1)[1])
            self.put(operands[0], np.repeat(self.parameters[place], self.count), mask)
            return
        kind, names = np.dtype(KINDS[parts[-1]]), self.names(operands[0])
        memory, addresses = self.place(operands[1], parts)
        size = kind.itemsize * len(names)
        values = np.zeros((self.count, size), np.uint8)
        values[mask] = memory.load(addresses[mask], size, self.by[:, mask])
        for k, name in enumerate(names):
            self.put(name, np.ascontiguousarray(values.view(kind)[:, k]), mask)

    def do_st(self, parts, operands, mask) -> None:
        kind, names = np.dtype(KINDS[parts[-1]]), self.names(operands[1])
        memory, addresses = self.place(operands[0], parts)
        values = np.stack([self.value(n, kind) for n in names], 1).view(np.uint8)
        memory.store(addresses[mask], values[mask], self.by[:, mask])

    def do_ldmatrix(self, parts, operands, mask) -> None:
        """Rows of 16 bytes at the addresses of eight threads, a word for each of four threads."""
        assert mask.all()
        assert "trans" not in parts
        addresses = self.address(operands[1]).reshape(-1, WARP)
        lanes = np.arange(WARP)
        for k, name in enumerate(self.names(operands[0])):
            places = addresses[:, 8 * k + lanes // 4] + 4 * (lanes % 4)
            found = self.shared.load(places.reshape(-1), 4, self.by)
            self.put(name, found.view(np.uint32)[:, 0].copy(), mask)

    def do_cp(self, parts, operands, mask) -> None:
        if parts[2] == "commit_group":
            self.copies.append([])
        elif parts[2] == "wait_group":
            while len(self.copies) - 1 > int(operands[0]):
                for target, source, size, count, on in self.copies.pop(0):
                    self.copy(target, source, size, count, on)
        else:
            count = self.value(operands[3], np.uint32) if len(operands) > 3 else None
            size = int(operands[2], 0)
            copied = self.address(operands[0]), self.address(operands[1]), size, count, mask
            self.copies[-1].append(copied)

    def copy(self, target, source, size, count, mask) -> None:
        values = np.zeros((self.count, size), np.uint8)
        full = mask if count is None else mask & (count == size)
        assert count is None or np.isin(count[mask], (0, size)).all()
        values[full] = self.memory.load(source[full], size, self.by[:, full])
        self.shared.store(target[mask], values[mask], self.by[:, mask])

    def do_bar(self, parts, operands, mask) -> None:
        assert mask.all()
        self.shared.synchronise(cluster=False)
        self.memory.synchronise(cluster=False)

    def do_barrier(self, parts, operands, mask) -> None:
        """Of a cluster; what it orders is ordered once all have waited."""
        assert parts[1] == "cluster"
        assert mask.all()
        if parts[2] == "wait":
            self.shared.synchronise()
            self.memory.synchronise()

    def do_mapa(self, parts, operands, mask) -> None:
        """The address of what lies at a place of another block's shared memory."""
        place, block = (self.value(o, np.uint32) for o in operands[1:])
        self.put(operands[0], place + block * np.uint32(SHARED_BYTES), mask)

    def do_mov(self, parts, operands, mask) -> None:
        kind = np.dtype(KINDS[parts[-1]])
        if operands[0].startswith("{"):
            names = self.names(operands[0])
            pieces = self.value(operands[1], kind)[:, None].view(f"u{kind.itemsize // len(names)}")
            for k, name in enumerate(names):
                if name != "_":
                    self.put(name, np.ascontiguousarray(pieces[:, k]), mask)
        elif operands[1].startswith("{"):
            names = self.names(operands[1])
            part = np.dtype(f"u{kind.itemsize // len(names)}")
            pieces = np.stack([self.value(n, part) for n in names], 1)
            self.put(operands[0], np.ascontiguousarray(pieces).view(kind)[:, 0].copy(), mask)
        else:
            self.put(operands[0], self.value(operands[1], kind), mask)

    def do_setp(self, parts, operands, mask) -> None:
        kind, how = KINDS[parts[-1]], parts[1]
        a, b = (self.value(o, kind) for o in operands[1:3])
        unordered = np.isnan(a) | np.isnan(b) if np.dtype(kind).kind == "f" else np.False_
        if how in ("num", "nan"):
            result = unordered if how == "nan" else ~unordered
        elif how in COMPARED:
            result = COMPARED[how](a, b) & ~unordered
        else:
            result = COMPARED[how.removesuffix("u")](a, b) | unordered
        self.put(operands[0], result, mask)

    def do_selp(self, parts, operands, mask) -> None:
        kind = KINDS[parts[-1]]
        a, b = (self.value(o, kind) for o in operands[1:3])
        chosen = self.registers[operands[3]]
        wide = f"u{np.dtype(kind).itemsize}"
        self.put(operands[0], np.where(chosen, a.view(wide), b.view(wide)), mask)

    def do_shfl(self, parts, operands, mask) -> None:
        assert mask.all()
        value, by = self.value(operands[1], np.uint32), self.value(operands[2], np.uint32)
        lanes = self.lanes.astype(np.int64)
        source = {"up": lanes - by, "down": lanes + by, "bfly": lanes ^ by, "idx": by}[parts[2]]
        source = np.where((source >= 0) & (source < WARP), source, lanes)
        self.put(operands[0], value[self.warps * WARP + source], mask)

    def do_redux(self, parts, operands, mask) -> None:
        assert mask.all()
        assert parts[2] == "add"
        value = self.value(operands[1], np.int32).reshape(-1, WARP)
        self.put(operands[0], np.repeat(value.sum(1, dtype=np.int32), WARP), mask)

    def do_bfe(self, parts, operands, mask) -> None:
        value, start, size = (self.value(o, np.uint32) for o in operands[1:])
        self.put(operands[0], (value >> start) & ((np.uint32(1) << size) - np.uint32(1)), mask)

    def do_cvt(self, parts, operands, mask) -> None:
        if parts[-2] == "bf16x2":
            high, low = (self.value(o, np.float32).astype(ml_dtypes.bfloat16) for o in operands[1:])
            pair = np.stack([low.view(np.uint16), high.view(np.uint16)], 1)
            self.put(operands[0], pair.view(np.uint32)[:, 0].copy(), mask)
            return
        value = self.value(operands[1], KINDS[parts[-1]])
        if "rmi" in parts:
            value = np.floor(value)
        if "rzi" in parts:
            value = np.trunc(value)
        self.put(operands[0], value.astype(KINDS[parts[-2]]), mask)

    def do_mul(self, parts, operands, mask) -> None:
        kind = KINDS[parts[-1]]
        a, b = (self.value(o, kind) for o in operands[1:3])
        self.put(operands[0], wide(a) * wide(b) if "wide" in parts else a * b, mask)

    def do_mad(self, parts, operands, mask) -> None:
        a, b = (self.value(o, KINDS[parts[-1]]) for o in operands[1:3])
        if "wide" in parts:
            a, b = wide(a), wide(b)
        self.put(operands[0], a * b + self.value(operands[3], a.dtype), mask)

    def do_fma(self, parts, operands, mask) -> None:
        a, b, c = (self.value(o, np.float32).astype(np.float64) for o in operands[1:])
        assert parts[-1] == "f32"
        self.put(operands[0], (a * b + c).astype(np.float32), mask)

    def do_shl(self, parts, operands, mask) -> None:
        kind = KINDS[parts[-1]]
        a, by = self.value(operands[1], kind), self.value(operands[2], np.uint32)
        self.put(operands[0], a << by.astype(kind), mask)

    def do_shr(self, parts, operands, mask) -> None:
        kind = KINDS[parts[-1]]
        a, by = self.value(operands[1], kind), self.value(operands[2], np.uint32)
        self.put(operands[0], a >> by.astype(kind), mask)

    def do_arithmetic(self, parts, operands, mask) -> None:
        name, kind = parts[0], KINDS[parts[-1]]
        a, *rest = (self.value(o, kind) for o in operands[1:])
        if name in ARITHMETIC:
            result = ARITHMETIC[name](a, rest[0])
        elif name in ("max", "min"):
            plain = np.fmax if name == "max" else np.fmin
            whole = np.maximum if name == "max" else np.minimum
            result = (whole if "NaN" in parts else plain)(a, rest[0])
        elif name in ("div", "rem") and np.dtype(kind).kind == "i":
            quotient = np.trunc(a / rest[0]).astype(kind)
            result = quotient if name == "div" else a - quotient * rest[0]
        elif name in ("div", "abs", "neg", "not", "sqrt"):
            functions = {"div": np.divide, "abs": np.abs, "neg": np.negative}
            functions |= {"not": np.invert, "sqrt": np.sqrt}
            result = functions[name](a, *rest)
        else:
            raise NotImplementedError(".".join(parts))
        self.put(operands[0], result, mask)


def wide(a: np.ndarray) -> np.ndarray:
    """Integers of twice the width."""
    return a.astype(f"{a.dtype.kind}{2 * a.dtype.itemsize}")


def run(step: Any, assembly: str, arrays: dict[str, np.ndarray]) -> None:
    """Run a kernel of a launch on arrays, in place, one program after the other."""
    gap, base = 256, 2**20
    sizes = {n: -(-a.nbytes // gap) * gap + gap for n, a in arrays.items()}
    memory = Memory(sum(sizes.values()), base)
    places, at = {}, 0
    for n, a in arrays.items():
        places[n], at = at, at + sizes[n]
        memory.bytes[places[n] : places[n] + a.nbytes] = a.view(np.uint8).reshape(-1)
        memory.given[places[n] : places[n] + a.nbytes] = True
    parameters = [np.array([base + places[n]], np.uint64) for n, _ in step.pointers]
    declared = re.findall(r"\.param \.([a-z]\d+)", assembly[: assembly.index(")")])
    # Triton compiles a 1 in.
    numbers = [n for n in step.numbers if isinstance(n, float) or n != 1]
    for kind, number in zip(declared[len(parameters) :], numbers, strict=False):
        parameters.append(np.array([number], KINDS[kind.replace("u", "s")]))
    parameters += [np.zeros(1, np.uint64)] * (len(declared) - len(parameters))
    code = parse(assembly)
    for number in range(step.programs):
        memory.synchronise()
        Program(code, memory, parameters, number).run()
    for n, a in arrays.items():
        held = memory.bytes[places[n] : places[n] + a.nbytes]
        a.view(np.uint8).reshape(-1)[:] = held
