# Data sets: {root}/{dataset}-{split}.safetensors, each made by exactly one of three rules, and the
# networks of LPIPS. A file that somebody put there by hand is made by none, so nothing overwrites or
# outdates it.
from gradleak.data import backbones
from gradleak.data.catalogue import pairs

ARRAYS = PATHS.arrays
LPIPS = f"{PATHS.lpips}/{{network}}.safetensors"


rule embedded_dataset:
    output:
        arrays=ARRAYS,
        sidecar=f"{ARRAYS}.sha256",
    log:
        "results/logs/embedded_dataset/{dataset}-{split}.log",
    wildcard_constraints:
        dataset=ASK.made_from("embedded"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **needs("embedded_dataset"),
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
        marker=PATHS.marker,
    log:
        "results/logs/download_dataset/{dataset}.log",
    benchmark:
        "results/benchmarks/download_dataset/{dataset}.tsv"
    wildcard_constraints:
        dataset=ids({dataset for dataset, _ in pairs("official")}),
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(1000, 120),
    params:
        mirror=ASK.mirror,
        code=code("gradleak.data.official"),
    message:
        "Download {wildcards.dataset}"
    script:
        "../scripts/download_dataset.py"


rule unpack_dataset:
    input:
        marker=PATHS.marker,
    output:
        arrays=ARRAYS,
        sidecar=f"{ARRAYS}.sha256",
    log:
        "results/logs/unpack_dataset/{dataset}-{split}.log",
    wildcard_constraints:
        dataset=ASK.made_from("official"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(2000, 10),
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
        source=ASK.own_images,
    output:
        arrays=ARRAYS,
        sidecar=f"{ARRAYS}.sha256",
    log:
        "results/logs/import_imagenet/{dataset}-{split}.log",
    wildcard_constraints:
        dataset=ASK.made_from("own_folder"),
    cache: SHARED
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(4000, 60),
    params:
        dataset=wildcard("dataset"),
        split=wildcard("split"),
        source=str(CONFIG.data.imagenet or ""),
        listing=ASK.own_listing,
        code=code("gradleak.data.own_folder"),
        software=SOFTWARE,
    message:
        "Read {wildcards.dataset}-{wildcards.split} from your own images"
    script:
        "../scripts/import_folder.py"


# Downloaded only when asked for.
rule lpips_network:
    output:
        LPIPS,
    log:
        "results/logs/lpips_network/{network}.log",
    wildcard_constraints:
        network=ids(n for n in backbones.BACKBONES if not Path(LPIPS.format(network=n)).exists()),
    cache: SHARED
    localrule: True
    conda:
        "../../envs/gradleak.yaml"
    resources:
        **resources.doubling(2000, 60),
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
        expand(LPIPS, network=backbones.BACKBONES),
    localrule: True
    message:
        "All of LPIPS' networks are there"
