# Malicious servers: weights that are sent instead of the model's own, and the server's secret.


rule server:
    input:
        MODEL,
    output:
        sent=SENT,
        secret=SECRET,
    log:
        beside(SENT, "logs", ".log"),
    benchmark:
        beside(SENT, "benchmarks", ".tsv")
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("server"),
        runtime=minutes("server"),
    params:
        settings=server_settings,
        code=server_code,
    message:
        "Set the weights of {wildcards.model} as the server {wildcards.server} sends them"
    script:
        "../scripts/server.py"
