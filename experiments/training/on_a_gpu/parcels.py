"""What must come back of a training: a few files of limited size, renewed while it goes on.

A parcel is a zip archive, cut into pieces:

    state        config, plan, held-out answers, and what was measured of each draft
    heads        finished drafts, in bfloat16 and without what is their target's
    texts        what the target has written: ids as uint16
    checkpoint   of the draft that is being trained

They are packed in this order as long as there is room: 8 files, 60 MB together. A checkpoint is four times
the size of a head, so it is what is left out last in a long training; its draft then begins anew.
"""

import io
import zipfile
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import move

from treespec.experiments.errors import TrainingError
from treespec.experiments.training.on_a_gpu.lean_heads import Matrices, lean
from treespec.experiments.training.on_a_gpu.pieces import cut, joined, names_in
from treespec.files import write_whole

__all__ = ["LIMITS", "TEXTS", "TRAINING", "Limits", "Packer", "unpacked"]

TEXTS, TRAINING = "texts", "training"
"""Folders within that of a run."""
OF_ALL = ("config.yaml", "inputs.json", "held_out.json", "results.json", "curves.png")
OF_A_DRAFT = ("result.json", "tuning.json")
SUFFIX = ".zip"


@dataclass(frozen=True)
class Limits:
    """What may come back.

    Args:
        files: number of files.
        bytes: of all files together.
        piece: bytes of a file.
    """

    files: int = 8
    bytes: int = 60_000_000
    piece: int = 15_000_000


LIMITS = Limits()

Content = Mapping[str, Path | bytes]
"""What a parcel holds, by the path within the run's folder."""


@dataclass
class Packer:
    """Packs a run's folder again and again.

    Args:
        work: the run's folder.
        out: where pieces are put; other files there count as well.
        limits: what may come back.
        matrices: those of the target that heads share.
        say: is told what is left out.
    """

    work: Path
    out: Path
    limits: Limits = LIMITS
    matrices: Matrices = field(default_factory=dict)
    say: Callable[[str], None] = lambda text: None
    _packed: dict[str, tuple[object, bytes]] = field(default_factory=dict)
    _left_out: frozenset[str] = frozenset()

    @property
    def finished(self) -> int:
        """Number of finished drafts."""
        return sum((draft / "result.json").exists() for draft in self._drafts())

    def pack(self) -> None:
        """Renew what has changed."""
        parcels = {
            "state": self._state(), "heads": self._heads(), "texts": self._texts(),
            "checkpoint": self._checkpoint(),
        }  # fmt: skip
        standing = {path for pieces in names_in(self.out).values() for path in pieces}
        others = [path for path in self.out.rglob("*") if path.is_file() and path not in standing]
        files = self.limits.files - len(others)
        room = self.limits.bytes - sum(path.stat().st_size for path in others)
        wanted: dict[str, bytes] = {}
        left_out = set[str]()
        for name, content in parcels.items():
            if not content:
                continue
            pieces = cut(name + SUFFIX, self._zipped(name, content), self.limits.piece)
            size = sum(map(len, pieces.values()))
            if len(pieces) > files or size > room:
                left_out.add(name)
                continue
            files, room, wanted = files - len(pieces), room - size, wanted | pieces
        self._put(wanted, standing)
        if left_out - self._left_out:
            self.say(f"no room to bring back: {', '.join(sorted(left_out))}")
        self._left_out = frozenset(left_out)

    def _put(self, wanted: Mapping[str, bytes], standing: set[Path]) -> None:
        aside = self.work / "leaving"
        aside.mkdir(parents=True, exist_ok=True)
        for path in standing:
            if path.name not in wanted:
                path.unlink()
        for name, piece in wanted.items():
            path = self.out / name
            if not path.exists() or path.read_bytes() != piece:
                write_whole(aside / name, piece)
                move(aside / name, path)

    def _zipped(self, name: str, content: Content) -> bytes:
        """The archive, made anew only if a file has changed."""
        stamp = [
            (path, source.stat().st_size, source.stat().st_mtime_ns)
            if isinstance(source, Path)
            else (path, source)
            for path, source in content.items()
        ]
        if name not in self._packed or self._packed[name][0] != stamp:
            opened = io.BytesIO()
            with zipfile.ZipFile(opened, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
                for path, source in content.items():
                    data = source.read_bytes() if isinstance(source, Path) else source
                    if name == "heads" and path.endswith((".safetensors", ".pt")):
                        data = lean(data, self.matrices, pickled=path.endswith(".pt"))
                    archive.writestr(path, data)
            self._packed[name] = stamp, opened.getvalue()
        return self._packed[name][1]

    def _within(self, *paths: Path) -> dict[str, Path]:
        return {str(path.relative_to(self.work)): path for path in paths if path.is_file()}

    def _drafts(self) -> list[Path]:
        return sorted(path for path in (self.work / TRAINING).glob("*") if path.is_dir())

    def _state(self) -> dict[str, Path]:
        training = self.work / TRAINING
        files = [self.work / "plan.json", *(training / name for name in OF_ALL)]
        return self._within(
            *files, *(draft / name for draft in self._drafts() for name in OF_A_DRAFT)
        )

    def _heads(self) -> dict[str, Path]:
        return self._within(
            *(
                path
                for draft in self._drafts()
                if (draft / "result.json").exists()
                for path in sorted((draft / "head").rglob("*"))
            )
        )

    def _texts(self) -> dict[str, Path]:
        texts = self.work / TEXTS
        kinds = ("manifest.json", "*.jsonl", "*.md", "ids-*.bin")
        return self._within(*(path for kind in kinds for path in sorted(texts.glob(kind))))

    def _checkpoint(self) -> dict[str, Path]:
        return self._within(
            *(
                path
                for draft in self._drafts()
                if not (draft / "result.json").exists()
                for path in sorted(draft.glob("*.pt"))
            )
        )


def unpacked(pieces: Path, work: Path, among: Container[str] | None = None) -> list[str]:
    """Unpack the parcels of a folder whose pieces are all there; the names of those that lack some.

    Args:
        pieces: the folder.
        work: where to unpack.
        among: names of parcels; None for all.

    Raises:
        TrainingError: if one is damaged; names it.
    """
    missing = []
    for name, found in names_in(pieces).items():
        if not name.endswith(SUFFIX) or (among is not None and name not in among):
            continue
        content = joined(found)
        if content is None:
            missing.append(name)
            continue
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as archive:
                if (bad := archive.testzip()) is not None:
                    raise zipfile.BadZipFile(bad)
                archive.extractall(work)
        except zipfile.BadZipFile as error:
            raise TrainingError(
                f"{pieces / name} is damaged ({error}): its pieces may be of several moments; remove them, "
                "and what they held is made anew"
            ) from None
    return missing
