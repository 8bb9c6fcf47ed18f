"""Updates of clients whose recipe is not known: each candidate is tried, and the best explains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf, isfinite, log
from typing import TYPE_CHECKING, Any

from torch import nn

from gradleak.errors import GradleakError, NumericsError
from gradleak.library.check import check
from gradleak.library.update import Update

if TYPE_CHECKING:
    from gradleak.library.attacker import Inversion

# A recipe whose update of noise is this many times larger or smaller than the client's is not
# tried: images differ from noise by less (`check` names factors from 1.6 on).
FAR = 4.0
# Share of a search's steps that are spent on each candidate.
TRIED = 0.05
FEWEST = 50

# Attacks one update: with all of its steps, or with some.
Attempt = Callable[[Update, bool], "Inversion"]


def among(plausible: Sequence[Update], attempt: Attempt) -> Inversion:
    """Attack under each candidate, and under the one whose images explain most of the update.

    Raises the first error if no candidate can be attacked.
    """
    best, least, errors = plausible[0], inf, []
    if len(plausible) > 1:
        for one in plausible:
            try:
                found = attempt(one, True)
            except GradleakError as error:
                errors.append(error)
                continue
            distance = found.distance if isfinite(found.distance) else inf
            if distance < least:
                best, least = one, distance
        if len(errors) == len(plausible):
            raise errors[0]
    return attempt(best, False)


def plausible(
    update: Update, model: nn.Module, input_shape: Sequence[int], known: dict[str, Any]
) -> list[Update]:
    """Return the update under each recipe that noise does not speak against; at least one."""
    recipes = (update.recipe, *update.candidates)
    each = [replace(update, recipe=recipe, candidates=()) for recipe in recipes]
    apart = []
    for one in each:
        try:
            ratio = check(one, model, input_shape, **known).ratio
        except NumericsError:
            ratio = 0.0
        apart.append(abs(log(ratio)) if isfinite(ratio) and ratio > 0 else inf)
    near = [one for one, size in zip(each, apart, strict=True) if size <= log(FAR)]
    return near or [each[apart.index(min(apart))]]


def fewer(iterations: int) -> int:
    """Steps of a search that is only to tell candidates apart."""
    return min(iterations, max(FEWEST, int(TRIED * iterations)))
