# R-GAP's trained ResNets: Figure 4 and Table 4.

if "rgap_fig4" in CONFIG.experiments:
    FIGURES += ["figures/rgap_fig4.pdf"]
    TABLES += ["results/tables/rgap_fig4.csv"]
if "rgap_table4" in CONFIG.experiments:
    TABLES += ["results/tables/rgap_resnet101.csv", "results/tables/rgap_table4.csv"]
# Tables that claims read beside scores.
TRAINED_TABLES = [
    path
    for name in ("rgap_fig4", "rgap_resnet101")
    if (path := f"results/tables/{name}.csv") in TABLES
]


rule rgap_fig4_table:
    input:
        **resnet_files("rgap_fig4"),
    output:
        tabled("rgap_fig4"),
    log:
        "results/logs/tables/rgap_fig4.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("table_resnets"),
        runtime=minutes("table_resnets"),
    params:
        **RGAP_RESNETS.get("rgap_fig4", {}),
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.tables.resnets", "gradleak.tables.network_index"),
    message:
        "Write {output}"
    script:
        "../scripts/table_resnets.py"


use rule rgap_fig1 as rgap_fig4 with:
    input:
        **rgap_inputs("rgap_fig4", attacks=["rgap_resnet_ig"]),
        points=scores_of(*RGAP_RESNETS.get("rgap_fig4", {}).get("columns", [])),
        table="results/tables/rgap_fig4.csv",
    output:
        pdf="figures/rgap_fig4.pdf",
        png=shown("rgap_fig4"),
    log:
        "results/logs/figures/rgap_fig4.log",
    params:
        figure="rgap_fig4",
        words={
            **rgap_words("rgap_fig4", ["rgap_resnet_ig"], note=""),
            **RGAP_RESNETS.get("rgap_fig4", {}),
        },
        scale=CONFIG.scale,
        code=code("gradleak.figures.rgap_fig4"),


use rule rgap_fig4_table as rgap_resnet101_table with:
    input:
        **resnet_files("rgap_table4"),
    output:
        tabled("rgap_resnet101"),
    log:
        "results/logs/tables/rgap_resnet101.log",
    params:
        **RGAP_RESNETS.get("rgap_table4", {}),
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.tables.resnets", "gradleak.tables.network_index"),


use rule copa_table1 as rgap_table4 with:
    input:
        claims=claims_of("rgap"),
        scores=scores_of("rgap_table4"),
        rank=rank_of("rgap_table4"),
        tables=["results/tables/rgap_resnet101.csv"],
    output:
        tabled("rgap_table4"),
    log:
        "results/logs/tables/rgap_table4.log",
    params:
        name="rgap_table4",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),
