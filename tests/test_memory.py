"""Freed memory stays with the process where glibc lets it."""

import platform
import sys
from types import SimpleNamespace

from conftest import run
from gradleak.runtime import job

# Page faults of a loop that takes and frees 16 MiB and one block of 64, as searches do.
LOOP = """
import resource, sys
import numpy as np
from gradleak.runtime.malloc import keep_freed_memory
taken = keep_freed_memory() if sys.argv[1] == "keep" else True
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    parts = [np.ones(2**18) for _ in range(8)] + [np.ones(2**23)]
    del parts
print(taken, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how):
    taken, count = run(sys.executable, "-c", LOOP, how, check=True).stdout.split()
    return taken == "True", int(count)


def test_freed_memory_is_not_taken_from_the_system_again_where_glibc_has_a_setting():
    taken, kept = faults("keep")
    assert taken == (platform.libc_ver()[0] == "glibc")
    assert not taken or kept < faults("return")[1] / 5


def test_every_job_keeps_it(monkeypatch):
    called = []
    monkeypatch.setattr(job, "keep_freed_memory", lambda: called.append(True))
    monkeypatch.setattr(job.job_records, "write", lambda given: None)
    monkeypatch.setattr(job, "_limit_threads", lambda threads: None)  # those of this process
    with job.job(SimpleNamespace(input=[], log=[], threads=1)):
        assert called
