"""``pullback bench``: table, files, comparison and exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pullback.bench import plain, scaling
from pullback.cli import main
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
    assert {"table", "svg"} <= stands_alone(text).seen
    assert "of copy" in text


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
    monkeypatch.setattr("pullback.bench.run", lambda *a: pytest.fail("measured all the same"))
    result = invoke("sum", *SMALL, "--plot", tmp_path / "bars.png")
    assert result.exit_code == 2
    assert "pullback[plot]" in result.output
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
        (("--peers", "none,numpy"), "none"),
        (("--compare", __file__), "JSON"),
        (("--plot", "/no/such/folder/x.png"), "does not exist"),
    ],
)
def test_bad_options(arguments: tuple[str, ...], word: str) -> None:
    result = invoke("softmax", *arguments)
    assert result.exit_code == 2
    assert word in result.output
    assert len(result.output.splitlines()) == 1
