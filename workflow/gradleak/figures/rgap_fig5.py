"""R-GAP Figure 5: twin data, and where DLG ends from different starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gradleak.figures import diagrams, missing
from gradleak.figures.answers import Answer, Content, caption
from gradleak.figures.pictures import SMALL, TITLE, Page, draw_pixels, under
from gradleak.figures.style import BLUE, CROSS, GREY, ORANGE, PAGE, YELLOW, styled
from gradleak.metrics.image import AT_TWIN, INVISIBLE

# Inches: the column of labels, gaps, headings, the words under a picture, the panels below.
LABEL, GAP, HEAD, UNDER, PANEL_HEAD, BAR = 0.82, 0.05, 0.34, 0.28, 0.42, 0.24
SHOWN = 0
NEAR = 0.01  # of the squared distance of image and twin: what the squared error is below near one
SPAN = (2, 98)  # percentiles that the stretched pictures have in common with the original
WIDEST = 1.0  # inches of a picture's side
SHIFT = 1.6  # inches to the panels
NEAR_TWIN = "near the twin"
ENDS = ("real image", "twin", NEAR_TWIN, "elsewhere", "failed")
LOOKS: tuple[dict[str, Any], ...] = (
    {"facecolor": BLUE},
    {"facecolor": ORANGE},
    {"facecolor": YELLOW},
    {"facecolor": CROSS},
    {"facecolor": "white", "hatch": "////"},
)


def make(files: Mapping[str, Any], words: Mapping[str, Any], scale: str) -> Figure:
    """Figure from files.

    Parameters
    ----------
    files
        ``targets``, and ``reconstructions`` and ``scores`` of the same runs.
    words
        ``chains`` (descriptions of the networks; pictures are of the first), ``names`` of them,
        ``attacks`` with their headings; one that gives twins shows both of its answers.
    scale
        Scale of the run.

    Raises
    ------
    ArtifactError
        If a file lacks what the figure shows.
    """
    content = Content.read(files, words)
    chains, attacks = content.chains, content.attacks
    columns = _columns(content, chains[0].name)
    side = min((PAGE - LABEL) / (len(columns) + 1) - GAP, WIDEST)
    panels = HEAD + 2 * (side + UNDER) + 0.08
    known = _known_ends(content)
    with styled():
        page = Page.new(
            "Twin data: another image with the same gradient (R-GAP Figure 5)",
            _footer(content, known, scale),
            panels + PANEL_HEAD + BAR * len(attacks) + 0.4,
        )
        _pictures(page, side, content, columns)
        width = (PAGE - SHIFT - 0.1 - 0.25 * (len(chains) - 1)) / len(chains)
        for place, chain in enumerate(chains):
            left, top = SHIFT + place * (width + 0.25), TITLE + panels + PANEL_HEAD
            axes = page.axes(left, top, width, BAR * len(attacks))
            counts = {attack: ends(content, chain.name, attack) for attack in attacks}
            _bars(axes, counts, list(attacks.values()) if place == 0 else None)
            title = f"{content.name(chain)}, {diagrams.index_words(chain)}"
            axes.set_title(title, loc="left", pad=3)
        _legend(page, TITLE + panels + 0.12, known)
        missing.explain(page.figure)
    return page.figure


def _known_ends(content: Content) -> list[str]:
    """Ends that the legend names: those that answers, other roots too, came to, and the usual ones.

    To end near the twin is left out where nothing does.
    """
    inputs = content.originals.inputs
    met = {
        end_of(row, inputs(int(row["batch"]))[0])
        for chain in content.chains
        for attack in content.attacks
        for _, row in content.answers.rows(chain.name, attack, chosen=False).iterrows()
    }
    return [end for end in ENDS if end != NEAR_TWIN or end in met]


def _footer(content: Content, known: list[str], scale: str) -> str:
    near = (
        f", and near the twin if its squared error to the twin is below {100 * NEAR:g} % of the "
        "squared distance between the two: then noise hides the faint twin"
    )
    return (
        f"Network of the pictures: {content.name(content.chains[0])}. The twin is the image times "
        f"μ̃/μ. Lower row: values stretched linearly so that percentiles {SPAN[0]} and {SPAN[1]} "
        "are the original's. An answer is at the real image if its MSE is at most "
        f"{INVISIBLE:g}, else at the twin if its distance to the twin is at most {AT_TWIN:g} of "
        f"the twin's norm{near if NEAR_TWIN in known else ''}. {content.describe(scale)}"
    )


def _columns(content: Content, model: str) -> list[tuple[str, Answer | None]]:
    """Headings and answers: both roots of R-GAP, the own choice of the others."""
    found = []
    for attack, heading in content.attacks.items():
        first = content.answers.find(model, attack, SHOWN)
        if _has_twins(content, model, attack):
            other = content.answers.find(model, attack, SHOWN, answer=1)
            found += [(f"{heading},\nits choice", first), (f"{heading},\nthe other root", other)]
        else:
            found.append((heading, first))
    return found


def _pictures(
    page: Page, side: float, content: Content, columns: list[tuple[str, Answer | None]]
) -> None:
    """As they are above, stretched to the original's range below."""
    original = content.originals.inputs(SHOWN)[0]
    tops = (TITLE + HEAD, TITLE + HEAD + side + UNDER)
    for top, label in zip(tops, ("As it is", "Stretched"), strict=True):
        page.text(0.06, top + side / 2, label, va="center", weight="bold")
        content.draw_original(page.picture(LABEL, top, side), SHOWN)
    names = ["Original", *(heading for heading, _ in columns)]
    for place, heading in enumerate(names):
        middle = LABEL + place * (side + GAP) + side / 2
        page.text(middle, tops[0] - 0.04, heading, ha="center", va="bottom", fontsize=6)
    for words, top in zip(("MSE to the real image:", "MSE to the twin:"), tops, strict=True):
        page.text(0.06, top + side + 0.075, words, fontsize=SMALL, color=GREY, va="center")
    for place, (_, answer) in enumerate(columns, start=1):
        left = LABEL + place * (side + GAP)
        axes = page.picture(left, tops[0], side)
        content.show(axes, answer)
        under(axes, caption(answer))
        axes = page.picture(left, tops[1], side)
        if answer is not None and answer.ok:
            stretched = _stretched(answer.images[0], original)
            draw_pixels(axes, content.originals.pixels(stretched))
            where = end_of(answer.scores.iloc[0], original)
            at = f"at the {where}" if where in ENDS[:2] else where
            under(axes, caption(answer, "mse_twin"), at)
        else:
            content.show(axes, answer)
            under(axes, caption(answer))


