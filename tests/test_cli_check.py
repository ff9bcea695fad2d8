"""``pullback check``: passes what is right, fails what is planted, and its page stands alone."""

from __future__ import annotations

import importlib.util
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from pullback.tools.bench import Case, find_op
from pullback.tools.check import accuracy, certify, check_one, layouts
from pullback.tools.check.edges import edge_case
from pullback.tools.cli import main, tables


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["check", *map(str, arguments)])


def test_right_ops_pass(tmp_path: Path) -> None:
    report = tmp_path / "check.json"
    result = invoke("sum", "norm2_backward", "--dtypes", "f32,bf16", "--json", report)
    assert result.exit_code == 0, result.output
    assert "all 6 checks passed" in result.output
    assert "allowed: the largest error as a share" in result.output
    assert re.search(r"^sum +.* \d+% +\d+/\d+ +pass *$", result.output, re.MULTILINE)
    found = json.loads(report.read_text())
    assert found["ok"]
    assert len(found["results"]) == 6
    for row in found["results"]:
        both = row["op"] == "norm2_backward"
        assert ("tight" in row) == both
        assert 0 <= row["of_allowed"] <= 1
        assert (row["of_allowed"] == 0) == (row["op"] == "sum_backward")  # a copy
        assert row["max_ulp"] <= (2.0 if both and row["dtype"] == "f32" else 0.51)
        assert row.get("tight", row)["max_ulp"] <= 0.51
        assert {"fortran", "sliced", "negative", "offset", "first axis"} <= set(row["layouts"])
        assert set(row["threads"]) == {"2", "3", "8"}
        assert "torch_max_ulp" in row


def test_long_table_has_a_line_for_each_dtype() -> None:
    result = invoke("lerp", "--dtypes", "f32,f64", "--no-torch", "--long")
    assert result.exit_code == 0
    lines = re.findall(r"^lerp(?:_backward)? +(f32|f64)( tight)? ", result.output, re.MULTILINE)
    # A gradient that float32 lanes compute is certified in both precisions.
    assert lines == [("f32", ""), ("f64", ""), ("f32", ""), ("f32", " tight"), ("f64", "")]
    assert "torch" not in result.output


def test_eighty_columns_hold_all_dtypes_beside_torch() -> None:
    bits = {"layouts": {"fortran": True}, "function": True, "threads": {"2": True}}
    name = {"op": "logcumsumexp_backward", "family": "scan", "ok": True, "reasons": [], **bits}
    errors = {"f32": (0.5, 8668), "f64": (112700, 95727), "f16": (0.5, 1777), "bf16": (0.5, 16218)}
    results = [
        {**name, "dtype": d, "max_ulp": ours, "mean_ulp": ours / 2, "torch_max_ulp": theirs}
        for d, (ours, theirs) in errors.items()
    ]
    out = Console(width=80, file=io.StringIO(), color_system=None)
    for long in (False, True):
        for part in tables.checks({"results": results}, long, out):
            out.print(part)
    said = out.file.getvalue()
    assert "…" not in said
    assert said.count("1.1e5") == 2
    assert all(len(line) <= 80 for line in said.splitlines())


def planted(monkeypatch: pytest.MonkeyPatch, wrong: object) -> Result:
    right = accuracy.result
    monkeypatch.setattr(accuracy, "result", lambda *a, **k: wrong(right(*a, **k), *a))
    return invoke("mean", "--direction", "backward", "--dtypes", "f32", "--no-torch")


def test_a_wrong_value_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(outputs: dict, *_: object) -> dict:
        outputs["dx"][-1, -1] = np.nextafter(outputs["dx"][-1, -1], np.inf, dtype=np.float32)
        outputs["dx"][-1, -1] = np.nextafter(outputs["dx"][-1, -1], np.inf, dtype=np.float32)
        return outputs

    result = planted(monkeypatch, wrong)
    assert result.exit_code == 1
    assert "FAIL mean_backward f32" in result.output
    assert "ulp from the oracle" in result.output
    assert "1 of 1 checks failed" in result.output


def test_bytes_that_depend_on_threads_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(outputs: dict, case: Case, operands: object, threads: int = 1) -> dict:
        if threads == 3:
            outputs["dx"][0, 0] = -outputs["dx"][0, 0]
        return outputs

    result = planted(monkeypatch, wrong)
    assert result.exit_code == 1
    assert "bytes differ: 3 threads" in result.output


def test_bytes_that_depend_on_the_layout_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    shifted = {**layouts.LAYOUTS, "sliced": lambda a: layouts._sliced(a + a.dtype.type(1))}
    monkeypatch.setattr(layouts, "LAYOUTS", shifted)
    result = invoke("mean", "--direction", "backward", "--dtypes", "f32", "--no-torch")
    assert result.exit_code == 1
    assert "bytes differ: sliced" in result.output


def test_edges_are_part_of_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    case, operands = edge_case(Case.of(find_op("prod_backward"), "f32", (2, 600), axis=-1))
    assert (operands["x"] == 0).any()
    assert edge_case(Case.of(find_op("cumsum"), "f32", (2, 600), axis=-1)) is None
    right = accuracy.result

    def divides(given: Case, held: dict, threads: int = 1) -> dict:
        if given.shape == case.shape:
            with np.errstate(all="ignore"):
                return {"dx": held["dy"] * held["y"] / held["x"]}
        return right(given, held, threads)

    monkeypatch.setattr(accuracy, "result", divides)
    row = check_one(find_op("prod_backward"), "f32", with_torch=False)
    assert not row["ok"]
    assert any(r.startswith("edges") for r in row["reasons"])


class Page(HTMLParser):
    """Collects tags and what they point to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.seen.add(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "xlink:href")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def stands_alone(text: str) -> Page:
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.links == []
    assert not {"script", "link", "img", "iframe"} & page.seen
    assert "http" not in text
    assert "@import" not in text
    return page


def test_the_page_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "check.html"
    result = invoke("norm2", "--direction", "backward", "--dtypes", "f32", "--html", path)
    assert result.exit_code == 0, result.output
    text = path.read_text()
    page = stands_alone(text)
    assert {"pre", "h2"} <= page.seen
    assert text.count("norm2_backward") == 3  # two precisions in the table, and its bars
    assert "█" in text
    assert [p.name for p in tmp_path.iterdir()] == ["check.html"]


def test_certify_reports_progress() -> None:
    told: list[tuple] = []
    certify([find_op("lerp")], ["f32"], False, lambda *given: told.append(given))
    assert told[0] == ("lerp", "f32", None)
    assert told[1][2]["ok"]


def test_torch_is_missed_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n == "torch" else find(n, *a)
    )
    monkeypatch.setattr(
        "pullback.tools.check.certify", lambda *a: pytest.fail("checked all the same")
    )
    result = invoke("lerp", "--torch")
    assert result.exit_code == 2
    assert result.output == "pullback: --torch: torch is not installed\n"
