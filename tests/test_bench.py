"""The benchmark harness: what it measures, what it refuses to time, and what it concludes."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import pullback as pb
from pullback.tools.bench import (
    FULL,
    QUICK,
    Case,
    Settings,
    cells,
    compare,
    default_ops,
    far_behind,
    figures,
    find_op,
    frontends,
    harness,
    installed,
    measure,
    named_ops,
    plain,
    run,
    scaling,
    summarise,
)
from pullback.tools.bench.copying import copies
from pullback.tools.bench.peers import PEERS, prepare
from pullback.tools.bench.timing import Times, interleave
from pullback.tools.bench.verify import verify
from pullback.tools.case import cuts
from pullback.tools.check.digests import published
from pullback.tools.choices import chosen
from pullback.tools.operands import make_operands, make_outputs
from scripts import SOURCE, run_script

FAST = Settings(threads=1, rounds=2, budget=0.01)
BACKWARD = [op.name for op in pb.catalog() if op.direction == "backward"]
SEGMENTED = [op.name for op in pb.catalog() if cuts(op)]


def small(name: str, element: str = "f32", axis: int = -1) -> Case:
    op = find_op(name)
    return Case.of(op, element, (96, 5) if cuts(op) else (6, 70), segments=11, axis=axis)


def test_every_backward_op_is_in_both_grids() -> None:
    for grid in (QUICK, FULL):
        assert {c.op.name for c in cells(grid)} == {*BACKWARD, *SEGMENTED}
    assert {c.element for c in cells(FULL)} == {"f32", "f64", "f16", "bf16"}
    assert {c.shape for c in cells(FULL)} >= {
        (4096, 4096), (32768, 128), (128, 32768), (64, 256, 1024), (2, 8_000_000), (16_000_000,),
        (1, 128), (262144, 64), (477263, 256),
    }  # fmt: skip


def test_a_kind_names_its_backward_and_segments_come_both_ways() -> None:
    assert [op.name for op in named_ops(["softmax"])] == ["softmax_backward"]
    assert [op.name for op in named_ops(["softmax"], "both")] == ["softmax", "softmax_backward"]
    assert len(named_ops(["segment_sum"])) == 2
    assert [op.name for op in named_ops(["cumsum_backward"], "forward")] == ["cumsum_backward"]
    with pytest.raises(pb.UnsupportedError, match="did you mean"):
        named_ops(["sofmax"])
    assert len(default_ops("both")) == len(pb.catalog())


def test_useful_bytes_count_what_the_formula_reads_once() -> None:
    assert small("softmax_backward").useful_bytes == 3 * 6 * 70 * 4
    assert small("cumprod_backward", "f64").useful_bytes == 3 * 6 * 70 * 8  # y is not read
    assert small("sum_backward").useful_bytes == (6 * 70 + 6) * 4
    assert small("segment_sum").useful_bytes == (96 * 5 + 11 * 5) * 4 + 96 * 8


@pytest.mark.parametrize("name", BACKWARD)
def test_the_check_accepts_the_oracle_and_sees_a_wrong_element(name: str) -> None:
    from pullback.oracle import round_to

    case = small(name)
    operands = make_operands(case)
    exact = case.exact(operands)
    right = {n: round_to(exact[n].value, "f32") for n in case.outputs}
    verdict = verify(case, operands, right)
    assert verdict.ok, verdict
    first = case.outputs[0]
    wrong = {n: a.copy() for n, a in right.items()}
    at = tuple(n // 2 for n in wrong[first].shape)
    wrong[first][at] += max(1e-5, abs(wrong[first][at]) * 1e-5)
    assert not verify(case, operands, wrong).ok
    unwritten = {n: a.copy() for n, a in right.items()}
    unwritten[first][at] = np.nan
    assert "NaN" in verify(case, operands, unwritten).reason


def test_a_wrong_result_gets_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = {**plain.BACKWARD, "cumsum": lambda dy, *rest: dy}
    monkeypatch.setattr(plain, "BACKWARD", wrong)
    record = measure(small("cumsum_backward"), FAST)
    assert not record["check"]["ok"]
    assert "runs" not in record
    assert figures(record) is None
    assert summarise([record])["failed"] == ["cumsum_backward f32 6x70 -1"]


@pytest.mark.parametrize("element", ["f32", "f64", "f16", "bf16"])
def test_a_measured_case_has_times_of_all_contenders(element: str) -> None:
    peers = installed(("torch", "numpy"))
    record = measure(small("softmax_backward", element), Settings(1, peers, 2, 0.01))
    assert record["check"]["ok"], record
    assert set(record["runs"]) == {"plan", "function", *peers}
    assert all(r["ms"] > 0 for r in record["runs"].values())
    found = figures(record)
    assert found.of_copy is None  # too small to say anything about memory
    assert found.fastest in peers


def test_a_peer_far_behind_on_a_smaller_case_is_left_out_of_a_large_one() -> None:
    def cell(shape: tuple[int, int], **ms: float) -> dict:
        of = small("softmax_backward").but(shape=shape)
        runs = {"plan": 1.0, "function": 9e9, **ms}
        op, dtype, label, axis = of.key
        return {
            "op": op, "dtype": dtype, "shape": label, "axis": axis, "bytes": of.useful_bytes,
            "runs": {n: {"ms": t} for n, t in runs.items()},
        }  # fmt: skip

    measured = [
        cell((1024, 1024), torch=60.0, jax=1.0, numpy=1.0),
        cell((4096, 4096), torch=2.0, jax=10.0, numpy=50.0),
        {"op": "softmax_backward", "skipped": "needs more"},
    ]
    large = small("softmax_backward").but(shape=(16384, 8192))
    # Of jax a call would take 80 ms, of numpy 400; then more of both.
    assert not far_behind(large, measured)
    larger = small("softmax_backward").but(shape=(65536, 8192))
    assert far_behind(larger, measured) == {
        "numpy": "took 25 times as long as torch on 4096x4096",
    }
    for other in (large.but(axis=0), large.but(element="bf16"), small("softmax_backward")):
        assert not far_behind(other, measured)
    assert not far_behind(large, [])
    held = measure(small("softmax_backward"), Settings(1, ("numpy",), 1, 0.01), {"numpy": "slow"})
    assert held["missing"] == {"numpy": "slow"}
    assert "numpy" not in held["runs"]


# Gradients that torch makes of a y of its own, as the backward reads no x, or no b; there its
# forward is compared.
OF_Y_ALONE = [op.name for op in pb.catalog() if op.needs == {"y"}]
GIVEN_ITS_OWN = {("torch", n) for n in (*OF_Y_ALONE, "da")}
FORWARDS = [n.removesuffix("_backward") for n in OF_Y_ALONE]


@pytest.mark.parametrize("name", [*BACKWARD, *FORWARDS])
def test_peers_compute_the_same(name: str) -> None:
    case = small(name, "f64")
    operands = make_operands(case)
    wanted = case.results(operands)
    for peer in installed(("torch", "numpy")):
        call, reason = prepare(peer, case, operands)
        if call is None:
            # torch is beside every op of the library; it need not have one that is added.
            assert peer != "torch" or name not in published()
            assert case.op.kind in reason
            continue
        if (peer, name) in GIVEN_ITS_OWN:
            continue
        got = call()
        results = got if isinstance(got, (list, tuple)) else [got]
        for a, (output, b) in zip(results, wanted.items(), strict=True):
            if (peer, output) not in GIVEN_ITS_OWN:
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12, err_msg=f"{peer} {output}")


def test_jax_computes_the_same_gradient() -> None:
    pytest.importorskip("jax")
    from pullback.tools.bench.peers import JaxPeer

    case = small("logsumexp_backward")
    operands = make_operands(case)
    (got,) = JaxPeer().prepare(case, operands)()
    np.testing.assert_allclose(np.asarray(got), case.call(operands), rtol=1e-5, atol=1e-6)


RECURRENCES = (
    "linear_recurrence",
    "linear_recurrence_backward",
    "discounted_sum",
    "discounted_sum_backward",
    "gae",
)


@pytest.mark.parametrize("name", RECURRENCES)
def test_peers_of_recurrences(name: str) -> None:
    """Loops and scans that take any step, beside the op."""
    case = small(name)
    operands = make_operands(case)
    wanted = list(case.results(operands).values())
    asked = installed(("numpy", "torch", "jax", "jax.scan"))
    for peer in asked:
        got = PEERS[peer].prepare(case, operands)()
        results = got if isinstance(got, (list, tuple)) else [got]
        assert len(results) == len(wanted)
        for output, a, b in zip(case.outputs, results, wanted, strict=True):
            if output == "da" and peer != "numpy":
                continue  # made of a y that comes of a b of the peer's own
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-4, atol=1e-4, err_msg=peer)
    assert verify(case, operands, case.results(operands)).how == "all"


FORMS = {
    "cumsum": {"exclusive": True, "reverse": True, "+resets": True},
    "cumprod": {"exclusive": True, "reverse": True},
    "logcumsumexp": {"+resets": True},
    "linear_recurrence": {"+resets": True},
    "gae": {"+terminated": True, "+truncated": True},
}


@pytest.mark.parametrize("name", FORMS)
def test_peers_of_forms(name: str) -> None:
    """Scans that no library has by name, written with what each has."""
    case = chosen(small(name), FORMS[name])
    operands = make_operands(case)
    wanted = list(case.results(operands).values())
    is_cut = any(n[0] == "+" for n in FORMS[name])
    for peer in installed(("torch", "jax", "jax.scan") if is_cut else ("torch", "jax")):
        got = PEERS[peer].prepare(case, operands)()
        results = got if isinstance(got, (list, tuple)) else [got]
        for a, b in zip(results, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(a), b, rtol=1e-4, atol=1e-4, err_msg=peer)


def test_no_loop_over_a_million_steps() -> None:
    case = Case.of(find_op("linear_recurrence"), "f32", (2, 1 << 20), axis=-1)
    operands = {n: np.zeros((2, 1 << 20), np.float32) for n in "ab"}
    for peer in installed(("torch", "jax.scan", "numpy")):
        call, reason = prepare(peer, case, operands)
        assert call is None
        assert reason


def test_contenders_take_turns() -> None:
    order: list[str] = []
    calls = {n: lambda n=n: (order.append(n), time.sleep(0.002)) for n in "ab"}
    times = interleave(calls, rounds=3, budget=1.0)
    # Three calls show how long one takes. Then there is one before each that counts, and every
    # other round goes the other way.
    assert "".join(order) == "aaabbb" + "aabb" + "bbaa" + "aabb"
    assert times["a"].rounds == 3
    assert times["a"].best <= times["a"].median


def test_a_slow_contender_is_sampled_once() -> None:
    times = interleave({"slow": lambda: time.sleep(0.02)}, rounds=5, budget=0.01)
    assert times["slow"].rounds == 1
    assert times["slow"].noise is None


def test_a_second_call_that_finds_something_out_is_not_what_counts() -> None:
    calls = []

    def call() -> None:
        calls.append(1)
        if len(calls) == 1:
            time.sleep(0.004)

    interleave({"once": call}, rounds=1, budget=1.0)
    assert len(calls) > 100  # many in a sample, not one


def test_noise_is_the_quartile_distance() -> None:
    assert Times.of([1.0, 1.0, 1.0, 1.0]).noise == 0
    assert Times.of([1.0, 2.0, 3.0]).noise == pytest.approx(0.25)


@pytest.mark.parametrize("threads", [1, 2])
def test_copies_move_half_of_the_bytes_each_way(threads: int) -> None:
    with copies(1 << 21, threads) as made:
        assert "copy numpy" in made
        assert any("threads" in n for n in made) == (threads > 1)
        for call in made.values():
            call()


def cell(ms: float, copy_ms: float = 1.0, noise: float = 0.0, **peers: float) -> dict:
    runs = {"plan": ms, "function": 2 * ms, **peers}
    record = {"median_ms": 0.0, "rounds": 5, "noise": noise}
    return {
        "op": "softmax_backward", "family": "softmax", "dtype": "f32", "shape": "8x8", "axis": "-1",
        "bytes": 1 << 20, "check": {"ok": True},
        "copy": {**record, "ms": copy_ms, "median_ms": copy_ms, "by": "numpy"},
        "runs": {n: {**record, "ms": v, "median_ms": v} for n, v in runs.items()},
    }  # fmt: skip


def test_figures_and_summary() -> None:
    found = figures(cell(2.0, torch=8.0, jax=1.0))
    assert found.of_copy == 0.5
    assert found.gbs == pytest.approx((1 << 20) / 2e-3 / 1e9)
    assert found.ratios == {"torch": 4.0, "jax": 0.5}
    assert (found.fastest, found.against_fastest) == ("jax", 0.5)
    assert found.function_against_fastest == 0.25
    summary = summarise([cell(2.0, torch=8.0), cell(2.0, torch=2.0), cell(4.0, torch=2.0)])
    assert summary["against"]["torch"] == pytest.approx(2 ** (1 / 3))
    assert len(summary["lost"]) == 1
    assert len(summary["function_lost"]) == 2


def test_compare_sees_changes_beyond_the_noise_only() -> None:
    def one(*arguments: float, **noise: float) -> dict:
        return {"cells": [cell(*arguments, **noise)]}

    assert compare(one(2.0), one(4.0))[0].speedup == pytest.approx(0.5)
    assert compare(one(2.0), one(4.0))[0].beyond_noise
    assert not compare(one(2.0), one(4.0, noise=0.5))[0].beyond_noise
    # Twice as slow on a machine that copies half as fast: nothing changed.
    assert not compare(one(2.0, 1.0), one(4.0, 2.0))[0].beyond_noise
    assert compare({"cells": []}, one(2.0)) == []


def test_too_large_for_the_memory_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "available_memory", lambda: 1000)
    record = measure(small("softmax_backward"), FAST)
    assert "skipped" in record
    assert summarise([record])["skipped"]


def test_an_op_added_to_the_catalog_is_checked_by_its_definition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plain, "BACKWARD", {})
    record = measure(small("norm2_backward"), FAST)
    assert record["check"]["how"] == "oracle, all"
    assert record["check"]["ok"]


@pytest.mark.parametrize(
    ("name", "shape", "how"),
    [
        ("cross_entropy_backward", (90, 50), "oracle, 3850 of 4500"),
        ("cross_entropy_backward", (2, 4097), "oracle, small"),
        ("segment_max", (2049, 2), "oracle, 512 segments, 2 columns"),
    ],
)
def test_the_oracle_sees_as_much_as_it_can(name: str, shape: tuple[int, ...], how: str) -> None:
    case = Case.of(find_op(name), "f32", shape, axis=-1)
    operands = make_operands(case)
    outputs = case.results(operands)
    assert verify(case, operands, outputs).how == how
    assert verify(case, operands, outputs).ok


def test_report_is_plain_data_and_names_the_machine() -> None:
    report = run([small("sum_backward")], FAST)
    assert json.loads(json.dumps(report))["cells"] == report["cells"]
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["cpu"]


def test_fitted_exponents() -> None:
    for power in (0.0, 1.0, 2.0):
        pairs = [(10.0**k, 3.0 * 10.0 ** (power * k)) for k in range(5, 9)]
        assert scaling.fitted_exponent(pairs) == pytest.approx(power, abs=1e-9)
    assert scaling.fitted_exponent([(1.0, 1.0)]) is None


def test_scaling_over_size_zeros_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "DRAWN", 10**4)
    monkeypatch.setattr(scaling, "FITTED", 10**3)
    monkeypatch.setattr(scaling, "ZEROS", (0, 1, 100))
    monkeypatch.setattr(scaling, "THREAD_SHAPES", ((32, 32),))
    steps = scaling.plan_steps(named_ops(["prod"]), "f32", 10**5, FAST)
    report = scaling.run_steps(steps, FAST)
    studies = {p["study"] for p in report["points"]}
    assert studies == {"size", "zeros", "threads"}
    assert [p["at"] for p in report["points"] if p["study"] == "size"] == [10**3, 10**4, 10**5]
    assert math.isfinite(report["exponents"]["size"]["prod_backward"])
    assert math.isfinite(report["exponents"]["zeros"]["prod_backward"])


def test_the_harness_does_not_need_the_command_line() -> None:
    run_script("""
        import sys
        from pullback.tools.bench import cells, QUICK
        assert list(cells(QUICK))
        loaded = {"click", "rich", "torch", "jax", "matplotlib", "mpmath"} & set(sys.modules)
        assert not loaded, loaded
    """)


def test_outputs_start_as_nan() -> None:
    assert all(np.isnan(a).all() for a in make_outputs(small("lerp_backward")).values())


def test_frontends_are_compared_with_their_frameworks(tmp_path: Path) -> None:
    kinds = ["softmax", "norm2", "lerp", "segment_sum", "sparsemax", "cross_entropy"]
    ops = named_ops(kinds)
    frameworks = frontends.installed()
    report = frontends.run(ops, frameworks, ((8, 16),), Settings(1, (), 1, 0.01))
    rows = report["frontends"]
    assert {(r["frontend"], r["op"]) for r in rows} == {
        (f, op.kind) for f in frameworks for op in ops
    }
    assert all(r["ms"] > 0 and r["own_ms"] > 0 for r in rows)
    (tmp_path / "report.json").write_text(json.dumps(report))
    page = tmp_path / "page.md"
    page.write_text("<!-- speed:begin --><!-- speed:end -->")
    tool = SOURCE.parent / "tools" / "speed_table.py"
    subprocess.run([sys.executable, tool, tmp_path / "report.json", page], check=True)
    assert "| `norm2` |" in page.read_text()
    assert "geometric mean" in page.read_text()


def test_a_wrong_gradient_of_a_frontend_is_noticed(monkeypatch) -> None:
    wrong = {"pullback": lambda: [np.ones(3)], "own": lambda: [np.array([1.0, 1.0, 1.1])]}
    stand_in = SimpleNamespace(steps=lambda case, given, dy: wrong)
    monkeypatch.setattr(frontends, "FRONTENDS", {"torch": stand_in})
    with pytest.raises(AssertionError, match="softmax: the gradients differ"):
        frontends.measure("torch", find_op("softmax"), (8, 16), Settings(1, (), 1, 0.01))


def test_speed_table_is_written_between_the_markers(tmp_path: Path) -> None:
    settings = Settings(1, installed(("numpy",)), 1, 0.01)
    cases = [*(small(n) for n in ("softmax_backward", "lerp_backward", "segment_sum_backward"))]
    report = run(cases, settings)
    for record in report["cells"]:
        if record["family"] != "segment":
            record["shape"] = "4096x4096"
    report["cells"].reverse()  # the grid measures by size, the tables go by the catalog
    for record in report["cells"]:
        peers = {n: run for n, run in record["runs"].items() if n not in ("plan", "function")}
        for times in peers.values():
            is_lost = record["op"] == "softmax_backward"
            times["ms"], times["noise"] = record["runs"]["plan"]["ms"] * (0.5 if is_lost else 2), 0
        record["runs"]["plan"]["noise"] = 0
    (tmp_path / "report.json").write_text(json.dumps(report))
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- speed:begin -->\nold\n<!-- speed:end -->\nafter\n")
    tool = SOURCE.parent / "tools" / "speed_table.py"
    subprocess.run([sys.executable, tool, tmp_path / "report.json", page], check=True)
    text = page.read_text()
    assert text.startswith("before\n<!-- speed:begin -->\n")
    assert text.endswith("<!-- speed:end -->\nafter\n")
    assert "old" not in text
    assert "| `softmax_backward` |" in text
    assert report["machine"]["cpu"] in text
    assert "Over all 3 cases" in text
    assert text.index("| `softmax_backward` | ") < text.index("| `lerp_backward` | ")
    assert "\n| segment op, f32 | ms |" in text
    assert text.count("segment_sum_backward 96x5->11") == 1
    assert "Slower than the fastest peer in 1:" in text
    assert "| `softmax_backward` | f32 4096x4096 -1: 0.5× |" in text


def test_an_op_by_segment_is_checked_on_its_own_results() -> None:
    """On some segments in all of 64 columns, not on a smaller problem in its place."""
    case = Case.of(find_op("segment_max"), "f32", (600, 64), (), 30, False)
    operands = make_operands(case)
    outputs = {"output": case.results(operands)["output"].copy()}
    found = verify(case, operands, outputs)
    assert found.ok
    assert found.how.endswith("64 columns")
    outputs["output"][:, 40] += 1e-3
    assert not verify(case, operands, outputs).ok


def test_the_mean_of_nothing_may_be_nan() -> None:
    case = Case.of(find_op("mean"), "f32", (30, 40), ("where",), axis=-1)
    operands = make_operands(case)
    outputs = {"y": np.array(case.results(operands)["y"]).reshape(30, 1)}
    assert np.isnan(outputs["y"][0]).all()
    assert verify(case, operands, outputs).ok
    outputs["y"][1] = np.nan
    assert "NaN" in verify(case, operands, outputs).reason
