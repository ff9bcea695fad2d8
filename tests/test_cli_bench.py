"""``pullback bench``: table, files, comparison and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pullback.tools.bench import SIZES, cells, default_ops, objection, plain, scaling, summarise
from pullback.tools.bench.timing import interleave
from pullback.tools.cli import main
from pullback.tools.cli.output import write_atomically
from test_cli_check import stands_alone

SMALL = ("--shapes", "40x60", "--rounds", "3", "--peers", "numpy", "--threads", "2")


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["bench", *map(str, arguments)])


def test_table_and_files(tmp_path: Path) -> None:
    report, page = tmp_path / "now.json", tmp_path / "now.html"
    result = invoke("softmax", "lerp", "segment_sum", *SMALL, "--json", report, "--html", page)
    assert result.exit_code == 0, result.output
    for word in ("softmax_backward", "lerp_backward", "40x60->1 random", "of copy", "numpy",
                 "geometric means over 5 cases", "slower than a peer in"):  # fmt: skip
        assert word in result.output
    found = json.loads(report.read_text())
    assert [c["op"] for c in found["cells"]] == [
        "softmax_backward", "softmax_backward", "lerp_backward", "segment_sum",
        "segment_sum_backward",
    ]  # fmt: skip
    assert all(c["check"]["ok"] for c in found["cells"])
    assert set(found["summary"]) >= {"of_copy", "against", "against_fastest", "lost", "failed"}
    text = page.read_text()
    assert {"pre", "h2"} <= stands_alone(text).seen
    assert "of copy" in text
    machine = found["machine"]
    assert f"pullback {machine['pullback']}; {found['when'][:10]}" in text
    assert machine["cpu"].replace("&", "&amp;") in text


def test_the_grid_is_summed_up_by_op_and_goes_on(tmp_path: Path) -> None:
    report = tmp_path / "now.json"
    wanted = ("sum", "--grid", *SMALL, "--dtypes", "f32", "--json", report)
    assert "time is up: 4 of 4 cases are left out" in invoke(*wanted, "--minutes", 0).output
    result = invoke(*wanted)
    assert result.exit_code == 0, result.output
    found = json.loads(report.read_text())
    assert "unfinished" not in found
    assert {op: v["cases"] for op, v in found["summary"]["by_op"].items()} == {
        "sum": 2, "sum_backward": 2
    }  # fmt: skip
    for word in ("within caches", "sum_backward", "geometric means over 4 cases"):
        assert word in result.output
    assert "call ms" not in result.output
    del found["cells"][1:]
    report.write_text(json.dumps(found | {"unfinished": True}))
    assert "1 cases are there" in invoke(*wanted).output
    assert len(json.loads(report.read_text())["cells"]) == 4


def test_every_op_is_on_the_grid_of_sizes() -> None:
    found = list(cells(SIZES, default_ops("both")))
    assert {c.op.name for c in found} == {op.name for op in default_ops("both")}
    largest = [c for c in found if c.shape == (16384, 8192)]
    assert {(c.op.family, c.op.direction) for c in largest} == {
        (op.family, op.direction) for op in default_ops("both") if op.parameter("axis")
    } | {("lerp", "forward"), ("lerp", "backward")}


def test_how_rows_are_cut() -> None:
    """The number of segments and the order of their ids, beside the shape of the rows."""
    wanted = ("segment_max", *SMALL, "--segments", 7, "--json", "-")
    cells = json.loads(invoke(*wanted, "--order", "sorted,random").stdout)["cells"]
    cut = ["40x60->7 sorted", "40x60->7 random"]
    assert [c["shape"] for c in cells] == 2 * cut
    assert all(c["check"]["ok"] for c in cells)
    assert [c["shape"] for c in json.loads(invoke(*wanted).stdout)["cells"]] == 2 * cut[1:]
    refused = invoke("segment_max", "--segments", 7)
    assert refused.exit_code == 2
    assert "--segments: needs --shapes too" in refused.output
    assert invoke("cumsum", "--scaling", "--order", "random").exit_code == 2


def test_a_form_of_an_op(tmp_path: Path) -> None:
    """An option for each parameter and operand that selects a record, for the ops that have it."""
    report = tmp_path / "now.json"
    wanted = ("cumsum", "softmax", "--direction", "forward", "--axes", "-1", *SMALL)
    result = invoke(*wanted, "--exclusive", "--resets", "--json", report)
    assert result.exit_code == 0, result.output
    (cell,) = json.loads(report.read_text())["cells"]
    assert (cell["op"], cell["axis"]) == ("cumsum", "-1 exclusive=True +resets")
    assert cell["check"]["ok"]
    refused = invoke("softmax", *SMALL, "--ties", "last", "--exclusive")
    assert refused.exit_code == 2
    assert "no op that is asked for has --exclusive, --ties" in refused.output
    refused = invoke("cumsum", "--scaling", "--exclusive")
    assert refused.exit_code == 2
    assert "--scaling cannot be combined with a choice of an op's form" in refused.output


def test_eighty_columns_are_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    old = tmp_path / "old.json"
    wide = ("log_softmax", "segment_sum", "--shapes", "40x6", "--rounds", 1, "--dtypes", "f32,bf16")
    result = invoke(*wide, "--json", old)
    assert result.exit_code == 0, result.output
    assert "…" not in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())
    held = json.loads(old.read_text())
    for cell in held["cells"]:
        cell["runs"]["plan"].update(ms=1e6, median_ms=1e6, noise=0.0)
    old.write_text(json.dumps(held))
    compared = invoke(*wide, "--compare", old).output
    assert "x faster" in compared
    assert "…" not in compared
    assert all(len(line) <= 80 for line in compared.splitlines())


def test_dtypes_axes_and_json_on_standard_output() -> None:
    result = invoke("sum", *SMALL, "--dtypes", "f16,bf16", "--axes", "0", "--json", "-")
    cells = json.loads(result.output)["cells"]
    assert [(c["dtype"], c["axis"]) for c in cells] == [("f16", "0"), ("bf16", "0")]


def test_forward_ops() -> None:
    result = invoke("logsumexp", *SMALL, "--direction", "forward")
    assert result.exit_code == 0, result.output
    assert "logsumexp_backward" not in result.output


def test_compare(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    assert invoke("mean", *SMALL, "--json", old).exit_code == 0
    held = json.loads(old.read_text())
    for cell in held["cells"]:
        cell["runs"]["plan"].update(ms=1e6, median_ms=1e6, noise=0.0)
    old.write_text(json.dumps(held))
    result = invoke("mean", *SMALL, "--compare", old, "--html", tmp_path / "page.html")
    assert result.exit_code == 0, result.output
    assert "2 of 2 cases changed beyond their noise" in result.output
    assert "x faster" in result.output
    assert "Compared with before" in (tmp_path / "page.html").read_text()


def test_a_wrong_result_is_not_timed_and_fails_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**plain.BACKWARD, "mean": lambda dy, x, y, shape, *rest: plain.np.zeros(shape)}
    monkeypatch.setattr(plain, "BACKWARD", wrong)
    result = invoke("mean", *SMALL)
    assert result.exit_code == 1
    assert "WRONG" in result.output
    assert "wrong, not timed in 2" in result.output


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "bars.png"
    assert invoke("sum", *SMALL, "--shapes", "400x400", "--plot", path).exit_code == 0
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_plot_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "matplotlib" else find(n, *a)
    )
    monkeypatch.setattr("pullback.tools.bench.run", lambda *a: pytest.fail("measured all the same"))
    result = invoke("sum", *SMALL, "--plot", tmp_path / "bars.png")
    assert result.exit_code == 2
    assert "pip install matplotlib" in result.output
    assert list(tmp_path.iterdir()) == []


def test_frontends(tmp_path: Path) -> None:
    report = tmp_path / "f.json"
    result = invoke("softmax", "--frontends", "--shapes", "8x16", "--rounds", 1, "--json", report)
    assert result.exit_code == 0, result.output
    assert "beside torch's own" in result.output
    rows = json.loads(report.read_text())["frontends"]
    assert {r["frontend"] for r in rows} == {"torch", "jax"}
    refused = invoke("softmax", "--frontends", "--shapes", "8")
    assert refused.exit_code == 2, refused.output
    assert "matrices" in refused.output


def test_scaling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(scaling, "DRAWN", 10**4)
    monkeypatch.setattr(scaling, "ZEROS", (0, 1, 100))
    monkeypatch.setattr(scaling, "THREAD_SHAPES", ((32, 32),))
    report, page, plot = (tmp_path / f"s.{kind}" for kind in ("json", "html", "png"))
    result = invoke("prod", "--scaling", "--rounds", 1, "--json", report, "--html", page,
                    "--plot", plot)  # fmt: skip
    assert result.exit_code == 0, result.output
    for word in ("number of elements", "number of zeros", "against threads", "exponent"):
        assert word in result.output
    assert json.loads(report.read_text())["exponents"]["size"]["prod_backward"] is not None
    stands_alone(page.read_text())
    assert plot.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--axes", "7"), "nothing to run"),
        (("--shapes", "0x0"), "without elements"),
        (("--shapes", "4x4,3x0"), "without elements"),
        (("--threads", "5000"), "4096"),
        (("--scaling", "--shapes", "4x4"), "--shapes"),
        (("--scaling", "--frontends"), "--frontends"),
        (("--scaling", "--compare", __file__), "--compare"),
        (("--scaling", "--dtypes", "f32,f64"), "takes one dtype at a time"),
        (("--frontends", "--axes", "0"), "--axes"),
        (("--frontends", "--html", "page.html"), "--html"),
        (("--peers", "none,numpy"), "none"),
        (("--compare", __file__), "JSON"),
        (("--plot", "/no/such/folder/x.png"), "does not exist"),
    ],
)
def test_bad_options(
    arguments: tuple[str, ...], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pullback.tools.bench.run", lambda *a: pytest.fail("measured all the same"))
    result = invoke("softmax", *arguments)
    assert result.exit_code == 2
    assert word in result.output
    assert len(result.output.splitlines()) == 1


RUN = {"ms": 1.0, "median_ms": 1.0, "noise": None}
CELL = {"op": "sum", "dtype": "f32", "shape": "4x4", "axis": "0", "bytes": 64, "copy": RUN}
WHOLE = {**CELL, "runs": {"plan": RUN}}


@pytest.mark.parametrize(
    ("report", "word"),
    [
        ("[]", "not a report of pullback bench"),
        ('{"schema": 1, "results": []}', "not a report of pullback bench"),
        ('{"schema": 1, "cells": {}}', "not a report of pullback bench"),
        ('{"schema": 2, "cells": []}', "format 2, not 1"),
        ('{"cells": []}', "format None, not 1"),
        ('{"schema": 1, "cells": [7]}', "case 1"),
        ({**WHOLE, "op": 7}, "case 1"),
        ({**WHOLE, "copy": {}}, "case 1"),
        ({**WHOLE, "runs": {"plan": {**RUN, "ms": 0}}}, "case 1"),
        ({**WHOLE, "runs": {"plan": {**RUN, "noise": "small"}}}, "case 1"),
        ("[" * 100_000, "not a JSON file"),
        ("\xff", "not a JSON file"),
    ],
)
def test_only_a_report_is_compared_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: object, word: str
) -> None:
    monkeypatch.setattr("pullback.tools.bench.run", lambda *a: pytest.fail("measured all the same"))
    old = tmp_path / "old.json"
    text = report if isinstance(report, str) else json.dumps({"schema": 1, "cells": [report]})
    old.write_bytes(text.encode("latin-1"))
    result = invoke("sum", *SMALL, "--compare", old)
    assert result.exit_code == 2, result.output
    assert word in result.output
    assert str(old) in result.output
    assert len(result.output.splitlines()) == 1


def test_what_can_be_compared_with() -> None:
    skipped = {k: v for k, v in CELL.items() if k != "copy"} | {"skipped": "needs about 9 MiB"}
    assert objection({"schema": 1, "cells": [WHOLE, skipped]}) is None


def test_rounds_without_end_end_with_their_budget() -> None:
    taken = interleave({"a": lambda: None}, 10**30, 0.01)
    assert 1 <= taken["a"].rounds <= 10


def test_a_report_goes_through_links_and_into_pipes(tmp_path: Path) -> None:
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("before")
    link.symlink_to(target)
    write_atomically(link, b"now")
    assert link.is_symlink()
    assert target.read_bytes() == b"now"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomically(pipe, b"through")
        assert os.read(reader, 100) == b"through"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def interrupted(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ctrl-C before the case after so many."""
    from pullback.tools.bench import harness

    measure, taken = harness.measure, []

    def stop(case: object, settings: object, without: object) -> dict:
        if len(taken) == after:
            raise KeyboardInterrupt
        taken.append(case)
        return measure(case, settings, without)

    monkeypatch.setattr(harness, "measure", stop)


