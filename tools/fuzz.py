"""Random calls against definitions in long double, with operands against forbidden pages.

    python tools/fuzz.py [--seed N] [--minutes M] [--cases K] [--case I] [--ops ...]

A case is fixed by the seed and its number: an op of the catalog, an element type, shape, strides,
values, threads, and whether it is called by function, by plan, or through torch or JAX. The result
is compared with the definition of the op, and byte by byte with that of another call with other
threads and another layout; inputs and all memory around the outputs must be as before. Then, often,
the call is spoilt and must be refused with nothing written. Cases run in a child process: one that
crashes or hangs is a finding like another, and the run goes on behind it. Exits with 1 if there
were any.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

# Far more than the slowest case takes on a busy machine, its kernels compiled included.
HANG_SECONDS = 900
REPORT_SECONDS = 30
CRASH_LINES = 12


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=None, help="a new one, printed, if not given")
    parser.add_argument("--minutes", type=float, default=None, help="stop after so long")
    parser.add_argument("--cases", type=int, default=None, help="stop after so many")
    parser.add_argument("--case", type=int, default=None, help="run this one alone")
    parser.add_argument("--start", type=int, default=0, help="the first case")
    parser.add_argument("--ops", nargs="+", default=None, help="these ops alone")
    parser.add_argument("--elements", nargs="+", default=None, help="these element types alone")
    parser.add_argument("--largest", type=int, default=1 << 21, help="elements of a large operand")
    parser.add_argument("--no-front-ends", action="store_true", help="neither torch's nor JAX's")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--stop", type=int, default=None, help=argparse.SUPPRESS)
    return parser.parse_args(words)


def say(**words: Any) -> None:
    """A line for the parent."""
    print(json.dumps(words), flush=True)


def run_cases(options: argparse.Namespace) -> None:
    """The child: cases one after the other, each announced before it begins."""
    import faulthandler

    import numpy as np

    from fuzzing import calls, fronts, hostile
    from fuzzing.cases import Settings, make

    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    np.seterr(all="ignore")
    settings = Settings(
        tuple(options.ops or Settings.ops),
        tuple(options.elements or Settings.elements),
        options.largest,
        not options.no_front_ends,
    )
    memory = calls.Memory()
    number, stop = options.start, time.monotonic() + 60 * (options.minutes or 1e9)
    while (options.stop is None or number < options.stop) and time.monotonic() < stop:
        say(case=number)
        case = make(options.seed, number, settings)
        say(text=str(case), op=case.cell.op.name, element=case.cell.element, form=case.form)
        try:
            if case.form.startswith("pullback."):
                fronts.run(case, memory)
            else:
                calls.run(case, memory)
                if case.hostile % 2 and hostile.suits(case) and hostile.run(case, memory):
                    say(hostile=True)
        except calls.Wrong as wrong:
            say(wrong=str(wrong))
        except Exception as error:
            say(wrong=f"raised {type(error).__name__}: {error}")
        number += 1
    say(end=True)


class Child:
    """A process of cases, read line by line."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "JAX_ENABLE_X64": "1", "JAX_PLATFORMS": "cpu"},
        )  # fmt: skip
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.errors: list[str] = []
        self._readers = [threading.Thread(target=f) for f in (self._read, self._read_errors)]
        for reader in self._readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        with self.process.stderr as lines:
            for line in lines:
                self.errors = [*self.errors[-60:], line.rstrip()]

    def lines(self) -> Iterator[dict[str, Any]]:
        """What the child says, until it ends; one that says nothing for long is ended."""
        while True:
            try:
                line = self._lines.get(timeout=HANG_SECONDS)
            except queue.Empty:
                self.process.kill()
                yield {"wrong": f"no end after {HANG_SECONDS} s"}
                return
            if line is None:
                return
            yield json.loads(line)

    def close(self) -> int:
        """Wait for its end; the exit code."""
        code = self.process.wait()
        for reader in self._readers:
            reader.join()
        return code

    def ending(self) -> str:
        """How it ended, in words."""
        code = self.close()
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        return "\n    ".join([f"the process died: {how}", *self.errors[:CRASH_LINES]])


