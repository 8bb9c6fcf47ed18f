"""config.yaml: what is refused, in which words; the schema file; random families."""

import json
import sys
import tracemalloc
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from pydantic import ValidationError

from conftest import ROOT, refused, run, sentence
from gradleak.attacks.optimization.inverting import InvertingGradients
from gradleak.config import loader, yaml_checks
from gradleak.errors import ConfigError
from gradleak.models.create import draw
from gradleak.settings.fields import SCALES
from gradleak.settings.validation_messages import nearest
from pipeline_trees import changed, whole

RAW = whole()

V1, TRAINED = "models.cnn3_v1_tanh", "trainings.rgap_resnet18"
PAIR, CNN6 = "experiments.copa_pair", "experiments.rgap_cnn6"
RESNET20 = "models.fedkl_resnet20_cifar10"
SKIPS = {"layers": ["conv9_skip", "conv2_skip"]}
SECOND, LOCK, FEDERATED = f"{V1}.layers.1", f"{V1}.lock", f"{TRAINED}.federated"
# (path of the key, new value, *words that the sentence must hold)
REFUSED = [
    ("scle", "smoke", "unknown key 'scle'", "did you mean 'scale'"),
    ("device", "tpu", "device", "'tpu'"),
    ("scale", "huge", "scale", "'huge'", "'smoke', 'laptop', 'night' or 'paper'"),
    ("images", "fake", "images", "'fake'", "'embedded' or 'real'"),
    ("data.rot", "x", "data.rot", "did you mean 'root'"),
    ("scales.copa_seeds.laptop", 0, "scales.copa_seeds.laptop", "0", "greater than 0"),
    ("scales.copa_seeds.laptop", "3", "scales.copa_seeds.laptop", "'3'", "integer"),
    (f"{V1}.layers.0.kernel", 50, "models.cnn3_v1_tanh", "kernel 50", "smaller"),
    ("bogus", 1, "unknown key 'bogus'; correct"),
    (f"{V1}.layers.0.krnel", 3, "krnel", "did you mean 'kernel'"),
    (f"{V1}.layers.0.activation", "gelu", "activation", "'gelu'", "'tanh'"),
    (f"{V1}.layers.0.slope", 0.0, "slope", "0.0", "greater than 0"),
    (f"{V1}.layers.2.inputs", 500, "cnn3_v1_tanh", "500", "588"),
    (SECOND, {"pool": 2}, "cnn3_v1_tanh: layer 2 is neither a conv nor an fc"),
    (SECOND, {"MaxPool": 2}, "layer 2 is a pooling layer"),
    (f"{V1}.layers.0.maxpool", 2, "layer 1 has a pooling layer ('maxpool')"),
    (SECOND, {"batch_norm": True}, "layer 2 is a normalisation ('batch_norm')", "add norm: batch"),
    (LOCK, {"layers": ["conv9"]}, "conv9 is not a convolution", "conv1 to conv2"),
    (f"{RESNET20}.lock", SKIPS, "conv2_skip is no", "conv1 to conv19, conv9_skip and conv15_skip"),
    (LOCK, {"layers": ["fc1"]}, "cnn3_v1_tanh.lock.layers", "'fc1'"),
    (LOCK, {"key": 0}, "cnn3_v1_tanh.lock.key", "0", "greater than 0"),
    (LOCK, {"activation": "tanh"}, "lock.activation", "'tanh'", "'sigmoid'"),
    ("experiments.rgap_fig4.lock", "key", "lock: key grants something of a lock", "take the key"),
    ("models.mkor_lenet.lock", {}, "mkor_lenet has a lock", "set server: honest"),
    (f"{V1}.layers.0.norm", True, "layer 1: norm", "'none' or 'batch'"),
    (f"{V1}.layers.0.batchnorm", True, "layer 1 has a normalisation ('batchnorm')"),
    (f"{V1}.layers.0.inputs", 9, "'inputs' belongs to fully connected layers"),
    (f"{V1}.layers.0.dropout", 0.5, "belongs to fully connected layers"),
    (f"{V1}.layers.2.drop_path", 0.5, "layer 3 has dropout", "add dropout: p"),
    (SECOND, {"branch": []}, "layer 2 is a branch", "use skip"),
    (f"{V1}.layers.2.skip", 1, "layer 3: key 'skip' belongs to convolutions; take it out here"),
    (f"{V1}.layers.0.fc", 9, "layer 1 is both a conv and an fc"),
    (f"{V1}.layers.0.weight", 9, "layer 1: key 'weight' does not belong here"),
    ("models.cnn3_v1_leaky.layers.0.slope", 1.0, "layer 1: slope", "1.0", "less than 1"),
    ("defences.noise_small.level", -1.0, ": defences.noise_small.level: -1.0"),
    ("defences.noise_small.levl", 1.0, "'defences.noise_small.levl'", "did you mean 'level'"),
    ("defences.noise_small.tv", 1.0, "key 'defences.noise_small.tv' does not belong here"),
    ("defences.noise_small", {"level": 1.0}, "key 'defences.noise_small.method' is missing"),
    ("attacks.dlg_near_twin.of", "copa", "dlg_near_twin.answer: twin", "copa gives no twin"),
    ("attacks.rgap_dlg.of", "gauss_newton", "gauss_newton is itself made from another"),
    ("attacks.dlg.answer", "twin", "attacks.dlg: answer: twin", "of: ATTACK"),
    ("attacks.dlg.start_noise", 0.1, "attacks.dlg: start_noise", "start: normal is noise"),
    ("attacks.dlg.failure_loss", 0.0, "attacks.dlg.failure_loss", "0.0"),
    ("attacks.hgap.of", ["rgap", "rgap"], "attacks.hgap.of: 'rgap' is listed twice"),
    ("groups.rgap_twins", ["rgap_twin", "rgap_twin"], "groups.rgap_twins", "listed twice"),
    (f"{CNN6}.models", ["rgap_cnn6d", "rgap_cnn6s"], "models: rgap_cnn6d is in rgap_cnn6s and"),
    ("experiments.rgap_cnn6.attacks", ["dlg", "dlg"], "'dlg' is listed twice"),
    ("experiments.rgap_fig6.label", "recovered", "rgap_fig6", "attack dlg", "loss logistic"),
    ("experiments.rgap_batch2.label", "recovered", "attack dlg", "batches of 2"),
    ("experiments.rgap_draws.attacks", ["hgap"], "rgap_draws", "attack dlg cannot tell"),
    ("experiments.rgap_draws.attacks", ["ig"], "attack ig cannot tell the labels"),
    ("experiments.rgap_draws.attacks", ["gauss_newton"], "attack gauss_newton cannot tell"),
    (f"{PAIR}.attacks", ["dlg_same_class"], "recovered, but attack dlg_same_class", "must know"),
    ("targets.rgap_own.batch", 2, "dlg_same_class.own_images", "rgap_own has batches of 2"),
    ("targets.rgap_cifar.batch", 2, "dlg_same_class", "targets have batches of 2"),
    ("targets.rgap_own.dataset", "mnist", "has dataset: mnist", "targets have cifar10"),
    ("targets.rgap_own.offset", -0.5, "has offset: -0.5", "targets have 0.0"),
    ("targets.rgap_own.split", "test", "has image 0 of cifar10-test that is under attack"),
    (f"{V1}.layers", [{"conv": 3, "kernel": 3}], "last layer", "fully connected"),
    (f"{PAIR}.targets", "cop_pair", "'cop_pair'", "did you mean 'copa_pair'"),
    (f"{PAIR}.models", ["cnn4"], "experiments.copa_pair.models", "'cnn4'"),
    (f"{PAIR}.attacks", ["dgl"], "experiments.copa_pair.attacks", "'dgl'"),
    (f"{PAIR}.defences", ["noise"], "experiments.copa_pair.defences", "'noise'"),
    (f"{PAIR}.seeds", "copa_sed", "'copa_sed'", "did you mean 'copa_seeds'"),
    (f"{PAIR}.seeds", -1, "experiments.copa_pair.seeds", "-1"),
    (f"{PAIR}.precision", "float16", "precision", "'float16'"),
    ("attacks.copa.strat", "rgap", "attacks.copa.strat", "did you mean 'start'"),
    ("attacks.copa.method", "rgapp", "attacks.copa.method", "'rgapp'", "did you mean 'rgap'"),
    ("attacks.copa.hidden_spread", -1.0, "attacks.copa.hidden_spread", "-1.0"),
    ("attacks.dlg.chunk", 3, "key 'attacks.dlg.chunk' does not belong here"),
    ("attacks.mkor.smooth", 4, "attacks.mkor: smooth: 4 has no middle pixel"),
    ("attacks.copa.iterations", 0, "attacks.copa.iterations", "0"),
    ("attacks.copa_tv.weight", 0.0, "attacks.copa_tv.weight", "0.0"),
    ("attacks.copa_tv.of", "copy", "attacks.copa_tv.of", "'copy'", "did you mean 'copa'"),
    ("targets.copa_pair.indices", [-1, 3], "targets.copa_pair.indices", "-1"),
    ("targets.copa_pair.count", 2, "targets.copa_pair", "either indices or count"),
    ("targets.copa_pair.names", ["truck"], "targets.copa_pair", "names"),
    ("families.index_three.kernels", [], "families.index_three.kernels", "at least 1"),
    ("attacks.copa.first_spread", float("inf"), "attacks.copa.first_spread", "inf", "finite"),
    ("targets.copa_pair.offset", float("nan"), "targets.copa_pair.offset", "nan", "finite"),
    ("targets.copa_pair.resize", "bilinear", "copa_pair", "resize: bilinear", "give it"),
    ("targets.copa_pair.dataset", "mnist", "copa_pair", "[3, 32, 32]", "[1, 28, 28]"),
    (f"{V1}.layers.0.activation", "relu", "cnn3_v1_tanh", "'relu'", "no inverse", "copa"),
    (f"{TRAINED}.momentum", 0.0, "rgap_resnet18", "nesterov: true needs momentum"),
    (f"{TRAINED}.milestones", [0.5], "milestones goes with schedule: step"),
    (f"{TRAINED}.rate", 0, "trainings.rgap_resnet18.rate", "0", "greater than 0"),
    (f"{TRAINED}.epochs", "epochs", "trainings.rgap_resnet18.epochs", "'epochs'"),
    (f"{TRAINED}.warmup", 1.0, "trainings.rgap_resnet18.warmup", "less than 1"),
    (FEDERATED, {"clients": 0}, "federated.clients", "greater than 0"),
    (FEDERATED, {"client": 3}, "federated.client", "'clients'"),
    (FEDERATED, {"alpha": 0.1}, "18.federated: alpha goes with split: dirichlet; take it out"),
    (FEDERATED, {"clients": 3, "share": 0.1}, "0.1 of 3 clients is none of them; raise it, to"),
    (FEDERATED, {"answering": 1.5}, "federated.answering", "1.5"),
    (f"{TRAINED}.resize", "bilinear", "resize: bilinear goes with size"),
    (f"{TRAINED}.size", 64, "trained on size: 64, but targets", "have None; give both the same"),
    ("experiments.rgap_fig4.training", "rgap_resnet81", "rgap_fig4.training", "'rgap_resnet18'"),
    ("experiments.rgap_fig4.mode", "eval", "rgap_fig4.mode", "'eval'", "'evaluation'"),
    ("targets.rgap_resnet.std", 1.0, "rgap_fig4", "trained on std: 0.25", "have 1.0"),
    ("targets.rgap_resnet.std", 0.0, "targets.rgap_resnet.std", "equal to 0.0001"),
    ("targets.rgap_resnet.offset", 1e308, "targets.rgap_resnet.offset", "1e+308", "1000"),
    (f"{TRAINED}.offset", -1e4, "rgap_resnet18.offset", "-10000", "-1000"),
    ("audit.lenet.offset", 1e308, "audit.lenet.offset", "1e+308", "1000"),
    ("targets.copa_pair.split", "val", "copa_pair: split: cifar10 has train and test, not val"),
    (f"{TRAINED}.split", "val", "rgap_resnet18: split: cifar10 has train and test"),
    ("generators.fedkl_cifar10.split", "val", "fedkl_cifar10: split: cifar10 has train and test"),
    ("targets.copa_pair.indices", [3, 3], "targets.copa_pair.indices: 3 is listed twice"),
    ("targets.copa_pair.indices", [3, 50_000], "50000 is none of the 50000 images of cifar10"),
    ("targets.rgap_cifar.count", 10_001, "rgap_cifar: count: 10001 of", "the 10000 images of"),
    ("targets.mkor_mnist.batch", 10_001, "mkor_mnist: batch: 10001", "the 10000 images of mnist"),
    ("targets.rgap_cifar.relabel", 10**7, "rgap_cifar: count: 20 of batch: 1, each 10000001"),
    ("data.mirrors.cifarr", "http://x", ": data.mirrors.cifarr: 'cifarr' is not allowed"),
    (f"{V1}.layers.0.stride", 0, ": layer 1: stride: 0 is not", "than 0."),
    (f"{V1}.layers.0.kernel", 0, ": layer 1: kernel: 0 is not", "than 0."),
    (f"{V1}.layers.0.kernel", [0, 0], ": layer 1: kernel.0: 0 is not", "than 0."),
    (f"{V1}.layers.0.padding", -1, ": layer 1: padding: -1 is not", "to 0."),
    ("scales.copa_seeds.paper", 10**30, "scales.copa_seeds.paper", "equal to 10000000"),
    ("scales.copa_seeds.laptop", 10**7, "copa_pair.seeds: copa_seeds = 10000000 is more"),
    (f"{PAIR}.seeds", 10_001, "copa_pair.seeds: 10001 is more than the 10000"),
    ("families.index_three.networks", 10_001, "families.index_three.networks: 10001 is more"),
    ("audit.lenet.seeds", 10**12, "audit.lenet.seeds: 1000000000000 is not allowed"),
    ("audit.lenet.seeds", 10**5, "audit.lenet.seeds: 100000 is more than the 10000"),
    ("audit.lenet.seed", 2**64, "audit.lenet.seed", "equal to 4294967295"),
    # Once as many numbers were written out to compare them.
    ("scales.rgap_images.laptop", 10**9, "scales.rgap_images.laptop: 1000000000 is not allowed"),
    ("targets.rgap_own.count", 10**7, "rgap_own: count: 10000000 of", "the 50000 images"),
    ("targets.rgap_own.count.laptop", 0, "targets.rgap_own.count.laptop: 0 is not allowed"),
    ("targets.rgap_own.count.lptop", 9, "'targets.rgap_own.count.lptop'", "mean 'laptop'"),
    ("targets.rgap_own.count", {"smoke": 1, "laptop": 1}, "'targets.rgap_own.count.paper' is mi"),
    ("models.mkor_vgg16_100.layers.1.fc", "mkor_node", "layer 14: fc: 'mkor_node", "'mkor_nodes'"),
    ("targets.mkor_mnist.std", 0.3, "inputs in [0, 1]", "std: 0.3"),
    ("experiments.rgap_fig4.server", "fishing", "rgap_fig4", "training: rgap_resnet18", "honest"),
    ("families.index_four.activation", "relu", "index_four", "'relu'", "no inverse"),
    ("models.mkor_fc.layers", [[{"fc": 9, "bais": True}]], "models.mkor_fc", "'bais'", "'bias'"),
    ("families.cnn3_v1_tanh", RAW["families"]["index_three"], "both a model and a family"),
    (f"models.{'ab' * 60}", RAW["models"]["cnn3_v1_tanh"], "bab: ", "at most 100 characters"),
    (f"models.x_{'a' * 20}", RAW["models"]["cnn3_v1_tanh"], "aaa: ", "an end that repeats 20"),
]


