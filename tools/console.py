"""Run the commands shown in README.md and put what they print below them.

A block of the language ``console`` whose first line is ``$ pullback ...`` is replaced by that line
and the command's output, 120 columns wide. Times are those of the machine this runs on, so it has
to be quiet; PyTorch is compared where it is installed.

Usage: python tools/console.py [COMMAND, such as check; else all]
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCK = re.compile(r"^```console\n\$ pullback (.*?)\n.*?^```$", re.DOTALL | re.MULTILINE)


def shown(match: re.Match[str]) -> str:
    if not match[1].startswith(" ".join(sys.argv[1:])):
        return match[0]
    command = [sys.executable, "-m", "pullback", *shlex.split(match[1])]
    print(f"pullback {match[1]}", flush=True)
    run = subprocess.run(
        command,
        env={**os.environ, "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if run.returncode:
        sys.exit(f"pullback {match[1]}: exit code {run.returncode}; README.md is unchanged")
    lines = [line.rstrip() for line in run.stdout.strip("\n").splitlines()]
    return "\n".join(["```console", f"$ pullback {match[1]}", *lines, "```"])


if __name__ == "__main__":
    README.write_text(BLOCK.sub(shown, README.read_text(encoding="utf-8")), encoding="utf-8")
