import io
import os
import pickle
import zipfile

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.search.formats import MalformedTree, dump, load, sequoia

SHAPE = TreeShape.from_parents([-1, 0, 0, 1, 1, 2, 3])


def saved(growmap, **options):
    file = io.BytesIO()
    torch.save(growmap, file, **options)
    return file.getvalue()


def grown_as_sequoia_does(children):
    """A growmap built as in `tree_search.py`: expand all new nodes, level by level."""
    parents, depth, successors, roots, branches, new = [-1], [0], [[]], [], [], [0]
    while new:
        expanded, counts, following = list(new), [], []
        for node in new:
            counts.append(children(node))
            for _ in range(children(node)):
                successors[node].append(len(parents))
                following.append(len(parents))
                parents.append(node)
                depth.append(depth[node] + 1)
                successors.append([])
        roots.append(expanded)
        branches.append(counts)
        new = following
    mask = torch.zeros(len(parents), len(parents), dtype=torch.long)
    for node, parent in enumerate(parents):
        mask[node] = mask[parent] if node else 0
        mask[node, node] = 1
    growmap = {"roots": roots, "branches": branches, "Successors": successors, "mask": mask}
    return parents, growmap | {"depth": torch.LongTensor(depth), "size": len(parents)}


@given(st.lists(st.integers(0, 3), max_size=12))
@settings(max_examples=25)
def test_growmaps_are_those_of_sequoia(counts):
    parents, growmap = grown_as_sequoia_does(lambda i: counts[i] if i < len(counts) else 0)
    shape = TreeShape.from_parents(parents)
    assert load(saved(growmap), "sequoia") == load(growmap) == shape
    ours = dump(shape, "sequoia").value
    assert list(ours) == list(growmap)
    for key, value in growmap.items():
        same = (
            torch.equal(ours[key], value) if isinstance(value, torch.Tensor) else ours[key] == value
        )
        assert same, key


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("place", ["alone", "as a field", "as an entry", "old format", "bare"])
def test_nothing_in_a_file_is_executed(tmp_path, place, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    trap = tmp_path / "executed"
    evil, growmap = Evil(str(trap)), dump(SHAPE, "sequoia").value
    data = {
        "alone": lambda: saved(evil),
        "as a field": lambda: saved(growmap | {"size": evil}),
        "as an entry": lambda: saved(growmap | {"roots": [[0], [evil]]}),
        "old format": lambda: saved(evil, _use_new_zipfile_serialization=False),
        "bare": lambda: pickle.dumps(evil),
    }[place]()
    file = tmp_path / "growmap.pt"
    file.write_bytes(data)
    for format in (None, "sequoia"):
        with pytest.raises(MalformedTree, match=r"growmap\.pt: .*(weights_only|pickle)"):
            load(file, format)
    assert not trap.exists()
    pickle.loads(pickle.dumps(evil))  # the trap does snap where pickles are trusted
    assert trap.exists()


MASK, DEPTH = dump(SHAPE, "sequoia").value["mask"], torch.tensor(SHAPE.depths)
CHILDREN = [[1, 2], [3, 4], [5], [6], [], [], []]
BROKEN = {
    "size": [6, 8, 0, 7.0, None, 10**9],
    "Successors": [None, CHILDREN[:-1], [*CHILDREN, []], [[2, 1], *CHILDREN[1:]], [[]] * 7, {}],
    "roots": [[[0], [1, 2], [3, 4], [6]], 7],
    "branches": [[[2], [1, 2], [1, 0, 0], [0]], ""],
    "depth": [DEPTH + 1, DEPTH[:-1], DEPTH.float(), DEPTH.tolist(), DEPTH.to_sparse()],
    "mask": [MASK.T, MASK[:-1], MASK.bool(), torch.empty(7, 7, device="meta")],
}
"""Invalid values of each field."""


@pytest.mark.parametrize("key", sequoia.KEYS)
def test_every_field_is_checked(key):
    growmap = dump(SHAPE, "sequoia").value
    assert load(saved(growmap)) == SHAPE
    for value in BROKEN[key]:
        with pytest.raises(MalformedTree, match="size|Successors" if key == "size" else key):
            load(growmap | {key: value}, "sequoia")
    with pytest.raises(MalformedTree, match=f"no '{key}'"):
        load(saved({k: v for k, v in growmap.items() if k != key}))
    with pytest.raises(MalformedTree, match="the key 'extra'"):
        load(saved(growmap | {"extra": 1}))


@pytest.mark.parametrize("content", [[], 3, None, torch.zeros(3), "growmap"])
def test_archives_of_other_things(content):
    with pytest.raises(MalformedTree, match="growmap must be an object"):
        load(saved(content))


def test_archives_that_are_damaged_or_compressed():
    data = dump(SHAPE, "sequoia").content
    for wrong in (
        b"",
        b"PK",
        data[:200],
        data[:-30],
        b"PK" + bytes(500),
        data[:300] + b"x" + data[301:],
    ):
        with pytest.raises(MalformedTree):
            load(wrong, "sequoia")
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(packed, "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(MalformedTree, match="compressed"):
        load(packed.getvalue())


def test_files_on_disk(tmp_path):
    file = tmp_path / "tree.pt"
    torch.save(dump(SHAPE, "sequoia").value, file)
    assert load(file) == load(str(file)) == load(file, "sequoia") == SHAPE
    with pytest.raises(MalformedTree, match=r"tree\.pt: byte \d+ is not UTF-8"):
        load(file, "medusa")
    for wrong in (3, None, [1], "text"):
        with pytest.raises(MalformedTree):
            sequoia.load(wrong)
