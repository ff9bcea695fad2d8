"""Jobs in a process of their own, one after the other: one that crashes or hangs loses no other.

A kernel that touches memory it must not takes the device's context with it, and every call after
it fails. So whatever happens in the child, the parent notes it for the job at hand and starts
another child for the rest.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

# Other lines are what libraries print.
MARK = "\x1e"
COMMAND = (sys.executable, "-m", "pullback.tools.device.worker")
# Exit code of a child whose device is gone.
LOST = 3
# Seconds for a job: kernels compile for a minute at worst, the oracle takes some.
PATIENCE = 900.0

Job = Mapping[str, Any]


def run_jobs(
    what: str,
    jobs: Sequence[Job],
    command: Sequence[str] = COMMAND,
    patience: float = PATIENCE,
) -> Iterator[dict[str, Any]]:
    """The results of jobs in order; of one that fails, ``{"error": why}``."""
    done = 0
    while done < len(jobs):
        rest = jobs[done:]
        for result in _by_one_child(what, rest, command, patience):
            yield result
            done += 1


def _by_one_child(
    what: str, jobs: Sequence[Job], command: Sequence[str], patience: float
) -> Iterator[dict[str, Any]]:
    """At least one result, and no more after one that ends the child."""
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lines: queue.Queue[str | None] = queue.Queue()
    assert child.stdin is not None
    assert child.stdout is not None
    reader = threading.Thread(target=_forward, args=(child.stdout, lines), daemon=True)
    reader.start()
    try:
        # A child that has ended already is told by its output.
        with child.stdin:
            child.stdin.write(json.dumps({"what": what, "jobs": list(jobs)}))
    except BrokenPipeError:
        pass
    try:
        for count in range(len(jobs)):
            try:
                line = lines.get(timeout=patience)
            except queue.Empty:
                yield {"error": f"nothing came back in {patience:.0f} s"}
                return
            if line is None:
                # One that has told of a lost device has not begun another job.
                if not count or child.wait() != LOST:
                    yield {"error": _ended(child.wait())}
                return
            yield json.loads(line)
    finally:
        child.kill()
        child.wait()
        reader.join()
        child.stdout.close()


def _forward(output: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in output:
        if line.startswith(MARK):
            lines.put(line[len(MARK) :])
    lines.put(None)


def _ended(code: int) -> str:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"the process that ran it ended with {how}"


def serve(
    run: Callable[[Job], dict[str, Any]], jobs: Sequence[Job], wait: Callable[[], None]
) -> None:
    """Run jobs and print their results; end where the device is gone."""
    for job in jobs:
        lost = False
        try:
            result = run(job)
            wait()
        except Exception as error:
            result = {"error": f"{type(error).__name__}: {str(error).strip()[:400]}"}
            try:
                wait()
            except Exception:
                lost = True
        print(MARK + json.dumps(result), flush=True)
        if lost:
            raise SystemExit(LOST)


def main() -> None:
    """Serve the jobs that standard input tells."""
    from .running import Gpu

    told = json.load(sys.stdin)
    gpu = Gpu()
    if told["what"] == "check":
        from ...core.catalog import OPS
        from .certify import check_one

        def run(job: Job) -> dict[str, Any]:
            return check_one(OPS[job["op"]], job["dtype"], gpu)
    else:
        from .timing import measure_job

        def run(job: Job) -> dict[str, Any]:
            return measure_job(job, gpu)

    serve(run, told["jobs"], gpu.wait)


if __name__ == "__main__":
    main()
