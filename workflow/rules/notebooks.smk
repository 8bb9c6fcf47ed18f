# Walk-throughs: notebooks/{notebook}.ipynb, run from top to bottom, as pages.

NOTEBOOK = "results/notebooks/{notebook}.html"
# What a page is made of, beside its notebook.
NOTEBOOK_PAGE = ("conf.json", "index.html.j2", "style.css")


rule notebook:
    input:
        notebook=notebook_file,
        images=notebook_images,
        template=[beside_snakefile(f"workflow/report/notebook/{part}") for part in NOTEBOOK_PAGE],
    output:
        NOTEBOOK,
    log:
        "results/logs/notebooks/{notebook}.log",
    wildcard_constraints:
        notebook=ids(NOTEBOOKS),
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=doubling(3000),
        runtime=doubling(30),
    params:
        scale=CONFIG.scale,
        code=notebook_code,
    message:
        "Run the notebook {wildcards.notebook}"
    script:
        "../scripts/run_notebook.py"


rule notebooks:
    input:
        expand(NOTEBOOK, notebook=NOTEBOOKS),
    localrule: True
    message:
        "All notebooks are run"