class Run:
    """All cases of a run, over as many children as it takes."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.begun = time.monotonic()
        self.told = self.begun
        self.number = options.start - 1
        self.text = ""
        self.cases = self.refused = self.failures = 0
        self.ops: Counter[str] = Counter()
        self.kinds: Counter[tuple[str, str]] = Counter()
        self.forms: Counter[str] = Counter()

    def command(self, start: int) -> list[str]:
        """The child's, beginning with a case."""
        options = self.options
        words = [sys.executable, __file__, "--child", "--seed", str(options.seed)]
        words += ["--start", str(start), "--largest", str(options.largest)]
        if options.stop is not None:
            words += ["--stop", str(options.stop)]
        if options.minutes is not None:
            left = options.minutes - (time.monotonic() - self.begun) / 60
            words += ["--minutes", str(max(left, 0.0))]
        for name in ("ops", "elements"):
            if getattr(options, name):
                words += [f"--{name}", *getattr(options, name)]
        return words + ["--no-front-ends"] * options.no_front_ends

    def fail(self, what: str) -> None:
        self.failures += 1
        print(f"FAILED case {self.number} of seed {self.options.seed}: {what}\n  {self.text}\n  "
              f"again: {self.again()}", flush=True)  # fmt: skip

    def again(self) -> str:
        """The command that runs the present case alone."""
        options = self.options
        words = ["python tools/fuzz.py", f"--seed {options.seed}", f"--case {self.number}"]
        chosen = {"--ops": options.ops, "--elements": options.elements}
        words += [" ".join([flag, *names]) for flag, names in chosen.items() if names]
        words += [f"--largest {options.largest}"] * (options.largest != 1 << 21)
        return " ".join(words + ["--no-front-ends"] * options.no_front_ends)

    def take(self, said: dict[str, Any]) -> bool:
        """Count what a child says; True at its end."""
        if "case" in said:
            self.number, self.text = said["case"], "(its operands were being made)"
            self.cases += 1
        elif "text" in said:
            self.text = said["text"]
            self.ops[said["op"]] += 1
            self.kinds[said["op"], said["element"]] += 1
            self.forms[said["form"]] += 1
        elif "wrong" in said:
            self.fail(said["wrong"])
        self.refused += "hostile" in said
        if time.monotonic() - self.told > REPORT_SECONDS:
            self.told = time.monotonic()
            print(self.counts(), flush=True)
        return "end" in said

    def counts(self) -> str:
        seconds = time.monotonic() - self.begun
        rate = self.cases / max(seconds, 1e-9)
        return (
            f"{self.cases} cases in {seconds:.0f} s ({rate:.1f} a second), {len(self.ops)} ops, "
            f"{len(self.kinds)} with their element types, {self.refused} hostile calls refused, "
            f"{self.failures} failures"
        )

    def follow(self, child: Child) -> bool:
        """Take what a child says until it ends; True if it came to its end."""
        try:
            ended = False
            for said in child.lines():
                ended = self.take(said)
        except BaseException:
            child.process.kill()
            child.close()
            raise
        if not ended and child.close() != -signal.SIGKILL:
            self.fail(child.ending())
        return ended

    def all(self) -> None:
        while not self.follow(Child(self.command(self.number + 1))):
            if self.text == "":  # it died before the first case
                return
            over = self.options.minutes is not None and (
                time.monotonic() - self.begun > 60 * self.options.minutes
            )
            if over or self.number + 1 == self.options.stop:
                return


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    if options.seed is None:
        options.seed = secrets.randbelow(1 << 32)
    if options.case is not None:
        options.start, options.cases = options.case, 1
    if options.cases is not None:
        options.stop = options.start + options.cases
    if options.child:
        run_cases(options)
        return 0
    print(f"seed {options.seed}", flush=True)
    run = Run(options)
    try:
        run.all()
    except KeyboardInterrupt:
        print("interrupted")
    print(run.counts())
    print("by " + ", ".join(f"{form} {count}" for form, count in run.forms.most_common()))
    if options.case is not None:
        print(run.text)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
