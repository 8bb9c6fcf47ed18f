"""Kernels of other CPUs: that a run under them is one, and how tables are compared."""

import platform

import pandas as pd
import pytest

import kernels

pytestmark = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "AMD64"), reason="kernels are those of x86-64"
)


def test_each_library_takes_the_kernel_that_the_tests_ask_for(capsys):
    chosen = kernels.environment("Prescott")
    assert "Prescott is in effect in OpenBLAS, PyTorch, oneDNN, NumPy, " in capsys.readouterr().err
    found = kernels.probe(**{name: chosen[name] for name in kernels.variables("Prescott", [])})
    assert kernels.disobedient("Prescott", found) == []


def test_a_kernel_that_is_not_in_effect_ends_the_run():
    chosen = kernels.variables("Prescott", kernels.probe()["features"])
    none = {"openblas": [], "torch": "DEFAULT", "onednn": "", "mkl": False, "features": []}
    for found, words in (
        (
            kernels.probe(**chosen | {"OPENBLAS_CORETYPE": "Nehalem"}),
            ["OpenBLAS takes Nehalem"] * 2,
        ),
        (kernels.probe(**chosen | {"ONEDNN_MAX_CPU_ISA": "AVX"}), ["oneDNN takes Intel AVX"]),
        (none, ["0 copies of OpenBLAS were found, not 2"]),
        (none | {"openblas": ["Katmai"] * 2, "features": ["X86_V3"]}, ["NumPy takes X86_V3"]),
        (none | {"openblas": ["Katmai"] * 2, "torch": "AVX2"}, ["PyTorch takes AVX2"]),
    ):
        assert kernels.disobedient("Prescott", found) == words
    other = none | {"mkl": True, "mkl_line": "oneMKL, Intel(R) AVX2) enabled"}
    assert kernels.mkl_told("Haswell", other) == "and MKL"
    assert kernels.mkl_told("Prescott", other).startswith("but not in MKL (oneMKL")
    with pytest.raises(SystemExit, match="There is no kernel 'Haswel'; choose of SkylakeX, Zen"):
        kernels.environment("Haswel")
    with pytest.raises(SystemExit, match="This CPU has no AVX2, which Haswell asks for"):
        kernels.environment("Haswell", ["SSE42"])


def test_files_that_compute_are_numeric_and_those_that_run_snakemake_are_not():
    names = {path.rpartition("/")[2] for path in kernels.numeric_files()}
    assert {"test_operators.py", "test_attacks.py", "test_branches.py"} <= names
    assert not {"test_pipeline.py", "test_kernels.py", "test_benchmarks.py"} & names


def test_moves_are_relative_and_words_that_turn_are_named(tmp_path, capsys, recwarn):
    one = pd.DataFrame({"ours": [1.0, 0.0, None, 2.0], "verdict": ["differs", "a", None, "b"]})
    other = pd.DataFrame({"ours": [0.5, 0.0, 3.0, 2.0], "verdict": ["reproduced", "a", None, "b"]})
    found, turned = kernels.moves(one, other)
    assert found.tolist() == [0.5, 0.0, 0.0]
    assert turned[1] == (0, "verdict", "differs", "reproduced") and turned[0][:2] == (2, "ours")
    for name, frame in (("one", one), ("other", other)):
        (tmp_path / name / "tables").mkdir(parents=True)
        frame.to_csv(tmp_path / name / "tables/t.csv", index=False)
    kernels.compare(tmp_path / "one", tmp_path / "other")
    assert "tables/t.csv,3,1,5.0e-01,5.0e-01,2" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="different columns or rows"):
        kernels.moves(one, other[:2])
    assert kernels.moves(other, other.copy())[1] == [] and not recwarn.list


def test_tests_that_fail_under_a_kernel_end_with_its_name(tmp_path, monkeypatch):
    path = tmp_path / "test_one.py"
    path.write_text("import os\ndef test_one(): assert os.environ['OPENBLAS_CORETYPE'] == 'Zen'")
    monkeypatch.setattr(kernels, "numeric_files", lambda: [str(path)])
    with pytest.raises(SystemExit, match="Tests failed under Prescott"):
        kernels.test(["Prescott"])
