# Jobs that Slurm kills at their first attempt and that come through at the second, as the rules of
# the pipeline do: what they ask for doubles.
rule all:
    input:
        "late.txt",
        "large.txt",
        "gpu.txt",


# Takes longer than its first limit of one minute, which Slurm checks twice a minute.
rule late:
    output:
        "late.txt",
    resources:
        mem_mb=500,
        runtime=lambda wildcards, attempt: 2 ** (attempt - 1),
    shell:
        "echo begun >> late.log; sleep 100; wc -l < late.log > {output}"


# 700 MiB of numbers; Snakemake itself takes 200.
rule large:
    output:
        "large.txt",
    resources:
        mem_mb=lambda wildcards, attempt: 600 * 2 ** (attempt - 1),
        runtime=5,
    shell:
        "echo begun >> large.log;"
        " python3 -c 'import time; held = bytearray(b\"1\") * (700 * 2**20); time.sleep(8)';"
        " wc -l < large.log > {output}"


rule gpu:
    output:
        "gpu.txt",
    resources:
        mem_mb=500,
        runtime=5,
        gpu=1,
    shell:
        "echo ${{CUDA_VISIBLE_DEVICES-none}} > {output}"
