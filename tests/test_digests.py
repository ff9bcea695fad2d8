"""Digests of bytes: stable, told apart, and those that the documentation shows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from click.testing import CliRunner

from pullback.core.catalog import OPS
from pullback.tools.check import digests
from pullback.tools.cli import main

PAGE = Path(__file__).resolve().parents[1] / "docs" / "portable.md"


def run(*arguments: str):
    return CliRunner().invoke(main, ["check", "--digest", *arguments])


def test_a_digest_is_of_the_bytes(monkeypatch):
    op = OPS["cumsum"]
    found = digests.digest(op, "f32")
    assert found == digests.digest(op, "f32")
    assert len(found) == 16
    results = digests.Case.results

    def one_bit_off(case, operands):
        made = {n: a.copy() for n, a in results(case, operands).items()}
        made["y"].reshape(-1).view(np.uint32)[-1] ^= 1
        return made

    monkeypatch.setattr(digests.Case, "results", one_bit_off)
    assert found != digests.digest(op, "f32")


def test_nans_are_one():
    quiet, other = (
        np.array([bits], np.uint32).view(np.float32) for bits in (0x7FC00000, 0xFFC00001)
    )
    assert digests._plain_bytes(quiet) == digests._plain_bytes(other)
    assert digests._plain_bytes(np.zeros(1)) != digests._plain_bytes(-np.zeros(1))


def test_numbers_need_no_rounding():
    """They are what integer arithmetic makes of a seed: nothing in them is a machine's own."""
    case = digests.cases(OPS["cumsum"], "f64")[0]
    x = digests.exact_numbers(case, "x", np.random.default_rng(1))
    assert np.array_equal(x * 2.0**22, np.trunc(x * 2.0**22))
    assert np.abs(x).max() < 2.0**4


def test_command(monkeypatch, tmp_path):
    known = {"cumsum": {"f32": digests.digest(OPS["cumsum"], "f32")}}
    published = tmp_path / "digests.json"
    published.write_text(json.dumps(known))
    monkeypatch.setattr(digests, "PUBLISHED", published)
    shown = run("cumsum", "--direction", "forward", "--dtypes", "f32")
    assert shown.exit_code == 0, shown.output
    assert "1 of 1 as published" in shown.output
    published.write_text(json.dumps({"cumsum": {"f32": "0" * 16}}))
    report = tmp_path / "report.json"
    shown = run("cumsum", "--direction", "forward", "--dtypes", "f32", "--json", str(report))
    assert shown.exit_code == 1
    assert "DIFFERS cumsum f32: published 0000000000000000" in shown.output
    assert json.loads(report.read_text())["digests"] == known
    assert run("cumsum", "--html", "x.html").exit_code == 2


def test_the_page_shows_what_is_kept():
    shown = PAGE.read_text(encoding="utf-8").partition("<!-- digests:end -->")[0]
    known = digests.published()
    assert set(known) <= set(OPS)
    for op, row in known.items():
        assert f"| {op} | {' | '.join(f'`{value}`' for value in row.values())} |" in shown
    assert shown.count("\n| ") == (len(known) + 2 if known else 0)
