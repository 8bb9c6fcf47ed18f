# What all rules share: the checked config, code hashes, ids and paths.
import os
import sys
from pathlib import Path

from snakemake.exceptions import WorkflowError

sys.path.insert(0, str(Path(workflow.basedir) / "workflow"))

from gradleak import config as gradleak_config
from gradleak import cleanup, config_file, disk, registry, resources, shared_cache
from gradleak.benchmarks.threads import shortened
from gradleak.data import backbones
from gradleak.data.arrays import is_by_hand
from gradleak.data.catalogue import pairs, pairs_pattern, resolve
from gradleak.errors import GradleakError
from gradleak.provenance import code_hash as code
from gradleak.provenance import software

# Costly rules use Snakemake's shared cache, `cache: SHARED`, where --cache asks for it; without it
# Snakemake would warn about each of them. A storage provider brings a cache of its own.
SHARED = workflow.workflow_settings.cache is not None
# Versions of Python and of the libraries: a parameter of rules that the cache knows by parameters.
SOFTWARE = software()

try:
    if SHARED and workflow.storage_settings.default_storage_provider is None:
        shared_cache.check(os.environ.get(shared_cache.VARIABLE))
    CONFIG = gradleak_config.load(
        gradleak_config.with_data_root(
            config,
            workflow.config_settings.overwrite_config,
            os.environ.get(gradleak_config.ROOT_VARIABLE),
        )
    )
except GradleakError as error:
    raise WorkflowError(str(error)) from None

if not (Path("results").exists() or os.access(".", os.W_OK)):
    raise WorkflowError(
        f"{Path.cwd()} may not be written to; run Snakemake in a folder of your own, with "
        f"--snakefile {workflow.main_snakefile}."
    )
for folder in ("results", "figures"):
    if os.path.lexists(folder) and not (Path(folder).is_dir() and os.access(folder, os.W_OK)):
        raise WorkflowError(
            f"{folder} is no folder that you may write to; move it away or change its permissions."
        )
if workflow.is_main_process and workflow.storage_settings.default_storage_provider is None:
    try:
        gradleak_config.check_root(CONFIG.data.root)
    except GradleakError as error:
        raise WorkflowError(str(error)) from None

DATA_ROOT = CONFIG.data.root
# For jobs elsewhere, which read the config anew.
if gradleak_config.ROOT_VARIABLE in os.environ:

    envvars:
        gradleak_config.ROOT_VARIABLE,


if OUTPUT is not None:
    OUTPUT.data_root = str(DATA_ROOT)

ARRAYS = f"{DATA_ROOT}/{{dataset}}-{{split}}.safetensors"
MARKER = f"{DATA_ROOT}/raw/{{dataset}}/MD5SUMS"
LPIPS = f"{DATA_ROOT}/{backbones.FOLDER}"

SCRIPTS = Path(workflow.basedir, "workflow/scripts")

# Intermediate files carry the image source and the scale, so that switching loses nothing.
CASE = f"{CONFIG.images}-{CONFIG.scale}"
TARGETS = f"results/targets/{CASE}/{{targets}}.safetensors"
MODEL = f"results/models/{CONFIG.scale}/{{model}}.safetensors"
CELL = f"{CASE}/{{experiment}}/{{model}}"
TRAINED = f"results/training/{CASE}/{{training}}/{{model}}.safetensors"
CLIENTS = TRAINED.replace(".safetensors", ".clients")
CLIENT = f"results/clients/{CONFIG.scale}/{{model}}/{{client}}.safetensors"
GENERATOR = f"results/generators/{CASE}/{{generator}}.safetensors"
SENT = f"results/servers/{CONFIG.scale}/{{server}}/{{model}}.safetensors"
SECRET = SENT.replace(".safetensors", ".secret.safetensors")
GRADIENT = f"results/gradients/{CELL}/{{defence}}.safetensors"
RECONSTRUCTION = f"results/reconstructions/{CELL}/{{defence}}/{{attack}}.safetensors"
SCORE = f"results/scores/{CELL}/{{defence}}/{{attack}}.csv"
SECURITY = f"results/security/{CELL}.csv"
RANK = f"results/rank/{CELL}.csv"

# Defences that leave the gradient as it is: the others start from what the first of them stores.
UNDEFENDED = [name for name, entry in CONFIG.defences.items() if entry.method == "none"]

# Attacks on gradients, and those made of the reconstructions of others alone.
FIRST = [name for name, entry in CONFIG.attacks.items() if not entry.postprocesses]
# Images that share a gradient from which on a search is faster on two threads.
LARGE_BATCH = 50
LATER = [name for name in CONFIG.attacks if name not in FIRST]

# Models with a layer that a client's key locks, and groups with such a model; trainings by clients.
LOCKED = [
    name
    for name in [*CONFIG.models, *CONFIG.groups]
    if any(CONFIG.chain(member).locked for member in CONFIG.members(name))
]
OPEN = [name for name in [*CONFIG.models, *CONFIG.families, *CONFIG.groups] if name not in LOCKED]
FEDERATED = [name for name, entry in CONFIG.trainings.items() if entry.federated]
CENTRAL = [name for name in CONFIG.trainings if name not in FEDERATED]

# GPUs that a job on `device` asks a scheduler for; `auto` takes what is there and asks for none.
GPU = int(CONFIG.device == "cuda")
# What measured jobs took.
NEEDS = resources.Resources(CONFIG)

# Each paper's rules add their targets.
FIGURES = []
TABLES = []


def ids(names):
    """Wildcard constraint: one of `names`."""
    return "|".join(sorted(names)) or "(?!)"


def beside_snakefile(path):
    """A file of the source tree, wherever Snakemake runs; of this folder if it has one."""
    return path if Path(path).exists() else str(Path(workflow.basedir) / path)


def claims_of(paper):
    """Claims file of a paper."""
    return beside_snakefile(f"workflow/claims/{paper}.yaml")


def beside(path, kind, suffix):
    """Log or benchmark file of the artifact `path`."""
    return str(Path(path.replace("results/", f"results/{kind}/", 1)).with_suffix(suffix))


# Used by `--sdm apptainer` alone; envs/README.md tells how to build it.
container: "envs/gradleak.sif"


wildcard_constraints:
    experiment=ids(CONFIG.experiments),
    model=ids([*CONFIG.models, *CONFIG.families, *CONFIG.groups]),
    targets=ids(CONFIG.targets),
    client=r"\d+",
    server=ids(CONFIG.servers),
    training=ids(CONFIG.trainings),
    generator=ids(CONFIG.generators),
    defence=ids(CONFIG.defences),
    attack=ids(CONFIG.attacks),


# Only now does Snakemake know its targets, and whether it submits jobs.
onstart:
    if workflow.is_main_process:
        try:
            cleanup.check_alone(workflow.dag_settings.targets)
            if SHARED and workflow.non_local_exec:
                shared_cache.check_names(workflow.workflow_settings.cache)
        except GradleakError as error:
            raise WorkflowError(str(error)) from None
