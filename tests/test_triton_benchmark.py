"""``pullback check`` and ``bench --device cuda`` as far as they go without a GPU.

A stand-in runs the CPU's plans where a GPU's would run; one command runs in Triton's interpreter.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from cells import OPS
from pullback.tools.case import Case, cuts
from pullback.tools.check.digests import published
from pullback.tools.operands import make_operands

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from pullback.gpu.device import Device
from pullback.tools.bench.peers import NotOffered
from pullback.tools.bench.verify import verify
from pullback.tools.cli import main, on_device
from pullback.tools.device import certify, peers, timing, worker
from pullback.tools.device.running import Gpu, place

ROOT = Path(__file__).parents[1]
NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


class StandIn(Gpu):
    """A GPU that is the CPU."""

    def __init__(self, spoils=None):
        self.device, self.is_card = Device("cpu", "sm_90", "cuda"), True
        self.spoils = spoils

    def plan(self, case):
        return case.plan(1)

    def run(self, case, operands, outputs, stream=None):
        super().run(case, operands, outputs, stream)
        if self.spoils:
            self.spoils(case, operands, outputs)


@pytest.fixture
def card(monkeypatch):
    """What only a card has is left to one."""
    for name in ("_stream", "_graph"):
        monkeypatch.setattr(certify, name, lambda gpu, case, operands: gpu.result(case, operands))
    monkeypatch.setattr(certify, "BLOCKS", (1, 50))
    monkeypatch.setattr(certify, "SHARED", (1, 60))
    monkeypatch.setattr(certify, "HELD", (3, 70))
    monkeypatch.setattr(certify, "HUB", ((30, 2), 3))
    monkeypatch.setattr(certify, "SHAPE", (2, 24))


SOME = ("cumprod_backward", "std_backward", "softmax", "lerp_backward", "segment_sum")


@pytest.mark.parametrize("name", SOME[1:])
def test_what_is_right_passes(name, card):
    found = certify.check_one(OPS[name], "f32", StandIn())
    assert found["ok"], found["reasons"]
    assert set(found["layouts"]) == {"fortran", "sliced", "negative", "offset"}
    assert {"again", "addresses", "streams", "graph", "function"} <= set(found["bytes"])


def spoil_long(case, operands, outputs):
    if case.shape == (1, 60):
        next(iter(outputs.values())).data.mul_(1.125)


def spoil_held(case, operands, outputs):
    if case.shape == (3, 70):
        next(iter(outputs.values())).data.mul_(1.125)


def spoil_one_held(case, operands, outputs):
    """One bit of the last of rows that are alike."""
    if case.shape == (3, 70):
        next(iter(outputs.values())).data.view(torch.int32).view(-1)[-1] ^= 1


def spoil_shifted(case, operands, outputs):
    """One bit, where an operand does not begin where its memory does."""
    first = next(iter(operands.values()))
    if first.data.numel() == first.array.size + 2:
        output = next(iter(outputs.values()))
        output.data.view(torch.int32)[output.offset] ^= 1


def spoil_strided(case, operands, outputs):
    if not all(p.array.flags.c_contiguous for p in operands.values()):
        next(iter(outputs.values())).data.fill_(7.0)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (spoil_long, "1x60: .* ulp from the oracle"),
        (spoil_held, "3x70: .* ulp from the oracle"),
        (spoil_one_held, "bytes differ: rows of 3x70"),
        (spoil_shifted, "bytes differ: addresses"),
        (spoil_strided, "wrong in another layout: (fortran|sliced)"),
    ],
)
def test_what_is_wrong_is_told(spoil, reason, card):
    found = certify.check_one(OPS["cumsum"], "f32", StandIn(spoil))
    assert not found["ok"]
    assert any(re.search(reason, r) for r in found["reasons"])


def test_arrays_keep_their_layout_on_the_way():
    a = np.arange(60.0, dtype=np.float32).reshape(6, 10)
    for view in (a, a.T, a[1::2, ::-3], a[::-1], np.asfortranarray(a)):
        for shift in (0, 3):
            assert np.array_equal(place(view, "cpu", shift).fetch(), view)


def case_of(op: pb.Op) -> Case:
    return Case.of(op, "f32", (6, 50), segments=3, axis=1)


@pytest.mark.parametrize("name", SOME)
def test_a_wrong_result_is_not_timed(name, monkeypatch):
    """What the CPU computes agrees; an eighth more on one element does not."""

    def spoil(case, operands, outputs):
        raise AssertionError("plans are run directly")

    monkeypatch.setattr(timing, "microseconds", lambda call: [call(), 10.0][1])
    monkeypatch.setattr(timing, "host_microseconds", lambda call: 2.0)
    case = case_of(OPS[name])
    row = timing.measure(case, StandIn(spoil), ("torch",), times=True)
    assert row["ok"], row["reason"]
    assert row["us"] == 10.0
    assert row["host_us"] == 2.0
    assert row["peers"]["torch"]["us"] == 10.0
    operands = make_operands(case)
    outputs = dict(StandIn().result(case, operands))
    last = next(reversed(outputs.values()))
    last.reshape(-1)[np.abs(last).argmax()] *= 1.125
    assert not verify(case, operands, outputs, StandIn()).ok


# What torch has no op for, or one of other outputs; it need not have an op that is added.
ALONE = {"linear_recurrence", "discounted_sum", "gae"}


@pytest.mark.parametrize("op", pb.catalog(), ids=lambda op: op.name)
def test_torch_does_the_same_job(op):
    case = case_of(op)
    given = {n: torch.from_numpy(a.copy()) for n, a in make_operands(case).items()}
    try:
        found = peers.by_torch(case, given)()
    except NotOffered:
        assert op.kind in ALONE or cuts(op) or op.name not in published()
        return
    found = found if isinstance(found, (list, tuple)) else [found]
    # torch's loss comes without the log-sum-exp of its rows.
    outputs = case.outputs[:1] if op.name == "cross_entropy" else case.outputs
    assert [tuple(t.shape) for t in found] == [case.shape_of(n) for n in outputs]


def test_other_libraries(monkeypatch):
    """Liger and FlagGems are called as they are documented, and asked for what they have."""
    seen = []

    class Replaced:
        def __enter__(self):
            seen.append("in")

        def __exit__(self, *error):
            seen.append("out")

    gems = types.ModuleType("flag_gems")
    gems.use_gems = Replaced
    liger = types.ModuleType("liger_kernel.ops.softmax")
    liger.LigerSoftmaxFunction = types.SimpleNamespace(apply=lambda x: torch.softmax(x, -1))
    monkeypatch.setitem(sys.modules, "flag_gems", gems)
    for name in ("liger_kernel", "liger_kernel.ops"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "liger_kernel.ops.softmax", liger)
    case = case_of(OPS["softmax_backward"])
    given = {n: torch.from_numpy(a.copy()) for n, a in make_operands(case).items()}
    expected = peers.by_torch(case, given)()
    for name in ("liger", "flaggems"):
        call, why = peers.prepare(name, case, given)
        assert not why
        assert [t.shape for t in call()] == [t.shape for t in expected]
    assert seen[:2] == ["in", "out"]
    assert peers.prepare("liger", case.but(axis=0), given) == (None, "Liger has no such op")


SERVER = """
import json, os, sys, time
told = json.load(sys.stdin)
print("a line of some library")
for job in told["jobs"]:
    if job == "crash":
        os.abort()
    if job == "hang":
        time.sleep(60)
    print("\\x1e" + json.dumps({"job": job}), flush=True)
    if job == "last":
        raise SystemExit(3)
