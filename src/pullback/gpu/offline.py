"""Kernels compiled for GPUs that are not there, exactly as a launch would compile them.

Only tests and the estimates in the documentation use this; it goes through Triton's internals, as a
launch needs a device.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import MockTensor, create_function_from_signature

from ..core.elements import ELEMENTS
from .steps import Step

TARGETS = {
    **{f"sm_{n}": GPUTarget("cuda", n, 32) for n in (75, 80, 86, 89, 90, 100, 120)},
    **{name: GPUTarget("hip", name, 64) for name in ("gfx90a", "gfx942", "gfx950")},
    **{name: GPUTarget("hip", name, 32) for name in ("gfx1100", "gfx1201")},
}


@dataclass(frozen=True)
class Built:
    """What the compiler says of a kernel.

    Attributes
    ----------
    assembly
        PTX, or AMD's assembly.
    registers, spilled
        Registers a thread uses, and bytes of memory it keeps what does not fit in.
    shared
        Bytes of shared memory a program uses.
    loads, stores
        Bits of every global load and store there is in the text, copies to shared memory included.
    layouts
        How tiles lie over threads where they are folded or scanned.
    binary
        The machine code: a cubin, or a code object of AMD's.
    """

    assembly: str
    registers: int
    spilled: int
    shared: int
    loads: tuple[int, ...]
    stores: tuple[int, ...]
    layouts: tuple[str, ...]
    binary: bytes


class _Operand(MockTensor):
    """An operand at an address, with offsets that may reach far or be negative."""

    def __init__(self, kind: str, is_odd: bool, is_far: bool):
        super().__init__(kind)
        self._address, self._reach = (4 if is_odd else 0), (2**62 if is_far else 0)

    def data_ptr(self) -> int:
        return self._address

    def ptr_range(self) -> int:
        return self._reach


def compile_step(
    step: Step, target: GPUTarget, far: Collection[str] = (), odd: Collection[str] = ()
) -> Built:
    """Compile a launch's kernel.

    Operands that are ``far`` have negative strides, those that are ``odd`` lie at addresses that
    are not multiples of 16.
    """
    kernel = step.kernel
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    given: list[Any] = [
        _Operand(ELEMENTS[kind].triton, name in odd, name in far) for name, kind in step.pointers
    ]
    chosen = step.options(target.backend, target.warp_size)
    bound, specialization, rest = binder(*given, *step.numbers, **step.meta, **chosen)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, dict(chosen), bound, specialization, rest
    )
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=target, options=parsed.__dict__)
    shared, layouts = made.metadata.shared, _layouts(made.asm["ttgir"])
    if target.backend == "hip":
        text = made.asm["amdgcn"]
        return Built(
            text,
            _number(r"\.vgpr_count:\s*(\d+)", text),
            4 * _number(r"\.vgpr_spill_count:\s*(\d+)", text)
            + _number(r"\.private_segment_fixed_size:\s*(\d+)", text),
            shared,
            _widths_amd("load", text),
            _widths_amd("store", text),
            layouts,
            made.asm["hsaco"],
        )
    text = made.asm["ptx"]
    usage = _resource_usage(made.asm["cubin"])
    return Built(
        text,
        _number(r"REG:(\d+)", usage),
        _number(r"STACK:(\d+)", usage) + _number(r"LOCAL:(\d+)", usage),
        shared,
        _widths_ptx("ld.global", text) + _copied_ptx(text),
        _widths_ptx("st.global", text),
        layouts,
        made.asm["cubin"],
    )


def _layouts(ttgir: str) -> tuple[str, ...]:
    """The layouts of what is folded or scanned, in order."""
    named = dict(re.findall(r"^(#\w+) = (.*)$", ttgir, re.M))
    given = re.findall(r'"tt\.(?:reduce|scan)".*?\}\) : \((.*?)\) ->', ttgir, re.DOTALL)
    return tuple(re.sub(r"#\w+", lambda m: named.get(m[0], m[0]), text) for text in given)


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"{pattern} not found in the compiler's output")
    return int(found.group(1))


def _widths_amd(kind: str, text: str) -> tuple[int, ...]:
    """Bits of AMD's instructions: a dword has 32, and newer GPUs say how many."""
    names = re.findall(rf"(?:global|buffer)_{kind}_(\w+)", text)
    bits = {"dword": 32, "dwordx2": 64, "dwordx3": 96, "dwordx4": 128}
    return tuple(
        bits.get(n) or (int(n[1:]) if re.fullmatch(r"b\d+", n) else 8 if "byte" in n else 16)
        for n in names
    )


def _widths_ptx(instruction: str, text: str) -> tuple[int, ...]:
    found = re.findall(rf"{re.escape(instruction)}\S*?(?:\.v(\d))?\.b(\d+)", text)
    return tuple(int(count or 1) * int(bits) for count, bits in found)


def _copied_ptx(text: str) -> tuple[int, ...]:
    """Bits of copies to shared memory, by which a loop reads ahead."""
    found = re.findall(r"cp\.async\.c[ag]\S* *\[[^]]*\], *\[[^]]*\], *(0x\w+|\d+)", text)
    return tuple(8 * int(nbytes, 0) for nbytes in found)


def _resource_usage(cubin: bytes) -> str:
    return cuobjdump(cubin, "--dump-resource-usage")


def cuobjdump(cubin: bytes, what: str) -> str:
    """What NVIDIA's tool, which comes with Triton, says of a cubin."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, what, file.name]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