@pytest.mark.parametrize("case", REFUSED, ids=[f"{r[0]} {r[2]}" for r in REFUSED])
def test_bad_values_are_refused_in_one_sentence(case):
    path, value, *words = case
    message = sentence(ConfigError, loader.load, changed(RAW, path, value))
    assert [word for word in words if word not in message] == [] and "[key]" not in message


def test_own_images_beside_those_under_attack_are_taken():
    raw = changed(RAW, "targets.rgap_own.split", "test")
    raw["targets"]["rgap_own"]["first"] = 100
    assert loader.load(raw).targets["rgap_own"].first == 100
    raw["targets"]["rgap_own"] |= {"first": 0, "count": None, "indices": [100, 0]}
    with pytest.raises(ConfigError, match=r"image 0 of cifar10-test .* \(1 such\)"):
        loader.load(raw)


def test_a_projection_can_be_locked_and_attacks_that_find_the_label_take_recovered_ones():
    lock = {"layers": ["conv1", "conv9_skip"]}
    chain = loader.load(changed(RAW, f"{RESNET20}.lock", lock)).chain("fedkl_resnet20_cifar10")
    assert [layer.name for layer in chain.locked] == lock["layers"]
    attacks = ["dlg_unknown", "rgap_balanced"]
    loaded = loader.load(changed(RAW, "experiments.rgap_draws.attacks", attacks))
    assert loaded.experiments["rgap_draws"].attacks == attacks


