# Names that benchmarks.smk and audit*.smk use.
from gradleak.benchmarks.rules import Benchmarks
from gradleak.data.catalogue import resolve
from gradleak.pipeline.inputs import plain

ARRAYS, TARGETS, MODEL, TRAINED = PATHS.arrays, PATHS.targets, PATHS.model, PATHS.trained
SENT, SECRET, GRADIENT = PATHS.sent, PATHS.secret, PATHS.gradient
RECONSTRUCTION, SCORE, SECURITY = PATHS.reconstruction, PATHS.score, PATHS.security
GPU, DATA_ROOT, dataset_of = ASK.gpu, CONFIG.data.root, PATHS.dataset_of
TIMED = Benchmarks(PATHS)
pair_gradients, pair_seeds, copa_default = (
    TIMED.pair_gradients,
    TIMED.pair_seeds,
    TIMED.copa_default,
)
run_overrides, few_overrides = TIMED.run_overrides, TIMED.few_overrides


def settings(section, entry):
    """One entry of a section of config, as plain values for a script."""
    return plain(CONFIG, section, entry)


def doubling(amount):
    """MiB or minutes of a job that no recorded run had; twice as much at each further attempt."""
    return lambda wildcards, attempt: amount * 2 ** (attempt - 1)


def every_core(wildcards):
    """All cores; asked only when a benchmark runs, for profiles that submit jobs set no number."""
    return workflow.cores
