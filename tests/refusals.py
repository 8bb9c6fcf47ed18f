"""Errors as users see them: one sentence, which names what is wrong."""

import re
from contextlib import contextmanager

import pytest

from gradleak.errors import DataError


@contextmanager
def refused(*parts, kind=DataError):
    """Expect an error of a `kind` whose sentence has all `parts`."""
    with pytest.raises(kind) as error:
        yield
    text = str(error.value)
    # But for what is quoted, and SqueezeNet 1.1.
    own = re.sub(r"\(.*?\)", "", text).replace("1.1 ", "")
    assert text.endswith(".") and "\n" not in text and ". " not in own
    for part in parts:
        assert str(part) in text
