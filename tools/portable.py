"""Compare the bytes of every op between processors, and write the digests into docs/portable.md.

Each target is a process whose kernels are compiled for another CPU: it takes its name from the
environment. For AArch64 they are compiled here (cross_compile.py) and run in a Python that QEMU
emulates (aarch64.sh makes it).

What a pair of ops gives is kept in build/portable, by target and sources: a run that was cut off
goes on where it was.

Usage: python tools/portable.py [--ops softmax,cumsum] [--targets native,avx2] [--check]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

from pullback.core.catalog import catalog
from pullback.cpu.compile import source_digest
from pullback.tools.check import digests as digesting
from pullback.tools.check.digests import PUBLISHED, Digests, differing, published

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "portable.md"
BEGIN, END = "<!-- digests:begin -->", "<!-- digests:end -->"
AARCH64 = ROOT / ".aarch64" / "python"
# What a target is called, and what tells the CPU.
CPUS = {
    "native": {},
    "avx2": {"PULLBACK_CPU": "haswell"},
    "baseline": {"PULLBACK_CPU": "x86-64"},
    "aarch64": {},
}
WORDS = {
    "native": "{cpu}, kernels compiled for it",
    "avx2": "the same, kernels compiled for Haswell: AVX2, no AVX-512",
    "baseline": "the same, kernels compiled for any x86-64: SSE2, no fused multiply-add",
    "aarch64": "AArch64 (any ARMv8-A), emulated by QEMU",
}
# Pairs of ops that a process computes: to start one takes twelve seconds where it is emulated.
AT_ONCE = 4
ASK_MACHINE = """
import llvmlite.binding as llvm
print(llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten())
"""


@cache
def kept_in() -> Path:
    """The folder for results of the sources as they are."""
    held = hashlib.sha256(source_digest().encode())
    here = Path(digesting.__file__)
    for path in (here, here.parents[1] / "operands.py", here.parents[1] / "case.py"):
        held.update(path.read_bytes())
    return ROOT / "build" / "portable" / held.hexdigest()[:16]


def environment(target: str) -> dict[str, str]:
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **CPUS[target]}
    if target == "aarch64":
        # Kernels of another machine are of no use among those of this one.
        variables["PULLBACK_CACHE_DIR"] = str(ROOT / "build" / "portable" / "kernels")
    return variables


@cache
def emulated() -> list[str]:
    """Triple, CPU and features of the emulated machine."""
    asked = subprocess.run(
        [AARCH64, "-c", ASK_MACHINE], stdout=subprocess.PIPE, text=True, check=True
    )
    return asked.stdout.split()


def run(target: str, kinds: list[str]) -> Digests:
    """The digests of some pairs of ops."""
    python, told = sys.executable, ["check", "--digest", *kinds, "--json", "-"]
    if target == "aarch64":
        # Results are what memory held, which NumPy would warn about.
        cross = [sys.executable, "-W", "ignore", str(ROOT / "tools" / "cross_compile.py")]
        made = [*cross, *emulated(), *told]
        subprocess.run(made, env=environment(target), stdout=subprocess.DEVNULL, check=True)
        python = str(AARCH64)
    done = subprocess.run(
        [python, "-m", "pullback", *told],
        env=environment(target), stdout=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 1):  # 1: not the published ones, which this is about
        raise SystemExit(f"{target}: exit {done.returncode}")
    found: Digests = json.loads(done.stdout)["digests"]
    return found


def pairs(names: list[str]) -> dict[str, list[str]]:
    """Ops by their kind: what is run and kept together."""
    found: dict[str, list[str]] = {}
    for op in catalog():
        if not names or op.kind in names or op.name in names:
            found.setdefault(op.kind, []).append(op.name)
    return found


def measured(target: str, names: list[str]) -> Digests:
    """The digests of a target."""
    wanted, folder = pairs(names), kept_in() / target
    folder.mkdir(parents=True, exist_ok=True)
    missing = [kind for kind in wanted if not (folder / f"{kind}.json").exists()]
    while missing:
        some, missing = missing[:AT_ONCE], missing[AT_ONCE:]
        print(f"{target}: {', '.join(some)}", flush=True)
        made = run(target, some)
        for kind in some:
            (folder / f"{kind}.json").write_text(
                json.dumps({op: made[op] for op in pairs([kind])[kind]}), encoding="utf-8"
            )
    held: Digests = {}
    for kind in wanted:
        held |= json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
    return {op: held[op] for ops in wanted.values() for op in ops}


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
        f"- {WORDS[t].format(cpu=processor())}: {count(r)} digests" for t, r in results.items()
    )
    made = f"The same bytes came from each of these:\n\n{listed}\n\n{table(found)}"
    return f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", default="", help="such as softmax,cumsum; else all")
    parser.add_argument("--targets", default=",".join(CPUS), help="%(default)s")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    given = parser.parse_args()
    targets, names = given.targets.split(","), [n for n in given.ops.split(",") if n]
    results = {target: measured(target, names) for target in targets}
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
    if names or targets != list(CPUS):
        print("not written: not all ops, or not all targets")
        return 0
    PUBLISHED.write_text(json.dumps(first, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8"), results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
