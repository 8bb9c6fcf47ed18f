"""What a claim is: closed models of a claims file after its grids and loops are written out."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from gradleak.claims.forms import Column, Query, Runs
from gradleak.claims.statement import Closed, Statement, Tolerance


class Needs(Closed):
    """What a claim's judgement needs: the real images, or at least a scale."""

    images: Literal["real"] | None = None
    scale: Literal["smoke", "laptop", "paper"] = "smoke"


class Case(Closed):
    """Images and scale of a run."""

    images: Literal["embedded", "real"]
    scale: Literal["smoke", "laptop", "paper"]


class Claim(Statement):
    """One number or one sentence of a paper, and how ours is found and judged.

    A claim whose `reading` is ``ours`` is stricter than the paper's sentence, or another of our
    attacks beside the paper's number, so the paper's own table cannot refute it. `spread` is what
    the paper prints after ±, `printed` a number or the words of a cell as it prints them, and
    `contradicted_by` the place in the paper that says otherwise. A sentence that stands `apart` is
    about other runs than the paper's tables, which cannot refute it.
    """

    paper: str
    locator: str
    kind: Literal["value", "order", "exact"]
    query: Query
    tolerance: str
    needs: Needs = Needs()
    contradicted_by: str = ""
    apart: bool = False

    @property
    def is_number(self) -> bool:
        """Whether the paper states something; a table's row of ours alone does not."""
        return self.cell is None or self.paper_value is not None or bool(self.printed)


class Claims(Closed):
    """A claims file, written out: one claim for each number and sentence."""

    paper: str
    tolerances: dict[str, Tolerance]
    claims: list[Claim]

    @model_validator(mode="after")
    def _consistent(self) -> Claims:
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
