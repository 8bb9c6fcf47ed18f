# Data sets: {DATA_ROOT}/{dataset}-{split}.safetensors, each made by exactly one of three rules. A
# file that somebody put there by hand is made by none, so nothing overwrites or outdates it.


rule embedded_dataset:
    output:
        arrays=ARRAYS,
        sidecar=f"{ARRAYS}.sha256",
    log:
        "results/logs/embedded_dataset/{dataset}-{split}.log",
    wildcard_constraints:
        dataset=made_from("embedded"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("embedded_dataset"),
        runtime=minutes("embedded_dataset"),
    params:
        dataset=wildcard("dataset"),
        split=wildcard("split"),
        code=code("gradleak.data.embedded"),
        software=SOFTWARE,
    message:
        "Make the data set {wildcards.dataset}-{wildcards.split} of embedded images"
    script:
        "../scripts/embedded_dataset.py"


# The files themselves are no outputs: Snakemake would delete what an interrupted download left.
rule download_dataset:
    output:
        marker=MARKER,
    log:
        "results/logs/download_dataset/{dataset}.log",
    benchmark:
        "results/benchmarks/download_dataset/{dataset}.tsv"
    wildcard_constraints:
        dataset="|".join(sorted({dataset for dataset, _ in pairs("official")})),
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=doubling(1000),
        runtime=doubling(120),
    params:
        mirror=mirror,
        code=code("gradleak.data.official"),
    message:
        "Download {wildcards.dataset}"
    script:
        "../scripts/download_dataset.py"


rule unpack_dataset:
    input:
        marker=MARKER,
    output:
        arrays=ARRAYS,
        sidecar=f"{ARRAYS}.sha256",
    log:
        "results/logs/unpack_dataset/{dataset}-{split}.log",
    wildcard_constraints:
        dataset=made_from("official"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=doubling(2000),
        runtime=doubling(10),
    params:
        dataset=wildcard("dataset"),
        split=wildcard("split"),
        code=code("gradleak.data.official"),
        software=SOFTWARE,
    message:
        "Unpack {wildcards.dataset}-{wildcards.split}"
    script:
        "../scripts/unpack_dataset.py"


rule import_imagenet:
    input:
        source=own_images,
    output:
        arrays=ARRAYS,
        sidecar=f"{ARRAYS}.sha256",
    log:
        "results/logs/import_imagenet/{dataset}-{split}.log",
    wildcard_constraints:
        dataset=made_from("own_folder"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=doubling(4000),
        runtime=doubling(60),
    params:
        dataset=wildcard("dataset"),
        split=wildcard("split"),
        source=str(CONFIG.data.imagenet or ""),
        listing=own_listing,
        code=code("gradleak.data.own_folder"),
        software=SOFTWARE,
    message:
        "Read {wildcards.dataset}-{wildcards.split} from your own images"
    script:
        "../scripts/import_folder.py"
