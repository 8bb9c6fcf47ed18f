"""Synthetic evidence for R-GAP's claims: runs that its own tables and sentences describe."""

from functools import cache
from itertools import product

import numpy as np
import pandas as pd

import claims_synthetic
from claims_synthetic import ROOT, score
from gradleak.analysis.rank_analysis import analyse, largest_alone, network_index
from gradleak.claims import load
from gradleak.claims.forms import Runs
from gradleak.config.loader import load as load_config
from pipeline_trees import whole

FILE = ROOT / "papers/rgap/claims.yaml"
IMAGES = 6
STARTS = DRAWS = 3
BATCH = {"rgap_batch2": 2, "rgap_batch5": 5}
SEARCHES = ("dlg", "dlg_unknown", "dlg_same_class", "ig")
# Rows of our tables on sentences, by table: row, model, metric, value, number of cases.
SENTENCES = {
    "rgap_choices": [("all networks", "", "right", 0.9, 40)],
    "rgap_likeness": [("all batches", "", "searches", 3, 20)],
    "rgap_counts": [
        ("ResNet-101", "rgap_resnet101", "change", 0, ""),
        ("rgap_cnn6", "rgap_cnn6", "padding_left", 0, ""),
        ("rgap_cnn6", "rgap_cnn6", "times_rgap", 1000, ""),
        ("all networks", "", "first_smaller", 0.6, ""),
    ],
}
CONDITIONS = {"rgap_lenet": (1.8e4, 6.1e3, 32.4), "rgap_lenet_leaky": (1.2e3, 1.3e3, 14.2)}
# Experiment of the rank files, by model.
RANKED = {
    **dict.fromkeys(CONDITIONS, "rgap_lenet"),
    **dict.fromkeys(("rgap_cnn6", "rgap_cnn6d"), "rgap_cnn6"),
    **{f"rgap_fig2_{network}": "rgap_fig2" for network in "abcde"},
    "rgap_fcn3": "rgap_fcn",
    "rgap_fcn3_bias": "rgap_bias",
    **{f"rgap_resnet18{cut}": "rgap_fig4" for cut in ("", "_cut3", "_cut8")},
    **{f"rgap_resnet101{cut}": "rgap_table4" for cut in ("", "_cut3", "_cut1")},
}
CLOSED = ("rgap_float32", "rgap_balanced")
# MSE beyond the paper's tables: experiment, defences and attacks, each with each, of networks.
BEYOND = """
twin none dlg,dlg_near_twin twin=0.05
twin none dlg_same_class twin=1e-6
batch2 none dlg fcn3=1e-6
bias none phong_weighted fcn3_bias=1e-12
bias noise_large phong_single fcn3_bias=0.2
bias noise_large phong fcn3_bias=0.1
bias noise_large phong_weighted fcn3_bias=0.001
fig6 none dlg fig6_one=1e-5 fig6_bottleneck=0.05 fig6_bottleneck_skip=1e-5 fig6_two=2e-5
fig6 none dlg fig6_one_skip=1e-5 fig6_two_skip=1e-5
fig4_untrained none rgap_untrained_ig resnet18=0.01 resnet18_cut3=0.02
fig4 none rgap_resnet_ig resnet18=0.02 resnet18_cut3=0.06 resnet18_cut8=0.02
table4 none rgap_deep_ig resnet101=0.96 resnet101_cut3=1.8 resnet101_cut1=1.3
early none dlg,ig_authors,ig_tuned dlg_lenet=1e-6
early none ig dlg_lenet=0.1
late none dlg dlg_lenet=0.1
fcn none phong fcn3=1
cnn6 none dlg_equal cnn6d=0.2
fig2 none dlg_equal fig2_d=0.01
label none rgap_balanced fig2_a=1e-8 fig2_b=0.05
fig9 noise_small,noise_large CLOSED,dlg fig9_base=0.02 fig9_behind=0.02 fig9_all=0.005
twin none CLOSED twin=1e-9 twin_deficient=0.03
batch2 none CLOSED fcn3=0.05
batch5 none CLOSED fcn3=0.05
bias none CLOSED fcn3_bias=1e-9
fcn none CLOSED fcn3=1e-9
fig2 none CLOSED fig2_a=1e-8 fig2_b=0.05 fig2_c=0.06 fig2_d=1e-4 fig2_e=0.01
edge noise_large CLOSED edge_base=0.02 edge_behind=0.02 edge_all=0.005
"""
TWIN = {"twin_scale": 0.2, "gradient_mismatch": 1e-12, "twin_error": 0.8}
# Other metrics of a run's own choice, and how many images have them.
FACTS = {
    **{("rgap_twin", attack): TWIN for attack in CLOSED},
    **{("rgap_twin", attack): {"twin_error": 0.001} for attack in ("dlg", "dlg_near_twin")},
    ("rgap_twin", "dlg_same_class"): {"twin_error": 0.8},
    **{(f"rgap_batch{size}", attack): {"r2": 0.999} for size in (2, 5) for attack in CLOSED},
    ("rgap_draws", "rgap_float32"): {"label_correct": 1},
    ("rgap_label", "rgap_balanced"): {"label_correct": 1},
    ("rgap_cnn6", "rgap_float32"): {"layer_product_spread": 1e-12},
}
# Rows of the tables of trained networks: model, column, metric, value.
TRAINED = {
    "rgap_fig4": [
        ("rgap_resnet18_cut3", "Trained", "accuracy_change", 0.002),
        ("rgap_resnet18_cut8", "Trained", "accuracy_change", -0.003),
    ],
    "rgap_resnet101": [
        ("rgap_resnet101", "Trained", "accuracy", 0.911),
        ("rgap_resnet101_cut3", "Trained", "accuracy", 0.905),
        ("rgap_resnet101_cut1", "Trained", "accuracy", 0.900),
        ("rgap_resnet101_cut3", "Trained", "accuracy_change", -0.006),
        ("rgap_resnet101_cut1", "Trained", "accuracy_change", -0.011),
    ],
}


