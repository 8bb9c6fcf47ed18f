# FedKL's figures, and the tables behind those that claims read too.
FIGURES += [f"figures/fedkl_{name}.pdf" for name in FEDKL_GRIDS]
if FEDKL_TABLE2:
    FIGURES += ["figures/fedkl_table2.pdf"]
if FEDKL_FIG4:
    FIGURES += ["figures/fedkl_fig4.pdf"]
    TABLES += ["results/tables/fedkl_fig4.csv"]
if FEDKL_ATTACKERS:
    FIGURES += ["figures/fedkl_adaptive.pdf"]
    TABLES += ["results/tables/fedkl_adaptive.csv"]


rule fedkl_table2:
    input:
        unpack(curve_files(FEDKL_TABLE2)),
    output:
        pdf="figures/fedkl_table2.pdf",
        png=shown("fedkl_table2"),
    log:
        "results/logs/figures/fedkl_table2.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("figure"),
        runtime=minutes("figure"),
    params:
        figure="fedkl_curves",
        words=fedkl_table2_words(),
        scale=CONFIG.scale,
        code=code("gradleak.figures.fedkl_curves"),
    message:
        "Draw {output.pdf}"
    script:
        "../scripts/figure.py"


# A rule for each, as each has a caption of its own.
for GRID in FEDKL_TITLES:

    rule:
        name:
            f"fedkl_{GRID}"
        input:
            unpack(fedkl_grid_files),
        output:
            pdf="figures/fedkl_{grid}.pdf",
            png=shown(f"fedkl_{GRID}", "fedkl_{grid}"),
        log:
            "results/logs/figures/fedkl_{grid}.log",
        wildcard_constraints:
            grid=GRID,
        conda:
            "../../envs/gradleak.yaml"
        threads: 1
        resources:
            mem_mb=memory("figure"),
            runtime=minutes("figure"),
        params:
            figure="fedkl_pictures",
            words=fedkl_grid_words,
            scale=CONFIG.scale,
            code=code("gradleak.figures.fedkl_pictures"),
        message:
            "Draw {output.pdf}"
        script:
            "../scripts/figure.py"


rule fedkl_fig4_table:
    input:
        unpack(fedkl_fig4_files),
    output:
        tabled("fedkl_fig4"),
    log:
        "results/logs/tables/fedkl_fig4.log",
    benchmark:
        "results/benchmarks/tables/fedkl_fig4.tsv"
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("distributions"),
        runtime=minutes("distributions"),
    params:
        cases=fedkl_fig4_cases(),
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.distributions"),
    message:
        "Write {output}"
    script:
        "../scripts/distributions.py"


use rule fedkl_table2 as fedkl_fig4 with:
    input:
        unpack(curve_files(FEDKL_FIG4_CURVES)),
        table="results/tables/fedkl_fig4.csv",
    output:
        pdf="figures/fedkl_fig4.pdf",
        png=shown("fedkl_fig4"),
    log:
        "results/logs/figures/fedkl_fig4.log",
    params:
        figure="fedkl_fig4",
        words=fedkl_fig4_words(),
        scale=CONFIG.scale,
        code=code("gradleak.figures.fedkl_fig4"),


rule fedkl_adaptive_table:
    input:
        unpack(fedkl_adaptive_files),
    output:
        tabled("fedkl_adaptive"),
    log:
        "results/logs/tables/fedkl_adaptive.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("table_adaptive"),
        runtime=minutes("table_adaptive"),
    params:
        panels=FEDKL_ATTACKERS,
        base=next(iter(FEDKL_CASES)),
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.tables.fedkl_adaptive"),
    message:
        "Write {output}"
    script:
        "../scripts/table_adaptive.py"


use rule fedkl_table2 as fedkl_adaptive with:
    input:
        unpack(fedkl_adaptive_files),
    output:
        pdf="figures/fedkl_adaptive.pdf",
        png=shown("fedkl_adaptive"),
    log:
        "results/logs/figures/fedkl_adaptive.log",
    params:
        figure="fedkl_adaptive",
        words=FEDKL_ADAPTIVE_WORDS,
        scale=CONFIG.scale,
        code=code("gradleak.figures.fedkl_adaptive"),
