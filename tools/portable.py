"""Compare the bytes of every op between processors, and write the digests into docs/portable.md.

Each target is a process that compiles for another CPU: Numba and llvmlite take its name from the
environment. An emulated machine is one more, where a command that starts Python there is given:

    PULLBACK_AARCH64="qemu-aarch64-static -L ROOT ... ROOT/usr/bin/python3.11 -S" make portable

Usage: python tools/portable.py [--ops softmax,cumsum] [--targets native,avx2] [--check]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from pullback.tools.check.digests import PUBLISHED, Digests, differing, published

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "portable.md"
BEGIN, END = "<!-- digests:begin -->", "<!-- digests:end -->"
# What a target is called, and the CPU its kernels are compiled for.
CPUS = {
    "native": {},
    "avx2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": ""},
    "baseline": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": ""},
}
WORDS = {
    "native": "{cpu}, compiled for itself",
    "avx2": "the same, compiled for Haswell (AVX2, no AVX-512)",
    "baseline": "the same, compiled for baseline x86-64 (SSE2)",
    "aarch64": "AArch64, emulated by QEMU",
}


def command_of(target: str) -> tuple[list[str], dict[str, str]]:
    """How to start Python for a target, and its environment."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    if target == "aarch64":
        return shlex.split(os.environ["PULLBACK_AARCH64"]), variables
    return [sys.executable], variables | CPUS[target]


def run(target: str, ops: list[str], dtypes: str) -> Digests:
    """The digests of a target."""
    command, variables = command_of(target)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.json")
        told = ["-m", "pullback", "check", "--digest", "--json", str(report), "--dtypes", dtypes]
        done = subprocess.run([*command, *told, *ops], env=variables, check=False)
        if done.returncode not in (0, 1):  # 1: not the published ones, which this is about
            raise SystemExit(f"{target}: exit {done.returncode}")
        found: Digests = json.loads(report.read_text(encoding="utf-8"))["digests"]
    return found


def processor() -> str:
    """What the system calls the CPU."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(found: Digests) -> str:
    dtypes = list(dict.fromkeys(d for row in found.values() for d in row))
    lines = [("op", *dtypes), ("---",) * (1 + len(dtypes))]
    lines += [(op, *(f"`{row.get(d, '-')}`" for d in dtypes)) for op, row in found.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def count(found: Digests) -> int:
    return sum(len(row) for row in found.values())


def page(text: str, results: dict[str, Digests]) -> str:
    """The page with the digests and the targets that gave them."""
    head, _, rest = text.partition(BEGIN)
    found = next(iter(results.values()))
    listed = "\n".join(
        f"- {WORDS[t].format(cpu=processor())}: {said(r)}" for t, r in results.items()
    )
    made = f"The same bytes came from each of:\n\n{listed}\n\n{table(found)}"
    return f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


def said(found: Digests) -> str:
    dtypes = dict.fromkeys(d for row in found.values() for d in row)
    return f"{count(found)} digests, {len(found)} ops in {', '.join(dtypes)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="", help="such as softmax,cumsum; else all")
    parser.add_argument("--dtypes", default="f32,f64,f16,bf16")
    parser.add_argument("--targets", default=None, help=f"from {', '.join(WORDS)}")
    parser.add_argument("--quick", action="store_true", help="f32 alone but for the first target")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    given = parser.parse_args()
    here = [*CPUS, *(["aarch64"] if "PULLBACK_AARCH64" in os.environ else [])]
    targets = given.targets.split(",") if given.targets else here
    ops = [n for n in given.ops.split(",") if n]
    results: dict[str, Any] = {}
    for target in targets:
        print(f"{target} ...", flush=True)
        dtypes = "f32" if given.quick and results else given.dtypes
        results[target] = run(target, ops, dtypes)
    first = results[targets[0]]
    failed = False
    for target, found in results.items():
        for op, element in differing(found, first):
            failed = True
            print(f"{target}: {op} {element} differs from {targets[0]}", file=sys.stderr)
    known = differing(first, published())
    for op, element in known:
        print(f"{op} {element} is not what was published", file=sys.stderr)
    compared = sum(map(count, results.values())) - count(first)
    print(f"{compared} digests compared: {'they differ' if failed else 'the same'}")
    if failed or given.check:
        return int(failed or bool(known))
    if ops or given.targets:
        print("not written: not all ops, or not all targets")
        return 0
    PUBLISHED.write_text(json.dumps(first, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
