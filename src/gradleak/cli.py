"""The command ``gradleak``: one subcommand each in a module of its own."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from gradleak.errors import GradleakError
from gradleak.runtime.version import __version__

# Module of each subcommand. Its docstring is what ``--help`` says. It has ``add_arguments(parser)``
# and ``run(arguments)``, which returns the exit status; `arguments` also holds ``prog``, as in
# "gradleak audit", and ``argv``. PyTorch and the like are imported in ``run``, so that ``--help``
# answers at once.
COMMANDS = {
    "audit": "gradleak_audit.command",
}


class Parser(argparse.ArgumentParser):
    """Parser that reports wrong arguments in one sentence, without the usage."""

    def error(self, message: str) -> NoReturn:
        """See `argparse.ArgumentParser`."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help.\n")


def parser() -> Parser:
    """Return the parser of all subcommands."""
    whole = Parser("gradleak", description="What do shared gradients reveal?")
    whole.add_argument("--version", action="version", version=f"gradleak {__version__}")
    commands = whole.add_subparsers(required=True, metavar="COMMAND", parser_class=Parser)
    for name, home in COMMANDS.items():
        command = import_module(home)
        words = (command.__doc__ or "").strip()
        own = commands.add_parser(
            name,
            help=words.partition("\n")[0],
            description=words,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(own)
        own.set_defaults(run=command.run, prog=own.prog)
    return whole


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit status, or 2 with one sentence if the input is wrong."""
    typed = sys.argv[1:] if argv is None else argv
    given = parser().parse_args(typed, argparse.Namespace(argv=typed))
    try:
        return int(given.run(given))
    except GradleakError as error:
        print(f"{given.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
