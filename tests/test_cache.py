"""The kernels on disk: found again, right after an edit, never mixed up, harmless if unwritable."""

from __future__ import annotations

import shutil

import pytest

from scripts import SOURCE, run_script

# Prints the result of an op and whether each kernel came from disk.
RECORDER = """
import numpy as np
import pullback as pb
from pullback.schedules.numba import compile as compiling

made = []
plain = compiling.Kernel.__init__

def recorded(self, *args, **kwargs):
    plain(self, *args, **kwargs)
    made.append(self)

compiling.Kernel.__init__ = recorded
"""


def test_a_second_process_loads_what_the_first_compiled(tmp_path):
    code = RECORDER + (
        "x = np.arange(6.0)\nprint(pb.cumsum(x).tolist(), [k.from_cache for k in made])\n"
    )
    first = run_script(code, PULLBACK_CACHE_DIR=tmp_path)
    second = run_script(code, PULLBACK_CACHE_DIR=tmp_path)
    values = "[0.0, 1.0, 3.0, 6.0, 10.0, 15.0]"
    assert first.strip() == f"{values} [False]"
    assert second.strip() == f"{values} [True]"


TOY = (
    RECORDER
    + """
from pullback.catalog import Op, register
from pullback.formulas.folds import add
from pullback.formulas.record import Monoid, Pass, RowFormula
from pullback.functional import make_function

{formula}

def total_itself(total):
    return total

start = globals().get("START", 0.0)
record = RowFormula((Pass(Monoid(lifted, add, (start,), ("total",))),), finish=total_itself)
op = Op("toy", "reduce", "toy", "forward", "", ("x",), ("y",), {{None: record}})
register(op)
print(float(make_function(op)(np.arange(1.0, 4.0))), [k.from_cache for k in made])
"""
)


def test_two_formulas_of_one_name_do_not_mix(tmp_path):
    """The same op and function names, another body, callee or global."""
    bodies = [
        ("def lifted(x):\n    return x * x", 14.0),
        ("def lifted(x):\n    return x + x", 12.0),
        ("def inner(x):\n    return x\ndef lifted(x):\n    return inner(x)", 6.0),
        ("def inner(x):\n    return x + 1.0\ndef lifted(x):\n    return inner(x)", 9.0),
        ("SCALE = 8\ndef lifted(x):\n    return x * SCALE", 48.0),
        ("SCALE = 9\ndef lifted(x):\n    return x * SCALE", 54.0),
        # An "identity" that is none: eight lanes, one block and the row each begin with it.
        ("START = 2.0\ndef lifted(x):\n    return x * x", 14.0 + 2.0 * 9),
    ]
    for body, value in bodies:
        shown = run_script(TOY.format(formula=body), PULLBACK_CACHE_DIR=tmp_path)
        assert shown.strip() == f"{value} [False]", body
    again = run_script(TOY.format(formula=bodies[0][0]), PULLBACK_CACHE_DIR=tmp_path)
    assert again.strip() == "14.0 [True]"


def test_an_edited_source_is_compiled_anew(tmp_path):
    """A formula edited in its file, with the old kernel in the cache."""
    package = tmp_path / "src"
    ignored = shutil.ignore_patterns("__pycache__", "torch", "jax", "triton", "bench", "cli")
    shutil.copytree(SOURCE / "pullback", package / "pullback", ignore=ignored)
    code = RECORDER + (
        "a, b = np.array([2.0]), np.array([6.0])\n"
        "print(pb.lerp(a, b, 0.25).tolist(), [k.from_cache for k in made])\n"
    )
    cache = tmp_path / "cache"
    assert run_script(code, source=package, PULLBACK_CACHE_DIR=cache).strip() == "[3.0] [False]"
    assert run_script(code, source=package, PULLBACK_CACHE_DIR=cache).strip() == "[3.0] [True]"
    formula = package / "pullback" / "formulas" / "lerp.py"
    text = formula.read_text(encoding="utf-8")
    edited = text.replace("a + weight * (b - a)", "a - weight * (b - a)")
    assert edited != text, "the formula of lerp is written differently now; adapt this test"
    formula.write_text(edited, encoding="utf-8")
    assert run_script(code, source=package, PULLBACK_CACHE_DIR=cache).strip() == "[1.0] [False]"


def test_kernels_of_two_processes_do_not_mix(tmp_path):
    """Kernels compiled as the first of their processes, then loaded side by side.

    Helper functions get the same internal names in both processes; linked by name, one kernel
    would call the other's.
    """
    head = "import numpy as np, pullback as pb\nx = np.arange(1.0, 41.0).reshape(4, 10)\n"
    calls = {
        "low": "pb.min(x.astype('f4'), 0).tolist()",
        "mean": "pb.mean(x, 0).tolist()",
        "sums": "pb.cumsum(x, 0)[-1].tolist()",
        "tops": "pb.cummax(-x.astype('f4'), 0)[-1].tolist()",
    }
    alone = {
        name: run_script(f"{head}print({call})", PULLBACK_CACHE_DIR=tmp_path)
        for name, call in calls.items()
    }
    shown = "".join(f"print({call})\n" for call in calls.values())
    together = run_script(f"{RECORDER}{head}{shown}", PULLBACK_CACHE_DIR=tmp_path)
    assert together == "".join(alone.values())
    starts = {name: shown.split(",")[0] for name, shown in alone.items()}
    assert starts == {"low": "[1.0", "mean": "[16.0", "sums": "[64.0", "tops": "[-1.0"}


@pytest.mark.parametrize("place", ["file/below", "/proc/pullback"])
def test_harmless_where_nothing_can_be_written(tmp_path, place):
    (tmp_path / "file").write_text("not a directory")
    directory = place if place.startswith("/") else tmp_path / place
    code = "import numpy as np, pullback as pb\nprint(pb.sum(np.arange(5.0)))\n"
    assert run_script(code, PULLBACK_CACHE_DIR=directory).strip() == "10.0"


def test_harmless_without_a_home(tmp_path):
    """Neither a cache directory nor a home that can be written to."""
    (tmp_path / "file").write_text("not a directory")
    code = (
        "import os\n"
        "for name in ('PULLBACK_CACHE_DIR', 'XDG_CACHE_HOME'):\n"
        "    os.environ.pop(name, None)\n"
        "import numpy as np, pullback as pb\nprint(pb.sum(np.arange(5.0)))\n"
    )
    assert run_script(code, HOME=tmp_path / "file").strip() == "10.0"


def test_a_damaged_file_is_compiled_over(tmp_path):
    code = RECORDER + "print(float(pb.sum(np.arange(5.0))), [k.from_cache for k in made])\n"
    run_script(code, PULLBACK_CACHE_DIR=tmp_path)
    files = [f for f in tmp_path.rglob("*.nb?") if f.is_file()]
    assert files
    for file in files:
        file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert run_script(code, PULLBACK_CACHE_DIR=tmp_path).startswith("10.0")
