"""Compiled code that comes back with the results, so that the next machine does not compile it again.

Inductor's code and Triton's kernels of a run lie in one folder, whose contents are kept as an archive of at
most 15 MB among the results. A run starts from the archive that it finds there. Code is loaded from it: use
only archives that you made yourself.
"""

import os
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path

MOST_BYTES = 15_000_000
"""Largest size of an archive."""

INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
LEVEL = 4
"""Of compression: a GPU waits for it."""


class CompiledCode:
    """The folder of a run's compiled code, and its archive.

    If either environment variable names another folder, code is kept there as the user wants it, and there
    is no archive.

    Args:
        archive: where it is written.
        earlier: archives of earlier runs; the first that exists is unpacked.
        folder: of the code; one for each user by default, since paths may be part of what is compiled.
    """

    def __init__(
        self, archive: Path, earlier: Iterable[Path] = (), folder: Path | None = None
    ) -> None:
        self.archive = archive
        self.is_users = bool(os.environ.get(INDUCTOR) or os.environ.get(TRITON))
        shared = Path(tempfile.gettempdir(), f"treespec-gpu-code-{os.getuid()}")
        self.folder = folder or shared
        self.found = not self.is_users and self._unpacked(earlier)
        self._packed: dict[Path, int] = {}
        if not self.is_users:
            os.environ[INDUCTOR] = str(self.folder / "inductor")
            os.environ[TRITON] = str(self.folder / "triton")

    def _unpacked(self, earlier: Iterable[Path]) -> bool:
        """Whether there is code of an earlier run: in the folder, or else from an archive."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            return True
        for archive in earlier:
            if archive.exists():
                with tarfile.open(archive) as packed:
                    packed.extractall(self.folder, filter="data")
                return True
        return False

    def keep(self) -> str | None:
        """Write the archive if there is new code; return what to say about it."""
        sizes = {path: path.stat().st_size for path in self.folder.rglob("*") if path.is_file()}
        if self.is_users or not sizes or sizes == self._packed:
            return None
        self._packed = sizes
        files = sorted(sizes, key=lambda path: sizes[path])
        self._pack(files)
        left_out = 0
        while self.archive.stat().st_size > MOST_BYTES:
            # The largest files go: each spares most time of transfer for what it takes to make it again.
            kept = len(files) * 3 // 4
            left_out += len(files) - kept
            files = files[:kept]
            self._pack(files)
        size = self.archive.stat().st_size / 1e6
        rest = f", without {left_out} of the largest files" if left_out else ""
        return f"compiled code: {self.archive.name}, {size:.1f} MB{rest}"

    def _pack(self, files: Iterable[Path]) -> None:
        self.archive.parent.mkdir(parents=True, exist_ok=True)
        whole = self.archive.with_name(f".{self.archive.name}")
        with tarfile.open(whole, "w:gz", compresslevel=LEVEL) as packed:
            for path in files:
                packed.add(path, path.relative_to(self.folder))
        whole.replace(self.archive)
