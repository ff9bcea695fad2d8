"""Consoles, progress bars and files, the same for every command."""

from __future__ import annotations

import json
import os
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


def console() -> Console:
    """Where results go. Wide enough for the tables when it is not a terminal."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(highlight=False, markup=False, emoji=False, width=wide)


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
    return Progress(*columns, console=where, transient=True, disable=not where.is_terminal)


def ensure_writable(path: Path | None) -> None:
    """Fail now rather than after the work, if a file cannot be made there."""
    if path is None or str(path) == "-":
        return
    folder = path.parent
    if not folder.is_dir():
        raise click.ClickException(f"{path}: the folder {folder} does not exist")
    if path.is_dir():
        raise click.ClickException(f"{path}: is a folder")
    if not os.access(path if path.exists() else folder, os.W_OK):
        raise click.ClickException(f"{path}: is not writable")


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file under its name only when it is whole."""
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
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    if str(path) == "-":
        click.echo(text, nl=False)
    else:
        write_atomically(path, text.encode())


def read_json(path: Path) -> Any:
    """Read a report."""
    try:
        return json.loads(path.read_text())
    except (ValueError, UnicodeDecodeError):
        raise click.ClickException(f"{path}: is not a JSON file") from None


FILE = click.Path(path_type=Path, dir_okay=False)
EXISTING = click.Path(path_type=Path, dir_okay=False, exists=True)
