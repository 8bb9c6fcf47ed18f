# Target sets and models: what is attacked; keys and locks, which clients keep; malicious servers.


rule targets:
    input:
        dataset=ASK.dataset_file,
    output:
        PATHS.targets,
    log:
        beside(PATHS.targets, "logs", ".log"),
    benchmark:
        beside(PATHS.targets, "benchmarks", ".tsv")
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("targets"),
    params:
        settings=ASK.entry("targets", "targets"),
        number=ASK.target_count,
        size=ASK.target_batch,
        images=CONFIG.images,
        code=code("gradleak.data.targets"),
    message:
        "Choose the images {wildcards.targets}"
    script:
        "../scripts/targets.py"


rule model:
    output:
        PATHS.model,
    log:
        beside(PATHS.model, "logs", ".log"),
    benchmark:
        beside(PATHS.model, "benchmarks", ".tsv")
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("model"),
    params:
        settings=ASK.model_settings,
        seeds=ASK.model_seeds,
        code=code("gradleak.models.create"),
    message:
        "Draw the weights of {wildcards.model}"
    script:
        "../scripts/model.py"


rule client:
    input:
        PATHS.model,
    output:
        PATHS.client,
    log:
        beside(PATHS.client, "logs", ".log"),
    benchmark:
        beside(PATHS.client, "benchmarks", ".tsv")
    wildcard_constraints:
        model=ids(ASK.locked),
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("client"),
    params:
        code=code("gradleak.client.client_keys"),
    message:
        "Draw the key of client {wildcards.client} ({wildcards.model})"
    script:
        "../scripts/client.py"


# Malicious servers send other weights than the model's own, and keep a secret.
rule server:
    input:
        PATHS.model,
    output:
        sent=PATHS.sent,
        secret=PATHS.secret,
    log:
        beside(PATHS.sent, "logs", ".log"),
    benchmark:
        beside(PATHS.sent, "benchmarks", ".tsv")
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("server"),
    params:
        settings=ASK.entry("servers", "server"),
        code=ASK.method_code("servers", "server", "gradleak.servers.base"),
    message:
        "Set the weights of {wildcards.model} as the server {wildcards.server} sends them"
    script:
        "../scripts/server.py"
