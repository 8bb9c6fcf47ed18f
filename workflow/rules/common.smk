# What all rules share: the checked config, code hashes, ids and paths.
import os
from pathlib import Path

from snakemake.exceptions import WorkflowError

from gradleak.config import loader as gradleak_config
from gradleak.pipeline import cleanup, forecast, resources, shared_cache
from gradleak.settings import registry
from gradleak.errors import GradleakError
from gradleak.pipeline.inputs import METHODS, Inputs
from gradleak.pipeline.paths import Paths
from gradleak.runtime.provenance import code_hash as code
from gradleak.runtime.provenance import software

# Costly rules use Snakemake's shared cache, `cache: SHARED`, where --cache asks for it; without it
# Snakemake would warn about each of them. A storage provider brings a cache of its own.
SHARED = workflow.workflow_settings.cache is not None
# Versions of Python and of the libraries: a parameter of rules that the cache knows by parameters.
SOFTWARE = software()

# Snakemake leaves numbers in `--config key={...}` as text.
update_config(config, GIVEN.get("--config", {}))
ROOT_GIVEN = os.environ.get(gradleak_config.ROOT_VARIABLE)

try:
    if SHARED and workflow.storage_settings.default_storage_provider is None:
        shared_cache.check(os.environ.get(shared_cache.VARIABLE))
    whole = gradleak_config.with_data_root(
        config, workflow.config_settings.overwrite_config, ROOT_GIVEN
    )
    if whole is not config:
        GIVEN[gradleak_config.ROOT_VARIABLE] = {"data": {"root": ROOT_GIVEN}}
    CONFIG = gradleak_config.load(whole, GIVEN)
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
            f"{folder} is not a folder that you may write to; move it away or change its permissions."
        )
if workflow.is_main_process and workflow.storage_settings.default_storage_provider is None:
    try:
        gradleak_config.check_root(CONFIG.data.root, GIVEN)
    except GradleakError as error:
        raise WorkflowError(str(error)) from None

# For jobs elsewhere, which read the config anew.
if ROOT_GIVEN is not None:

    envvars:
        gradleak_config.ROOT_VARIABLE,


SCRIPTS = ROOT / "workflow/scripts"
# Paths with wildcards, and inputs and parameters as functions of them.
PATHS = Paths(CONFIG)
ASK = Inputs(PATHS)
# Columns of tables that say what they are of.
CASE = {"images": CONFIG.images, "scale": CONFIG.scale}
# Of audits, which take minutes: night is for the papers.
AUDITED_AT = "laptop" if CONFIG.scale == "night" else CONFIG.scale
# Memory and minutes of a script's jobs, by what measured ones took.
needs = resources.Resources(forecast.Forecast(CONFIG))

if OUTPUT is not None:
    OUTPUT.data_root = str(CONFIG.data.root)
    OUTPUT.ahead = needs.forecast


def ids(names):
    """Wildcard constraint: one of `names`."""
    return "|".join(sorted(names)) or "(?!)"


def of_paper(paper, *paths):
    """Figures and tables of a paper, whose names begin with its own."""
    return [path for path in paths if Path(path).stem.partition("_")[0] == paper]


def claims_of(paper):
    """Claims file of a paper."""
    return beside_snakefile(f"papers/{paper}/claims.yaml")


def beside(path, kind, suffix):
    """Log or benchmark file of the artifact `path`."""
    return str(Path(path.replace("results/", f"results/{kind}/", 1)).with_suffix(suffix))


def wildcard(name):
    """A wildcard as a parameter: an entry of the shared cache is known by parameters alone."""
    return lambda wildcards: getattr(wildcards, name)


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
