"""Synthetic evidence for R-GAP's claims: runs that its own tables and sentences describe."""

from functools import cache

import numpy as np

import claims_synthetic
from claims_synthetic import ROOT, score
from gradleak.analysis.rank_analysis import analyse, largest_alone, network_index
from gradleak.claims import load
from gradleak.claims.forms import Runs
from gradleak.config.loader import load as load_config
from settings_files import whole

FILE = ROOT / "papers/rgap/claims.yaml"
IMAGES = 6
STARTS = DRAWS = 3
BATCH = {"rgap_batch2": 2, "rgap_batch5": 5}
SEARCHES = ("dlg", "dlg_unknown", "dlg_same_class", "ig")
CONDITIONS = {"rgap_lenet": (1.8e4, 6.1e3, 32.4), "rgap_lenet_leaky": (1.2e3, 1.3e3, 14.2)}
# Experiment of the rank files, by model.
RANKED = {
    **dict.fromkeys(CONDITIONS, "rgap_lenet"),
    **{f"rgap_fig2_{network}": "rgap_fig2" for network in "abcde"},
    "rgap_fcn3": "rgap_fcn",
    "rgap_fcn3_bias": "rgap_bias",
    **{f"rgap_resnet18{cut}": "rgap_fig4" for cut in ("", "_cut3", "_cut8")},
    **{f"rgap_resnet101{cut}": "rgap_table4" for cut in ("", "_cut3", "_cut1")},
}
CLOSED = ("rgap_float32", "rgap_balanced")
# MSE by experiment, model, defence and attack, beyond the paper's tables.
FIG2 = {"a": 1e-8, "b": 0.05, "c": 0.06, "d": 1e-4, "e": 0.01}
FIG6 = {"one": 1e-5, "bottleneck": 0.05, "bottleneck_skip": 1e-5, "two": 2e-5}
FIG6 |= {"one_skip": 1e-5, "two_skip": 1e-5}
BIAS = {"phong_single": 0.2, "phong": 0.1, "phong_weighted": 0.001}
WIDTHS = {"base": 0.02, "behind": 0.02, "all": 0.005}
BEYOND = {
    ("rgap_twin", "rgap_twin", "none", "dlg"): 0.05,
    ("rgap_twin", "rgap_twin", "none", "dlg_near_twin"): 0.05,
    ("rgap_twin", "rgap_twin", "none", "dlg_same_class"): 1e-6,
    ("rgap_batch2", "rgap_fcn3", "none", "dlg"): 1e-6,
    ("rgap_bias", "rgap_fcn3_bias", "none", "phong_weighted"): 1e-12,
    **{("rgap_bias", "rgap_fcn3_bias", "noise_large", name): mse for name, mse in BIAS.items()},
    **{("rgap_fig6", f"rgap_fig6_{n}", "none", "dlg"): mse for n, mse in FIG6.items()},
    **{
        ("rgap_fig4", f"rgap_resnet18{cut}", "none", "rgap_resnet_ig"): mse
        for cut, mse in (("", 0.02), ("_cut3", 0.06), ("_cut8", 0.02))
    },
    **{
        ("rgap_table4", f"rgap_resnet101{cut}", "none", "rgap_deep_ig"): mse
        for cut, mse in (("", 0.96), ("_cut3", 1.8), ("_cut1", 1.3))
    },
    **{("rgap_label", f"rgap_fig2_{n}", "none", CLOSED[1]): FIG2[n] for n in "ab"},
    **{
        ("rgap_fig9", f"rgap_fig9_{width}", f"noise_{noise}", attack): mse
        for width, mse in WIDTHS.items()
        for noise in ("small", "large")
        for attack in (*CLOSED, "dlg")
    },
    **{
        (*place, attack): mse
        for place, mse in {
            ("rgap_twin", "rgap_twin", "none"): 1e-9,
            ("rgap_twin", "rgap_twin_deficient", "none"): 0.03,
            ("rgap_batch2", "rgap_fcn3", "none"): 0.05,
            ("rgap_batch5", "rgap_fcn3", "none"): 0.05,
            ("rgap_bias", "rgap_fcn3_bias", "none"): 1e-9,
            ("rgap_fcn", "rgap_fcn3", "none"): 1e-9,
            **{("rgap_fig2", f"rgap_fig2_{n}", "none"): mse for n, mse in FIG2.items()},
        }.items()
        for attack in CLOSED
    },
    **{
        ("rgap_edge", f"rgap_edge_{width}", "noise_large", attack): mse
        for width, mse in WIDTHS.items()
        for attack in CLOSED
    },
}
# Other metrics of a run's own choice, and how many images have them.
FACTS = {
    **{
        ("rgap_twin", attack): {"twin_scale": 0.2, "gradient_mismatch": 1e-12, "twin_error": 0.8}
        for attack in CLOSED
    },
    ("rgap_twin", "dlg"): {"twin_error": 0.001},
    ("rgap_twin", "dlg_near_twin"): {"twin_error": 0.001},
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
        ("rgap_resnet18_cut3", "Trained, evaluation mode", "mse_ratio", 2.9),
        ("rgap_resnet18_cut3", "Trained, evaluation mode", "sd_ratio", 2.0),
        ("rgap_resnet18_cut8", "Trained, evaluation mode", "mse_ratio", 1.05),
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
def rgap_scores():
    return score_rows(rgap())


@cache
def config():
    return load_config(whole())


def centres(claims):
    """MSE of each cell of the paper's tables, and of what its sentences are about."""
    found = dict(BEYOND)
    for claim in claims.claims:
        query = claim.query
        if claim.cell is None or not isinstance(query, Runs) or query.answers == "all":
            continue
        where = query.where
        key = (str(where["result"]), str(where["model"]), "none", str(where["attack"]))
        assert claim.paper_value is not None
        ours = where["attack"] == "rgap_balanced" and where["result"] != "rgap_fig2"
        found[key] = claim.paper_value * (1e-4 if ours else 1)
        if key[0] == "rgap_draws":
            found[("rgap_lenet", *key[1:])] = found[key]
    return found


def run(key, index, answer, **facts):
    result, model, defence, attack = key
    row = {"paper": "rgap", "defence": defence, "batch": index // BATCH.get(result, 1)}
    row["seed"] = index % DRAWS if result == "rgap_draws" else 0
    row |= {"answer": answer, "kind": "answer" if answer == 0 else f"start {answer}"}
    where = {"result": result, "attack": attack, "model": model}
    return score(where, index, **row | facts)


def score_rows(claims):
    rng = np.random.default_rng(0)
    rows = []
    for key, centre in centres(claims).items():
        batch = BATCH.get(key[0], 1)
        for index in range(IMAGES * batch):
            for answer in range(STARTS if key[3] in SEARCHES else 1):
                value = centre * 10 ** rng.normal(0, 0.03)
                rows.append(run(key, index, answer, metric="mse", value=value))
                if key[0] == "rgap_table4":
                    rows.append(run(key, index, answer, metric="mse_input", value=value))
                facts = FACTS.get((key[0], key[3]), {}) if index % batch == 0 else {}
                rows += [run(key, index, answer, metric=m, value=v) for m, v in facts.items()]
        if key[0] == "rgap_twin" and key[3] in CLOSED:
            twin = 1e-4 if key[1] == "rgap_twin" else 0.4
            for index in range(IMAGES):
                for metric, value in (("mse", 0.03), ("twin_error", twin)):
                    facts = {"metric": metric, "value": value, "kind": "twin"}
                    rows.append(run(key, index, 1, **facts))
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


def read(folder, scores, rank):
    columns = ("model", "column", "metric", "ours")
    trained = {
        name: [dict(zip(columns, row, strict=True)) for row in rows]
        for name, rows in TRAINED.items()
    }
    return claims_synthetic.read(folder, scores, rank=rank, **trained)
