# Gradient capture and defences: what a client shares.


rule gradient:
    input:
        model=MODEL,
        targets=experiment_targets,
    output:
        GRADIENT,
    log:
        beside(GRADIENT, "logs", ".log"),
    benchmark:
        beside(GRADIENT, "benchmarks", ".tsv")
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    params:
        experiment=experiment_settings,
        defence=defence_settings,
        device=CONFIG.device,
        code=defence_code,
    script:
        "../scripts/gradient.py"
