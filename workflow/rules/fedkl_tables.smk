# FedKL's tables with our numbers beside, and those that claims read.
FEDKL_MEASURED = {
    "fedkl_accuracy": bool(FEDKL_ACCURACIES),
    "fedkl_table1": bool(FEDKL_ACCURACIES),
    "fedkl_table3": bool(FEDKL_ACCURACIES),
    "fedkl_table6": any(name in CONFIG.experiments for name in FEDKL_TABLE6),
    "fedkl_parameters": bool(FEDKL_ACCURACIES),
    "fedkl_propositions": any(e.paper == "fedkl" for e in CONFIG.experiments.values()),
}
TABLES += [f"results/tables/{name}.csv" for name, there in FEDKL_MEASURED.items() if there]
# Tables that claims read beside scores, those that this config makes.
FEDKL_READ = [
    path
    for name in ("accuracy", "parameters", "propositions", "fig4")
    if (path := f"results/tables/fedkl_{name}.csv") in TABLES
]


rule fedkl_accuracy:
    input:
        unpack(fedkl_accuracy_files),
    output:
        tabled("fedkl_accuracy"),
    log:
        "results/logs/tables/fedkl_accuracy.log",
    conda:
        "../../envs/gradleak.yaml"
    threads: 1
    resources:
        mem_mb=memory("table_fedkl"),
        runtime=minutes("table_fedkl"),
    params:
        table="accuracy",
        cases=FEDKL_ACCURACIES,
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.tables.fedkl_accuracy"),
    message:
        "Write {output}"
    script:
        "../scripts/table_fedkl.py"


use rule fedkl_accuracy as fedkl_parameters with:
    input:
        [],
    output:
        tabled("fedkl_parameters"),
    log:
        "results/logs/tables/fedkl_parameters.log",
    params:
        table="parameters",
        cases=fedkl_chains(),
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.tables.fedkl_parameters"),


use rule fedkl_accuracy as fedkl_propositions with:
    input:
        dataset=f"{DATA_ROOT}/{FEDKL_COLOUR_IMAGES}-test.safetensors",
    output:
        tabled("fedkl_propositions"),
    log:
        "results/logs/tables/fedkl_propositions.log",
    params:
        table="propositions",
        dataset=FEDKL_COLOUR_IMAGES,
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.propositions.table"),


use rule copa_table1 as fedkl_table1 with:
    input:
        claims=claims_of("fedkl"),
        tables=["results/tables/fedkl_accuracy.csv"],
    output:
        tabled("fedkl_table1"),
    log:
        "results/logs/tables/fedkl_table1.log",
    params:
        name="fedkl_table1",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


use rule copa_table1 as fedkl_table3 with:
    input:
        claims=claims_of("fedkl"),
        tables=["results/tables/fedkl_accuracy.csv", "results/tables/fedkl_parameters.csv"],
    output:
        tabled("fedkl_table3"),
    log:
        "results/logs/tables/fedkl_table3.log",
    params:
        name="fedkl_table3",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),


use rule copa_table1 as fedkl_table6 with:
    input:
        claims=claims_of("fedkl"),
        scores=scores_of(*FEDKL_TABLE6, attacks=FEDKL_TABLE6_ATTACKS),
    output:
        tabled("fedkl_table6"),
    log:
        "results/logs/tables/fedkl_table6.log",
    params:
        name="fedkl_table6",
        case={"images": CONFIG.images, "scale": CONFIG.scale},
        code=code("gradleak.claims"),
