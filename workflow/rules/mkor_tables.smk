# MKOR's tables with our numbers beside. Table 5 is its notation.
# Tables that claims read beside scores, those that this config makes.
EXTRA_TABLES = [
    path
    for name in (
        "mkor_inconspicuous",
        "mkor_unique_samples",
        "mkor_bound",
        "mkor_soteria_cost",
        "mkor_soteria_pruned",
    )
    if (path := f"results/tables/{name}.csv") in TABLES
]
# Table 1 says how easily a server is found out.
WEIGHTS = [path for path in EXTRA_TABLES if "inconspicuous" in path]
MKOR_TABLES = {  # table -> experiments that it shows
    1: ["mkor_lenet_honest", "mkor_lenet_fishing", "mkor_photos_code", "mkor_cifar_code"],
    2: [
        "mkor_lenet_honest",
        "mkor_lenet_fishing",
        "mkor_lenet_code",
        "mkor_lenet",
        "mkor_lenet_paired",
        "mkor_lenet_bias",
    ],
    3: [
        "mkor_cifar_honest",
        "mkor_cifar_fishing",
        "mkor_cifar_code",
        "mkor_cifar_modified",
        "mkor_cifar_modified_ours",
        "mkor_cifar_repeated",
        "mkor_cifar_code_strided",
        "mkor_cifar",
        "mkor_cifar_strided",
        "mkor_cifar_paired",
        "mkor_cifar_keep",
        "mkor_cifar_keep_1",
        "mkor_cifar_keep_2",
        "mkor_cifar_keep_2_raw",
    ],
    4: ["mkor_photos_code", "mkor_photos_modified", "mkor_photos_strided", "mkor_photos"],
    6: [
        "mkor_lenet_honest",
        "mkor_lenet_fishing",
        "mkor_lenet_code",
        "mkor_lenet",
    ],
    7: [
        "mkor_soteria_honest",
        "mkor_soteria_fishing",
        "mkor_soteria_code",
        "mkor_soteria_ours",
    ],
}
TABLES += [
    f"results/tables/mkor_table{n}.csv"
    for n, experiments in MKOR_TABLES.items()
    if experiments[0] in CONFIG.experiments
]


# A rule for each, as each has a caption of its own.
for NUMBER in map(str, MKOR_TABLES):

    rule:
        name:
            f"mkor_table{NUMBER}"
        input:
            claims=claims_of("mkor"),
            scores=lambda wildcards: scores_of(*MKOR_TABLES[int(wildcards.number)]),
            tables=lambda wildcards: WEIGHTS if wildcards.number == "1" else [],
        output:
            tabled(f"mkor_table{NUMBER}", "mkor_table{number}"),
        log:
            "results/logs/tables/mkor_table{number}.log",
        wildcard_constraints:
            number=NUMBER,
        conda:
            "../../envs/gradleak.yaml"
        threads: 1
        resources:
            mem_mb=memory("table_paper"),
            runtime=minutes("table_paper"),
        params:
            name="mkor_table{number}",
            case={"images": CONFIG.images, "scale": CONFIG.scale},
            code=code("gradleak.claims"),
        message:
            "Write {output}"
        script:
            "../scripts/table_paper.py"
