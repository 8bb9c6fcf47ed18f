# Captions of results, for `results/report.html` and for Snakemake's own `--report`.
CAPTIONS = [
    beside_snakefile(path.relative_to(workflow.basedir).as_posix())
    for kind in ("papers", "figures", "tables")
    for path in sorted(Path(workflow.basedir, "workflow/report/captions", kind).glob("*.rst"))
]
CLAIMS_CAPTION = "../report/captions/claims/claims.rst"


def title(kind, name):
    """First line of a caption; the name itself where there is no caption yet."""
    path = Path(workflow.basedir, "workflow/report/captions", kind, f"{name}.rst")
    return path.read_text(encoding="utf-8").partition("\n")[0] if path.exists() else name


def captioned(path, kind, name):
    """Show an output in Snakemake's report, below its paper, which its name begins with."""
    paper = title("papers", name.partition("_")[0])
    # Its paper stands above it.
    label = title(kind, name).removeprefix(paper).lstrip(": ")
    if label.partition(" ")[0].isalpha():
        label = label[0].upper() + label[1:]
    return report(
        path,
        caption=f"../report/captions/{kind}/{name}.rst",
        category=paper,
        subcategory=kind.capitalize(),
        labels={"result": label},
    )


def shown(name, pattern=None):
    """PNG of a figure; `pattern` where a wildcard stands for a part of its name."""
    return captioned(f"figures/{pattern or name}.png", "figures", name)


def tabled(name, pattern=None):
    """A table; `pattern` as of a figure."""
    return captioned(f"results/tables/{pattern or name}.csv", "tables", name)
