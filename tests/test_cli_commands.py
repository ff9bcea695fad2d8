"""``pullback ops``, ``explain``, ``env``, ``warmup``, ``completion`` and what they share."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.tools.cli import main
from pullback.tools.cli.derivations import DERIVATIONS
from pullback.tools.cli.encoding import ASCII
from pullback.tools.cli.explain import snippet
from pullback.tools.cli.parameters import SIZE, shape
from pullback.tools.cli.root import COMMANDS
from scripts import SOURCE, run_script

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "COLUMNS": "120"}


def invoke(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == code, result.output
    return result.output


def process(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pullback", *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_command_helps_itself() -> None:
    listed = invoke("--help")
    for name in COMMANDS:
        assert name in listed
        said = invoke(name, "--help")
        assert "Usage: " in said
        assert "Examples:" in said


def test_run_lists_the_options_of_one_op() -> None:
    said = invoke("run", "lerp_backward", "--help")
    own = said.partition("Options of lerp_backward:")[2].partition("\n\n")[0]
    for option in ("--dy", "--weight", "--a", "--da", "--dweight"):
        assert f"\n  {option} " in own
    assert "--logits" not in said
    assert "--dx" not in invoke("run", "-h", "cumsum_backward")
    assert "Options of" not in invoke("run", "--help")


def test_without_a_command_it_shows_its_help() -> None:
    done = process()
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == process("--help").stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("ops",),
        ("ops", "--formulas"),
        ("explain", "logcumsumexp_backward"),
        *((name, "--help") for name in COMMANDS),
    ],
)
def test_eighty_columns_are_enough(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown, _, snippet = invoke(*arguments).partition("import numpy")
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert "…" not in shown
    if snippet:
        assert snippet.splitlines()[1].endswith("))))")


def test_help_and_ops_load_no_compiler() -> None:
    run_script("""
        import sys
        from click.testing import CliRunner
        from pullback.tools.cli import main
        for arguments in (["--help"], ["ops"], ["--version"]):
            assert CliRunner().invoke(main, arguments).exit_code == 0
        loaded = {"llvmlite", "torch", "jax", "matplotlib", "mpmath"} & set(sys.modules)
        assert not loaded, loaded
    """)


def test_the_real_entry_point() -> None:
    done = process("ops", "--family", "lerp", "--formulas")
    assert (done.returncode, done.stderr) == (0, "")
    assert "da = (1−w)·dy, db = w·dy" in done.stdout
    assert process("--version").stdout.split() == ["pullback,", "version", pb.__version__]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["explain", "cumprd_backward"], "cumprod_backward"),
        (["bench", "sofmax"], "softmax"),
        (["frobnicate"], "pullback --help lists them"),
        (["chek"], "did you mean check?"),
        (["explain", "softmax", "--shape", "axb"], "4096x4096"),
        (["explain", "softmax", "--shape", "nan"], "4096x4096"),
        (["explain", "softmax", "--dtype", "int8"], "f32, f64, f16, bf16"),
        (["bench", "--shapes", ","], "at least one"),
        (["bench", "--axes", "last"], "-1,0"),
        (["warmup", "--dtypes", "all,foo"], "foo"),
        (["ops", "--family", "scam"], "did you mean scan?"),
        (["ops", "--backend", "tritn"], "did you mean triton?"),
        (["ops", "cumprd"], "did you mean cumprod"),
        (["bench", "--shapes", "4x-4"], "4x-4"),
        (["bench", "--dtypes", "f31"], "f31"),
        (["bench", "--peers", "excel"], "excel"),
        (["bench", "--compare", "/none.json"], "/none.json"),
        (["check", "--html", "/no/folder/x.html"], "/no/folder"),
        (["warmup", "--layouts", "round"], "round"),
        (["explain", "segment_sum", "--shape", "8"], "rows, embedding"),
        (["bench", "sum", "--minutes", "nan"], "--minutes: expected a finite number"),
        (["check", "sum", "--json", "a.json", "--html", "./a.json"], "named for two outputs"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], words: str) -> None:
    done = process(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("pullback: ")
    assert words in line


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m pullback ops --json | head -c 10"
    done = subprocess.run(
        ["bash", "-c", command], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("missing", "command"), [("click", "ops"), ("rich", "ops"), ("mpmath", "check")]
)
def test_what_only_commands_need_is_asked_for(missing: str, command: str) -> None:
    """A package that is not there is named in one line; the library itself does without."""
    source = (
        f"import sys; sys.modules[{missing!r}] = None; import pullback\n"
        "from pullback.tools.cli import main\n"
        f"main([{command!r}, 'softmax'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("pullback: ")
    assert f"pip install {missing}" in line


def test_ops_lists_the_catalog() -> None:
    listed = json.loads(invoke("ops", "--json"))
    assert [op["name"] for op in listed] == [op.name for op in pb.catalog()]
    assert listed[3]["needs"] == ["x", "y"]
    table = invoke("ops")
    for op in pb.catalog():
        assert f"\n{op.name} " in f"\n{table}"
    for column in ("op", "family", "needs", "dtypes", "backends", "edge rules"):
        assert column in table.splitlines()[0]
    assert "y[j] = Σ_{i≤j} x[i]" in invoke("ops", "--formulas")


@pytest.mark.parametrize(
    ("arguments", "fits", "one"),
    [
        (["max"], lambda op: "max" in op.name, "softmax_backward"),
        (["--family", "segment"], lambda op: op.family == "segment", "segment_sum"),
        (["cum", "--needs", "y"], lambda op: "cum" in op.name and "y" in op.needs,
         "cumprod_backward"),
        (["lerp", "--direction", "forward"], lambda op: op.name == "lerp", "lerp"),
    ],
)  # fmt: skip
def test_ops_filters(arguments: list[str], fits: Any, one: str | None) -> None:
    found = {op["name"] for op in json.loads(invoke("ops", *arguments, "--json"))}
    assert found == {op.name for op in pb.catalog() if fits(op)}
    assert one is None or one in found


def test_derivations_have_three_lines() -> None:
    assert set(DERIVATIONS) <= {op.kind for op in pb.catalog()}
    assert all(len(lines) == 3 for lines in DERIVATIONS.values())


def test_explain_says_it_all() -> None:
    said = invoke("explain", "cumprod_backward", "--shape", "64x1000", "--dtype", "bf16")
    for part in ("R[j] = dy[j] + x[j+1]·R[j+1]", "saves", "exact with any number of zeros",
                 "computed in f64", "64x1000 bf16", "384 kB: dy, x read, dx written",
                 "print(repr(pb.cumprod_backward("):  # fmt: skip
        assert part in said
    found = json.loads(invoke("explain", "softmax_backward", "--json"))
    assert found["bytes_moved"] == 3 * 4096 * 4096 * 4
    assert found["sku"]["backend"] == "numba"
    assert found["guarantee"]["bit_stable_across_threads"] is True
    assert len(found["derivation"]) == 3


@pytest.mark.parametrize("name", ["cumprod_backward", "lerp_backward", "segment_sum"])
def test_the_snippet_runs_and_prints_what_it_says(name: str) -> None:
    code = snippet(next(op for op in pb.catalog() if op.name == name))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {})
    shown = [line.removeprefix("# ") for line in code.splitlines() if line.startswith("# ")]
    assert printed.getvalue().splitlines() == shown


def test_env_tells_what_a_bug_report_needs(tmp_path: Path) -> None:
    found = json.loads(invoke("env", "--json"))
    assert found["pullback"] == pb.__version__
    assert found["threads"] == pb.get_num_threads()
    assert set(found["cache"]) == {"folder", "kernels", "bytes", "writable", "refused"}
    assert {"numpy", "llvmlite"} <= set(found["libraries"])
    assert "cpu_features" in found
    assert found["cache"]["folder"] in invoke("env").replace("\n", "")


def test_warmup_fills_the_cache(tmp_path: Path) -> None:
    environment = {**ENVIRONMENT, "PULLBACK_CACHE_DIR": str(tmp_path / "kernels")}
    command = [
        sys.executable,
        "-m",
        "pullback",
        "warmup",
        "mean",
        "lerp",
        "--direction",
        "backward",
    ]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert "3 problems run" in done.stdout
    kernels = list((tmp_path / "kernels").rglob("*.kernel"))
    assert len(kernels) >= 3
    assert f"{len(kernels)} kernels in the cache" in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    assert "_PULLBACK_COMPLETE" in invoke("completion", shell)


def test_completion_offers_commands_and_ops() -> None:
    def offered(*words: str) -> list[str]:
        environment = {
            **ENVIRONMENT,
            "_PULLBACK_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(["pullback", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = subprocess.run(
            [sys.executable, "-m", "pullback"],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return [line.partition(",")[2] for line in done.stdout.splitlines()]

    assert offered("che") == ["check"]
    assert offered("explain", "log_soft") == ["log_softmax", "log_softmax_backward"]
    assert offered("bench", "--dtypes", "f32,b") == ["f32,bf16"]


def test_sizes_and_shapes() -> None:
    assert SIZE.convert("2GB", None, None) == 2 * 10**9
    assert SIZE.convert("1.5 GiB", None, None) == 3 * 2**29
    assert SIZE.convert("4096", None, None) == 4096
    assert shape("2x8e6") == (2, 8_000_000)
    assert shape("16_000_000") == (16_000_000,)
    with pytest.raises(ValueError, match="4096x4096"):
        shape("1.5x2")


@pytest.mark.parametrize("charset", ["ascii", "cp1252"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("ops", "--formulas"),
        ("explain", "cumprod_backward"),
        ("explain", "std_backward"),
        ("env",),
        ("warmup", "lerp"),
        ("bench", "lerp", "--shapes", "4x4", "--rounds", "1", "--peers", "none"),
        ("check", "lerp", "--direction", "forward", "--dtypes", "f32", "--no-torch"),
        *((name, "--help") for name in COMMANDS),
    ],
    ids=" ".join,
)
def test_output_that_is_not_utf8(arguments: tuple[str, ...], charset: str) -> None:
    result = CliRunner(charset=charset).invoke(main, arguments)
    assert result.exit_code == 0, (result.output, result.exception)
    result.stdout_bytes.decode(charset)


@pytest.mark.parametrize("charset", ["ascii", "cp1252"])
@pytest.mark.parametrize("arguments", [("ops",), ("explain", "cumprod_backward"), ("env",)])
def test_json_is_the_same_in_every_encoding(arguments: tuple[str, ...], charset: str) -> None:
    result = CliRunner(charset=charset).invoke(main, [*arguments, "--json"])
    found, expected = (json.loads(t) for t in (result.stdout, invoke(*arguments, "--json")))
    if arguments == ("env",):
        found, expected = found["libraries"], expected["libraries"]
    assert found == expected


def test_errors_that_are_not_utf8() -> None:
    run = ["run", "sum", "--x", "naïve.npy", "--out", "y.npy"]
    for arguments in (["naïve"], ["explain", "naïve"], run):
        result = CliRunner(charset="ascii").invoke(main, arguments)
        assert result.exit_code == 2, result.exception
        assert result.output.startswith("pullback: ")
        assert "na?ve" in result.output


def test_formulas_have_an_ascii_form() -> None:
    shown = CliRunner(charset="ascii").invoke(main, ["ops", "--formulas"]).stdout
    assert "y[j] = sum_{i<=j} x[i]" in shown
    texts = [t for op in pb.catalog() for t in (op.formula, op.edges or "")]
    texts += [line for lines in DERIVATIONS.values() for line in lines]
    assert {c for t in texts for c in t if not c.isascii()} <= set(ASCII)


def test_a_process_that_may_write_ascii_only() -> None:
    environment = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-m", "pullback", "ops", "--formulas"],
        env=environment,
        capture_output=True,
        check=True,
    )
    assert b"da = (1-w)*dy, db = w*dy" in done.stdout
    assert done.stdout.isascii()
    assert done.stderr == b""


def test_a_width_of_nothing_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = invoke("ops")
    for width in ("0", "-5", "wide"):
        monkeypatch.setenv("COLUMNS", width)
        assert invoke("ops") == expected


def test_env_says_why_there_is_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for place, word in (
        (tmp_path / "open" / "kernels", "can be written to by every user"),
        (tmp_path / "file" / "kernels", "ot a "),
    ):
        (tmp_path / "file").touch()
        (tmp_path / "open").mkdir(exist_ok=True)
        (tmp_path / "open").chmod(0o777)
        monkeypatch.setenv("PULLBACK_CACHE_DIR", str(place))
        assert word in json.loads(invoke("env", "--json"))["cache"]["refused"]
        assert word in invoke("env")
    monkeypatch.delenv("PULLBACK_CACHE_DIR")
    monkeypatch.setenv("HOME", "")
    assert json.loads(invoke("env", "--json"))["cache"]["folder"] is None
    assert "no home to keep kernels in" in invoke("env")
