"""Running a notebook in a fresh kernel that leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbformat import NotebookNode

from gradleak.errors import NotebookError
from gradleak.notebooks.source import INJECTED, code_cells
from gradleak.progress import progress

# The folder that holds this package: a kernel imports the same one, whatever else is installed.
PACKAGE_ROOT = Path(__file__).resolve().parents[2]
# Where Jupyter and IPython keep what they write, by default below the home.
STATE = (
    "IPYTHONDIR",
    "JUPYTER_CONFIG_DIR",
    "JUPYTER_DATA_DIR",
    "JUPYTER_RUNTIME_DIR",
)
# A socket's path has at most 107 characters; those of a kernel end in "-ipc-" and a number.
LONGEST = 100
STARTUP = 120  # seconds


class Kernel(AsyncKernelManager):
    """A kernel of the Python that runs this, whatever kernels are installed."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """How the kernel is started."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


def run(notebook: NotebookNode, path: str | os.PathLike[str]) -> NotebookNode:
    """Run all cells, top to bottom, in a kernel of its own.

    The kernel runs in an empty folder and talks through sockets in it, without a port where the
    folder's path is short enough for that.

    Parameters
    ----------
    notebook
        Is given the outputs of its cells.
    path
        Where it is stored, for messages.

    Raises
    ------
    NotebookError
        If a cell fails or ends the kernel; one sentence.
    """
    with tempfile.TemporaryDirectory(prefix="gradleak-") as folder, _private_state(folder):
        client = NotebookClient(
            notebook,
            km=_kernel(Path(folder)),
            timeout=None,
            startup_timeout=STARTUP,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": folder}},
        )
        begun: list[NotebookNode] = []
        client.on_cell_execute = lambda cell, **_: begun.append(cell)
        try:
            _executed(client)
        except CellExecutionError as error:
            said = f"{error.ename}: {error.evalue}".split("\n", 1)[0]
            raise _failure(notebook, begun, path, f"fails with {said}") from error
        except DeadKernelError as error:
            raise _failure(notebook, begun, path, "ended its kernel") from error
    return notebook


def _kernel(folder: Path) -> Kernel:
    file = folder / "kernel.json"
    short = len(str(file)) <= LONGEST
    return Kernel(connection_file=str(file), transport="ipc" if short else "tcp")


def _executed(client: NotebookClient) -> None:
    """Run a client's notebook; whatever ends the wait ends the kernel.

    In a thread, since nbclient takes the main thread's signals, which are the job's own.
    """
    given: dict[str, Any] = {"env": _environment(), "cleanup_kc": True}
    with ThreadPoolExecutor(1) as pool, progress(len(code_cells(client.nb)), "cells") as bar:
        client.on_cell_executed = lambda **_: bar.update()
        try:
            # With an event loop that is closed behind it.
            pool.submit(lambda: asyncio.run(client.async_execute(**given))).result()
        except BaseException:
            provisioner = getattr(client.km, "provisioner", None)
            process = getattr(provisioner, "process", None)
            if process is not None:
                process.kill()
            raise


def _environment() -> dict[str, str]:
    """Environment of the kernel: this package first, and pictures drawn without a screen."""
    before = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([str(PACKAGE_ROOT), *([before] if before else [])])
    return {**os.environ, "PYTHONPATH": paths, "MPLBACKEND": "agg"}


@contextmanager
def _private_state(folder: str) -> Iterator[None]:
    """Have Jupyter and IPython keep what they write in `folder`."""
    before = {name: os.environ.get(name) for name in STATE}
    os.environ.update({name: str(Path(folder) / name.lower()) for name in STATE})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _failure(
    notebook: NotebookNode,
    begun: list[NotebookNode],
    path: str | os.PathLike[str],
    how: str,
) -> NotebookError:
    """What is wrong with the cell that was begun last, counted as the notebook is stored."""
    cells = [cell for cell in code_cells(notebook) if cell.get("id") != INJECTED]
    failed = next((n for n, cell in enumerate(cells, 1) if begun and cell is begun[-1]), 1)
    return NotebookError(
        f"{path}: code cell {failed} {how}; open the notebook in Jupyter, mend the cell, and run "
        "all cells."
    )
