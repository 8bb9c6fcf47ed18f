"""Tables as LaTeX: escaped text, digits, layout; compiled where there is a TeX."""

import re
import shutil
import subprocess

import numpy as np
import pandas as pd
import pytest

from conftest import ROOT, sentence
from gradleak.errors import ConfigError
from gradleak.pipeline.results.schema import Entry
from gradleak.reporting import latex
from gradleak.runtime import tidy

RESULTS = sorted(ROOT.glob("papers/*/results.yaml"))
TEX = next((name for name in ("pdflatex", "tectonic", "lualatex") if shutil.which(name)), None)
ENTRY = Entry(title="Table 1: α & β", caption="*What* it says:\n50 % of c(M).", make="gradleak")
ROWS = {"row": ["A_1", "A_1", "B", "B"], "column": ["x", "x", "x", "x"]}
NUMBERS = {"metric": ["mse", "ssim"] * 2, "ours": [0.081234, 0.5, 1.5e-12, -0.25]}


def table(**more):
    frame = pd.DataFrame({**ROWS, **NUMBERS, "images": "real", "scale": "smoke", **more})
    return frame.reindex(columns=tidy.TABLES)


def body(text):
    between = text.partition("\\midrule\n")[2].partition("\\bottomrule")[0]
    return [[cell.strip() for cell in line[:-3].split("&")] for line in between.splitlines()]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50 % & #1 $2 a_b {c}", r"50 \% \& \#1 \$2 a\_b \{c\}"),
        ("~^\\<>|", r"\textasciitilde{}\textasciicircum{}\textbackslash{}\textless{}"
                    r"\textgreater{}\textbar{}"),
        ("μ ± 1, 2² xₙ ≤ −3 →", r"$\mu$ $\pm$ 1, 2\textsuperscript{2} x\textsubscript{n} $\le$ "
                                r"$-$3 $\to$"),
        ("CNN6-d*, “so”", "CNN6-d*, “so”"),
    ],
)  # fmt: skip
def test_text_is_escaped(text, expected):
    assert latex.escape(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.0512345, "0.05123"), (61.0389, "61.04"), (1234.56, "1235"), (-0.25, "$-0.2500$"),
        (1.5e-12, r"$1.500 \times 10^{-12}$"), (-3e7, r"$-3.000 \times 10^{7}$"), (0.0, "0"),
        (np.nan, "--"), (np.inf, r"$\infty$"), (0.99999, "1.000"), ("a_b", r"a\_b"),
    ],
)  # fmt: skip
def test_numbers_have_four_digits_and_the_paper_s_its_own(value, expected):
    assert latex.number(value) == expected
    assert latex.printed(3.7e-8) == r"$3.7 \times 10^{-8}$" and latex.printed(91.2) == "91.2"
    assert list(latex.numbers(pd.Series([3.0, 18000.0, np.nan]))) == ["3", "18000", "--"]
    assert list(latex.numbers(pd.Series([36.0, 37.65]))) == ["36.00", "37.65"]
    assert list(latex.numbers(pd.Series([36.0, 1 / 3]))) == ["36.00", "0.3333"]


def test_a_tidy_table_is_laid_out_by_rows_and_columns():
    text = latex.render(table(paper=[0.1, np.nan, np.nan, 1.0]), "copa_table1", ENTRY)
    assert body(text) == [
        [r"A\_1", "0.08123 (0.1)", "0.50"],
        ["B", r"$1.500 \times 10^{-12}$", "$-0.25$ (1)"],
    ]
    assert r"\multicolumn{2}{c}{x}" in text and "MSE & SSIM" in text
    caption = r"Table 1: $\alpha$ \& $\beta$. What it says: 50 \% of c(M). Our numbers, with the "
    assert f"\\caption{{{caption}paper's in parentheses. Images: real; scale: smoke.}}" in text
    assert r"\label{tab:copa_table1}" in text and r"\toprule" in text and "hline" not in text
    assert "longtable" not in text


def test_wide_tables_are_turned_or_listed_and_long_ones_run_over_pages():
    columns = [f"c{k}" for k in range(60)]
    wide = {"column": columns[:12] * 2, "metric": "mse", "ours": np.arange(24) + 0.5}
    text = latex.render(table_of(row=["A"] * 12 + ["B"] * 12, **wide), "t", ENTRY)
    assert len(body(text)) == 12 and body(text)[0] == ["c0", "0.5", "12.5"]
    long = {"row": "A", "column": columns, "metric": "mse", "ours": 1.5}
    long = [table_of(**{**long, "row": f"r{k}"}) for k in range(11)]
    text = latex.render(pd.concat(long), "t", ENTRY)
    assert "\\begin{longtable}{lllr}" in text and text.count(r"mse & 1.5 \\") == 660
    other = pd.DataFrame({"what": ["a_b"], "n_0": [1 / 3], "n_1": [2], "a long one & more": [3]})
    text = latex.render(other, "t", ENTRY)
    assert r"\shortstack{a long one \&\\ more}" in text and body(text) == [
        [r"a\_b", "0.3333", "2", "3"]
    ]
    assert r"what & n\_0 & n\_1" in text and r"\resizebox{\ifdim\width>\textwidth\textwidth" in text
    assert text.count(r"\end{tabular}}") == 1 and "graphicx" in text.splitlines()[0]


