# The report: figures, tables and claims of all papers on one page.
# Its parts in workflow/report/.
REPORT_PARTS = ("report.html.j2", "base.css", "report.css", "report.js")


# On a cluster this stays where Snakemake runs: it is short.
rule report_page:
    input:
        figures=[Path(path).with_suffix(".png").as_posix() for path in FIGURES],
        documents=FIGURES,
        tables=TABLES,
        claimed="results/claims.csv",
        claims=CLAIMS,
        explanations=EXPLANATIONS,
        captions=CAPTIONS,
        template=[beside_snakefile(f"workflow/report/{name}") for name in REPORT_PARTS],
    output:
        "results/report.html",
    log:
        "results/logs/report.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        code=code("gradleak.reporting.page"),
    message:
        "Write {output}"
    script:
        "../scripts/report_page.py"