def test_networks_are_drawn_and_trained_as_often_as_anything_asks():
    name, training = "fedkl_trained_lenet", "fedkl_federated_mnist"
    config = loader.load(changed(RAW, f"models.{name}.seeds", 2))
    assert config.drawn(name) == config.drawn(name, training) == 2
    assert config.drawn(f"{name}_kl") == 1
    config = loader.load(changed(RAW, "experiments.fedkl_lenet_trained.seeds", 3))
    assert config.drawn(name) == config.drawn(name, training) == 3
    # That experiment has nothing of another training.
    assert config.drawn(name, "fedkl_central_mnist") == 1


def test_what_takes_long_to_import_is_imported_by_jobs_alone():
    slow = "{'scipy', 'skimage', 'torch'}"
    code = f"import sys, gradleak.config.loader; sys.exit(str(sorted({slow} & set(sys.modules))))"
    assert run(sys.executable, "-c", code).stderr.strip() == "[]"


def test_other_wrong_keys_are_counted_once_each():
    """The keys of a list are one; a missing key is named; no suggestion is the word itself."""
    assert nearest("skip", ["skip", "seeds"]) == ""
    assert nearest("skipp", ["skip", "seeds"]) == " (did you mean 'skip'?)"
    with pytest.raises(ConfigError, match="key 'scale' is missing; add it"):
        loader.load({key: value for key, value in RAW.items() if key != "scale"})
    raw = changed(RAW, "targets.copa_pair.indices", [-1, -2])
    for more, words in (
        ({}, r"indices\.0: -1 is not allowed: [^(]*$"),
        ({"scale": "huge"}, r"\(1 more key is wrong\)"),
        ({"scale": "huge", "device": "tpu"}, r"\(2 more keys are wrong\)"),
    ):
        with pytest.raises(ConfigError, match=words):
            loader.load(raw | more)


