# MKOR's figures. Figures 1 and 2 are diagrams of the method and are not here.
FIGURES += [
    f"figures/mkor_fig{number}.pdf"
    for number, figure in sorted(MKOR_FIGURES.items())
    if figure["panels"][0] in panels_there(figure["panels"])
]
if "mkor_mnist" in CONFIG.targets and "mkor_lenets" in CONFIG.groups:
    FIGURES += ["figures/mkor_leakage.pdf"]
    TABLES += ["results/tables/mkor_leakage.csv"]


# A rule for each, as each has a caption of its own.
for NUMBER in map(str, MKOR_FIGURES):

    rule:
        name:
            f"mkor_fig{NUMBER}"
        input:
            unpack(mkor_inputs),
        output:
            pdf="figures/mkor_fig{number}.pdf",
            png=shown(f"mkor_fig{NUMBER}", "mkor_fig{number}"),
        log:
            "results/logs/figures/mkor_fig{number}.log",
        wildcard_constraints:
            number=NUMBER,
        conda:
            "../../envs/gradleak.yaml"
        threads: 1
        resources:
            mem_mb=memory("figure"),
            runtime=minutes("figure"),
        params:
            figure=mkor_module,
            words=mkor_words,
            scale=CONFIG.scale,
            code=mkor_code,
        message:
            "Draw {output.pdf}"
        script:
            "../scripts/figure.py"


rule mkor_leakage:
    input:
        model=MODEL.format(model="mkor_lenets"),
        targets=TARGETS.format(targets="mkor_mnist"),
    output:
        tabled("mkor_leakage"),
    log:
        "results/logs/tables/mkor_leakage.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("leakage"),
        runtime=minutes("leakage"),
    params:
        model="mkor_lenet",
        draws=20000,
        code=code("gradleak.leakage"),
    message:
        "Write {output}"
    script:
        "../scripts/leakage.py"


rule mkor_leakage_figure:
    input:
        table="results/tables/mkor_leakage.csv",
        targets=TARGETS.format(targets="mkor_mnist"),
    output:
        pdf="figures/mkor_leakage.pdf",
        png=shown("mkor_leakage"),
    log:
        "results/logs/figures/mkor_leakage.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("figure"),
        runtime=minutes("figure"),
    params:
        figure="mkor_leakage",
        words={},
        scale=CONFIG.scale,
        code=code("gradleak.figures.mkor_leakage"),
    message:
        "Draw {output.pdf}"
    script:
        "../scripts/figure.py"
