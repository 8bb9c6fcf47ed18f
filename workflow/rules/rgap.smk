# R-GAP's figures and tables, less those of trained networks.
RGAP_BATCHES = {
    size: {
        "title": f"What the gradient of a batch of {size} gives away on FCN3 (R-GAP Figure {figure})",
        "model": "rgap_fcn3",
        "attacks": {"rgap_float32": "R-GAP", "dlg": "DLG"},
        "note": "R-GAP hands float32 from layer to layer, as in the paper.",
    }
    for size, figure in ((2, 7), (5, 8))
}
RGAP_RESULTS = {  # experiment -> figure that shows it
    "rgap_fig2": 2,
    "rgap_cnn6": 3,
    "rgap_twin": 5,
    "rgap_fig6": 6,
    "rgap_batch2": 7,
    "rgap_batch5": 8,
    "rgap_fig9": 9,
}

if any(name.startswith("rgap") for name in CONFIG.experiments):
    FIGURES += ["figures/rgap_fig1.pdf"]
FIGURES += [f"figures/rgap_fig{n}.pdf" for e, n in RGAP_RESULTS.items() if e in CONFIG.experiments]
if "rgap_cnn6" in CONFIG.experiments:
    TABLES += ["results/tables/rgap_table1.csv"]
if "rgap_lenet" in CONFIG.experiments:
    TABLES += ["results/tables/rgap_table2.csv"]
if "rgap_fig2" in CONFIG.experiments:
    TABLES += ["results/tables/rgap_table3.csv"]


rule rgap_fig1:
    output:
        pdf="figures/rgap_fig1.pdf",
        png=shown("rgap_fig1"),
    log:
        "results/logs/figures/rgap_fig1.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("figure"),
        runtime=minutes("figure"),
    params:
        figure="rgap_fig1",
        words={},
        scale=CONFIG.scale,
        code=code("gradleak.figures.rgap_fig1"),
    message:
        "Draw {output.pdf}"
    script:
        "../scripts/figure.py"


use rule rgap_fig1 as rgap_fig2 with:
    input:
        **rgap_inputs("rgap_fig2"),
        rank=rank_of("rgap_fig2"),
    output:
        pdf="figures/rgap_fig2.pdf",
        png=shown("rgap_fig2"),
    log:
        "results/logs/figures/rgap_fig2.log",
    params:
        figure="rgap_fig2",
        words=rgap_words(
            "rgap_fig2",
            ["dlg", "rgap_float32", "rgap_balanced", "gauss_newton"],
            note=RGAP_BOTH,
            rgap_balanced="R-GAP, balanced\nrows (ours)",
        ),
        scale=CONFIG.scale,
        code=code("gradleak.figures.rgap_fig2"),


use rule rgap_fig1 as rgap_fig3 with:
    input:
        **rgap_inputs("rgap_cnn6"),
        rank=rank_of("rgap_cnn6"),
    output:
        pdf="figures/rgap_fig3.pdf",
        png=shown("rgap_fig3"),
    log:
        "results/logs/figures/rgap_fig3.log",
    params:
        figure="rgap_fig3",
        words=rgap_words(
            "rgap_cnn6",
            ["rgap_float32", "rgap_balanced", "dlg", "hgap", "gauss_newton"],
            note=RGAP_BOTH,
            rgap_balanced="R-GAP, balanced\nrows (ours)",
        ),
        scale=CONFIG.scale,
        code=code("gradleak.figures.rgap_fig3"),


use rule rgap_fig1 as rgap_fig5 with:
    input:
        **rgap_inputs("rgap_twin"),
    output:
        pdf="figures/rgap_fig5.pdf",
        png=shown("rgap_fig5"),
    log:
        "results/logs/figures/rgap_fig5.log",
    params:
        figure="rgap_fig5",
        words=rgap_words(
            "rgap_twin",
            ["rgap_balanced", "dlg_near_twin", "dlg", "dlg_same_class"],
            dlg="DLG,\nrandom start",
        ),
        scale=CONFIG.scale,
        code=code("gradleak.figures.rgap_fig5"),


use rule rgap_fig1 as rgap_fig6 with:
    input:
        **rgap_inputs("rgap_fig6", attacks=["dlg"]),
    output:
        pdf="figures/rgap_fig6.pdf",
        png=shown("rgap_fig6"),
    log:
        "results/logs/figures/rgap_fig6.log",
    params:
        figure="rgap_fig6",
        words=rgap_words("rgap_fig6", ["dlg"], note=""),
        scale=CONFIG.scale,
        code=code("gradleak.figures.rgap_fig6"),


use rule rgap_fig1 as rgap_fig7 with:
    input:
        **rgap_inputs("rgap_batch2"),
    output:
        pdf="figures/rgap_fig7.pdf",
        png=shown("rgap_fig7"),
    log:
        "results/logs/figures/rgap_fig7.log",
    params:
        figure="rgap_batches",
        words=RGAP_BATCHES[2],
        scale=CONFIG.scale,
        code=code("gradleak.figures.rgap_batches"),


use rule rgap_fig1 as rgap_fig8 with:
    input:
        **rgap_inputs("rgap_batch5"),
    output:
        pdf="figures/rgap_fig8.pdf",
        png=shown("rgap_fig8"),
    log:
        "results/logs/figures/rgap_fig8.log",
    params:
        figure="rgap_batches",
        words=RGAP_BATCHES[5],
        scale=CONFIG.scale,
        code=code("gradleak.figures.rgap_batches"),


use rule rgap_fig1 as rgap_fig9 with:
    input:
        **rgap_inputs("rgap_fig9"),
    output:
        pdf="figures/rgap_fig9.pdf",
        png=shown("rgap_fig9"),
    log:
        "results/logs/figures/rgap_fig9.log",
    params:
        figure="rgap_fig9",
        words=rgap_words("rgap_fig9", ["rgap_balanced", "dlg"]),
        scale=CONFIG.scale,
        code=code("gradleak.figures.rgap_fig9"),


use rule copa_table1 as rgap_table1 with:
    input:
        claims=claims_of("rgap"),
        scores=scores_of("rgap_cnn6", "rgap_cnn6_mnist"),
    output:
        tabled("rgap_table1"),
    log:
        "results/logs/tables/rgap_table1.log",
    params:
        name="rgap_table1",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


use rule copa_table1 as rgap_table2 with:
    input:
        claims=claims_of("rgap"),
        scores=scores_of("rgap_lenet", "rgap_draws"),
        rank=rank_of("rgap_lenet", "rgap_draws"),
    output:
        tabled("rgap_table2"),
    log:
        "results/logs/tables/rgap_table2.log",
    params:
        name="rgap_table2",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


use rule copa_table1 as rgap_table3 with:
    input:
        claims=claims_of("rgap"),
        scores=scores_of("rgap_fig2"),
        rank=rank_of("rgap_fig2"),
    output:
        tabled("rgap_table3"),
    log:
        "results/logs/tables/rgap_table3.log",
    params:
        name="rgap_table3",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),
