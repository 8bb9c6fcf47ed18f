# Claims: a verdict for every number and sentence of the papers.
CLAIMS = sorted(claims_of(paper) for paper in gradleak_config.PAPERS)
for path in CLAIMS:
    if not Path(path).is_file():
        raise WorkflowError(
            f"{path} is missing, which holds a paper's claims; restore or write it."
        )
# What was learnt where they failed; a paper needs none.
EXPLANATIONS = [
    str(path)
    for claims in map(Path, CLAIMS)
    if (path := claims.parent / "explanations" / claims.name).exists()
]
# R-GAP's rank analysis is one of single images.
RANKED = [
    name
    for name, entry in CONFIG.experiments.items()
    if entry.paper == "rgap" and CONFIG.targets[entry.targets].batch == 1
]


rule claims_table:
    input:
        claims=CLAIMS,
        explanations=EXPLANATIONS,
        scores=scores_of(*CONFIG.experiments),
        security=security_of("copa_pair"),
        rank=rank_of(*RANKED),
        index=[path for path in TABLES if path.endswith("_index.csv")],
        tables=[*EXTRA_TABLES, *TRAINED_TABLES, *FEDKL_READ],
    output:
        report(
            "results/claims.csv",
            caption=CLAIMS_CAPTION,
            category="Claims",
            labels={"result": title("claims", "claims")},
        ),
    log:
        "results/logs/claims.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("claims"),
        runtime=minutes("claims"),
    params:
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),
    message:
        "Judge the papers' claims: {output}"
    script:
        "../scripts/claims.py"