def test_long_ids_are_taken_and_amounts_compared_without_being_written_out():
    name = "".join(chr(97 + k * k % 26) for k in range(100))
    raw = changed(RAW, f"models.{name}", RAW["models"]["cnn3_v1_tanh"])
    assert name in loader.load(raw).models
    raw = changed(RAW, "scales.fedkl_generator_images.laptop", 10**7)
    tracemalloc.start()
    loader.load({**raw, "scale": "laptop"})
    assert tracemalloc.get_traced_memory()[1] < 100e6  # ten million numbers in a set are 300 MB
    tracemalloc.stop()


def test_the_data_root_has_to_be_a_folder_or_to_become_one(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path, tmp_path / "x/y"):
        loader.check_root(str(root))
    for root in (tmp_path / "file", tmp_path / "file/below"):
        with refused(root, "data.root: ", "--config 'data={root: FOLDER}'", kind=ConfigError):
            loader.check_root(str(root))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    if Path("/proc/self").exists():
        with pytest.raises(ConfigError, match=r"data\.root: /proc/x cannot be made a folder"):
            loader.check_root("/proc/x")


def test_the_schema_takes_the_files_that_are_shipped_and_no_unknown_key():
    done = run(sys.executable, "-m", "gradleak.config", check=True)
    schema = json.loads(done.stdout)
    assert schema == loader.schema()
    Draft202012Validator.check_schema(schema)
    takes = Draft202012Validator(schema)
    top = yaml_checks.read(ROOT / "config.yaml")
    for path in [ROOT / "config.yaml", *yaml_checks.included(top["include"]).values()]:
        assert not list(takes.iter_errors(yaml_checks.read(path))), path
    for wrong in ({"scle": "smoke"}, {"attacks": {"copa": {"method": "copa", "strat": "rgap"}}}):
        assert not takes.is_valid(wrong)


