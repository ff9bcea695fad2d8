"""Consoles, progress bars and files, the same for every command."""

from __future__ import annotations

import json
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from .encoding import has_all_characters


def console() -> Console:
    """Where results go. Wide enough for the tables when it is not a terminal."""
    return Console(highlight=False, markup=False, emoji=False, width=_width())


def _width() -> int:
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given) > 0:
        return int(given)
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return shutil.get_terminal_size().columns if terminal else 160


def error_console() -> Console:
    """Where progress goes."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextmanager
def steps(total: int) -> Iterator[tuple[Progress, Any]]:
    """A progress bar over so many steps, gone when it ends."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("elapsed,"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    with bar(*columns) as progress:
        yield progress, progress.add_task("", total=total)


def bar(*columns: ProgressColumn) -> Progress:
    """A progress bar on stderr that is gone when it ends; silent where that is no terminal."""
    where = error_console()
    return _Bar(*columns, console=where, transient=True, disable=not where.is_terminal)


class _Bar(Progress):
    def stop(self) -> None:
        # Rich 13 ends a bar that it never showed with an empty line.
        if not self.disable:
            super().stop()


def ensure_all_writable(*paths: Path | None) -> None:
    """Fail now rather than after the work, if a file cannot be made or is named twice."""
    seen: set[Path] = set()
    for path in paths:
        ensure_writable(path)
        if path is not None and path.resolve() in seen:
            raise click.ClickException(f"{path}: is named for two outputs")
        if path is not None and not _is_special(path):
            seen.add(path.resolve())


def ensure_writable(path: Path | None) -> None:
    """Fail now rather than after the work, if a file cannot be made there."""
    if path is None or str(path) == "-":
        return
    folder = path.parent
    if not folder.is_dir():
        raise click.ClickException(f"{path}: the folder {folder} does not exist")
    if path.is_dir():
        raise click.ClickException(f"{path}: is a folder")
    if path.exists() and not os.access(path, os.W_OK):
        raise click.ClickException(f"{path}: is not writable")
    if not _is_special(path) and not os.access(path.resolve().parent, os.W_OK):
        raise click.ClickException(f"{path}: the folder {folder} is not writable")


def _is_special(path: Path) -> bool:
    """Whether it is a device or a pipe, which is written to and not replaced."""
    return path.exists() and not stat.S_ISREG(path.stat().st_mode)


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under its name only when it is whole; behind a link, the file it points to."""
    if _is_special(path):
        path.write_bytes(data)
        return
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write a report to a file, or to standard output for "-"."""
    if str(path) == "-":
        print_json(report)
    else:
        text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
        write_atomically(path, text.encode())


def print_json(report: Any) -> None:
    """Write data to standard output, escaped where that is not UTF-8."""
    text = json.dumps(report, indent=1, ensure_ascii=not has_all_characters())
    click.echo(text, file=sys.stdout)


def read_json(path: Path) -> Any:
    """Read a report."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        raise click.ClickException(f"{path}: is not a JSON file") from None


FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True)
