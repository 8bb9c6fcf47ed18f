"""Models of a claims file after its grids and loops are expanded."""

from typing import Literal, Self

from pydantic import model_validator

from gradleak.claims.forms import Column, Query, Runs
from gradleak.claims.statement import Closed, Statement, Tolerance


class Needs(Closed):
    """Requirements of a claim on a run: real images, or a minimal scale."""

    images: Literal["real"] | None = None
    scale: Literal["smoke", "laptop", "paper"] = "smoke"


class Case(Closed):
    """Images and scale of a run."""

    images: Literal["embedded", "real"]
    scale: Literal["smoke", "laptop", "paper"]


class Claim(Statement):
    """A number or sentence of a paper, with its query and tolerance.

    A claim with `reading` ``ours`` is stricter than the paper's sentence, or covers another of our
    attacks beside the paper's number, so the paper's own table cannot refute it.
    """

    paper: str
    locator: str
    kind: Literal["value", "order", "exact"]
    query: Query
    tolerance: str
    needs: Needs = Needs()
    contradicted_by: str = ""  # place in the paper that says otherwise
    apart: bool = False  # about runs outside the paper's tables, which cannot refute it

    @property
    def is_number(self) -> bool:
        """True if the paper states it; a table's row of ours alone is not a claim of the paper."""
        return self.cell is None or self.paper_value is not None or bool(self.printed)


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
            compared = isinstance(claim.query, Runs | Column) and claim.is_number
            if compared and claim.paper_value is None and rule not in ("at_most", "at_least"):
                raise ValueError(f"claim '{claim.id}': paper_value is missing; give it")
        return self

    def numbers(self) -> list[Claim]:
        """Claims that the paper makes, in the file's order."""
        return [claim for claim in self.claims if claim.is_number]
