# Captions of results, for `results/report.html` and for Snakemake's own `--report`.
CAPTIONS = [
    beside_snakefile(path.relative_to(workflow.basedir).as_posix())
    for kind in ("papers", "figures", "tables")
    for path in sorted(Path(workflow.basedir, "workflow/report/captions", kind).glob("*.rst"))
]
CLAIMS_CAPTION = "../report/captions/claims/claims.rst"


def captioned(path, kind, name):
    """Show an output in Snakemake's report, below its paper, which its name begins with."""
    return report(
        path,
        caption=f"../report/captions/{kind}/{name}.rst",
        category=name.partition("_")[0],
        subcategory=kind,
        labels={"result": name},
    )


def shown(name, pattern=None):
    """PNG of a figure; `pattern` where a wildcard stands for a part of its name."""
    return captioned(f"figures/{pattern or name}.png", "figures", name)


def tabled(name, pattern=None):
    """A table; `pattern` as of a figure."""
    return captioned(f"results/tables/{pattern or name}.csv", "tables", name)
