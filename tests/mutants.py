"""Change the package in one place at a time and see whether the tests notice.

Places are drawn at random, by folder in proportion to how many each has, one change a place. Each
is held against the tests that run its lines, the quickest first. It changes the files where they
lie and puts them back. Needs `cosmic-ray` and `coverage`, which no lock names: see
docs/reviewing.md.
"""

import argparse
import ast
import csv
import json
import multiprocessing
import os
import random
import resource
import signal
import sys
import time
from collections import defaultdict
from importlib import import_module
from pathlib import Path

PACKAGE = Path("src/gradleak")
FOLDERS = ("claims", "operators", "attacks", "analysis/copa_index.py")
# Files whose tests run this code in their own process; those of the pipeline start others.
TESTS = """
answers attacks auditing_structure branches capture claims claims_config claims_fedkl claims_forms
claims_input claims_mkor claims_rgap contracts gauss_newton ggl grnn locked_attacks matching mkor
mkor_measures mkor_servers operators optimisation_attacks perceptual propositions rank_analysis
rank_identity rgap rgap_resnets security structure
"""
QUIET = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not slow"]
# Seconds of tests that a change is held against, as they took unchanged, and of processor time that
# they may take.
MOST, PATIENCE = 15.0, 90


class Recorder:
    """Pytest plugin: which test runs which lines, and for how long."""

    def __init__(self, coverage):
        self.coverage, self.seconds, self.failed = coverage, {}, set()

    def pytest_runtest_setup(self, item):
        self.coverage.switch_context(f"{item.nodeid}|setup")

    def pytest_runtest_call(self, item):
        self.coverage.switch_context(item.nodeid)

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed.add(report.nodeid)


def record(path):
    """Write lines of each file with the tests that run them, and seconds of each test."""
    import coverage
    import pytest

    measured = coverage.Coverage(data_file=None, include=[f"{PACKAGE}/*"])
    measured.start()
    recorder = Recorder(measured)
    pytest.main([*QUIET, *(f"tests/test_{name}.py" for name in TESTS.split())], plugins=[recorder])
    measured.stop()
    data = measured.get_data()
    places = {name: str(Path(name).relative_to(Path.cwd())) for name in data.measured_files()}
    lines = {place: data.contexts_by_lineno(name) for name, place in places.items()}
    kept = {test: s for test, s in recorder.seconds.items() if test not in recorder.failed}
    path.write_text(json.dumps({"seconds": kept, "lines": lines}), encoding="utf-8")


def _annotations(tree):
    """First and last position of annotations, which never run: they are kept as text."""
    for node in ast.walk(tree):
        found = getattr(node, "annotation", None) or getattr(node, "returns", None)
        if found is not None:
            yield (found.lineno, found.col_offset), (found.end_lineno, found.end_col_offset)


def places(folder):
    """Changes that cosmic-ray knows, those of one place and kind together."""
    from cosmic_ray.commands.init import _all_work_items

    here = PACKAGE / folder
    groups = defaultdict(list)
    for file in [here] if here.suffix else sorted(here.rglob("*.py")):
        idle = list(_annotations(ast.parse(file.read_text(encoding="utf-8"))))
        for spec in (item.mutations[0] for item in _all_work_items([file], {})):
            kind, start = spec.operator_name.split("_")[0], tuple(spec.start_pos)
            if kind != "core/NoOp" and not any(first <= start < last for first, last in idle):
                groups[str(file), start, kind].append(spec)
    return [groups[key] for key in sorted(groups)]


def draw(size, seed):
    """One change of each of about `size` places; the order is random too."""
    every = {folder: places(folder) for folder in FOLDERS}
    total = sum(map(len, every.values()))
    drawn = []
    for folder, groups in every.items():
        rng = random.Random(f"{seed} {folder}")
        share = max(1, round(size * len(groups) / total))
        drawn += [rng.choice(group) for group in rng.sample(groups, min(share, len(groups)))]
        print(f"{folder}: {len(groups)} places, {share} drawn", flush=True)
    random.Random(seed).shuffle(drawn)
    return drawn


def tests_of(spec, record):
    """Tests that run a line of the change, quickest first, as many as `MOST` allows.

    What a fixture runs may be looked at by every test of its file. What runs at import stands in no
    test: then all that run any line of the module are taken.
    """
    lines = record["lines"].get(str(spec.module_path), {})
    every = range(spec.start_pos[0], spec.end_pos[0] + 1)
    contexts = {name for line in every for name in lines.get(str(line), ())}
    if "" in contexts:
        contexts = {name for names in lines.values() for name in names}
    files = {name.partition("::")[0] for name in contexts if name.endswith("|setup")}
    seconds = record["seconds"]
    found = [test for test in seconds if test in contexts or test.partition("::")[0] in files]
    total, chosen = 0.0, []
    for test in sorted(found, key=seconds.__getitem__):
        total += seconds[test]
        if chosen and total > MOST:
            break
        chosen.append(test)
    return chosen


def _fails(tests):
    import pytest

    resource.setrlimit(resource.RLIMIT_CPU, (PATIENCE, PATIENCE))
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    os._exit(int(pytest.main([*QUIET, "-x", *tests])))


def judge(spec, tests):
    """``killed`` by a test, by its ``timeout``, or ``survived``."""
    from cosmic_ray.mutating import use_mutation
    from cosmic_ray.plugins import get_operator

    # A fork has imported what takes long, but nothing of the package.
    operator = get_operator(spec.operator_name)(**spec.operator_args)
    with use_mutation(Path(spec.module_path), operator, spec.occurrence) as (_, changed):
        if changed is None:
            return "no change"
        child = multiprocessing.get_context("fork").Process(target=_fails, args=(tests,))
        child.start()
        child.join(20 * PATIENCE)
        child.kill()
        child.join()
        outcomes = {0: "survived", -signal.SIGXCPU: "timeout", -signal.SIGKILL: "timeout"}
        return outcomes.get(child.exitcode, "killed")


def main():
    """Write a row for each change as it is judged."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("folder", type=Path, help="where the record and mutants.csv go")
    options.add_argument("--size", type=int, default=400, help="places to draw")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--minutes", type=float, default=45.0, help="when to stop")
    given = options.parse_args()
    os.environ |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    sys.dont_write_bytecode = True
    given.folder.mkdir(parents=True, exist_ok=True)
    known = given.folder / "record.json"
    if not known.exists():
        # In a process of its own, so that this one never imports the package.
        child = multiprocessing.get_context("spawn").Process(target=record, args=(known,))
        child.start()
        child.join()
    recorded = json.loads(known.read_text(encoding="utf-8"))
    for library in ("pandas", "scipy.optimize", "skimage.metrics", "torch"):
        import_module(library)
    end = time.monotonic() + 60 * given.minutes
    with (given.folder / "mutants.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["file", "line", "column", "change", "occurrence", "tests", "verdict"])
        for spec in draw(given.size, given.seed):
            if time.monotonic() > end:
                break
            tests = tests_of(spec, recorded)
            verdict = judge(spec, tests) if tests else "not run"
            path = Path(spec.module_path).relative_to(PACKAGE)
            name = spec.operator_name.removeprefix("core/")
            rows.writerow([path, *spec.start_pos, name, spec.occurrence, len(tests), verdict])
            file.flush()


if __name__ == "__main__":
    main()
