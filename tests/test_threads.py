"""A job computes with the threads of its rule, whatever its environment says."""

import json

import pytest

from faults_job import run

# As in scripts, the libraries are there before the job begins.
LOADED = "import numpy, scipy.linalg, torch\n"
BODY = """
import json, threadpoolctl, torch
from gradleak.runtime.artifacts import atomic
with atomic("results/toy.csv") as temporary:
    pools = threadpoolctl.threadpool_info()
    temporary.write_text(json.dumps([torch.get_num_threads(), *(p["num_threads"] for p in pools)]))
"""
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@pytest.mark.parametrize("environment", [{}, dict.fromkeys(VARIABLES, "2")], ids=["bare", "two"])
@pytest.mark.parametrize("first", ["", LOADED], ids=["loaded later", "loaded before"])
def test_a_job_takes_the_threads_of_its_rule(tmp_path, environment, first):
    done = run(tmp_path, BODY, first=first, **environment)
    assert done.returncode == 0, done.stderr
    threads = json.loads((tmp_path / "results/toy.csv").read_text())
    assert len(threads) >= 3 and set(threads) == {1}
