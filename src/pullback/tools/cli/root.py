"""The group of commands: each is imported when it is asked for, and fails in one line."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from ... import __version__
from ...errors import PullbackError
from .encoding import write_anything

# Name -> one line of help, so that listing the commands imports none of them.
COMMANDS = {
    "ops": "List every op with what it saves, its dtypes and edge cases.",
    "explain": "Explain one op: formula, derivation, kernel and an example.",
    "check": "Certify this installation against a high-precision oracle.",
    "bench": "Measure speed against a copy and against other libraries.",
    "run": "Run an op on files, even files larger than memory.",
    "warmup": "Compile kernels before they are first used.",
    "env": "Show versions, CPU, cache and threads, for a bug report.",
    "completion": "Print a completion script for bash, zsh or fish.",
}

# Packages that commands import and nothing else does.
NEEDED = ("rich", "mpmath")

EXAMPLES = """
\b
Examples:
  pullback ops --family scan
  pullback explain cumprod_backward
  pullback check softmax
  pullback bench --quick
  pullback run softmax_backward --dy dy.npy --y y.npy --out dx.npy
"""


class Commands(click.Group):
    """Loads a command from the module of its name; turns errors into one line and exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order of the table."""
        return list(COMMANDS)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, but an unknown name is answered with those nearest to it."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, 2)
            hint = f"did you mean {', '.join(near)}?" if near else "pullback --help lists them"
            raise click.UsageError(f"unknown command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f".{cmd_name}", __package__).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and leave with 0, with what a command asks for, or with 2 after one line."""
        write_anything()
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.Abort:
            fail("interrupted", 130)
        except click.ClickException as error:
            fail(error.format_message())
        except PullbackError as error:
            fail(str(error))
        except ModuleNotFoundError as error:
            if error.name == "fcntl":
                fail("this command needs a POSIX system, such as Linux: it locks files")
            # What only the command line needs; the library does without.
            if error.name is None or error.name.partition(".")[0] not in NEEDED:
                raise
            fail(f"this command needs {error.name}: pip install {error.name.partition('.')[0]}")
        except MemoryError:
            fail("not enough memory")
        except BrokenPipeError:
            # The reader has gone; nothing more can be said, not even by the flush at exit.
            sys.stdout = None
            sys.exit(1)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            fail(f"{where}{error.strerror or error}")
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def fail(message: str, code: int = 2) -> NoReturn:
    """Say one line on stderr and leave."""
    line = " ".join(message.split())
    # Named, since click would write UTF-8 to a stream that says it is ASCII.
    click.echo(f"pullback: {line}", file=sys.stderr, err=True)
    sys.exit(code)


@click.group(
    cls=Commands,
    help="Gradient kernels for scans, recurrences, reductions, softmax, lerp, segments and losses.",
    epilog=EXAMPLES,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="pullback")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Without a command, help."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())
