"""Errors that a user can act on.

Every message is one sentence that names the key or file, the value found and the remedy.
"""


class GradleakError(Exception):
    """Base of all errors that are the input's fault, not the program's."""


class ConfigError(GradleakError):
    """A key of ``config.yaml`` or of a claims file has a value that cannot be used."""


class DataError(GradleakError):
    """A data file is missing, truncated, altered, or holds something else than expected."""


class ArtifactError(GradleakError):
    """A file of the pipeline cannot be read or written."""


class MemoryShortage(GradleakError):
    """A job needs more memory than it may have."""


class NumericsError(GradleakError):
    """A computation met NaN, an overflow or a zero where it needs a number."""


class NotApplicable(GradleakError):
    """An attack cannot be run on this model or gradient; the message says why."""


class NotebookError(GradleakError):
    """A notebook's cell fails; the message names the notebook, the cell and its error."""
