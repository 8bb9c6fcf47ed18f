# COPA's figures and tables. Figures 1 and 2 need the pair of images alone, so they build fast.
COPA_SAMPLES = {"copa": "COPA", "copa_tv": "COPA denoised", "rgap": "R-GAP"}
COPA_CELLS = {"copa": "COPA original", "copa_tv": "COPA denoised", "rgap": "R-GAP"}
# A variant is a model cnn3_v{number}_{activation} of the experiment, so a fifth one is config alone.
COPA_VARIANTS = {
    (name, activation): [
        model
        for model in CONFIG.experiments[name].models
        if model.startswith("cnn3_v") and model.endswith(f"_{activation}")
    ]
    for name in {"copa_pair", "copa_twenty"} & set(CONFIG.experiments)
    for activation in ("tanh", "leaky")
}
COPA_TANH = COPA_VARIANTS.get(("copa_pair", "tanh"), [])
COPA_LEAKY = COPA_VARIANTS.get(("copa_pair", "leaky"), [])
COPA_PLACES = {"experiment": "copa_pair", "defence": "none"}

if "copa_pair" in CONFIG.experiments:
    FIGURES += ["figures/copa_fig1.pdf", "figures/copa_fig2.pdf"]
    TABLES += ["results/tables/copa_table1.csv", "results/tables/copa_table2.csv"]
if "copa_twenty" in CONFIG.experiments:
    TABLES += ["results/tables/copa_images.csv"]
if "copa_index" in CONFIG.experiments:
    FIGURES += ["figures/copa_index.pdf"]
    TABLES += ["results/tables/copa_index.csv"]


rule copa_fig1:
    input:
        targets=TARGETS.format(targets="copa_pair"),
        reconstructions=expand(
            RECONSTRUCTION, **COPA_PLACES, model=COPA_TANH, attack=list(COPA_SAMPLES)
        ),
        scores=expand(SCORE, **COPA_PLACES, model=COPA_TANH, attack=list(COPA_SAMPLES)),
        security=security_of("copa_pair", models=COPA_TANH),
    output:
        pdf="figures/copa_fig1.pdf",
        png=shown("copa_fig1"),
    log:
        "results/logs/figures/copa_fig1.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("figure_samples"),
        runtime=minutes("figure_samples"),
    params:
        words={
            "title": "COPA and R-GAP on CNN3, Tanh after every layer (COPA Figure 1)",
            "models": COPA_TANH,
            "attacks": COPA_SAMPLES,
        },
        scale=CONFIG.scale,
        code=code("gradleak.figures.samples"),
    message:
        "Draw {output.pdf}"
    script:
        "../scripts/figure_samples.py"


use rule copa_fig1 as copa_fig2 with:
    input:
        targets=TARGETS.format(targets="copa_pair"),
        reconstructions=expand(
            RECONSTRUCTION, **COPA_PLACES, model=COPA_LEAKY, attack=list(COPA_SAMPLES)
        ),
        scores=expand(SCORE, **COPA_PLACES, model=COPA_LEAKY, attack=list(COPA_SAMPLES)),
        security=security_of("copa_pair", models=COPA_LEAKY),
    output:
        pdf="figures/copa_fig2.pdf",
        png=shown("copa_fig2"),
    log:
        "results/logs/figures/copa_fig2.log",
    params:
        words={
            "title": "COPA and R-GAP on CNN3, LeakyReLU, LeakyReLU, Sigmoid (COPA Figure 2)",
            "models": COPA_LEAKY,
            "attacks": COPA_SAMPLES,
        },
        scale=CONFIG.scale,
        code=code("gradleak.figures.samples"),


rule copa_table1:
    input:
        claims=claims_of("copa"),
        security=security_of("copa_pair", models=COPA_TANH),
    output:
        tabled("copa_table1"),
    log:
        "results/logs/tables/copa_table1.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("table_paper"),
        runtime=minutes("table_paper"),
    params:
        name="copa_table1",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),
    message:
        "Write {output}"
    script:
        "../scripts/table_paper.py"


use rule copa_table1 as copa_table2 with:
    input:
        claims=claims_of("copa"),
        scores=scores_of("copa_pair", attacks=COPA_CELLS, models=COPA_TANH + COPA_LEAKY),
    output:
        tabled("copa_table2"),
    log:
        "results/logs/tables/copa_table2.log",
    params:
        name="copa_table2",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


rule copa_images:
    input:
        scores=scores_of("copa_twenty", attacks=COPA_CELLS),
    output:
        tabled("copa_images"),
    log:
        "results/logs/tables/copa_images.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("table_images"),
        runtime=minutes("table_images"),
    params:
        rows={
            model: f"Figure {figure}, variant {model.split('_')[1].removeprefix('v')}"
            for figure, activation in ((1, "tanh"), (2, "leaky"))
            for model in COPA_VARIANTS.get(("copa_twenty", activation), [])
        },
        columns=COPA_CELLS,
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.tables.many_images", "gradleak.tables.network_index"),
    message:
        "Write {output}"
    script:
        "../scripts/table_images.py"


rule copa_index:
    input:
        scores=scores_of("copa_index"),
        security=security_of("copa_index"),
    output:
        tabled("copa_index"),
    log:
        "results/logs/tables/copa_index.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("table_index"),
        runtime=minutes("table_index"),
    params:
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.tables.network_index"),
    message:
        "Write {output}"
    script:
        "../scripts/table_index.py"


rule copa_index_figure:
    input:
        table="results/tables/copa_index.csv",
        targets=TARGETS.format(targets="copa_few"),
    output:
        pdf="figures/copa_index.pdf",
        png=shown("copa_index"),
    log:
        "results/logs/figures/copa_index.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("figure_index"),
        runtime=minutes("figure_index"),
    params:
        code=code("gradleak.figures.network_index"),
    message:
        "Draw {output.pdf}"
    script:
        "../scripts/figure_index.py"
