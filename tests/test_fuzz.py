"""The fuzzer: a short run of it with a fixed seed, and that it sees what it is there to see."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import pullback as pb
from cell_data import KINDS, operands
from cells import OPS
from grid import default, is_defined, is_segmented
from pullback.oracle import round_to

TOOL = Path(__file__).resolve().parents[1] / "tools" / "fuzz.py"
sys.path.insert(0, str(TOOL.parent))

import fuzz  # noqa: E402
from fuzzing import calls, hostile  # noqa: E402
from fuzzing.cases import Settings, make  # noqa: E402
from fuzzing.compare import find_wrong, last_place  # noqa: E402
from fuzzing.definitions import expected, is_known  # noqa: E402
from fuzzing.memory import Arena, Layout, packed  # noqa: E402

SEED = 12


def test_a_short_run_finds_nothing():
    # One op of each family, whose kernels the suite compiles in any case.
    ops = ["cumsum_backward", "norm2", "softmax_backward", "lerp_backward", "segment_sum"]
    command = [sys.executable, str(TOOL), "--seed", str(SEED), "--cases", "200", "--no-front-ends"]
    command += ["--ops", *ops, "--elements", "f32", "--largest", "100000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert done.stdout.startswith(f"seed {SEED}\n")
    counts = re.search(
        r"^200 cases .* 5 ops, .* (\d+) hostile calls refused, 0 fail", done.stdout, re.M
    )
    assert counts is not None, done.stdout
    assert int(counts[1]) > 30


@pytest.mark.parametrize("name", [n for n in OPS if is_known(n)])
def test_definitions_equal_the_oracle(name):
    """Two definitions of every op, written apart, where both say what comes out."""
    op = OPS[name]
    shapes = [((5, 3), 0)] if is_segmented(op) else [((3, 7), -1), ((4, 2, 3), 1)]
    for (shape, axis), kind in product(shapes, KINDS):
        cell = default(op, "f64", shape, axis)
        if not is_defined(cell, kind):
            continue
        inputs = operands(cell, kind)
        oracle = cell.exact(inputs)
        for output, mine in expected(cell, inputs).items():
            rounded = round_to(oracle[output].value, "f64")
            wrong = find_wrong(cell, rounded, mine, inputs)
            assert wrong is None, f"{kind}: {output} of {cell}: {wrong}"


def test_units_in_the_last_place():
    for value in (1.0, 1.5, 2.0, -3.0, 1e-310, 1e308):
        assert last_place(np.longdouble(value), "f64") == np.spacing(abs(value))
        assert last_place(np.longdouble(value), "f32") >= np.spacing(np.float32(0))
    assert last_place(np.longdouble(1e-44), "f32") == np.spacing(np.float32(0))


def first_case(**wanted):
    """The first case with these attributes, small and not empty."""
    settings = Settings(("cumsum",), ("f64",), front_ends=False)
    for number in range(500):
        case = make(SEED, number, settings)
        if 8 < np.prod(case.cell.shape) < 500 and all(
            getattr(case, name) == value for name, value in wanted.items()
        ):
            return case
    raise AssertionError("no such case")


def test_a_result_of_another_last_place_is_seen(monkeypatch):
    case = first_case(form="function", kind="normal", in_place=None, out=False)
    calls.run(case, calls.Memory())
    own = pb.cumsum

    def a_little_off(*args, **keys):
        y = own(*args, **keys)
        y[(-1,) * y.ndim] *= 1 + 2**-40
        return y

    monkeypatch.setattr(pb, "cumsum", a_little_off)
    with pytest.raises(calls.Wrong, match=r"1 of \d+ elements are wrong"):
        calls.run(case, calls.Memory())


def test_a_written_input_and_a_write_beside_the_output_are_seen(monkeypatch):
    case = first_case(form="function", kind="normal", in_place=None, out=True)
    own = pb.cumsum

    def writes_its_input(x, **keys):
        y = own(x, **keys)
        x[...] = 0
        return y

    monkeypatch.setattr(pb, "cumsum", writes_its_input)
    with pytest.raises(calls.Wrong, match="the input x was written"):
        calls.run(case, calls.Memory())

    where = Arena().place((3, 2), np.dtype("f8"), Layout((0, 1), (2, 2), (-1, 1), "middle"))
    where.remember()
    where.array[...] = 1.0
    assert where.written_wrongly() is None
    where.bytes[-1] = 0
    assert "1 bytes around it" in where.written_wrongly()


def test_a_call_that_accepts_everything_is_seen(monkeypatch):
    case = first_case(form="function")
    monkeypatch.setattr(pb, "cumsum", lambda *args, **keys: None)
    monkeypatch.setattr(hostile, "SPOILS", (hostile.out_read_only,))
    with pytest.raises(calls.Wrong, match="y read-only: was accepted"):
        hostile.run(case, calls.Memory())


@pytest.mark.parametrize("spoil", hostile.SPOILS, ids=lambda s: s.__name__)
def test_every_spoilt_call_is_refused(spoil, monkeypatch):
    monkeypatch.setattr(hostile, "SPOILS", (spoil,))
    memory, tried = calls.Memory(), 0
    settings = Settings(("norm2", "lerp_backward", "segment_sum"), ("f32",), front_ends=False)
    for number in range(60):
        case = make(SEED, number, replace(settings, largest=1000))
        if hostile.suits(case):
            tried += hostile.run(case, memory) is not None
    assert tried or spoil in (hostile.bad_ties, hostile.short_workspace)


READS_OUTSIDE = """
import sys
sys.path.insert(0, {tools!r})
import ctypes, numpy as np
from fuzzing.memory import Arena, packed
where = Arena().place((5,), np.dtype("f4"), packed((5,), {edge!r})).array
print(where.tobytes() == bytes([255] * 20), flush=True)
ctypes.string_at(where.ctypes.data + {offset}, 1)
"""


@pytest.mark.parametrize(("edge", "offset"), [("end", 20), ("start", -1)])
def test_a_byte_outside_ends_the_process(edge, offset):
    code = READS_OUTSIDE.format(tools=str(TOOL.parent), edge=edge, offset=offset)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "True\n")


def child_of(*lines: str) -> list[str]:
    """A process that says these lines and then breaks off."""
    code = "import os, signal\n" + "".join(f"print({line!r}, flush=True)\n" for line in lines)
    return [sys.executable, "-c", code + "os.kill(os.getpid(), signal.SIGSEGV)"]


def test_a_crash_is_reported_with_seed_and_case(capsys):
    run = fuzz.Run(fuzz.parse(["--seed", "3", "--ops", "sum"]))
    said = ('{"case": 7}', '{"text": "sum f32", "op": "sum", "element": "f32", "form": "plan"}')
    assert not run.follow(fuzz.Child(child_of(*said)))
    assert run.failures == 1
    told = capsys.readouterr().out
    assert "FAILED case 7 of seed 3: the process died: SIGSEGV" in told
    assert "sum f32" in told
    assert "python tools/fuzz.py --seed 3 --case 7 --ops sum" in told
    assert run.command(run.number + 1)[5:8] == ["--start", "8", "--largest"]


def test_a_case_is_the_same_whenever_it_is_made():
    settings = Settings(("softmax_backward",), ("f32",), front_ends=False)
    one, other = make(SEED, 4, settings), make(SEED, 4, settings)
    assert str(one) == str(other)
    assert all(one.operands[n].tobytes() == a.tobytes() for n, a in other.operands.items())
    assert packed((2, 3)).strides((2, 3)) == (3, 1)
