"""Run notebooks in fresh kernels that leave no files behind."""

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
from gradleak.reporting.notebooks.source import INJECTED, code_cells
from gradleak.runtime.artifacts import FilePath
from gradleak.runtime.progress import SHOWN, progress
from gradleak.runtime.provenance import PYTHON_PATH

# Variables for the folders of Jupyter and IPython, by default in the home directory.
STATE = ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR")
# Socket paths have at most 107 characters; those of a kernel end in "-ipc-" and a number.
LONGEST = 100
STARTUP = 120  # seconds


class Kernel(AsyncKernelManager):
    """A kernel of the running Python, independent of installed kernels."""

    @property
    def kernel_spec(self) -> KernelSpec:
        """Command that starts the kernel."""
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="Python 3", language="python")


def run(notebook: NotebookNode, path: FilePath) -> NotebookNode:
    """Run all cells from top to bottom in a new kernel, in an empty folder with its sockets.

    `notebook` receives the outputs. Raises `NotebookError`, naming `path`, if a cell fails or ends
    the kernel.
    """
    with tempfile.TemporaryDirectory(prefix="gradleak-") as folder, _private_state(folder):
        file = str(Path(folder) / "kernel.json")
        transport = "ipc" if len(file) <= LONGEST else "tcp"
        client = NotebookClient(
            notebook,
            km=Kernel(connection_file=file, transport=transport),
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
        except (CellExecutionError, DeadKernelError) as error:
            how = "ended its kernel"
            if isinstance(error, CellExecutionError):
                how = "fails with " + f"{error.ename}: {error.evalue}".split("\n", 1)[0]
            # Numbered as in the stored notebook.
            cells = [cell for cell in code_cells(notebook) if cell.get("id") != INJECTED]
            failed = next((n for n, cell in enumerate(cells, 1) if begun and cell is begun[-1]), 1)
            remedy = "open the notebook in Jupyter, mend the cell, and run all cells"
            raise NotebookError(f"{path}: code cell {failed} {how}; {remedy}.") from error
    return notebook


def _executed(client: NotebookClient) -> None:
    """Run in a thread, as nbclient replaces signal handlers; stop the kernel however it ends."""
    before = os.environ.get("PYTHONPATH")
    paths = os.pathsep.join([*PYTHON_PATH, *([before] if before else [])])
    # This project's packages first, plots and progress without a display.
    environment = {**os.environ, "PYTHONPATH": paths, "MPLBACKEND": "agg", SHOWN: "display"}
    given: dict[str, Any] = {"env": environment, "cleanup_kc": True}
    with ThreadPoolExecutor(1) as pool, progress(len(code_cells(client.nb)), "cells") as bar:
        client.on_cell_executed = lambda **_: bar.update()
        try:
            # In an event loop that is closed afterwards.
            pool.submit(lambda: asyncio.run(client.async_execute(**given))).result()
        except BaseException:
            process = getattr(getattr(client.km, "provisioner", None), "process", None)
            if process is not None:
                process.kill()
            raise


@contextmanager
def _private_state(folder: str) -> Iterator[None]:
    """Redirect the files of Jupyter and IPython to `folder`."""
    before = dict(os.environ)
    os.environ.update({name: str(Path(folder) / name.lower()) for name in STATE})
    try:
        yield
    finally:
        for name in STATE:
            os.environ.pop(name, None)
        os.environ.update({name: before[name] for name in STATE if name in before})