def test_amounts_are_numbers_at_the_scale():
    by_scale = {"smoke": 4, "laptop": 40, "paper": 400}
    raw = changed(RAW, "targets.rgap_cifar.count", by_scale)
    raw["models"]["mkor_fc"]["layers"] = [{"fc": by_scale, "inputs": 3072}]
    loaded = loader.load({**raw, "scale": "smoke"})
    for scale, number in by_scale.items():
        at = loaded.at(scale)
        assert at.scale == scale and at.at(scale) is at
        assert at.targets["rgap_cifar"].count == number
        assert at.chain("mkor_fc").classes == number
        assert at.experiments["copa_pair"].seeds == at.scales["copa_seeds"]
    assert loaded.at("paper") is loaded.at("paper")
    # What takes as much at night as on a laptop is not written twice.
    assert loaded.at("night").targets["rgap_cifar"].count == 40
    own = changed(raw, "targets.rgap_cifar.count", {**by_scale, "night": 70})
    own["scales"]["copa_seeds"] = {**by_scale, "night": None}
    night = loader.load({**own, "scale": "night"})
    assert night.targets["rgap_cifar"].count == 70
    assert night.experiments["copa_pair"].seeds == night.scales["copa_seeds"] == 40


def patience(scale, **own):
    raw = changed(RAW, "attacks.fedkl_ig", {**RAW["attacks"]["fedkl_ig"], **own})
    return loader.load({**raw, "scale": scale}).attacks["fedkl_ig"].patience