def table_of(**columns):
    frame = pd.DataFrame({**columns, "images": "real", "scale": "smoke"})
    return frame.reindex(columns=tidy.TABLES)


def recorded():
    names = {path.stem: path for path in ROOT.glob("docs/results/*/*.csv")}
    entries = [name for path in RESULTS for name in latex.load(path).tables]
    return {name: names[name] for name in entries if name in names}


def test_every_recorded_table_is_whole_latex(tmp_path):
    found = recorded()
    assert len(found) > 40
    for name, path in found.items():
        if path.stat().st_size > 3e5:
            continue
        latex.write(tmp_path / f"{name}.tex", path, RESULTS)
        text = (tmp_path / f"{name}.tex").read_text(encoding="utf-8")
        assert_whole(text.partition("\n")[2])


@pytest.mark.parametrize(
    ("name", "heads"),
    [
        ("rgap_table3", [r" & RA-i & MSE & \shortstack{MSE, every start\\ of DLG}"]),
        ("mkor_table3", [" & Maximum SSIM & Average SSIM & Maximum PSNR & Average PSNR"]),
        ("copa_table1", [r" & Fully Connected & c(M) \\", r"inputs of the\\ last layer} &  \\"]),
        ("copa_index", [r" & c(M) & \shortstack{first layer's\\", " &  &  & MSE & MSE & "]),
    ],
)
def test_a_heading_that_names_its_metric_is_not_repeated(tmp_path, name, heads):
    latex.write(tmp_path / "t.tex", recorded()[name], RESULTS)
    text = (tmp_path / "t.tex").read_text(encoding="utf-8")
    lines = text.partition("\\toprule\n")[2].partition("\\midrule")[0].splitlines()
    assert len(lines) == len(heads)
    assert all(head in line for head, line in zip(heads, lines, strict=True))


def assert_whole(text):
    """Environments and braces close, rows are as wide as the columns, nothing is unescaped."""
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", text):
        assert kind == "begin" or opened.pop() == name
        opened += [name] * (kind == "begin")
    plain = re.sub(r"\\[\\{}&%$#_]", "", text)
    assert not opened and plain.count("{") == plain.count("}") and plain.count("$") % 2 == 0
    assert "%" not in plain.replace("{!}{%", "") and "#" not in plain
    (columns,) = re.findall(r"\\begin\{(?:tabular|longtable)\}\{([lr]+)\}", text)
    inside = re.sub(r"\\label\{[^}]*\}", "", plain)
    assert "_" not in re.sub(r"\$[^$]*\$", "", inside) and "^" not in re.sub(
        r"\$[^$]*\$", "", inside
    )
    for line in text.partition("\\midrule")[2].splitlines():
        if line.endswith(r"\\") and not line.startswith(("\\", "  ")) and "caption" not in line:
            cells = re.sub(r"\\&", "", line).count("&") + 1
            assert cells == len(columns) or "multicolumn" in line, line


@pytest.mark.skipif(TEX is None, reason="needs pdflatex, lualatex or tectonic")
def test_tables_compile(tmp_path):
    found = {k: v for k, v in recorded().items() if v.stat().st_size < 3e4}
    for name, path in found.items():
        latex.write(tmp_path / f"{name}.tex", path, RESULTS)
    packages = "".join(f"\\usepackage{{{p}}}" for p in ("booktabs", "longtable", "graphicx"))
    inputs = "".join(f"\\input{{{name}}}\n\\clearpage\n" for name in found)
    whole = f"\\documentclass{{article}}{packages}\\begin{{document}}\n{inputs}\\end{{document}}"
    (tmp_path / "all.tex").write_text(whole)
    how = [] if TEX == "tectonic" else ["-halt-on-error", "-interaction=nonstopmode"]
    done = subprocess.run([TEX, *how, "all.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "all.pdf").stat().st_size > 1e4


def test_a_table_without_an_entry_is_refused(tmp_path):
    path = tmp_path / "nothing.csv"
    table().to_csv(path, index=False)
    said = sentence(ConfigError, latex.write, tmp_path / "nothing.tex", path, RESULTS)
    assert "No results.yaml has an entry tables.nothing; add one" in said
    assert not (tmp_path / "nothing.tex").exists()
