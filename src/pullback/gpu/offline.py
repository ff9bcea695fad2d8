"""Kernels compiled for GPUs that are not there, exactly as a launch would compile them.

Only tests and the estimates in the documentation use this; it goes through Triton's internals, as a
launch needs a device.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.jit import MockTensor, create_function_from_signature

from ..core.elements import ELEMENTS
from .steps import Step

TARGETS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
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
        Widest global load and store in bits.
    binary
        The machine code: a cubin, or a code object of AMD's.
    """

    assembly: str
    registers: int
    spilled: int
    shared: int
    loads: int
    stores: int
    binary: bytes


def compile_step(step: Step, element: str, target: GPUTarget, ids: str = "i64") -> Built:
    """Compile a launch's kernel for operands of an element type, and ids of another."""
    kernel = step.kernel
    backend = make_backend(target)
    binder = create_function_from_signature(kernel.signature, kernel.params, backend)
    given: list[Any] = [MockTensor(_type_of(n, element, ids)) for n in step.pointers]
    chosen = step.options(target.backend, target.warp_size)
    bound, specialization, rest = binder(*given, *step.numbers, **step.meta, **chosen)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, dict(chosen), bound, specialization, rest
    )
    source = ASTSource(kernel, signature, constants, attributes)
    made = triton.compile(source, target=target, options=parsed.__dict__)
    shared = made.metadata.shared
    if target.backend == "hip":
        text = made.asm["amdgcn"]
        return Built(
            text,
            _number(r"\.vgpr_count:\s*(\d+)", text),
            4 * _number(r"\.vgpr_spill_count:\s*(\d+)", text)
            + _number(r"\.private_segment_fixed_size:\s*(\d+)", text),
            shared,
            _widest(r"(?:global|buffer)_load_(?:dword(x\d)?|ushort|short_d16\w*)", text),
            _widest(r"(?:global|buffer)_store_(?:dword(x\d)?|short\w*)", text),
            made.asm["hsaco"],
        )
    text = made.asm["ptx"]
    usage = _resource_usage(made.asm["cubin"])
    return Built(
        text,
        _number(r"REG:(\d+)", usage),
        _number(r"STACK:(\d+)", usage) + _number(r"LOCAL:(\d+)", usage),
        shared,
        _widest_ptx("ld.global", text),
        _widest_ptx("st.global", text),
        made.asm["cubin"],
    )


def _type_of(pointer: str, element: str, ids: str) -> str:
    """The type behind a pointer, as Triton names it."""
    if pointer in ("segment_ids", "keys"):
        return ids
    if pointer in ("starts", "order", "found"):
        return "i64"
    return "fp64" if pointer in ("workspace", "parts") else ELEMENTS[element].triton


def _number(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"{pattern} not found in the compiler's output")
    return int(found.group(1))


def _widest(pattern: str, text: str) -> int:
    """Bits of the widest match; a word without a factor has 32."""
    widths = [int(m[1:]) * 32 if m else 32 for m in re.findall(pattern, text)]
    return max(widths, default=0)


def _widest_ptx(instruction: str, text: str) -> int:
    found = re.findall(rf"{re.escape(instruction)}\S*?(?:\.v(\d))?\.b(\d+)", text)
    return max((int(count or 1) * int(bits) for count, bits in found), default=0)


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
