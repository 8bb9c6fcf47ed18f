# Figures and tables: the entries of papers/*/results.yaml.
from gradleak.pipeline.results import rules as result_rules

try:
    RESULTS = result_rules.read(ROOT / "papers", PATHS, claims_of)
except GradleakError as error:
    raise WorkflowError(str(error)) from None

FIGURES, TABLES = RESULTS.figures, RESULTS.tables
DRAWN, TABULATED = (result_rules.Asked(RESULTS, kind) for kind in ("figures", "tables"))
# Its text is that of the entry, for results/report.html and for Snakemake's own --report alike.
CAPTION = "../report/caption.rst"


rule figure:
    input:
        unpack(DRAWN.files),
    output:
        pdf="figures/{result}.pdf",
        png=report(
            "figures/{result}.png",
            caption=CAPTION,
            category=DRAWN.category,
            subcategory="Figures",
            labels=DRAWN.labels,
        ),
    log:
        "results/logs/figures/{result}.log",
    wildcard_constraints:
        result=ids(RESULTS.entries["figures"]),
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("figure"),
    params:
        make=DRAWN.make,
        words=DRAWN.words,
        scale=CONFIG.scale,
        figures=CONFIG.figures,
        caption=DRAWN.caption,
        code=DRAWN.code,
    message:
        "Draw {output.pdf}"
    script:
        "../scripts/figure.py"


rule table:
    input:
        unpack(TABULATED.files),
    output:
        report(
            "results/tables/{result}.csv",
            caption=CAPTION,
            category=TABULATED.category,
            subcategory="Tables",
            labels=TABULATED.labels,
        ),
    log:
        "results/logs/tables/{result}.log",
    wildcard_constraints:
        result=ids(RESULTS.entries["tables"]),
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("table"),
    params:
        make=TABULATED.make,
        words=TABULATED.words,
        case=CASE,
        caption=TABULATED.caption,
        code=TABULATED.code,
    message:
        "Write {output}"
    script:
        "../scripts/table.py"


# For papers, on request only.
rule latex_table:
    input:
        table="results/tables/{result}.csv",
        captions=RESULTS.sources,
    output:
        "results/tables/{result}.tex",
    log:
        "results/logs/tables/{result}.tex.log",
    wildcard_constraints:
        result=ids(RESULTS.entries["tables"]),
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        code=code("gradleak.reporting.latex"),
    message:
        "Write {output}"
    script:
        "../scripts/latex_table.py"


# What a client could notice of the weights that servers send, a model a job.
rule inconspicuous:
    input:
        unpack(RESULTS.compared_files),
    output:
        PATHS.inconspicuous,
    log:
        beside(PATHS.inconspicuous, "logs", ".log"),
    wildcard_constraints:
        model=ids(RESULTS.compared),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    threads: ASK.model_threads
    resources:
        **needs("inconspicuous"),
    params:
        servers=RESULTS.compared_servers,
        samples=RESULTS.compared_samples,
        code=code("papers.mkor.inconspicuous"),
        software=SOFTWARE,
    message:
        "Measure how far {wildcards.model} sent by servers differs from an honest one"
    script:
        "../scripts/inconspicuous.py"
