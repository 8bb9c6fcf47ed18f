"""Models of a claims file after its grids and loops are expanded."""

from typing import Literal, Self

from pydantic import Field, model_validator

from gradleak.claims.forms import Column, Query, Runs
from gradleak.claims.statement import Closed, Statement, Tolerance
from gradleak.settings.fields import Scale

# Kind of a claim that follows from sizes or settings alone.
DEFINITION = "definition"


class Needs(Closed):
    """Requirements of a claim on a run: real images, or a minimal scale."""

    images: Literal["real"] | None = None
    scale: Scale = "smoke"
    why: str = ""  # what a smaller scale lacks


class Nothing(Closed):
    """A limit of a metric at which an attack found nothing: worse than that, or as bad."""

    metric: str
    at_most: float | None = None
    at_least: float | None = None
    reason: str = Field(min_length=1)  # where the limit comes from

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if (self.at_most is None) == (self.at_least is None):
            raise ValueError("at_most and at_least exclude each other; give one of them")
        return self

    def includes(self, value: float) -> bool:
        """True if a value shows that nothing was found."""
        if self.at_most is not None:
            return value <= self.at_most
        return self.at_least is not None and value >= self.at_least


class Case(Closed):
    """Images and scale of a run."""

    images: Literal["embedded", "real"]
    scale: Scale


class Sentence(Closed):
    """A sentence that is judged in parts, all or most of which have to hold."""

    id: str = Field(min_length=1)
    statement: str = Field(min_length=1)
    holds: Literal["all", "most"] = "all"


class Claim(Statement):
    """A number or sentence of a paper, with its query and tolerance.

    A claim with `whose` ``ours`` is stricter than the paper's sentence or adds to it, so that the
    paper's own table cannot refute it. One of kind ``definition`` follows from sizes or settings
    alone; that it holds is counted by itself.
    """

    paper: str
    locator: str
    kind: Literal["value", "order", "exact", "definition"]
    query: Query
    tolerance: str
    needs: Needs = Needs()
    contradicted_by: str = ""  # place in the paper that says otherwise
    # What a verdict on either side needs besides: a longer attack may find what a short one misses.
    to_hold: Needs = Needs()
    to_fail: Needs = Needs()
    # Where neither we nor the paper found anything.
    nothing: list[Nothing] = Field(default_factory=list)
    nothing_as: str = ""  # a claim; where that finds nothing, this says nothing either
    repeats: str = ""  # cell with the same runs' number in another unit, which is judged
    apart: bool = False  # about runs outside the paper's tables, which cannot refute it
    part_of: Sentence | None = None  # the sentence, if this is one of its parts

    @property
    def sentence(self) -> Sentence | None:
        """Sentence of the paper that this is a part of; what is of ours stands by itself."""
        return self.part_of if self.whose == "paper" else None

    @property
    def is_judged(self) -> bool:
        """True for sentences, and for the paper's numbers that repeat no other.

        Other cells only stand in a table: rows of ours alone or beside a number, and repetitions.
        """
        if self.cell is None:
            return True
        stated = self.paper_value is not None or bool(self.printed)
        return stated and self.whose == "paper" and not self.repeats


class Claims(Closed):
    """An expanded claims file: one claim for each number and sentence."""

    paper: str
    tolerances: dict[str, Tolerance]
    claims: list[Claim]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        seen: set[str] = set()
        for claim in self.claims:
            if claim.id in seen:
                raise ValueError(f"claim '{claim.id}': the id is there twice; rename one")
            seen.add(claim.id)
            if claim.tolerance not in self.tolerances:
                raise ValueError(
                    f"claim '{claim.id}': tolerance '{claim.tolerance}' is not one of "
                    f"{', '.join(self.tolerances)}; define it or use one of these"
                )
            rule, allowed = self.tolerances[claim.tolerance].rule, claim.query.rules
            if rule not in allowed:
                raise ValueError(
                    f"claim '{claim.id}': tolerance '{claim.tolerance}' has rule {rule}, but a "
                    f"query of form {claim.query.form} takes {', '.join(allowed)}; use one of these"
                )
            compared = isinstance(claim.query, Runs | Column) and claim.is_judged
            if compared and claim.paper_value is None and rule not in ("at_most", "at_least"):
                raise ValueError(f"claim '{claim.id}': paper_value is missing; give it")
            if fault := claim.query.fault(claim, self.tolerances[claim.tolerance]):
                raise ValueError(f"claim '{claim.id}': {fault}")
        self._sentences_consistent(seen)
        alone = {claim.id for claim in self.claims if not claim.nothing_as}
        for claim in self.claims:
            if claim.nothing_as and claim.nothing_as not in alone:
                raise ValueError(
                    f"claim '{claim.id}': nothing_as '{claim.nothing_as}' is no claim's id, or of "
                    f"one that has nothing_as itself; correct it"
                )
        return self

    def _sentences_consistent(self, ids: set[str]) -> None:
        sentences: dict[str, Sentence] = {}
        for one in (claim.sentence for claim in self.claims):
            if one is None:
                continue
            if one.id in ids:
                raise ValueError(f"part_of '{one.id}': a claim has this id; rename the sentence")
            if sentences.setdefault(one.id, one) != one:
                raise ValueError(
                    f"part_of '{one.id}': the sentence is written in two ways; write it once, "
                    f"with an anchor"
                )

    def judged(self) -> list[Claim]:
        """Claims with a verdict of their own, in the file's order."""
        return [claim for claim in self.claims if claim.is_judged]
