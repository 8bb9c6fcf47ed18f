"""The command ``gradleak``: one subcommand each in a module of its own."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from gradleak.errors import GradleakError
from gradleak.runtime.version import __version__

# Module of each subcommand, and its words for ``gradleak --help``. It is imported only if it is
# asked for. Its docstring is what ``gradleak audit --help`` says. It has ``add_arguments(parser)``
# and ``run(arguments)``, which returns the exit status; `arguments` also holds ``prog``, as in
# "gradleak audit", and ``argv``.
COMMANDS = {
    "audit": ("gradleak_audit.command", "what the gradients of a network of yours reveal"),
    "claim": ("gradleak.claims.show", "one recorded claim of the papers"),
}


class Parser(argparse.ArgumentParser):
    """Parser that reports wrong arguments in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser`."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help.\n")


def parser(asked: str = "") -> Parser:
    """Return the parser of all subcommands; only that of the one `asked` for is complete."""
    whole = Parser("gradleak", description="What do shared gradients reveal?")
    whole.add_argument("--version", action="version", version=f"gradleak {__version__}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for name, (home, words) in COMMANDS.items():
        own = commands.add_parser(name, help=words)
        if name == asked:
            command = import_module(home)
            own.description = command.__doc__
            own.formatter_class = argparse.RawDescriptionHelpFormatter
            command.add_arguments(own)
            own.set_defaults(run=command.run, prog=own.prog)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit status, or 2 with one sentence if the input is wrong."""
    typed = sys.argv[1:] if argv is None else argv
    try:
        given = parser(typed[0] if typed else "").parse_args(typed, argparse.Namespace(argv=typed))
        return int(given.run(given))
    except GradleakError as error:
        print(f"gradleak {typed[0]}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # ``gradleak … | head``; Python would complain again at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


if __name__ == "__main__":
    sys.exit(main())