def test_an_interrupted_run_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = tmp_path / "now.json"
    command = ("mean", "sum", *SMALL, "--json", report)
    with monkeypatch.context() as patched:
        interrupted(patched, 3)
        stopped = invoke(*command)
    assert stopped.exit_code == 2
    assert "stopped after 3 of 4 cases; the same command continues" in stopped.output
    held = json.loads(report.read_text())
    assert held["unfinished"]
    first = [c["runs"] for c in held["cells"]]
    with monkeypatch.context() as patched:
        interrupted(patched, 1)
        result = invoke(*command)
    assert result.exit_code == 0, result.output
    assert "3 cases are there" in result.output
    found = json.loads(report.read_text())
    assert "unfinished" not in found
    assert [c["runs"] for c in found["cells"][:3]] == first
    assert len(found["cells"]) == 4


def test_what_was_measured_otherwise_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "now.json"
    with monkeypatch.context() as patched:
        interrupted(patched, 1)
        invoke("mean", *SMALL, "--json", report)
    result = invoke("mean", *SMALL, "--rounds", 1, "--json", report)
    assert "are there" not in result.output
    assert len(json.loads(report.read_text())["cells"]) == 2


def test_pages_from_a_saved_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report, page = tmp_path / "now.json", tmp_path / "now.html"
    assert invoke("mean", *SMALL, "--json", report).exit_code == 0
    monkeypatch.setattr("pullback.tools.bench.run", lambda *a: pytest.fail("measured again"))
    result = invoke("--from", report, "--html", page)
    assert result.exit_code == 0, result.output
    assert "geometric means over 2 cases" in result.output
    assert "mean_backward" in page.read_text()
    refused = invoke("--from", report, "--threads", 2)
    assert refused.exit_code == 2
    assert "--from cannot be combined with --threads" in refused.output


def test_a_busy_machine_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "other processes used 40% of the CPUs"
    for share, is_said in ((0.4, True), (0.02, False), (None, False)):
        monkeypatch.setattr("pullback.tools.bench.busy_share", lambda share=share: share)
        assert (said in invoke("mean", *SMALL, "--axes", "-1").output) == is_said


def test_a_loss_within_the_noise_is_none() -> None:
    times = {"ms": 1.0, "median_ms": 1.0, "rounds": 5}
    cell = {"op": "sum", "dtype": "f32", "shape": "4x4", "axis": "-1", "bytes": 64,
            "copy": times, "check": {"ok": True}}  # fmt: skip
    for noise, lost, close in ((0.01, 1, 0), (0.2, 0, 1)):
        plan = {**times, "noise": noise}
        runs = {"plan": plan, "function": plan, "numpy": {**plan, "ms": 0.9}}
        found = summarise([{**cell, "runs": runs}])
        assert (len(found["lost"]), len(found["close"])) == (lost, close)
