"""What a claim is: closed models of a claims file after its grids and loops are written out."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from gradleak.claims.queries import RULES, Closed, Column, Query, Rule, Runs


class Tolerance(Closed):
    """How far ours may be from the paper's, and why; fixed before the first recorded run.

    ``prediction`` (of one further run) and ``mean`` (of the arithmetic mean over images) use
    `level` and widen by `factor` (in MSE; for a PSNR its dB); ``factor`` compares with our median,
    or with the mean over batches. `margin` is added on both sides, for an SSIM, which may be 0.
    ``absolute``, ``at_most``, ``at_least`` and ``equivalence`` use `amount`; tests use `alpha`.
    """

    rule: Rule
    level: float = Field(default=0.95, gt=0, lt=1)
    alpha: float = Field(default=0.05, gt=0, lt=1)
    factor: float = Field(default=1.0, ge=1)
    margin: float = Field(default=0.0, ge=0)
    amount: float | None = None
    reason: str = Field(min_length=1)

    @model_validator(mode="after")
    def _amount_given(self) -> Tolerance:
        if self.amount is None and self.rule in ("absolute", "at_most", "at_least", "equivalence"):
            raise ValueError(f"rule {self.rule} needs an amount")
        return self


class Needs(Closed):
    """What a claim's judgement needs: the real images, or at least a scale."""

    images: Literal["real"] | None = None
    scale: Literal["smoke", "laptop", "paper"] = "smoke"


class Cell(Closed):
    """Where a number stands in one of our tables."""

    grid: str
    table: str
    row: str
    column: str
    metric: str


class Case(Closed):
    """Images and scale of a run."""

    images: Literal["embedded", "real"]
    scale: Literal["smoke", "laptop", "paper"]


class Claim(Closed):
    """One number or one sentence of a paper, and how ours is found and judged.

    A claim whose `reading` is ``ours`` is stricter than the paper's sentence, or another of our
    attacks beside the paper's number, so the paper's own table cannot refute it. `spread` is what
    the paper prints after ±, `printed` a number or the words of a cell as it prints them, and
    `contradicted_by` the place in the paper that says otherwise. A sentence that stands `apart` is
    about other runs than the paper's tables, which cannot refute it.
    """

    id: str = Field(min_length=1)
    paper: str
    locator: str
    kind: Literal["value", "order", "exact"]
    statement: str
    paper_value: float | None = None
    decimals: int | None = None
    spread: float = Field(default=0.0, ge=0)
    printed: str = ""
    query: Query
    tolerance: str
    needs: Needs = Needs()
    reading: Literal["paper", "ours"] = "paper"
    contradicted_by: str = ""
    apart: bool = False
    cell: Cell | None = None

    @property
    def rounding(self) -> float:
        """Half a unit of the last printed digit, 0 where none is stated."""
        return 0.0 if self.decimals is None else 0.5 * 10.0**-self.decimals

    @property
    def shown(self) -> str:
        """The paper's value as it prints it, or with four decimals."""
        value = self.paper_value
        return self.printed or ("" if value is None else f"{value:.4f}")

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
            rule = self.tolerances[claim.tolerance].rule
            allowed = RULES[claim.query.form]
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
