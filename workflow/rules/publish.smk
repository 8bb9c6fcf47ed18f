# What is made of all results: claims, the report, provenance, a supplement, a record; notebooks; and
# what goes.
from functools import partial

from gradleak.config import yaml_checks
from gradleak.pipeline import notebooks as notebook_rules
from gradleak.pipeline.results import threat_models
from gradleak.pipeline.run_output import ending

# The papers' own claims, ours, and the parts of the papers' sentences.
CLAIMED = [f"results/{name}.csv" for name in ("claims", "claims_ours", "claims_parts")]
# Settings files beside config.yaml.
INCLUDED = {name: str(path) for name, path in yaml_checks.included(CONFIG.include).items()}
PICTURES = [path.replace(".pdf", ".png") for path in FIGURES]
# Of a module those of its user.
SETTINGS = (workflow.configfiles or [CONFIG_FILE])[-1] if MODULE else CONFIG_FILE
CLAIMS = sorted(claims_of(paper) for paper in CONFIG.papers)
for path in CLAIMS:
    if not Path(path).is_file():
        raise WorkflowError(
            f"{path} is missing, which holds a paper's claims; restore or write it."
        )
# What was learnt where they failed; a paper needs none.
EXPLANATIONS = [
    str(path)
    for claims in map(Path, CLAIMS)
    if (path := claims.with_name("explanations.yaml")).exists()
]
# Parts of pages, in workflow/report/.
SHARED_PARTS = ("claims.j2", "base.css", "report.css", "report.js")
REPORT_PARTS = ("report.html.j2", *SHARED_PARTS)
RECORD_PARTS = ("record.html.j2", "record.css", *SHARED_PARTS)
# The page of an experiment shares the audit's style and script.
EXPERIMENT_PARTS = ("experiment.html.j2", "parts.j2", "base.css", "audit.css", "audit.js")
NOTEBOOK_PARTS = ("notebook/conf.json", "notebook/index.html.j2", "notebook/style.css")
NOTEBOOK = "results/notebooks/{notebook}.html"
NOTEBOOKS = notebook_rules.Notebooks(beside_snakefile("notebooks"), METHODS)
# What the chains of results are followed with: beginnings of paths, of all cases, that rules make and
# that hold images.
CHAIN = {
    "data_root": CONFIG.data.root,
    "made": ["results/", "figures/"],
    "pictured": PATHS.pictured,
    "included": list(INCLUDED),
    "resolved": CONFIG.model_dump_json(exclude_unset=True),
}
# The workflow as an archive holds it, with authors and licence.
WORKFLOW = ["CITATION.cff", "LICENSE", "Snakefile", "workflow/Snakefile"]
WORKFLOW += sorted(f"workflow/rules/{path.name}" for path in ROOT.glob("workflow/rules/*.smk"))
# Figures, tables, claims, scores and what else is small stay, and with them `all` has nothing to do;
# what is deleted of these brings back the steps that it needs.
CLEANED = (
    PATHS.targets,
    PATHS.model,
    PATHS.trained,
    PATHS.client,
    PATHS.generator,
    PATHS.sent,
    PATHS.gradient,
    PATHS.reconstruction,
)


rule claims_table:
    input:
        claims=CLAIMS,
        explanations=EXPLANATIONS,
        scores=PATHS.scores(*CONFIG.experiments),
        security=ASK.judged_security(),
        rank=ASK.judged_rank(),
        index=RESULTS.evidence("index"),
        tables=RESULTS.evidence("table"),
    output:
        report(
            CLAIMED[0],
            caption="../report/claims.rst",
            category="Claims",
            labels={"result": "Claims of the papers"},
        ),
        report(
            CLAIMED[1],
            caption="../report/claims_ours.rst",
            category="Claims",
            labels={"result": "Claims of ours"},
        ),
        report(
            CLAIMED[2],
            caption="../report/claims_parts.rst",
            category="Claims",
            labels={"result": "Parts of sentences"},
        ),
    log:
        "results/logs/claims.log",
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("claims"),
    params:
        case=CASE,
        code=code("gradleak.claims"),
    message:
        "Judge the papers' claims: {output}"
    script:
        "../scripts/claims.py"


# On a cluster this and the next three stay where Snakemake runs: they are short, and git is there.
rule report_page:
    input:
        figures=PICTURES,
        documents=FIGURES,
        tables=TABLES,
        claimed=CLAIMED,
        claims=CLAIMS,
        explanations=EXPLANATIONS,
        captions=RESULTS.sources,
        template=[beside_snakefile(f"workflow/report/{name}") for name in REPORT_PARTS],
    output:
        "results/report.html",
    log:
        "results/logs/report.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        threats=partial(threat_models.letters, RESULTS),
        code=code("gradleak.reporting.page"),
    message:
        "Write {output}"
    script:
        "../scripts/report_page.py"


# On request only: any experiment of the config, such as one of your own.
rule experiment_page:
    input:
        unpack(ASK.experiment_files),
        template=[beside_snakefile(f"workflow/report/{name}") for name in EXPERIMENT_PARTS],
    output:
        "results/experiments/{experiment}.html",
    log:
        "results/logs/experiments/{experiment}.log",
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(3000, 20),
    params:
        told=lambda wildcards: ASK.told_of(wildcards) | {"names": RESULTS.names},
        code=code("gradleak.reporting.experiment_page"),
    message:
        "Show the experiment {wildcards.experiment}: {output}"
    script:
        "../scripts/experiment_page.py"


