"""``python -m pullback``."""

from .tools.cli import main

if __name__ == "__main__":
    main(prog_name="pullback")
