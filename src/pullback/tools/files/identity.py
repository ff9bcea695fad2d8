"""What must be the same for a run to be continued."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import __version__
from ...core.declare import REQUIRED
from ...cpu.compile import source_digest
from .operands import Operands

if TYPE_CHECKING:
    from .job import Job


def identity_of(job: Job, operands: Operands) -> dict[str, Any]:
    """A job, its inputs and what runs it, by what a user calls them."""
    held: dict[str, Any] = {"the op": job.op.name}
    usual = {p.name: None if p.default is REQUIRED else p.default for p in job.op.parameters}
    told = usual | ({"axis": -1} if "axis" in usual else {}) | dict(job.parameters)
    for name, value in (told | {"shape": job.shape, "dtype": job.dtype}).items():
        held[f"--{name.replace('_', '-')}"] = value
    held["--memory"] = job.memory
    for name, path in sorted(job.inputs.items()):
        size, modified, contents = operands.stored[name].file.describe()
        held[f"the size of {path.name} ({name})"] = size
        held[f"the modification time of {path.name} ({name})"] = modified
        held[f"the contents of {path.name} ({name})"] = contents
    for name, path in sorted(job.outputs.items()):
        held[f"the file for {name}"] = path.name
    held["the version of pullback"] = __version__
    held["the source of pullback's kernels"] = source_digest()
    return held
