# Target sets and models: what is attacked; keys and locks, which clients keep.


rule targets:
    input:
        dataset=dataset_file,
    output:
        TARGETS,
    log:
        f"results/logs/targets/{CASE}/{{targets}}.log",
    benchmark:
        f"results/benchmarks/targets/{CASE}/{{targets}}.tsv"
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("targets"),
        runtime=minutes("targets"),
    params:
        settings=target_settings,
        number=target_count,
        size=target_batch,
        images=CONFIG.images,
        code=code("gradleak.targets"),
    message:
        "Choose the images {wildcards.targets}"
    script:
        "../scripts/targets.py"


rule model:
    output:
        MODEL,
    log:
        f"results/logs/models/{CONFIG.scale}/{{model}}.log",
    benchmark:
        f"results/benchmarks/models/{CONFIG.scale}/{{model}}.tsv"
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("model"),
        runtime=minutes("model"),
    params:
        settings=model_settings,
        seeds=model_seeds,
        code=code("gradleak.models.create"),
    message:
        "Draw the weights of {wildcards.model}"
    script:
        "../scripts/model.py"


rule client:
    input:
        MODEL,
    output:
        CLIENT,
    log:
        beside(CLIENT, "logs", ".log"),
    benchmark:
        beside(CLIENT, "benchmarks", ".tsv")
    wildcard_constraints:
        model=ids(LOCKED),
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("client"),
        runtime=minutes("client"),
    params:
        code=code("gradleak.clients"),
    message:
        "Draw the key of client {wildcards.client} ({wildcards.model})"
    script:
        "../scripts/client.py"
