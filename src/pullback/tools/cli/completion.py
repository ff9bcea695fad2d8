"""``pullback completion``."""

from __future__ import annotations

import os

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")

EPILOG = """
\b
Examples:
  eval "$(pullback completion bash)"        in ~/.bashrc
  eval "$(pullback completion zsh)"         in ~/.zshrc
  pullback completion fish > ~/.config/fish/completions/pullback.fish
"""


@click.command("completion", epilog=EPILOG)
@click.argument("shell", type=click.Choice(SHELLS), required=False, metavar="[SHELL]")
def command(shell: str | None) -> None:
    """Print the completion script of SHELL (bash, zsh or fish), or of the shell in use."""
    if shell is None:
        shell = os.path.basename(os.environ.get("SHELL", ""))
        if shell not in SHELLS:
            raise click.ClickException(f"which shell? one of {', '.join(SHELLS)}")
    from .root import main

    made = get_completion_class(shell)
    if made is None:
        raise click.ClickException(f"no completion for {shell}")
    click.echo(made(main, {}, "pullback", "_PULLBACK_COMPLETE").source())
