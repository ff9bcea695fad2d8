"""A cluster of two processes, as many as the machines of CI have cores."""

from __future__ import annotations

from typing import Any


def two_workers(**how: Any) -> Any:
    """The cluster, to be used in ``with``; it listens at a port that nobody else has.

    Keywords are those of a worker, ``preload=`` say.
    """
    import distributed

    return distributed.LocalCluster(
        2,
        threads_per_worker=1,
        dashboard_address=None,
        scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
        **how,
    )
