"""Tables as LaTeX, with booktabs: results/tables/{table}.tex, with the caption of results.yaml."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from math import floor, isinf, log10
from pathlib import Path
from textwrap import wrap

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from gradleak.claims.metrics import label
from gradleak.errors import ConfigError
from gradleak.pipeline.results.schema import Entry, load
from gradleak.reporting.captions import SETTINGS
from gradleak.reporting.page_text import LARGE, SMALL, capital
from gradleak.runtime import tidy
from gradleak.runtime.artifacts import FilePath, atomic, read_csv

DIGITS, EXACT = 4, 10  # significant, as on the report's page, and as in the paper's numbers
WIDE = 10  # most columns of numbers
HEADING = 16  # letters in a line of a heading
LONG = 40  # rows above which a table runs over several pages
NONE, BREAK = "--", r"\\ "
# As wide as it is, and at most as the page's text.
FITTED = r"\resizebox{\ifdim\width>\textwidth\textwidth\else\width\fi}{!}"
# Columns of a tidy table that does not fit a page with a row for each of its rows.
LISTED = ["row", "column", "metric", "paper", "ours", "low", "high", "n", "verdict"]

CHARACTERS = str.maketrans(
    {character: f"\\{character}" for character in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "½": "1/2"}
    | {
        symbol: f"$\\{name}$"
        for symbol, name in {
            "±": "pm", "×": "times", "≤": "le", "≥": "ge", "≈": "approx", "·": "cdot", "→": "to",
            "∞": "infty", "∂": "partial", "ℓ": "ell", "Σ": "Sigma", "Δ": "Delta",
        }.items()
    }
    | {"−": "$-$"}
)  # fmt: skip
HOW = {"<super>": "textsuperscript", "<sub>": "textsubscript"}


def escape(text: str) -> str:
    """Write text for LaTeX: special characters, Greek letters, what is raised or lowered."""
    return "".join(_command(character) or character.translate(CHARACTERS) for character in text)


def _command(character: str) -> str:
    """Command for a character that `CHARACTERS` does not list; empty if it needs none."""
    kind, _, code = unicodedata.decomposition(character).partition(" ")
    if kind in HOW:
        return f"\\{HOW[kind]}{{{escape(chr(int(code, 16)))}}}"
    before, _, name = unicodedata.name(character, "").partition("GREEK SMALL LETTER ")
    return f"$\\{name.lower()}$" if name and not before else ""


def numbers(values: pd.Series) -> pd.Series:
    """Format numbers of one kind: all with the same few decimals if these are exact."""
    found = pd.to_numeric(values, errors="coerce")
    texts = [f"{value:.{EXACT}g}" for value in found[np.isfinite(found)]]
    most = max((len(text.partition(".")[2]) for text in texts), default=0)
    few = most <= DIGITS and not any("e" in text for text in texts)
    return values.map(lambda value: number(value, most if few else None)).astype(object)


def number(value: object, decimals: int | None = None) -> str:
    """Format a number, by default with `DIGITS` significant digits; text stays what it is."""
    if pd.isna(value) or isinstance(value, str):  # type: ignore[call-overload]
        return escape(value) if isinstance(value, str) else NONE
    found = float(value)  # type: ignore[arg-type]
    if isinf(found):
        return r"$\infty$" if found > 0 else r"$-\infty$"
    if found == 0:
        return "0"
    if decimals is not None:
        return _signed(f"{found:.{decimals}f}")
    rounded = float(f"{abs(found):.{DIGITS - 1}e}")
    if SMALL <= rounded < LARGE:
        return _signed(f"{found:.{max(DIGITS - 1 - floor(log10(rounded)), 0)}f}")
    return _signed(f"{found:.{DIGITS - 1}e}")


def printed(value: object) -> str:
    """Format a number of the paper with its own digits."""
    text = isinstance(value, str) or pd.isna(value)  # type: ignore[call-overload]
    return number(value) if text else _signed(f"{value:.{EXACT}g}")


def _signed(text: str) -> str:
    """Write a minus sign and a power of ten."""
    mantissa, e, exponent = text.partition("e")
    if e:
        return f"${mantissa} \\times 10^{{{int(exponent)}}}$"
    return f"${text}$" if text.startswith("-") else text


def write(path: FilePath, table: FilePath, results: Iterable[FilePath]) -> None:
    """Write a table of ours with the caption of its entry in one of the `results` files.

    Raises `ArtifactError` if the table cannot be read, and `ConfigError` if it has no entry.
    """
    name = Path(table).stem
    found = [entry for source in results if (entry := load(Path(source)).tables.get(name))]
    if not found:
        raise ConfigError(f"No results.yaml has an entry tables.{name}; add one, with a caption.")
    text = render(read_csv(table), name, found[0])
    with atomic(Path(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def render(frame: pd.DataFrame, name: str, entry: Entry) -> str:
    """Return a table as LaTeX: laid out as the paper does where that fits, else row by row."""
    said = [f"{entry.title.rstrip('.')}.", _plain(entry.caption)]
    if set(tidy.TABLES) <= set(frame):
        shown, more = _pivoted(frame)
        each = frame[["images", "scale"]].drop_duplicates().to_numpy()
        said += [*more, *(f"Images: {images}; scale: {scale}." for images, scale in each)]
        if shown is None:
            shown = _listed(frame[[key for key in LISTED if frame[key].notna().any()]])
    else:
        shown = _listed(frame)
    long = len(shown) > LONG
    text: str = shown.style.hide(axis="index").to_latex(
        hrules=True,
        caption=escape(" ".join(filter(None, said))),
        label=f"tab:{name}",
        environment="longtable" if long else None,
        position_float=None if long else "centering",
        column_format="".join("r" if one else "l" for one in shown.attrs["numeric"]),
        multicol_align="c",
    )
    packages = "booktabs, longtable" if long else "booktabs, graphicx"
    if not long:
        text = text.replace("\\begin{tabular}", f"{FITTED}{{%\n\\begin{{tabular}}")
        text = text.replace("\\end{tabular}", "\\end{tabular}}")
    return f"% results/tables/{name}.csv as LaTeX; packages: {packages}.\n{text}"


def _plain(caption: str) -> str:
    """Text of a caption without its markup."""
    from docutils.core import publish_doctree

    return " ".join(publish_doctree(caption, settings_overrides=SETTINGS).astext().split())


def _pivoted(frame: pd.DataFrame) -> tuple[pd.DataFrame | None, list[str]]:
    """Lay a tidy table out by rows and columns, or by columns and rows, with what its cells are.

    A cell is our number, with the paper's in parentheses where there is one. None if neither fits.
    """
    places = frame[["row", "column", "metric"]].fillna("").astype(str)
    if frame.empty or places.duplicated().any():
        return None, []
    kinds = places["metric"]
    places[["column", "metric"]] = _headed(places)
    metrics, has = places["metric"].unique(), frame["paper"].notna()
    down, across = ["row"], ["column", "metric"] if len(metrics) > 1 else ["column"]
    if len(places[across].drop_duplicates()) > WIDE:
        down, across = across, down
    if len(places[across].drop_duplicates()) > WIDE:
        return None, []
    ours = frame["ours"].groupby(kinds).transform(numbers)
    papers = frame["paper"].map(printed)
    cells = places.apply(lambda part: part.map(_heading if part.name in across else escape))
    cells = cells.assign(cell=ours.where(~has, ours + " (" + papers + ")"))
    table = cells.pivot(index=down, columns=across, values="cell")
    order = [
        list(cells[keys].drop_duplicates().itertuples(index=False, name=None))
        for keys in (down, across)
    ]
    rows, columns = ([one[0] for one in part] if len(part[0]) == 1 else part for part in order)
    table = table.loc[rows, columns].fillna(NONE)
    table.index.names, table.columns.names = [""] * len(down), [None] * len(across)
    table = table.reset_index(allow_duplicates=True)
    table.attrs["numeric"] = [False] * len(down) + [True] * len(columns)
    told = [f"{capital(metrics[0])}."] if len(metrics) == 1 and metrics[0] else []
    return table, [*told, *["Our numbers, with the paper's in parentheses."] * bool(has.any())]


def _headed(places: pd.DataFrame) -> list[tuple[str, str]]:
    """Headings of every row's column and metric, the second empty where the first names it.

    A column that is called like its metric in the code gets the metric's words.
    """
    pairs = list(zip(places["column"], places["metric"], strict=True))
    short = _metrics(places["metric"].unique())
    plain = {(column, key): (column, short[key]) for column, key in pairs}
    alone = Counter(column for column, _ in plain)
    found = dict(plain)
    for (column, key), (_, said) in plain.items():
        words, of_metric = (re.findall(r"\w+", text.casefold()) for text in (column, said))
        if len(short) > 1 and alone[column] == 1:
            if column == key:
                found[column, key] = said, ""
            elif set(words) & set(key.split("_")) and len(words) >= len(of_metric):
                found[column, key] = column, ""
    if len(set(found.values())) < len(found):
        found = plain
    return [found[pair] for pair in pairs]


def _metrics(names: Iterable[str]) -> dict[str, str]:
    """Short words for metrics that tell them apart, else their names."""
    short = {name: label(name).partition(",")[0] or name for name in names}
    return short if len(set(short.values())) == len(short) else {name: name for name in short}


def _listed(frame: pd.DataFrame) -> pd.DataFrame:
    """Write every column of a table, numbers with few digits."""
    numeric = [is_numeric_dtype(kind) and not is_bool_dtype(kind) for kind in frame.dtypes]
    made = {}
    for key, one in zip(frame, numeric, strict=True):
        column = frame[key]
        form = column.map(printed) if key == "paper" else numbers(column)
        made[_heading(str(key))] = form if one else column.map(_word)
    table = pd.DataFrame(made)
    table.attrs["numeric"] = numeric
    return table


def _heading(text: str) -> str:
    """Heading of a column, in several lines if it is long."""
    found = [escape(line) for line in wrap(text, HEADING, break_long_words=False)]
    return rf"\shortstack{{{BREAK.join(found)}}}" if len(found) > 1 else "".join(found)


def _word(value: object) -> str:
    return NONE if pd.isna(value) else escape(str(value))  # type: ignore[call-overload]
