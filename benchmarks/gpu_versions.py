"""Compile a sample of kernels with other releases of Triton, each in a folder that is thrown away.

    python benchmarks/gpu_versions.py 3.7.0 3.7.1 3.8.0

A release is unpacked by itself, without torch, in front of what is installed. Its lowering of folds
and scans is run too (``tests/test_triton_lowering.py``). Clusters are used, and looked at, where
a release folds in them. The lower bound in ``pyproject.toml`` is the oldest one whose kernels are
right: before 3.4 a float64 argument arrived as float32, and up to 3.6 some scans were miscompiled.
The exit code is 1 if a release fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

ROOT = Path(__file__).parents[1]
TARGETS = ("sm_80", "sm_90", "gfx942")
SAMPLE = (
    ("lerp", "f64"),
    ("prod", "f32"),
    ("cumprod_backward", "f32"),
    ("logcumsumexp", "f16"),
    ("softmax_backward", "bf16"),
    ("segment_sum", "f32"),
    ("std", "bf16"),
)


def compile_sample() -> None:
    """Compile with the Triton that is imported, and say what it makes."""
    import triton

    from pullback.gpu.device import folds_in_clusters
    from pullback.gpu.offline import TARGETS as KNOWN
    from pullback.gpu.offline import compile_step
    from triton_cells import launch_of, steps_of

    click.echo(f"triton {triton.__version__}")
    for name, element in SAMPLE:
        for target in TARGETS:
            for step in steps_of(name, element):
                built = compile_step(step, KNOWN[target])
                text = f"{step.kernel.__name__} {element} {target}"
                if built.spilled:
                    raise SystemExit(f"{text}: spills {built.spilled} bytes")
                if name == "lerp" and "cvt.f64.f32" in built.assembly:
                    raise SystemExit(f"{text}: a float64 argument is no float64")
                click.echo(f"  {text}: {built.registers} registers, loads of {built.loads} bits")
    if not folds_in_clusters():
        click.echo("no folds in clusters")
        return
    for step in launch_of("softmax_backward", "f32", (4096, 65536), target="sm_90").steps:
        built = compile_step(step, KNOWN["sm_90"])
        if built.spilled or "barrier.cluster" not in built.assembly:
            raise SystemExit(
                f"{step.kernel.__name__}: no cluster, or {built.spilled} bytes spilled"
            )


@click.command()
@click.argument("versions", nargs=-1, required=True)
def main(versions: tuple[str, ...]) -> None:
    """Compile a sample with every release named."""
    failed = [version for version in versions if not passes(version)]
    sys.exit(1 if failed else 0)


def passes(version: str) -> bool:
    """Whether a release compiles the sample, and its lowering is right."""
    with tempfile.TemporaryDirectory() as folder:
        install = [*(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps")]
        subprocess.run([*install, "--target", folder, f"triton=={version}"], check=True)
        path = os.pathsep.join([folder, str(ROOT / "src"), str(ROOT / "tests")])
        environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": f"{folder}/cache"}
        sample = ["-c", "import gpu_versions; gpu_versions.compile_sample()"]
        lowering = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
        lowering.append(str(ROOT / "tests" / "test_triton_lowering.py"))
        found = []
        for arguments in (sample, lowering):
            done = subprocess.run(
                [sys.executable, *arguments],
                cwd=ROOT / "benchmarks",
                env=environment,
                capture_output=True,
                text=True,
            )
            last = (done.stdout + done.stderr).strip().splitlines()[-1:]
            found.append((done.returncode == 0, *last))
    click.echo(f"triton {version}")
    for what, (right, *last) in zip(("sample", "lowering"), found, strict=True):
        click.echo(f"  {what}: {'passes' if right else 'fails'}: {' '.join(last)}")
    return all(right for right, *_ in found)


if __name__ == "__main__":
    main()
