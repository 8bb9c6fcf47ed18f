# MKOR's tables with our numbers beside. Table 5 is its notation.
# Tables that claims read beside scores.
EXTRA_TABLES = [
    f"results/tables/{name}.csv"
    for name in ("mkor_inconspicuous", "mkor_unique_samples", "mkor_bound", "mkor_soteria_cost")
]
MKOR_TABLES = {  # table -> experiments that it shows
    1: ["mkor_lenet_honest", "mkor_lenet_fishing", "mkor_photos_code", "mkor_cifar_code"],
    2: [
        "mkor_lenet_honest",
        "mkor_lenet_fishing",
        "mkor_lenet_code",
        "mkor_lenet_code_net",
        "mkor_lenet",
        "mkor_lenet_bias",
    ],
    3: [
        "mkor_cifar_honest",
        "mkor_cifar_fishing",
        "mkor_cifar_code",
        "mkor_cifar",
        "mkor_cifar_paired",
        "mkor_cifar_keep",
    ],
    4: ["mkor_photos_code", "mkor_photos_random", "mkor_photos"],
    6: [
        "mkor_lenet_honest",
        "mkor_lenet_fishing",
        "mkor_lenet_code",
        "mkor_lenet_code_net",
        "mkor_lenet",
        "mkor_lenet_bias",
    ],
    7: [
        "mkor_soteria_honest",
        "mkor_soteria_fishing",
        "mkor_soteria_code",
        "mkor_soteria_code_net",
        "mkor_soteria_ours",
    ],
}
TABLES += [
    f"results/tables/mkor_table{n}.csv"
    for n, experiments in MKOR_TABLES.items()
    if experiments[0] in CONFIG.experiments
]


# Those that this config makes.
EXTRA_TABLES = [path for path in EXTRA_TABLES if path in TABLES]


use rule copa_table1 as mkor_table1 with:
    input:
        claims="workflow/claims/mkor.yaml",
        scores=scores_of(*MKOR_TABLES[1]),
        tables=[path for path in EXTRA_TABLES if "inconspicuous" in path],
    output:
        "results/tables/mkor_table1.csv",
    log:
        "results/logs/tables/mkor_table1.log",
    params:
        name="mkor_table1",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


use rule copa_table1 as mkor_table2 with:
    input:
        claims="workflow/claims/mkor.yaml",
        scores=scores_of(*MKOR_TABLES[2]),
    output:
        "results/tables/mkor_table2.csv",
    log:
        "results/logs/tables/mkor_table2.log",
    params:
        name="mkor_table2",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


use rule copa_table1 as mkor_table3 with:
    input:
        claims="workflow/claims/mkor.yaml",
        scores=scores_of(*MKOR_TABLES[3]),
    output:
        "results/tables/mkor_table3.csv",
    log:
        "results/logs/tables/mkor_table3.log",
    params:
        name="mkor_table3",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


use rule copa_table1 as mkor_table4 with:
    input:
        claims="workflow/claims/mkor.yaml",
        scores=scores_of(*MKOR_TABLES[4]),
    output:
        "results/tables/mkor_table4.csv",
    log:
        "results/logs/tables/mkor_table4.log",
    params:
        name="mkor_table4",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


use rule copa_table1 as mkor_table6 with:
    input:
        claims="workflow/claims/mkor.yaml",
        scores=scores_of(*MKOR_TABLES[6]),
    output:
        "results/tables/mkor_table6.csv",
    log:
        "results/logs/tables/mkor_table6.log",
    params:
        name="mkor_table6",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


use rule copa_table1 as mkor_table7 with:
    input:
        claims="workflow/claims/mkor.yaml",
        scores=scores_of(*MKOR_TABLES[7]),
    output:
        "results/tables/mkor_table7.csv",
    log:
        "results/logs/tables/mkor_table7.log",
    params:
        name="mkor_table7",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),
