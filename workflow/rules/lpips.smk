# Networks that LPIPS looks through: {DATA_ROOT}/lpips/{network}.safetensors, downloaded only when
# asked for. One that is there is made by no rule, so nothing overwrites or outdates it.


rule lpips_network:
    output:
        f"{LPIPS}/{{network}}.safetensors",
    log:
        "results/logs/lpips_network/{network}.log",
    wildcard_constraints:
        network=ids(
            name for name in backbones.BACKBONES if not Path(LPIPS, f"{name}.safetensors").exists()
        ),
    cache: SHARED
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=doubling(2000),
        runtime=doubling(60),
    params:
        network=wildcard("network"),
        mirror=CONFIG.data.mirrors.get("lpips"),
        code=code("gradleak.data.backbones"),
        software=SOFTWARE,
    message:
        "Download LPIPS' network {wildcards.network}"
    script:
        "../scripts/lpips_network.py"


# All three, for whoever does not want to think about which of them are there.
rule lpips:
    input:
        expand(f"{LPIPS}/{{network}}.safetensors", network=backbones.BACKBONES),
    localrule: True
    message:
        "All of LPIPS' networks are there"
