"""A cluster of two processes, as many as the machines of CI have cores."""

from __future__ import annotations

from typing import Any


def two_workers() -> Any:
    """The cluster, to be used in ``with``; it listens at a port that nobody else has."""
    import distributed

    return distributed.LocalCluster(
        2,
        threads_per_worker=1,
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
    )
