"""Kernels of notebooks that are tested side by side talk through sockets in a folder of their own.

By default `jupyter_client` looks for free ports, releases them, and tells the kernel their numbers; if
another process takes one of them in between, the kernel dies before its first reply.
"""

import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbmake.nb_run
from jupyter_client.manager import AsyncKernelManager


class KernelManager(AsyncKernelManager):
    """Starts kernels whose five sockets are files next to the connection file."""

    def __init__(self, **traits: Any) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kernel-")
        file = Path(self._folder.name) / "kernel.json"
        super().__init__(transport="ipc", connection_file=f"{file}", **traits)


class NotebookClient(nbclient.NotebookClient):
    """Runs a notebook in a kernel of `KernelManager`."""

    def __init__(self, *args: Any, **traits: Any) -> None:
        super().__init__(*args, kernel_manager_class=KernelManager, **traits)


nbmake.nb_run.NotebookClient = NotebookClient
