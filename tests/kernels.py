"""Other CPUs on this one: the numeric tests, or any command, with the kernels of another CPU.

    python tests/kernels.py test [KERNEL ...]        the numeric test files, by default under all
    python tests/kernels.py run KERNEL COMMAND ...   a command
    python tests/kernels.py compare ONE OTHER        tables and claims of two folders of results

OpenBLAS (NumPy's and SciPy's own), PyTorch, MKL and oneDNN inside PyTorch, and NumPy choose their
loops by CPU, and each obeys a variable. One that does not is an error, for the run would say
nothing; MKL, which obeys on Intel's CPUs alone, is told of.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd

TESTS = Path(__file__).resolve().parent
# Tests of times, verdicts and pages, which say nothing of rounding.
OTHER = re.compile("test_(benchmarks|claims|figures|report)")
# OpenBLAS' name of a kernel: what the CPU must have (NumPy's name), PyTorch's, MKL's and oneDNN's,
# and how far NumPy's own loops go. MKL and oneDNN have nothing older than SSE4.
KERNELS = {
    "SkylakeX": ("AVX512_SKX", "avx512", "AVX512", "AVX512_CORE", "X86_V4"),
    "Zen": ("AVX2", "avx2", "AVX2", "AVX2", "X86_V3"),
    "Haswell": ("AVX2", "avx2", "AVX2", "AVX2", "X86_V3"),
    "Sandybridge": ("AVX", "default", "SSE4_2", "AVX", "X86_V2"),
    "Nehalem": ("SSE42", "default", "SSE4_2", "SSE41", "X86_V2"),
    "Prescott": ("SSE3", "default", "SSE4_2", "SSE41", "X86_V2"),
}
# Other names under which OpenBLAS may report them: the builds of the wheels share these.
ALSO = {"Zen": "Haswell", "Prescott": "Katmai"}
LOOPS = ("X86_V2", "X86_V3", "X86_V4")
# Where MKL's first line names what it takes, and what oneDNN calls it.
MKL_WORDS = {"AVX512": "AVX-512)", "AVX2": "AVX2)", "SSE4_2": "SSE4.2)"}
ONEDNN_WORDS = {
    "AVX512_CORE": "Intel AVX-512 with AVX512BW, AVX512VL, and AVX512DQ extensions",
    "AVX2": "Intel AVX2",
    "AVX": "Intel AVX",
    "SSE41": "Intel SSE4.1",
}
PROBE = """
import json, numpy, scipy.linalg, threadpoolctl, torch
numpy.ones((9, 9)) @ numpy.ones((9, 9)), scipy.linalg.inv(numpy.eye(9))
torch.ones(9, 9) @ torch.ones(9, 9)
if torch.backends.mkldnn.is_available():
    image = torch.ones(1, 1, 9, 9)
    torch.mkldnn_convolution(image, image, None, (0, 0), (1, 1), (1, 1), 1)
pools = threadpoolctl.threadpool_info()
features = numpy._core._multiarray_umath.__cpu_features__
print(json.dumps({
    "openblas": [pool["architecture"] for pool in pools if pool["internal_api"] == "openblas"],
    "torch": torch.backends.cpu.get_cpu_capability(),
    "mkl": torch.backends.mkl.is_available(),
    "features": [name for name, there in features.items() if there],
}))
"""


def probe(**variables):
    told = os.environ | {"MKL_VERBOSE": "1", "ONEDNN_VERBOSE": "1"} | variables
    pipes = {"capture_output": True, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", PROBE], env=told, **pipes)
    lines = r"^MKL_VERBOSE oneMKL.*$", r"^onednn_verbose,.*,cpu,isa:(.*)$", r"^{.*$"
    mkl, onednn, said = ("".join(re.findall(line, done.stdout, re.MULTILINE)) for line in lines)
    return json.loads(said) | {"mkl_line": mkl, "onednn": onednn}


def variables(kernel, features):
    """Choose the variables that make the libraries of a CPU with these features take a kernel."""
    _, torch, mkl, onednn, loops = KERNELS[kernel]
    beyond = LOOPS[LOOPS.index(loops) + 1 :]
    return {
        "OPENBLAS_CORETYPE": kernel,
        "ATEN_CPU_CAPABILITY": torch,
        "MKL_ENABLE_INSTRUCTIONS": mkl,
        "ONEDNN_MAX_CPU_ISA": onednn,
        "NPY_DISABLE_CPU_FEATURES": " ".join(name for name in beyond if name in features),
    }


def disobedient(kernel, found):
    """What did not take the kernel, in words; empty if all did."""
    _, torch, _, onednn, loops = KERNELS[kernel]
    known = (kernel, ALSO.get(kernel))
    words = [f"OpenBLAS takes {name}" for name in found["openblas"] if name not in known]
    if len(found["openblas"]) != 2:
        words.append(f"{len(found['openblas'])} copies of OpenBLAS were found, not 2")
    if found["torch"].lower() != torch:
        words.append(f"PyTorch takes {found['torch']}")
    if found["onednn"] not in ("", ONEDNN_WORDS[onednn]):  # empty in builds without oneDNN
        words.append(f"oneDNN takes {found['onednn']}")
    beyond = LOOPS[LOOPS.index(loops) + 1 :]
    return words + [f"NumPy takes {name}" for name in beyond if name in found["features"]]


def mkl_told(kernel, found):
    """What MKL takes, in words: it obeys on Intel's CPUs, and says on others what it likes."""
    if not found["mkl"]:
        return "no MKL here"
    obeys = MKL_WORDS[KERNELS[kernel][2]] in found["mkl_line"]
    return "and MKL" if obeys else f"but not in MKL ({found['mkl_line']})"