"""


def test_a_failure_does_not_lose_the_rest():
    command = (sys.executable, "-c", SERVER)
    jobs = ["a", "crash", "b", "last", "c"]
    first, crashed, *rest = worker.run_jobs("check", jobs, command)
    assert first == {"job": "a"}
    assert crashed == {"error": "the process that ran it ended with signal 6"}
    assert rest == [{"job": n} for n in ("b", "last", "c")]
    hung, after = worker.run_jobs("check", ["hang", "a"], command, patience=4)
    assert hung == {"error": "nothing came back in 4 s"}
    assert after == {"job": "a"}


def test_a_job_that_raises_is_told_and_a_lost_device_ends_the_process(capsys):
    state = {"lost": False}

    def run(job):
        state["lost"] = job == "illegal access"
        if job != "fine":
            raise RuntimeError(job)
        return {"ok": True}

    def wait():
        if state["lost"]:
            raise RuntimeError("sticky")

    with pytest.raises(SystemExit):
        worker.serve(run, ["fine", "refused", "illegal access", "fine"], wait)
    lines = [json.loads(s[1:]) for s in capsys.readouterr().out.split("\n")[:-1]]
    assert lines == [
        {"ok": True},
        {"error": "RuntimeError: refused"},
        {"error": "RuntimeError: illegal access"},
    ]


def invoke(*arguments: object):
    return CliRunner().invoke(main, [*map(str, arguments), "--device", "cuda"])


@NO_GPU
@pytest.mark.parametrize("command", ["check", "bench"])
def test_no_gpu(command, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = invoke(command, "sum")
    assert done.exit_code == 2
    assert "--device cuda: backend: 'triton' needs a GPU and torch sees none" in done.output


@pytest.fixture
def told(monkeypatch):
    """A card that is not there, and results that it has not computed."""
    monkeypatch.setattr(
        on_device, "described", lambda purpose: {"name": "Some GPU", "arch": "sm_90"}
    )
    results = {}
    monkeypatch.setattr(worker, "run_jobs", lambda what, jobs: (results[what](job) for job in jobs))
    return results


def test_check_prints_a_line_for_each(told, tmp_path):
    def result(job):
        if job["dtype"] == "f16":
            return {"error": "the process that ran it ended with signal 11"}
        wrong = ["bytes differ: streams"] if job["dtype"] == "f64" else []
        return {**job, "ok": not wrong, "max_ulp": 1.5, "reasons": wrong}

    told["check"] = result
    file = tmp_path / "report.json"
    done = invoke("check", "sum", "--direction", "forward", "--json", file)
    assert done.exit_code == 1
    lines = [" ".join(line.split()) for line in done.output.splitlines()[1:]]
    assert lines == [
        "sum f32 ok 1.5 ulp",
        "sum f64 FAILED bytes differ: streams",
        "sum f16 FAILED the process that ran it ended with signal 11",
        "sum bf16 ok 1.5 ulp",
        "2 of 4 passed on Some GPU",
    ]
    assert [r["ok"] for r in json.loads(file.read_text())["results"]] == [True, False, False, True]


def test_bench_prints_a_line_for_each(told):
    def result(job):
        if job["axis"] == 0:
            return {"error": "OutOfMemoryError: too large"}
        times = {"us": 50.0, "gbps": 1000.0, "of_copy": 0.8, "host_us": None}
        row = {**job, "shape": "9x9", "ok": True, "reason": "", **times}
        return row | {"peers": {"torch": {"us": 75.0}, "compile": {"reason": "none"}}}

    told["bench"] = result
    told_axes = ("--axes", "-1,0", "--dtypes", "f32", "--peers", "torch,compile")
    done = invoke("bench", "softmax_backward", "--shapes", "9x9", *told_axes)
    assert done.exit_code == 1
    lines = [" ".join(line.split()) for line in done.output.splitlines()[2:]]
    assert lines == [
        "softmax_backward f32 9x9 -1 50.0 1000 0.80 1.50x -",
        "softmax_backward f32 9x9 0 FAILED OutOfMemoryError: too large",
        "1 of 2 failed and have no time",
    ]
    assert "unknown peer 'jax'" in invoke("bench", "sum", "--peers", "jax").output
    assert "cannot be combined with --threads" in invoke("bench", "sum", "--threads", "2").output


def test_jobs_are_the_cases_of_the_grid():
    ops = [OPS["cumsum_backward"], OPS["segment_sum"]]
    jobs = list(timing.jobs_of(ops, (), (), (), ("torch",)))
    cases = [timing.case_of(json.loads(json.dumps(job))) for job in jobs]
    shapes = {(c.shape, c.get("axis")) for c in cases if not c.is_segmented}
    assert shapes == {(s, a) for s, axes in timing.GRID.shapes for a in axes}
    assert {(c.is_sorted, c.element) for c in cases if c.is_segmented} == {
        (order, element) for order in (True, False) for element in ("f32", "bf16")
    }


def test_in_the_interpreter():
    """The whole way, by the command, on the kernels themselves."""
    path = os.pathsep.join(p for p in sys.path if p)
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "", "TRITON_INTERPRET": "1"}
    program = textwrap.dedent(
        """
        import sys
        from pullback.tools.cli import main
        try:
            main(["bench", "--device", "cuda", "sum"])
        except SystemExit as error:
            assert error.code == 2
        main(sys.argv[1:])
        """
    )
    names = ("lerp", "segment_sum", "softmax_backward")
    command = [sys.executable, "-c", program, "check", *names, "--device", "cuda"]
    command += ["--dtypes", "f32", "--direction", "forward"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "interpreted kernels are not worth timing" in done.stderr
    assert "3 of 3 passed on Triton's interpreter" in done.stdout


def imported(path: Path):
    spec = importlib.util.spec_from_file_location(f"benchmark_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_report_tells_what_is_wrong(monkeypatch, estimates):
    """Of kernels that the suite compiles anyway."""
    monkeypatch.setitem(sys.modules, "gpu_estimate", estimates)
    report = imported(ROOT / "benchmarks" / "gpu_report.py")
    assert set(report.CORES) == set(report.TARGETS)
    op = OPS["softmax_backward"]
    (kernel,) = report.kernels(op, "f32", "sm_90", "rows")
    found = report.found_of(op, kernel, "f32", "sm_90")
    assert not found.wrong
    assert re.search(r" 0 narrow +0\.\d+ +\d\d\.\d MB in flight$", report.line(found))
    spoiled = SimpleNamespace(
        spilled=8, loads=(32,), stores=(128,), registers=64, shared=0, assembly=""
    )
    monkeypatch.setattr(report, "compile_step", lambda step, target: spoiled)
    wrong = report.found_of(op, kernel, "f32", "sm_90")
    assert wrong.wrong == "spills 8 bytes; 1 loads or stores of [32] bits"
    assert "| sm_90 | rows | 1 | 2 | 1 | 1 |" in report.table([found, wrong])
    by_ids = report.kernels(OPS["segment_sum"], "f32", "sm_90", "segments")
    assert {"check_ids", "mark_segments"} < {k.step.kernel.__name__ for k in by_ids}
    spoiled.assembly = "buffer_load_dwordx4"
    monkeypatch.setattr(report, "compile_step", lambda step, target, far: spoiled)
    assert report.negative_strides(OPS["sum"], "gfx942")


@pytest.fixture(scope="module")
def estimates():
    return imported(ROOT / "benchmarks" / "gpu_estimate.py")


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
