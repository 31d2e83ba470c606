"""Hidden states of a target on all texts, computed once and kept on disk.

Where the target's pass takes most of a training's time (on a CPU: over half of EAGLE-3's, nine tenths of a
block drafter's), texts that are read several times are read by the target once. There is a file of float16
numbers for each state, so drafts that read different states share those that they have in common, and one
of the logarithms that normalise the target's distributions. Logits are not stored: they are computed of the
final states.

The target reads the texts in one order, whatever is trained, so the states do not depend on the drafts, and
a run that was killed goes on with the same ones.
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float
from torch import Tensor

from treespec.experiments.errors import TrainingError
from treespec.experiments.records.held_folder import LOCK
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.packing import Packed, PackedTexts
from treespec.experiments.training.precision import training_passes
from treespec.experiments.training.teacher import Known, TargetPass
from treespec.features import Features
from treespec.files import write_whole
from treespec.models.transformers_model import TransformersModel

NORMALISERS = "logsumexp"
BATCHES_BETWEEN = 16
"""Batches after which it is noted how far the target has read."""


@dataclass(frozen=True)
class StoredStates:
    """States by the place of a token among all texts.

    Args:
        files: of each state, in the order in which drafts read them; the last is the final state.
        normalisers: the logarithm of the sum of the exponentials of all logits after each token.
        dtype: in which they are given.
    """

    files: Sequence[Float[np.ndarray, "N H"]]
    normalisers: Float[np.ndarray, " N"]
    dtype: torch.dtype

    def __call__(self, packed: Packed) -> Known:
        """What the target computes on a batch of these texts."""
        assert packed.place is not None, "tokens of the texts"
        places = packed.place.cpu().clamp(min=0).numpy()  # nobody reads what stands at padding
        states = [torch.from_numpy(file[places]).to(self.dtype) for file in self.files]
        normalisers = torch.from_numpy(self.normalisers[places])[..., None]
        device = packed.ids.device
        return Known(torch.stack(states, dim=2).to(device), normalisers.to(device))


def stored_states(
    target: TransformersModel,
    reads: Features,
    data: PackedTexts,
    folder: Path,
    reporter: Reporter,
) -> StoredStates:
    """The states that a draft reads, and the final one; those that are not in the folder are computed.

    Args:
        target: the target.
        reads: what the draft reads.
        data: the texts, in the order in which the target reads them.
        folder: belongs to these texts and this target.
        reporter: shows progress.

    Raises:
        TrainingError: if the disk has no room for them, or a number is too large for float16.
    """
    reader = TargetPass(target, reads)
    names = [str(state) for state in reader.states]
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK):  # jobs may train several drafts at once
        _read_all(reader, names, data, folder, reporter)
    count, width = data.texts.tokens, reader.parts.width
    files = [_opened(folder, name, (count, width), "r") for name in names]
    return StoredStates(files, _opened(folder, NORMALISERS, (count,), "r"), reader.parts.dtype)


def _read_all(
    reader: TargetPass, names: list[str], data: PackedTexts, folder: Path, reporter: Reporter
) -> None:
    """Let the target read the texts as far as states are missing."""
    noted, batches = folder / "read.json", -(-data.rows_of_epoch(0) // data.rows)
    done: dict[str, int] = json.loads(noted.read_text()) if noted.exists() else {}
    missing = [i for i, name in enumerate(names) if done.get(name, 0) < batches]
    if not missing:
        return
    count, width = data.texts.tokens, reader.parts.width
    _reserve(folder, {names[i]: 2 * count * width for i in missing} | {NORMALISERS: 4 * count})
    files = {i: _opened(folder, names[i], (count, width), "r+") for i in missing}
    normalisers = _opened(folder, NORMALISERS, (count,), "r+")
    begin = min(done.get(names[i], 0) for i in missing)
    with reporter.units(
        data.texts.tokens, doing="the target reads the texts", finished="the target read the texts",
        counted="tokens",
    ) as shown:  # fmt: skip
        for batch in range(batches):
            packed = data[batch]
            shown("the target reads the texts", packed.tokens)
            if batch < begin:
                continue
            with training_passes(reader.parts.device):
                known = reader.with_normalisers(packed.to(reader.parts.device))
            assert packed.place is not None, "tokens of the texts"
            real = packed.place >= 0
            places = packed.place[real].numpy()
            for i, file in files.items():
                file[places] = _half(known.states[:, :, i].cpu()[real], names[i])
            assert known.normalisers is not None
            normalisers[places] = known.normalisers[..., 0].float().cpu()[real].numpy()
            if batch % BATCHES_BETWEEN == BATCHES_BETWEEN - 1 or batch == batches - 1:
                for file in (*files.values(), normalisers):
                    file.flush()
                done |= {names[i]: batch + 1 for i in missing}
                write_whole(noted, json.dumps(done) + "\n")


def _half(states: Float[Tensor, "R H"], name: str) -> Float[np.ndarray, "R H"]:
    half = states.half()
    if not bool(half.isfinite().all()):
        raise TrainingError(
            f"the target's state {name} has numbers that are too large for float16: set states: computed"
        )
    return half.numpy()


def _opened(
    folder: Path, name: str, shape: tuple[int, ...], mode: Literal["r", "r+"]
) -> np.memmap[Any, Any]:
    dtype = np.float32 if name == NORMALISERS else np.float16
    return np.memmap(folder / f"{name}.bin", dtype, mode, shape=shape)


def _reserve(folder: Path, sizes: Mapping[str, int]) -> None:
    """Make the files that do not exist yet, with all their room on the disk.

    Without it, the disk could fill while they are written, which kills the process: they are mapped.
    """
    new = {folder / f"{name}.bin": size for name, size in sizes.items()}
    new = {path: size for path, size in new.items() if not path.exists()}
    try:
        for path, size in new.items():
            with path.open("wb") as file:
                if hasattr(os, "posix_fallocate"):  # macOS has none
                    os.posix_fallocate(file.fileno(), 0, size)
                file.truncate(size)
    except OSError as error:
        for path in new:
            path.unlink(missing_ok=True)
        raise TrainingError(
            f"{folder} needs {sum(new.values()) / 1e9:.1f} GB for the target's states on all texts: "
            f"{error.strerror}; set states: computed, or train on fewer texts"
        ) from None
