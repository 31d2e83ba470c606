"""What travels to a lent machine and back: pieces, parcels within limits, lean heads."""

import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from treespec.errors import LoadError
from treespec.experiments.errors import TrainingError
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.on_a_gpu.__main__ import has_model, take_in
from treespec.experiments.training.on_a_gpu.lean_heads import completed, lean
from treespec.experiments.training.on_a_gpu.parcels import Limits, Packer, unpacked
from treespec.experiments.training.on_a_gpu.pieces import cut, joined, names_in

QUIET = Reporter(None)


def put(folder: Path, pieces: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in pieces.items():
        (folder / name).write_bytes(content)
    return folder


def test_pieces_make_the_file_again_once_all_are_there(tmp_path: Path) -> None:
    content = bytes(range(251)) * 41
    pieces = cut("a.whl", content, 1000)
    assert len(pieces) == 11
    assert max(map(len, pieces.values())) <= 1000
    last = "a.whl.11-of-11"
    folder = put(tmp_path, {name: piece for name, piece in pieces.items() if name != last})
    assert joined(names_in(folder)["a.whl"]) is None
    put(folder, {last: pieces[last]})
    assert joined(names_in(folder)["a.whl"]) == content
    put(folder, cut("a.whl", content, 6000))
    with pytest.raises(TrainingError, match="of several cuts"):
        joined(names_in(folder)["a.whl"])


def test_a_model_with_another_hash_is_refused_and_may_be_brought_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    work, wrong = tmp_path / "work", cut("smollm2.whl", b"no model", 5)
    first = put(tmp_path / "first", {"smollm2.whl.1-of-2": wrong["smollm2.whl.1-of-2"]})
    take_in(first, work, QUIET)
    assert not has_model("smollm2", work, QUIET)
    take_in(put(tmp_path / "second", wrong), work, QUIET)
    with pytest.raises(LoadError, match=r"smollm2.whl has the SHA-256 .*, but must have bcc8"):
        has_model("smollm2", work, QUIET)
    take_in(put(tmp_path / "third", {"smollm2.whl.2-of-2": b"more"}), work, QUIET)
    assert (work / "brought" / "smollm2.whl.2-of-2").read_bytes() == b"more"


def filled(work: Path) -> Path:
    finished, begun = work / "training" / "eagle3", work / "training" / "medusa"
    (finished / "head").mkdir(parents=True)
    begun.mkdir()
    (work / "texts").mkdir()
    (work / "texts" / "manifest.json").write_text("{}")
    (work / "texts" / "ids-0000.bin").write_bytes(bytes(600))
    (work / "plan.json").write_text("{}")
    (finished / "result.json").write_text("{}")
    (finished / "checkpoint.pt").write_bytes(b"no longer needed")
    save_file({"w": torch.ones(8, 8)}, finished / "head" / "model.safetensors")
    (begun / "checkpoint.pt").write_bytes(torch.rand(500).numpy().tobytes())
    return work


def test_what_comes_back_keeps_to_the_limits_and_is_unpacked_again(tmp_path: Path) -> None:
    work, out, again = filled(tmp_path / "work"), tmp_path / "out", tmp_path / "again"
    out.mkdir()
    (out / "log.txt").write_text("a line")
    said = list[str]()
    Packer(work, out, Limits(files=20, bytes=10_000, piece=900), say=said.append).pack()
    assert not said
    assert max(path.stat().st_size for path in out.iterdir()) <= 900
    assert not unpacked(out, again)
    assert {str(p.relative_to(again)) for p in again.rglob("*.*")} == {
        *("plan.json", "texts/manifest.json", "texts/ids-0000.bin"),
        *("training/eagle3/result.json", "training/eagle3/head/model.safetensors"),
        "training/medusa/checkpoint.pt",
    }
    (out / "texts.zip.1-of-1").write_bytes(b"PK")
    with pytest.raises(TrainingError, match=r"texts.zip is damaged"):
        unpacked(out, again)

    packer = Packer(work, out, Limits(files=20, bytes=1800, piece=900), say=said.append)
    packer.pack()
    packer.pack()
    assert said == ["no room to bring back: checkpoint"]
    assert "checkpoint.zip" not in names_in(out)
    Packer(work, out, Limits(files=3, bytes=10_000, piece=900), say=said.append).pack()
    assert len([*out.iterdir()]) <= 3


def test_only_what_has_changed_is_written_anew(tmp_path: Path) -> None:
    work, out = filled(tmp_path / "work"), tmp_path / "out"
    out.mkdir()
    packer = Packer(work, out)
    packer.pack()
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    (work / "training" / "medusa" / "checkpoint.pt").write_bytes(b"later")
    packer.pack()
    changed = {path.name for path in out.iterdir() if path.stat().st_mtime_ns != before[path.name]}
    assert changed == {"checkpoint.zip.1-of-1"}
    with zipfile.ZipFile(out / "checkpoint.zip.1-of-1") as archive:
        assert archive.read("training/medusa/checkpoint.pt") == b"later"


def test_lean_heads_name_what_is_their_targets(tmp_path: Path) -> None:
    own, embedding = torch.rand(4, 3), torch.rand(6, 3)
    whole = {"layer": own, "embed": embedding, "ids": torch.arange(5)}
    file = tmp_path / "model.safetensors"
    file.write_bytes(lean(save(whole), {"embedding": embedding, "head": torch.zeros(6, 3)}))
    assert sorted(load_file(file)) == ["ids", "layer"]
    completed(file, {"embedding": embedding})
    back = load_file(file)
    assert torch.equal(back["layer"], own.bfloat16())
    assert torch.equal(back["embed"], embedding)
    assert torch.equal(back["ids"], torch.arange(5))

    file = tmp_path / "medusa_lm_head.pt"
    torch.save({"0.weight": own}, file)
    file.write_bytes(lean(file.read_bytes(), {"embedding": embedding}, pickled=True))
    assert torch.equal(torch.load(file, weights_only=True)["0.weight"], own.bfloat16())