def test_searches_end_without_progress_at_scale_night_alone():
    assert [patience(scale) for scale in SCALES] == [0.0, 0.0, 0.02, 0.0]
    assert [patience(scale, patience=None) for scale in SCALES] == [0.0, 0.0, 0.1, 0.0]
    assert [patience(scale, patience=0.0) for scale in SCALES] == [0.0] * 4
    assert patience("laptop", patience=0.2) == 0.2
    # Nor in Python, where no scale is named.
    assert InvertingGradients().patience == 0.0


def test_patience_may_be_given_by_scale():
    by_scale = {"smoke": 0.5, "laptop": 0.2, "paper": 0.1}
    assert [patience(scale, patience=by_scale) for scale in SCALES] == [0.5, 0.2, 0.2, 0.1]
    with pytest.raises(ConfigError, match=r"fedkl_ig\.patience\.night: 2 is not allowed"):
        patience("laptop", patience={**by_scale, "night": 2})
    with pytest.raises(ConfigError, match=r"fedkl_ig\.patience\.paper' is missing"):
        patience("laptop", patience={"smoke": 0, "laptop": 0})
    with pytest.raises(ValidationError, match="only config files have scales; give a number"):
        InvertingGradients(patience=by_scale)


@pytest.mark.parametrize("scale", SCALES)
def test_what_a_config_resolves_to_is_a_config(scale):
    loaded = loader.load({**RAW, "scale": scale})
    again = loader.load(loaded.model_dump(mode="json", exclude_unset=True))
    assert again.model_dump() == loaded.model_dump()
    assert all(again.chain(name) == loaded.chain(name) for name in loaded.models)
    assert {type(number) for number in loaded.scales.values()} == {int}


def test_few_seeds_are_seeds():
    few = {"few_seeds": {"smoke": 1, "laptop": 7, "paper": 1}}
    for seeds, own, number in ((10, {}, 3), (2, {}, 2), (10, few, 7), (5, few, 5)):
        raw = changed(RAW, "experiments.copa_pair.seeds", seeds)
        raw["experiments"]["copa_pair"].pop("few_seeds")
        raw["experiments"]["copa_pair"] |= own
        assert loader.load(raw).experiments["copa_pair"].few == number


def test_cnn3_variants_have_the_sizes_of_table_1():
    loaded = loader.load(RAW)
    for version, unknowns in ((1, 5400), (2, 1350), (3, 5400), (4, 900)):
        convolutions = loaded.chain(f"cnn3_v{version}_tanh").convolutions
        assert [c.shape.unknowns for c in convolutions] == [3072, unknowns]
    assert sum(name.startswith("cnn3_") and name.endswith("_tanh") for name in loaded.models) == 4


def test_families_are_reproducible_grow_and_have_forty_networks_at_laptop_scale():
    families = loader.load({**RAW, "scale": "laptop"}).families
    assert sum(family.networks for family in families.values()) >= 40
    assert {family.convolutions for family in families.values()} == {1, 2, 3}
    settings = families["index_three"].model_dump()
    few, many = draw("f", settings, 3), draw("f", settings, 8)
    assert [c.describe() for c in few] == [c.describe() for c in many[:3]]
    impossible = {**settings, "kernels": [40], "paddings": [0]}
    with pytest.raises(ConfigError, match="hardly any draw fits"):
        draw("f", impossible, 1)


def test_a_chain_survives_its_description_and_networks_can_share_a_list_of_layers():
    loaded = loader.load(RAW)
    for name in loaded.models:
        chain = loaded.chain(name)
        assert type(chain).from_description(json.loads(json.dumps(chain.describe()))) == chain
    one, other = (loaded.chain(f"mkor_vgg16_{kind}") for kind in ("100", "100_searched"))
    assert len(one.layers) == len(other.layers) == 16
    assert RAW["models"]["mkor_vgg16_100"]["layers"][0] is RAW["models"][other.name]["layers"][0]
