"""Adding an op touches three places: formula, catalog row, oracle definition. All else follows.

The ops of ``new_ops.py`` go through the same tests as those of the catalog, and through the command
line.
"""

from __future__ import annotations

import inspect
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
import test_arrays
import test_bytes
import test_errors
import test_extents
import test_plans
import test_values
from grid import default, has_axis, is_segmented
from new_ops import NAMES, ROWS, registered
from pullback.core.catalog import OPS, register
from pullback.tools.case import function_of
from pullback.tools.choices import selections
from pullback.tools.cli import main
from quick_data import quick_operands

every_op = pytest.mark.parametrize("name", NAMES)


@pytest.fixture(scope="module", autouse=True)
def _new_ops():
    with registered():
        yield


@every_op
def test_values_and_bytes(name, monkeypatch):
    test_values.test_equals_the_oracle(name, "f32")
    test_bytes.test_layouts(name, "f32")
    test_bytes.test_function_equals_plan(name, "f32")
    test_bytes.test_alone_or_in_a_batch(name, "f32")
    test_bytes.test_threads(name, "f32", monkeypatch)
    if not is_segmented(OPS[name]):
        test_bytes.test_in_place(name, "f32")


@every_op
def test_values_in_another_element_type(name):
    """What the walk over memory does is the same in all of them."""
    test_values.test_equals_the_oracle(name, "bf16")
    test_bytes.test_function_equals_plan(name, "bf16")


@pytest.mark.parametrize(
    "name", [n for n in NAMES if has_axis(next(r for r in ROWS if r.name == n))]
)
def test_extents_of_rows_and_columns(name, monkeypatch):
    test_extents.test_row_equals_the_oracle(name, "f64")
    test_extents.test_columns_equal_rows(name, "f64")
    test_bytes.test_outputs_written_past_the_caches(name, "f32", (3, 71), 1, monkeypatch)


@every_op
def test_formulas_on_whole_arrays(name):
    test_arrays.test_equals_the_oracle(name)


ERRORS = [
    test_errors.test_wrong_shape,
    test_errors.test_second_operand_of_another_shape,
    test_errors.test_wrong_rank,
    test_errors.test_missing_operand,
    test_errors.test_saves_that_are_read_cannot_be_left_out,
    test_errors.test_read_only_output,
    test_errors.test_self_overlapping_output,
    test_errors.test_output_over_part_of_an_input,
    test_errors.test_misaligned_address,
    test_errors.test_tensor_ref_outside_its_buffer,
    test_errors.test_tensor_ref_stands_for_an_array,
]
PLANS = [
    test_plans.test_workspace_of_exactly_the_stated_size,
    test_plans.test_run_allocates_no_tensor_memory,
    test_plans.test_plan_runs_on_other_memory_and_strides,
]


@every_op
@pytest.mark.parametrize("check", [*ERRORS, *PLANS], ids=lambda f: f.__name__)
def test_errors_and_plans(name, check):
    check(OPS[name])


@every_op
def test_dtypes_are_refused(name):
    test_errors.test_operand_of_another_dtype(OPS[name], "f64")
    test_errors.test_unsupported_dtype(OPS[name], "c8")
    if has_axis(OPS[name]):
        test_errors.test_axis_out_of_range(OPS[name])


def invoke(*arguments: object) -> str:
    result = CliRunner().invoke(main, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@every_op
def test_on_files(name, tmp_path):
    """``run``, with every selection, gives the bytes of the function."""
    for k, case in enumerate(selections(default(OPS[name], "f32", (6, 9)))):
        given = quick_operands(case)
        command: list[object] = ["run", name]
        for operand, array in given.items():
            np.save(tmp_path / f"{operand}.npy", array)
            command += [f"--{operand.replace('_', '-')}", tmp_path / f"{operand}.npy"]
        arguments = case.arguments
        if case.op.parameter("shape"):
            command += ["--shape", "6x9"]
        for p in case.op.parameters:
            value = arguments.get(p.name, p.default)
            if value is True:
                command.append(f"--{p.name}")
            elif p.name != "shape" and value is not False:
                command += [f"--{p.name.replace('_', '-')}", value]
        results = case.results(given)
        if len(case.op.outputs) == 1:
            command += ["--out", tmp_path / f"{k}.npy"]
        else:
            command += ["--out", tmp_path / f"{k}.npz"]
        invoke(*command)
        for output, expected in results.items():
            found = np.load(command[-1])
            found = found[output] if len(case.op.outputs) > 1 else found
            assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
            assert found.tobytes() == expected.tobytes(), f"{case}: {output}"


@every_op
def test_certificate_and_benchmark(name, tmp_path):
    report = tmp_path / "report.json"
    said = invoke("check", name, "--dtypes", "f32", "--no-torch", "--json", report)
    assert re.search(r"all \d checks passed", said)
    shape = "40x6" if is_segmented(OPS[name]) else "6x40"
    how = ("--shapes", shape, "--peers", "none", "--rounds", 1)
    invoke("bench", name, *how, "--json", report)
    cells = json.loads(report.read_text())["cells"]
    assert cells
    for cell in cells:
        assert cell["check"]["how"] == "oracle, all"
        assert cell["runs"]["plan"]["ms"] > 0


@every_op
def test_is_listed_explained_and_warmed_up(name):
    assert name in invoke("ops", name)
    assert name in invoke("explain", name, "--shape", "40x6")
    assert "problems run" in invoke("warmup", name, "--all-ties", "--layouts", "last")


def test_options_of_other_ops_are_refused(tmp_path):
    for array in ("x", "a"):
        np.save(tmp_path / f"{array}.npy", np.ones((2, 3)))
    command = ["run", "running", "--x", tmp_path / "x.npy", "--out", tmp_path / "y.npy"]
    for option, said in [
        (("--a", tmp_path / "a.npy"), "a: running reads x only"),
        (("--keepdims",), "keepdims: running has no such parameter"),
        (("--y", tmp_path / "y.npy"), "y: running has one result; use --out"),
    ]:
        result = CliRunner().invoke(main, [str(a) for a in (*command, *option)])
        assert result.exit_code == 2
        assert said in result.output
    assert not (tmp_path / "y.npy").exists()


def test_signatures_and_docstrings():
    shown = {n: str(inspect.signature(function_of(OPS[n]))) for n in NAMES}
    assert shown["running"] == "(x, axis=-1, *, reverse=False, strict=False, out=None)"
    assert shown["picky_softmax"] == "(x, axis=-1, *, mask=None, out=None)"
    assert "Σ_{i≥j} dy[i]" in function_of(OPS["running_backward"]).__doc__


def test_names_are_taken_once():
    with pytest.raises(ValueError, match="'cumsum' is already in the catalog"):
        register(next(op for op in pb.catalog() if op.name == "cumsum"))


def test_an_output_of_its_own_beside_one_of_the_callers():
    x = np.random.default_rng(4).standard_normal((21, 50))
    out = np.empty((21, 1)), None
    mean, total = function_of(OPS["mean_and_total"])(x, 1, keepdims=True, out=out)
    assert mean is out[0]
    np.testing.assert_allclose(mean, x.mean(1, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(total, x.sum(1, keepdims=True), rtol=1e-12)