def _stretched(image: np.ndarray, like: np.ndarray) -> np.ndarray:
    """`image` with percentiles `SPAN` of its values moved to those of `like`."""
    low, high = np.percentile(image, SPAN)
    bottom, top = np.percentile(like, SPAN)
    out: np.ndarray = (image - low) / max(high - low, 1e-12) * (top - bottom) + bottom
    return out


def end_of(row: pd.Series, original: np.ndarray) -> str:
    """Where a run ended, one of `ENDS`.

    Parameters
    ----------
    row
        Its scores: ``status``, ``mse``, and where there is a twin ``mse_twin``, ``twin_error``
        and ``twin_scale``.
    original
        The real image on the input's scale.
    """
    if row["status"] != "ok":
        return "failed"
    if row["mse"] <= INVISIBLE:
        return "real image"
    if "mse_twin" not in row:
        return "elsewhere"
    if row["twin_error"] <= AT_TWIN:
        return "twin"
    apart = float(np.mean(original**2)) * (1 - row["twin_scale"]) ** 2
    return NEAR_TWIN if row["mse_twin"] < NEAR * apart else "elsewhere"


def ends(content: Content, model: str, attack: str) -> list[int]:
    """How many answers of an attack ended where, in the order of `ENDS`.

    All starts count; of an attack that gives both roots, only its own choice.
    """
    rows = content.answers.rows(model, attack, chosen=_has_twins(content, model, attack))
    inputs = content.originals.inputs
    found = [end_of(row, inputs(int(row["batch"]))[0]) for _, row in rows.iterrows()]
    return [found.count(end) for end in ENDS]


def _has_twins(content: Content, model: str, attack: str) -> bool:
    """Whether an attack gives the twin as an answer of its own."""
    rows = content.answers.rows(model, attack, chosen=False)
    return bool((rows["kind"] == "twin").any())


def _bars(axes: Axes, counts: Mapping[str, list[int]], labels: list[str] | None) -> None:
    """Stacked shares of where runs ended, a bar for each attack, with the counts inside."""
    for height, row in enumerate(counts.values()):
        total, left = sum(row), 0.0
        for count, look in zip(row, LOOKS, strict=True):
            share = count / total
            axes.barh(height, share, 0.68, left, edgecolor=GREY, linewidth=0.4, **look)
            if count:
                axes.text(
                    left + share / 2,
                    height,
                    str(count),
                    ha="center",
                    va="center_baseline",
                    fontsize=SMALL,
                    color="white" if look is LOOKS[0] else "black",
                    bbox=None
                    if look is not LOOKS[-1]
                    else {"facecolor": "white", "lw": 0, "pad": 1},
                )
            left += share
    axes.set(xlim=(0, 1), ylim=(len(counts) - 0.5, -0.5), yticks=range(len(counts)))
    axes.set_yticklabels([label.replace("\n", " ") for label in labels] if labels else [])
    axes.set_xticks((0, 0.25, 0.5, 0.75, 1), ("0", "25", "50", "75", "100"))
    axes.grid(False, axis="y")
    axes.set_xlabel("share of answers in %, all images and starts")


def _legend(page: Page, top: float, known: list[str]) -> None:
    page.text(0.06, top, "Where they end:", weight="bold", va="center")
    looks = dict(zip(ENDS, LOOKS, strict=True))
    for place, end in enumerate(known):
        look = looks[end]
        left = SHIFT + 1.05 * place
        axes = page.axes(left, top - 0.05, 0.16, 0.1)
        axes.set(xticks=[], yticks=[], xlim=(0, 1), ylim=(0, 1))
        axes.bar(0.5, 1, 1, edgecolor=GREY, linewidth=0.4, clip_on=False, **look)
        axes.axis("off")
        page.text(left + 0.21, top, end, va="center", fontsize=6.5)
