# MKOR: what is measured beside its reconstructions, as tidy tables.
MEASURED = {
    "mkor_inconspicuous": set(INCONSPICUOUS) <= {*CONFIG.models, *CONFIG.groups},
    "mkor_unique_samples": any(name.startswith("mkor") for name in CONFIG.experiments),
    "mkor_bound": "mkor_photos" in CONFIG.targets,
    "mkor_soteria_cost": "mkor_lenets" in CONFIG.groups,
    "mkor_soteria_pruned": bool(SOTERIA),
    "mkor_losses": bool(LOSSES),
}
TABLES += [f"results/tables/{name}.csv" for name, there in MEASURED.items() if there]


rule inconspicuous:
    input:
        honest=MODEL,
        sent=inconspicuous_sent,
        targets=inconspicuous_targets,
    output:
        f"results/inconspicuous/{CASE}/{{model}}.csv",
    log:
        f"results/logs/inconspicuous/{CASE}/{{model}}.log",
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    threads: model_threads
    resources:
        mem_mb=memory("inconspicuous"),
        runtime=minutes("inconspicuous"),
    params:
        servers=lambda wildcards: INCONSPICUOUS[wildcards.model],
        samples=CONFIG.amount("mkor_sampled"),
        code=code("gradleak.inconspicuous"),
        software=SOFTWARE,
    message:
        "Measure how far {wildcards.model} sent by servers differs from an honest one"
    script:
        "../scripts/inconspicuous.py"


rule mkor_inconspicuous:
    input:
        [f"results/inconspicuous/{CASE}/{model}.csv" for model in INCONSPICUOUS],
    output:
        tabled("mkor_inconspicuous"),
    log:
        "results/logs/tables/mkor_inconspicuous.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("table_mkor"),
        runtime=minutes("table_mkor"),
    params:
        table="joined",
        code=code("gradleak.artifacts"),
    message:
        "Write {output}"
    script:
        "../scripts/table_mkor.py"


use rule mkor_inconspicuous as mkor_unique_samples with:
    input:
        [],
    output:
        tabled("mkor_unique_samples"),
    log:
        "results/logs/tables/mkor_unique_samples.log",
    params:
        table="unique_samples",
        code=code("gradleak.unique_samples"),


use rule mkor_inconspicuous as mkor_bound with:
    input:
        TARGETS.format(targets="mkor_photos"),
    output:
        tabled("mkor_bound"),
    log:
        "results/logs/tables/mkor_bound.log",
    params:
        table="low_pass",
        code=code("gradleak.low_pass"),


use rule mkor_inconspicuous as mkor_soteria_cost with:
    input:
        models=[MODEL.format(model=model) for model in ("mkor_lenets", "mkor_vgg16_100")],
    output:
        tabled("mkor_soteria_cost"),
    log:
        "results/logs/tables/mkor_soteria_cost.log",
    params:
        table="soteria_cost",
        code=code("gradleak.defences.soteria"),


use rule mkor_inconspicuous as mkor_soteria_pruned with:
    input:
        before=soteria_gradients("none"),
        after=soteria_gradients("soteria"),
    output:
        tabled("mkor_soteria_pruned"),
    log:
        "results/logs/tables/mkor_soteria_pruned.log",
    params:
        table="soteria_pruned",
        results=SOTERIA,
        code=code("gradleak.tables.mkor_pruned"),


use rule mkor_inconspicuous as mkor_losses with:
    input:
        scores=loss_cases("scores"),
        models=loss_cases("models"),
    output:
        tabled("mkor_losses"),
    log:
        "results/logs/tables/mkor_losses.log",
    params:
        table="losses",
        words=loss_words,
        code=code("gradleak.tables.mkor_losses"),