rule provenance:
    input:
        results=[*FIGURES, *PICTURES, *TABLES, *CLAIMED],
        config=SETTINGS,
        included=list(INCLUDED.values()),
        lock=beside_snakefile("requirements.lock"),
    output:
        "results/provenance.json",
    log:
        "results/logs/provenance.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        **CHAIN,
        code=code("gradleak.reporting.provenance_record"),
    message:
        "Collect the provenance of all results: {output}"
    script:
        "../scripts/provenance.py"


rule archive:
    input:
        provenance="results/provenance.json",
        results=[*FIGURES, *PICTURES, *TABLES, *CLAIMED],
        config=SETTINGS,
        included=list(INCLUDED.values()),
        lock=beside_snakefile("requirements.lock"),
        claims=[*CLAIMS, *EXPLANATIONS],
        workflow=[str(ROOT / name) for name in WORKFLOW],
    output:
        "results/archive.zip",
    log:
        "results/logs/archive.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        included=list(INCLUDED),
        workflow=WORKFLOW,
        code=code("gradleak.reporting.archive"),
    message:
        "Pack {output}"
    script:
        "../scripts/archive.py"


# What docs/results keeps of a run, a folder for each paper.
rule record_paper:
    input:
        results=lambda wildcards: of_paper(wildcards.paper, *FIGURES, *PICTURES, *TABLES),
        tables=lambda wildcards: of_paper(wildcards.paper, *TABLES),
        evidence=lambda wildcards: ASK.judged(wildcards.paper),
        claims=lambda wildcards: claims_of(wildcards.paper),
        explanations=lambda wildcards: [
            path for path in EXPLANATIONS if Path(path).parent.name == wildcards.paper
        ],
        config=SETTINGS,
        included=list(INCLUDED.values()),
        lock=beside_snakefile("requirements.lock"),
    output:
        directory("results/record/{paper}"),
    log:
        "results/logs/record/{paper}.log",
    wildcard_constraints:
        paper=ids(CONFIG.papers),
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        **CHAIN,
        code=code("gradleak.reporting.recording", "gradleak.reporting.provenance_record"),
    message:
        "Record this run of {wildcards.paper}: {output}"
    script:
        "../scripts/record.py"


# The same of one experiment's scores, as a part of a record at a smaller scale.
rule record_part:
    input:
        results=ASK.judged_of,
        config=SETTINGS,
        included=list(INCLUDED.values()),
        lock=beside_snakefile("requirements.lock"),
    output:
        directory("results/parts/{experiment}"),
    log:
        "results/logs/parts/{experiment}.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        **CHAIN,
        code=code("gradleak.reporting.recording", "gradleak.reporting.provenance_record"),
    message:
        "Record the scores of {wildcards.experiment}: {output}"
    script:
        "../scripts/record_part.py"


# The same of one training: tables of its curves, as far as claims read them.
TRAINED = result_rules.OfTraining(RESULTS)


use rule record_part as record_training with:
    input:
        results=TRAINED.files,
        config=SETTINGS,
        included=list(INCLUDED.values()),
        lock=beside_snakefile("requirements.lock"),
    output:
        directory("results/parts/{training}"),
    log:
        "results/logs/parts/{training}.log",
    wildcard_constraints:
        training=ids(TRAINED.trainings),
    params:
        **CHAIN,
        tables=TRAINED.tables,
        case=CASE,
        tabulated=TRAINED.code,
        code=code("gradleak.reporting.recording", "gradleak.reporting.provenance_record"),
    message:
        "Record tables of {wildcards.training}: {output}"


rule record:
    input:
        expand("results/record/{paper}", paper=CONFIG.papers),
        claims=CLAIMS,
        explanations=EXPLANATIONS,
        captions=RESULTS.sources,
        template=[beside_snakefile(f"workflow/report/{name}") for name in RECORD_PARTS],
    output:
        summary="results/record/summary.csv",
        page="results/record/claims.html",
    log:
        "results/logs/record/summary.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        code=code("gradleak.claims.recorded", "gradleak.reporting.record_page"),
    message:
        "Count and show the verdicts of the record: {output}"
    script:
        "../scripts/record_summary.py"


# Walk-throughs: notebooks/{notebook}.ipynb, run from top to bottom, as pages.
rule notebook:
    input:
        notebook=NOTEBOOKS.file,
        images=NOTEBOOKS.images,
        template=[beside_snakefile(f"workflow/report/{part}") for part in NOTEBOOK_PARTS],
    output:
        NOTEBOOK,
    log:
        "results/logs/notebooks/{notebook}.log",
    wildcard_constraints:
        notebook=ids(NOTEBOOKS.names),
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(3000, 30),
    params:
        scale=CONFIG.scale,
        code=NOTEBOOKS.code,
    message:
        "Run the notebook {wildcards.notebook}"
    script:
        "../scripts/run_notebook.py"


rule notebooks:
    input:
        expand(NOTEBOOK, notebook=NOTEBOOKS.names),
    localrule: True
    message:
        "All notebooks are run"


rule clean:
    log:
        "results/logs/clean.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    params:
        folders=[str(Path(path.partition("{")[0])) for path in CLEANED],
    message:
        "Remove intermediate files"
    script:
        "../scripts/clean.py"


# The last lines of a run: where to look. Not after a dry run, nor in the processes of single jobs.
onsuccess:
    if workflow.is_main_process:
        ending.tell_at_the_end(workflow, FIGURES, TABLES)


# Where nothing is to be done Snakemake calls no handler.
if OUTPUT is not None:
    OUTPUT.ending = lambda: ending.last_lines(workflow, FIGURES, TABLES)
