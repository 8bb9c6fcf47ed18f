"""Panels and curves of FedKL's figures, as the rules name them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gradleak.data.catalogue import resolve

ROOT = Path(__file__).resolve().parents[1]
SMALL, LARGE = ("lenet", "resnet20"), "resnet18"
SHARED = ("", "_key", "_gradient", "_both")


class Refused(Exception):
    """What Snakemake shows of a figure that cannot be made."""


def experiments() -> dict[str, Any]:
    """Every experiment that a figure shows."""
    found = {}
    for network in (*SMALL, LARGE):
        last = "imagenet" if network == LARGE else "mnist"
        for dataset in (last, "cifar10", "cifar100"):
            for shared in SHARED:
                name = f"fedkl_{network}_{dataset}"
                locks = (
                    [""] * (not shared) + ["_kl"] + ["_bn"] * (network == "lenet" and not shared)
                )
                locks += ["_kls"] * (network == "lenet" and dataset != "cifar100")
                attacks = ["fedkl_dlg", "fedkl_grnn", "fedkl_ig"]
                attacks += ["fedkl_dlg_fit", "fedkl_ig_fit"]
                attacks += ["fedkl_unlock"] * (network == "lenet" and not shared)
                found[f"{name}{shared}"] = SimpleNamespace(
                    models=[f"{name}{lock}" for lock in locks],
                    attacks=attacks,
                    defences=["none"],
                    targets=f"of_{name}",
                )
    for dataset, shared in [("imagenet", shared) for shared in SHARED] + [("cifar10", "")]:
        name = f"fedkl_ggl_{dataset}"
        found[f"{name}{shared}"] = SimpleNamespace(
            models=[f"{name}{lock}" for lock in [""] * (not shared) + ["_kl"]],
            attacks=["fedkl_ggl" if dataset == "imagenet" else f"fedkl_ggl_{dataset}"],
            defences=["none"],
            targets=f"of_{name}",
        )
    return found


def rules(
    kept: dict[str, Any] | None = None, trained: Iterable[str] | None = None, images: str = "real"
) -> dict[str, Any]:
    """Names of panels.smk and fedkl_panels.smk, which are Python."""
    networks = ("resnet20", "resnet32", "resnet18", "resnet34", "vgg16")
    wanted = [f"fedkl_trained_{n}_{d}" for n in networks for d in ("cifar10", "cifar100")]
    models = [name + lock for name in wanted for lock in ("", "_kl")]
    trainings = {
        f"fedkl_central_{dataset}{size}": SimpleNamespace(dataset=dataset)
        for dataset in ("cifar10", "cifar100")
        for size in ("", "_large")
    }

    def absent(name: str) -> Any:
        def inputs(wildcards: Any) -> Any:
            raise Refused(name)

        return inputs

    chosen = models if trained is None else list(trained)
    here: dict[str, Any] = {
        "CONFIG": SimpleNamespace(
            experiments=experiments() if kept is None else kept,
            models=dict.fromkeys(chosen),
            trainings=trainings,
            groups={
                "ours": chosen[:1],
                "fedkl_large_cifar100_kl": ["fedkl_trained_resnet18_cifar100_kl"],
            },
            images=images,
            members=lambda model: [model],
            chain=lambda model: SimpleNamespace(input=(3, 64 if "18" in model else 32, 32)),
        ),
        "TARGETS": "{targets}",
        "RECONSTRUCTION": "{experiment}/{model}/{defence}/{attack}.safetensors",
        "SCORE": "{experiment}/{model}/{defence}/{attack}.csv",
        "TRAINED": "{training}/{model}.safetensors",
        "CLIENTS": "{training}/{model}.clients",
        "WorkflowError": Refused,
        "absent": absent,
        "resolve": resolve,
        "amounts_of": lambda section, name: {"epochs": 7, "name": name},
        "dataset_of": lambda training: f"data of {training}",
    }
    for name in ("panels", "fedkl_panels"):
        exec((ROOT / f"workflow/rules/{name}.smk").read_text(encoding="utf-8"), here)
    return here


def grid(here: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, list[str]]]:
    wildcards = SimpleNamespace(grid=name)
    return here["fedkl_grid_words"](wildcards), here["fedkl_grid_files"](wildcards)


def test_table4_has_a_panel_for_each_attack_network_and_lock() -> None:
    words, files = grid(rules(), "table4")
    assert "Table IV" in words["title"]
    assert [row["name"] for row in words["rows"][:4]] == ["True", "w/o KL", "w/ BN", "w/ KL"]
    assert [row["group"] for row in words["rows"]] == 4 * ["DLG"] + 3 * ["GRNN"] + 3 * ["IG"]
    assert len(words["columns"]) == 9
    assert words["columns"][8] == {"name": "ILSVRC", "group": "ResNet-18"}
    # Two for each attack and column, and LeNet's with a norm.
    assert len(words["panels"]) == 3 * 9 * 2 + 3
    assert {len(paths) for paths in files.values()} == {len(words["panels"])}
    for panel, path in zip(words["panels"], files["scores"], strict=True):
        row, column = words["rows"][panel["row"]], words["columns"][panel["column"]]
        assert not row.get("original")
        network = column["group"].lower().replace("-", "")
        dataset = {"MNIST": "mnist", "C-10": "cifar10", "C-100": "cifar100"}.get(column["name"])
        end = {"w/o KL": "", "w/ BN": "_bn", "w/ KL": "_kl"}[row["name"]]
        name = f"fedkl_{network}_{dataset or 'imagenet'}"
        assert path == f"{name}/{name}{end}/none/fedkl_{row['group'].lower()}.csv"


def test_table5_compares_ggl_with_and_without_lock() -> None:
    words, files = grid(rules(), "table5")
    assert "rows" not in words and [p["column"] for p in words["panels"]] == [1, 2, 4, 5]
    assert [Path(path).parts[:2] for path in files["scores"]] == [
        (f"fedkl_ggl_{dataset}", f"fedkl_ggl_{dataset}{lock}")
        for dataset in ("imagenet", "cifar10")
        for lock in ("", "_kl")
    ]
    assert [Path(path).stem for path in files["scores"]] == ["fedkl_ggl"] * 2 + [
        "fedkl_ggl_cifar10"
    ] * 2
    assert [head["original"] for head in words["columns"]] == [True, False, False] * 2


def test_table7_has_a_row_for_what_is_shared() -> None:
    words, files = grid(rules(), "table7")
    assert [row["name"] for row in words["rows"]] == ["Key", "Lock", "Both", "Neither", "True"]
    assert words["rows"][4]["original"] and len(words["panels"]) == 4 * 7
    ends = ["_key", "_gradient", "_both", ""]
    for panel, path in zip(words["panels"], files["scores"], strict=True):
        experiment, model, _, attack = Path(path).parts
        assert model.endswith("_kl")
        assert experiment == model.removesuffix("_kl") + ends[panel["row"]]
        assert attack == ("fedkl_ggl.csv" if panel["column"] == 6 else "fedkl_grnn.csv")
    assert words["columns"][6] == {"name": "ILSVRC", "group": "ResNet-18, GGL"}


def test_adaptive_attackers_have_their_cases() -> None:
    here = rules()
    panels = here["FEDKL_ADAPTIVE_WORDS"]["panels"]
    # Both locks of LeNet and that of ResNet-20, on two data sets; DLG and IG fit it, GRNN does not
    # here; the closed form is tried on LeNet.
    assert len(panels) == 6 * (7 + 5 + 7) + 4
    opened = [panel for panel in panels if panel["method"] == "closed form"]
    assert [panel["case"] for panel in opened] == 4 * ["moments"]
    assert [panel["model"][-4:] for panel in opened] == ["t_kl", "0_kl", "_kls", "_kls"]
    one = {
        panel["case"]: (panel["experiment"], panel["model"], panel["attack"])
        for panel in panels
        if (panel["network"], panel["dataset"]) == ("ResNet-20, Sigmoid lock", "CIFAR-10")
        and panel["method"] == "IG"
    }
    name = "fedkl_resnet20_cifar10"
    assert one == {
        "no lock": (name, name, "fedkl_ig"),
        "guess": (name, f"{name}_kl", "fedkl_ig"),
        "fit": (name, f"{name}_kl", "fedkl_ig_fit"),
        "key": (f"{name}_key", f"{name}_kl", "fedkl_ig"),
        "gradient": (f"{name}_gradient", f"{name}_kl", "fedkl_ig"),
        "read": (f"{name}_gradient", f"{name}_kl", "fedkl_ig_fit"),
        "both": (f"{name}_both", f"{name}_kl", "fedkl_ig"),
    }
    files = here["fedkl_adaptive_files"](None)
    assert len(files["scores"]) == len(panels)


def test_settings_of_one_network_stand_in() -> None:
    kept = experiments()
    kept["fedkl_lenet_mnist"].attacks = ["fedkl_dlg", "fedkl_grnn_lenet", "fedkl_grnn_lenet_fit"]
    here = rules(kept)
    assert here["fedkl_panel"]("lenet", "mnist", "grnn")["attack"] == "fedkl_grnn_lenet"
    assert here["fedkl_attack"]("fedkl_lenet_mnist", "grnn", "_fit") == "fedkl_grnn_lenet_fit"
    assert here["fedkl_attack"]("fedkl_lenet_mnist", "ig", "_fit") == "fedkl_ig_fit"


def test_curves_are_of_central_trainings() -> None:
    here = rules()
    words = here["fedkl_table2_words"]()
    files = here["curve_files"](here["FEDKL_TABLE2"])(None)
    assert len(words["curves"]) == 2 * 5 * 2
    for entry, path in zip(words["curves"], files["curves"], strict=True):
        network = words["columns"][entry["column"]]["name"].lower().replace("-", "")
        dataset = words["rows"][entry["row"]]["name"].lower().replace("-", "")
        size = "" if network in ("resnet20", "resnet32") else "_large"
        model = f"fedkl_trained_{network}_{dataset}" + "_kl" * entry["lock"]
        if model == "fedkl_trained_resnet18_cifar100_kl":
            model = "fedkl_large_cifar100_kl"  # its group, which is trained together
        assert path == f"fedkl_central_{dataset}{size}/{model}.curve.csv"
    assert files["summaries"][0].endswith("cifar10.csv")
    assert words["columns"][2] == {"name": "ResNet-18", "below": "64×64"}
    assert words["rows"][0]["below"] == ""
    stand_in = rules(images="embedded")["fedkl_table2_words"]()["rows"][1]["below"]
    assert stand_in == "(here photos100)"


def test_figure4_reads_networks_and_what_the_client_kept() -> None:
    here = rules()
    files, cases = here["fedkl_fig4_files"](None), here["fedkl_fig4_cases"]()
    words = here["fedkl_fig4_words"]()
    assert [case["row"] for case in cases] == [panel["row"] for panel in words["panels"]]
    assert [case["row"] for case in cases][1] == "ResNet-20, CIFAR-100"
    assert [entry["panel"] for entry in words["curves"]] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert cases[3]["settings"]["name"] == "fedkl_central_cifar100_large"
    assert cases[3]["dataset"] == "cifar100"
    place = "fedkl_central_cifar100_large/fedkl_trained_resnet18_cifar100"
    assert files["plain"][3] == f"{place}.safetensors"
    # Networks of a group are trained, and lie, together.
    place = "fedkl_central_cifar100_large/fedkl_large_cifar100_kl"
    assert files["locked"][3] == f"{place}.safetensors"
    assert files["clients"][3] == f"{place}.clients"
    name = "fedkl_trained_resnet18_cifar100"
    assert cases[3]["networks"] == [name, f"{name}_kl"]
    assert files["data"][3] == "data of fedkl_central_cifar100_large"


def test_what_was_taken_out_of_config_leaves_its_targets_out() -> None:
    kept = {
        k: v
        for k, v in experiments().items()
        if "resnet18" not in k and "_key" not in k and "ggl" not in k
    }
    here = rules(kept, trained=["fedkl_trained_resnet20_cifar10"])
    assert sorted(here["FEDKL_GRIDS"]) == ["table4", "table7"]
    words, _ = grid(here, "table4")
    assert max(panel["column"] for panel in words["panels"]) == 5
    assert "key" not in {panel["case"] for panel in here["FEDKL_ATTACKERS"]}
    assert len(here["FEDKL_TABLE2"]) == 1 and here["FEDKL_FIG4"] == []
    with pytest.raises(Refused, match="fedkl_ggl_imagenet"):
        grid(here, "table5")
    with pytest.raises(Refused, match=r"config\.yaml: trainings\.fedkl_central_cifar10 or its mod"):
        here["fedkl_fig4_files"](None)
    nothing = rules({}, trained=[])
    assert nothing["FEDKL_GRIDS"] == {} and nothing["FEDKL_ATTACKERS"] == []
    with pytest.raises(Refused, match="fedkl_lenet_mnist"):
        nothing["fedkl_adaptive_files"](None)
    with pytest.raises(Refused, match="are missing, and this figure shows them"):
        nothing["curve_files"](nothing["FEDKL_TABLE2"])(None)