@cache
def rgap():
    return load(FILE)


@cache
def config():
    return load_config(whole())


def centres():
    """MSE of each cell of the paper's tables, and of what its sentences are about."""
    found = {}
    for line in BEYOND.replace("CLOSED", ",".join(CLOSED)).splitlines()[1:]:
        result, defences, attacks, *networks = line.split()
        for network in networks:
            name, mse = network.split("=")
            for defence, attack in product(defences.split(","), attacks.split(",")):
                model = "dlg_lenet" if name == "dlg_lenet" else f"rgap_{name}"
                found[f"rgap_{result}", model, defence, attack] = float(mse)
    for claim in rgap().claims:
        query = claim.query
        if claim.cell is None or not isinstance(query, Runs) or query.answers == "all":
            continue
        where = query.where
        key = (str(where["result"]), str(where["model"]), "none", str(where["attack"]))
        assert claim.paper_value is not None
        ours = where["attack"] == "rgap_balanced" and where["result"] != "rgap_fig2"
        found[key] = claim.paper_value * (1e-4 if ours else 1)
        if where["attack"] == "gauss_newton":
            found[key] = 1e-9
        if key[0] == "rgap_draws":
            found[("rgap_lenet", *key[1:])] = found[key]
    return found


def run(key, index, answer, metric, value, **facts):
    where = dict(zip(("result", "model", "defence", "attack"), key, strict=True))
    row = {"paper": "rgap", "defence": key[2], "batch": index // BATCH.get(key[0], 1)}
    row["seed"] = index % DRAWS if key[0] == "rgap_draws" else 0
    row |= {"answer": answer, "kind": "answer" if answer == 0 else f"start {answer}"}
    return score(where, index, metric, value, **row | facts)


@cache
def rgap_scores():
    rng = np.random.default_rng(0)
    rows = []
    for key, centre in centres().items():
        batch = BATCH.get(key[0], 1)
        metrics = ("mse", "mse_input") if key[0] == "rgap_table4" else ("mse",)
        for index in range(IMAGES * batch):
            for answer in range(STARTS if key[3] in SEARCHES else 1):
                facts = dict.fromkeys(metrics, centre * 10 ** rng.normal(0, 0.03))
                if index % batch == 0:
                    facts |= FACTS.get((key[0], key[3]), {})
                rows += [run(key, index, answer, *fact) for fact in facts.items()]
        if key[0] == "rgap_twin" and key[3] in CLOSED:
            twin = 1e-4 if key[1] == "rgap_twin" else 0.4
            facts = (("mse", 0.03), ("twin_error", twin))
            rows += [run(key, k, 1, *fact, kind="twin") for k in range(IMAGES) for fact in facts]
    return rows


@cache
def rank_rows():
    """Real counts of the configured networks; ranks and condition numbers made up."""
    names = sorted(name for name in config().models if name.startswith("rgap_"))
    places = [(RANKED.get(name, "others"), name, 0, index) for name in names for index in range(2)]
    places += [("rgap_draws", name, seed, 0) for name in CONDITIONS for seed in range(DRAWS)]
    return [row for place in places for row in _layers(*place)]


def _layers(result, name, seed, index):
    chain, rows = config().chain(name), []
    for place, count in enumerate(analyse(chain)):
        conv = place < len(chain.convolutions)
        if not conv and index:
            continue
        low = name == "rgap_cnn6d" and place == 1
        factor = 1 + 0.1 * seed + 0.001 * index
        condition = CONDITIONS.get(name, (10.0,) * 200)[place] * factor if conv else ""
        facts = {"result": result, "model": name, "seed": seed, "index": index}
        facts |= {"layer": count.layer, "unknowns": count.unknowns, "weights": count.weights}
        facts |= {"outputs": count.outputs, "virtual": count.virtual, "ra": count.index}
        facts |= {"network_ra": network_index(chain), "inputs": count.unknowns if conv else ""}
        facts["network_ra_alone"] = largest_alone(analyse(chain)).alone
        facts["rank"] = count.unknowns - low if conv and not index else ""
        rows.append({**facts, "condition": condition, "condition_padding": condition})
    return rows


def read(folder, scores=(), rank=()):
    columns = ("model", "column", "metric", "ours")
    trained = {name: pd.DataFrame(rows, columns=columns) for name, rows in TRAINED.items()}
    columns = ("row", "model", "metric", "ours", "n")
    more = {name: pd.DataFrame(rows, columns=columns) for name, rows in SENTENCES.items()}
    return claims_synthetic.read(folder, scores, rank=rank, **trained, **more)
