"""The GPU benchmark as far as it goes without a GPU: everything but the times."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pullback as pb
from pullback.tools.case import Case, cuts
from pullback.tools.operands import make_operands

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "gpu.py"


def run(*arguments: str, interprets: bool = True) -> subprocess.CompletedProcess:
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": ""}
    environment.pop("TRITON_INTERPRET", None)
    if interprets:
        environment["TRITON_INTERPRET"] = "1"
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def imported(path: Path):
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def gpu():
    return imported(SCRIPT)


@pytest.fixture(scope="module")
def estimates():
    return imported(ROOT / "benchmarks" / "gpu_estimate.py")


def test_check_compares_without_timing():
    done = run("--check", "--shape", "9x40", "--ops", "softmax_backward,lerp,segment_sum")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cpu interpreter, torch")
    # Two dtypes; two axes, one, and two orders of the ids.
    assert done.stdout.count("agrees") == 2 * (2 + 1 + 2)


def test_interpreted_kernels_are_not_timed():
    done = run("--ops", "sum")
    assert done.returncode == 1
    assert "pass --check" in done.stderr


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu():
    done = run("--ops", "sum", interprets=False)
    assert done.returncode == 1
    assert "needs a GPU" in done.stderr


def test_unknown_op():
    done = run("--check", "--ops", "cumsum,nothing")
    assert done.returncode == 2
    assert "unknown: nothing" in done.stderr


def case_of(op: pb.Op) -> Case:
    return Case.of(op, "f32", (6, 50), segments=3, axis=1)


SOME = ("cumprod_backward", "std_backward", "softmax", "lerp_backward", "segment_sum")


@pytest.mark.parametrize(
    "op", [op for op in pb.catalog() if op.name in SOME], ids=lambda op: op.name
)
def test_a_wrong_result_is_not_timed(gpu, op):
    """What the CPU computes agrees; an eighth more on one element does not."""
    case = case_of(op)
    operands = make_operands(case)
    results = case.call(operands)
    results = results if isinstance(results, tuple) else (results,)
    made = [r for r in results if r is not None]
    outputs = gpu.on_device(dict(zip(case.outputs, made, strict=True)), "cpu")
    assert gpu.difference(case, operands, outputs) == ""
    last = next(reversed(outputs.values()))
    largest = int(last.abs().flatten().argmax())
    last.view(-1)[largest] *= 1.125
    assert gpu.difference(case, operands, outputs) != ""


# What torch has no op for, or one of other outputs.
ALONE = {"linear_recurrence", "discounted_sum", "gae", "cross_entropy"}


@pytest.mark.parametrize("op", pb.catalog(), ids=lambda op: op.name)
def test_torch_does_the_same_job(gpu, op):
    case = case_of(op)
    given = gpu.on_device(make_operands(case), "cpu")
    try:
        found = gpu.in_torch(case, given, compiles=False)()
    except gpu.NotOffered:
        assert op.kind in ALONE or cuts(op)
        return
    found = found if isinstance(found, (list, tuple)) else [found]
    assert [tuple(t.shape) for t in found] == [case.shape_of(n) for n in case.outputs]


def test_the_page_shows_the_estimates(estimates):
    """Every op has its line, and one of them is what the compiler gives now."""
    lines = estimates.TABLE.search(estimates.PAGE.read_text(encoding="utf-8"))[0].splitlines()
    shown = {line.split(" | ")[0].removeprefix("| "): line.split(" | ")[1:3] for line in lines[2:]}
    known = dict(estimates.cases("f32"))
    assert list(shown) == list(known)
    share, limit = estimates.estimate(known["softmax_backward"])
    assert shown["softmax_backward"] == [f"{share:.2f}", limit]


def sass(*lines: str) -> str:
    return "".join(f"        /*{16 * k:04x}*/   {line} ;\n" for k, line in enumerate(lines))


def test_instructions_are_counted_to_the_end(estimates):
    code = sass("LDG.E.128 R4, desc[UR4][R2.64]", "@P0 EXIT", "@!P1 BRA 0x40", "NOP", "DADD R2, R4")
    code += "        /*0050*/   EXIT ;\n        /*0060*/   MUFU.RCP R1, R2 ;\n"
    assert list(estimates.executed(code)) == ["LDG.E.128", "EXIT", "BRA", "DADD", "EXIT"]
    assert estimates.unit_of("DADD") == "float64"
    assert estimates.unit_of("F2F.F64.F32") == "conversion"
    assert estimates.unit_of("FFMA") is None


def test_a_loop_is_refused(estimates):
    with pytest.raises(ValueError, match="a loop back to 0"):
        list(estimates.executed(sass("FADD R1, R2, R3", "@P0 BRA 0x0", "EXIT")))
