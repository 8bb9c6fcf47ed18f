"""Errors that a user can act on.

Every message is one sentence that names the key or file, the value found and the remedy.
"""

from importlib.util import find_spec


class GradleakError(Exception):
    """Base of all errors caused by the input rather than the program."""


class ConfigError(GradleakError):
    """A key of ``config.yaml`` or of a claims file has an unusable value."""


class DataError(GradleakError):
    """A data file is missing, truncated, altered, or has unexpected contents."""


class ArtifactError(GradleakError):
    """A file of the pipeline cannot be read or written."""


class MemoryShortage(GradleakError):
    """A job needs more memory than it may use."""


class NumericsError(GradleakError):
    """A computation met NaN, an overflow or a zero where it needs a number."""


class NotApplicable(GradleakError):
    """An attack does not apply to this model or gradient; the message says why."""


class NotebookError(GradleakError):
    """A notebook's cell failed; the message names the notebook, the cell and its error."""


class MissingExtra(GradleakError, ImportError):
    """A package is not installed that only an extra of gradleak brings; the message names it."""


def require_extra(extra: str, package: str) -> None:
    """Raise `MissingExtra` unless a package can be imported, which is not imported by this."""
    if find_spec(package) is None:
        raise MissingExtra(
            f"{package} is not installed; it comes with gradleak's extra '{extra}': pip install "
            f'".[{extra}]" in a checkout, or "FILE.whl[{extra}]".'
        )
