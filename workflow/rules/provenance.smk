# What the results were made from, in one file; and a supplement that holds both.
CLAIMED = "results/claims.csv"
RESULTS = [*FIGURES, *[Path(path).with_suffix(".png").as_posix() for path in FIGURES], *TABLES]
# Beginnings of paths, of all cases: what rules make, and what holds images.
MADE = ["results/", "figures/"]
PICTURED = [pattern.split(CASE)[0] for pattern in (TARGETS, RECONSTRUCTION, GENERATOR)]


INCLUDED = [str(config_file.place(name)) for name in CONFIG.include]


# On a cluster this stays where Snakemake runs: it is short, and git is there.
rule provenance:
    input:
        results=[*RESULTS, CLAIMED],
        config=beside_snakefile("config.yaml"),
        included=INCLUDED,
        lock=beside_snakefile("requirements.lock"),
    output:
        "results/provenance.json",
    log:
        "results/logs/provenance.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        data_root=DATA_ROOT,
        made=MADE,
        pictured=PICTURED,
        resolved=CONFIG.model_dump_json(exclude_unset=True),
        code=code("gradleak.provenance_record"),
    message:
        "Collect the provenance of all results: {output}"
    script:
        "../scripts/provenance.py"


rule archive:
    input:
        provenance="results/provenance.json",
        results=[*RESULTS, CLAIMED],
        config=beside_snakefile("config.yaml"),
        included=INCLUDED,
        lock=beside_snakefile("requirements.lock"),
        claims=[*CLAIMS, *EXPLANATIONS],
    output:
        "results/archive.zip",
    log:
        "results/logs/archive.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        included=CONFIG.include,
        code=code("gradleak.archive"),
    message:
        "Pack {output}"
    script:
        "../scripts/archive.py"


# What docs/results keeps of a run, by paper.
rule record:
    input:
        provenance="results/provenance.json",
        claims=CLAIMED,
        tables=TABLES,
    output:
        directory("results/record"),
    log:
        "results/logs/record.log",
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=1000,
        runtime=10,
    params:
        code=code("gradleak.recording"),
    message:
        "Record this run: {output}"
    script:
        "../scripts/record.py"
