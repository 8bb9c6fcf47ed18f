"""The honest server, which needs no job: clients get the model's own weights."""

from typing import Literal

from gradleak.settings.fields import Method


class HonestServer(Method):
    """The model's own weights."""

    method: Literal["honest"] = "honest"