def environment(kernel, features=None):
    """Environment under which the libraries take the kernel; ends the program if one does not.

    MKL alone need not: what it takes is printed.
    """
    if kernel not in KERNELS:
        sys.exit(f"There is no kernel '{kernel}'; choose of {', '.join(KERNELS)}.")
    features = probe()["features"] if features is None else features
    if KERNELS[kernel][0] not in features:
        sys.exit(f"This CPU has no {KERNELS[kernel][0]}, which {kernel} asks for.")
    chosen = variables(kernel, features)
    found = probe(**chosen)
    if words := disobedient(kernel, found):
        sys.exit(f"{kernel} is not in effect: {'; '.join(words)}.")
    told = mkl_told(kernel, found)
    print(f"== {kernel} is in effect in OpenBLAS, PyTorch, oneDNN, NumPy, {told}", file=sys.stderr)
    return os.environ | chosen


def numeric_files():
    """Test files that compute in their own process: new ones fall in by what they import."""
    return [
        str(path)
        for path in sorted(TESTS.glob("test_*.py"))
        if re.search(r"^ *(import|from) (numpy|torch)\b", text := path.read_text(), re.MULTILINE)
        and not re.search("snakemake|browser", text, re.IGNORECASE)
        and not OTHER.match(path.name)
    ]


def test(kernels):
    """Run the numeric tests under kernels, one after the other; ends with 1 if any failed."""
    features = probe()["features"]
    if not kernels:
        kernels = [name for name, (needs, *_) in KERNELS.items() if needs in features]
        for name in KERNELS.keys() - set(kernels):
            print(f"{name} left out: this CPU has no {KERNELS[name][0]}", flush=True)
    if not kernels:
        sys.exit("This CPU takes none of the kernels, which are those of x86-64.")
    failed = []
    for kernel in kernels:
        chosen = environment(kernel, features) | {"OMP_NUM_THREADS": "1"}
        # By file, as make test does; each process computes on one thread.
        command = ["pytest", "-q", "-n", "2", "--dist", "loadfile", "-m", "not slow"]
        command += ["-p", "no:cacheprovider", *numeric_files()]
        if subprocess.run([sys.executable, "-m", *command], env=chosen, check=False).returncode:
            failed.append(kernel)
    if failed:
        sys.exit(f"Tests failed under {', '.join(failed)}.")


def moves(one, other):
    """Compare two tables of one shape: relative moves of numbers, and cells of words that turned.

    A move is |a − b| / max(|a|, |b|), so that 0 against a number is 1.
    """
    if list(one.columns) != list(other.columns) or len(one) != len(other):
        sys.exit("The two tables have different columns or rows.")
    numbers, turned = [], []
    for column in one:
        left, right = one[column], other[column]
        a, b = (pd.to_numeric(cells, errors="coerce") for cells in (left, right))
        both = a.notna() & b.notna()
        largest = pd.concat([a.abs(), b.abs()], axis=1).max(axis=1)
        numbers.append(((a - b).abs() / largest.where(largest > 0, 1.0))[both])
        texts = [cells.astype(object).fillna("").astype(str) for cells in (left, right)]
        words = ~both & (texts[0] != texts[1])
        turned += [(row, column, left[row], right[row]) for row in one.index[words]]
    return pd.concat(numbers), turned


def compare(one, other):
    print("table,entries,moved,median_move,largest_move,words_turned")
    for path in sorted([*Path(one).glob("tables/*.csv"), *Path(one).glob("*claims*.csv")]):
        place = path.relative_to(one)
        found, turned = moves(pd.read_csv(path), pd.read_csv(Path(other) / place))
        moved = found[found > 0]
        counts = f"{len(found)},{len(moved)},{moved.median():.1e},{found.max():.1e},{len(turned)}"
        print(f"{place},{counts}")
        for row, column, before, after in turned:
            print(f"  row {row}, {column}: {before!r} became {after!r}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["test", *kernels]:
            test(kernels)
        case ["run", kernel, *command] if command:
            os.execvpe(command[0], command, environment(kernel))
        case ["compare", one, other]:
            compare(one, other)
        case _:
            sys.exit(__doc__)
