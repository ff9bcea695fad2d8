"""Problems as text: what a graph carries that another process may run."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import lru_cache
from typing import Any

from ..core.catalog import OPS
from ..core.problem import Problem
from .engine import Cut
from .segments import SegmentCut


def text_of(problem: Problem) -> str:
    """A problem as text."""
    values = {f.name: getattr(problem, f.name) for f in fields(problem)}
    return json.dumps({**values, "op": problem.op.name})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@lru_cache(1024)
def problem_of(text: str) -> Problem:
    """The problem that a text says."""
    values = {n: _tuples(v) for n, v in json.loads(text).items()}
    return Problem(**{**values, "op": OPS[values["op"]]})


@lru_cache(1024)
def cut_of(text: str) -> Cut | SegmentCut:
    """What cuts the problem that a text says."""
    problem = problem_of(text)
    return SegmentCut(problem) if problem.is_segmented else Cut(problem)
