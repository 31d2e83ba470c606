"""Folders of texts: the same bytes after any interruption, refused recipes, full disks, and the reader."""

import errno
import json
import shutil

import numpy as np
import pytest

from treespec.experiments.errors import ConfigError, RunFolderError, RunNotWritten
from treespec.experiments.run.progress import Reporter
from treespec.experiments.training.corpus import standard_library
from treespec.experiments.training.texts import prompts_asked, text_folder, text_index, write_texts
from treespec.experiments.training.texts.leaks import held_out_prompts, leaks
from treespec.experiments.training.texts.text_data import TextData
from treespec.experiments.training.texts.text_folder import TextFolder, dtype_begun_in
from treespec.experiments.training.texts.write_texts import Recipe
from treespec.files import append_whole
from treespec.models.load import load_pair
from treespec.models.outline import outline_pair

RECIPE = Recipe("embedded", tokens=180, batch=5, answer=12)


@pytest.fixture(scope="module")
def pair():
    return load_pair("embedded", "none", dtype="bfloat16")


@pytest.fixture(scope="module")
def prompts(pair):
    return held_out_prompts(pair.tokenizer)


@pytest.fixture(autouse=True)
def held_out_once(prompts, monkeypatch):
    monkeypatch.setattr(write_texts, "held_out_prompts", lambda tokenizer: prompts)


@pytest.fixture(autouse=True)
def small_library(tmp_path, monkeypatch):
    """A few files of the standard library are enough for prompts."""
    folder = tmp_path / "library"
    folder.mkdir()
    for name in ("textwrap.py", "bisect.py", "shlex.py", "calendar.py", "fnmatch.py"):
        shutil.copy(standard_library() / name, folder)
    monkeypatch.setattr(prompts_asked, "standard_library", lambda: folder)


@pytest.fixture
def quick(monkeypatch):
    """A writer without a model: tokens drawn by the seeds of texts."""

    def written(orders, told):
        return [np.random.default_rng(o.seed).integers(0, 4096, o.most).tolist() for o in orders]

    monkeypatch.setattr(write_texts, "writer_for", lambda pair: ("engine", written))


def write(out, pair, recipe=RECIPE, **changed):
    return write_texts.write_texts(
        out, Recipe(**(vars(recipe) | changed)), pair, Reporter(None)
    ).data


def content(folder):
    """The bytes of a folder's files; a manifest without the folder's own id."""
    found = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}
    manifest = json.loads(found.pop("manifest.json"))
    return found | {"manifest": {k: v for k, v in manifest.items() if k != "folder_id"}}


class Killed(BaseException):
    """No handler of errors sees a kill."""


def test_a_killed_folder_ends_with_the_same_bytes(tmp_path, pair, monkeypatch):
    out, monkey = tmp_path / "texts", pytest.MonkeyPatch()
    monkeypatch.setattr(text_index, "SHARD_BYTES", 500)
    monkeypatch.setattr(text_folder, "SHARD_BYTES", 500)
    write(tmp_path / "unbroken", pair)
    expected = content(tmp_path / "unbroken")
    assert {"ids-0000.bin", "ids-0001.bin", "batches.jsonl", "DATA_CARD.md"} <= expected.keys()
    count = 0

    def dies(at, how):
        def append(path, data):
            nonlocal count
            count += 1
            if count == at:
                append_whole(path, data[: int(len(data) * how)])
                raise Killed
            append_whole(path, data)

        return append

    for at, how in ((1, 0.5), (2, 0.7), (4, 0), (3, 1)):
        count = 0
        with monkey.context() as patched:
            patched.setattr(text_folder, "append_whole", dies(at, how))
            with pytest.raises(Killed):
                write(out, pair)
        (out / "ids-0007.bin").write_bytes(b"of a batch without its line")
    write(out, pair)
    assert content(out) == expected
    write(out, pair)  # finished: nothing changes
    assert content(out) == expected


def test_a_larger_folder_begins_like_a_smaller_one(tmp_path, pair, quick):
    small = write(tmp_path / "a", pair, tokens=60)
    assert small.tokens >= 60
    large, at_once = (
        write(tmp_path / "a", pair, tokens=130),
        write(tmp_path / "b", pair, tokens=130),
    )
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert len(large) > len(small)
    assert all(np.array_equal(a, b) for a, b in zip(small, at_once, strict=False))


def test_what_the_texts_are(tmp_path, pair, quick, prompts):
    data = write(tmp_path / "a", pair)
    assert data.tokens >= RECIPE.tokens
    assert len(data) == len(data.lengths) > 10
    assert 0 < data.greedy.sum() < len(data)
    assert not data.invented.any()
    assert leaks(data, data.prompt_lengths, prompts) == []
    recipe, counts = data.manifest["recipe"], data.manifest["counts"]
    assert recipe["writer"] == "engine"
    assert recipe["dtype"] == dtype_begun_in(tmp_path / "a") == "bfloat16"
    assert dtype_begun_in(tmp_path) is None
    assert counts["answer_tokens"] == data.tokens
    assert counts["leaks"] == 0
    assert sum(line["texts"] for line in counts["openings"]) <= counts["texts"] == len(data)
    assert 0.3 < counts["distinct_4_grams"] <= 1
    raw = np.fromfile(tmp_path / "a" / "ids-0000.bin", "<u2")
    assert np.array_equal(np.concatenate([*data]), raw)
    other = write(tmp_path / "b", pair, seed=1, tokens=60)
    assert not any(np.array_equal(text, data[0]) for text in other)


def test_parts_of_texts_by_their_tokens(tmp_path, pair, quick):
    data = write(tmp_path / "a", pair)
    quarter, whole = data.head(0.25), data.head(1)
    assert len(whole) == len(data)
    assert whole.tokens == data.tokens
    assert data.tokens / 4 <= quarter.tokens < data.tokens / 4 + RECIPE.answer
    assert all(np.array_equal(a, b) for a, b in zip(quarter, data, strict=False))
    assert len(quarter.prompt_lengths) == len(quarter)
    assert len(data[:3]) == 3
    with pytest.raises(ConfigError, match="share of 0"):
        data.head(0)


def test_another_recipe_is_refused_and_named(tmp_path, pair, quick):
    write(tmp_path / "a", pair, tokens=40)
    with pytest.raises(RunFolderError, match=r"another recipe \(temperature: 1.0 -> 0.7\)"):
        write(tmp_path / "a", pair, temperature=0.7)
    (tmp_path / "a" / "manifest.json").unlink()
    with pytest.raises(OSError, match=r"not a folder of texts.*choose another folder$"):
        write(tmp_path / "a", pair)


def test_a_full_disk_loses_nothing(tmp_path, pair, quick, monkeypatch):
    out, calls = tmp_path / "texts", 0
    monkeypatch.setattr(text_folder, "SHARD_BYTES", 500)
    write(tmp_path / "unbroken", pair)

    def full(path, data):
        nonlocal calls
        calls += 1
        if calls == 6:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        append_whole(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(text_folder, "append_whole", full)
        with pytest.raises(
            RunNotWritten, match=r"No space left.*Every finished batch is kept: free"
        ):
            write(out, pair)
    assert len(TextData.open(out)) > 0  # an unfinished folder can be read
    write(out, pair)
    assert content(out) == content(tmp_path / "unbroken")


def test_damage_is_named(tmp_path, pair, quick):
    write(tmp_path / "a", pair, tokens=60)
    shard, index = tmp_path / "a" / "ids-0000.bin", tmp_path / "a" / "batches.jsonl"
    ids, lines = shard.read_bytes(), index.read_bytes()
    shard.write_bytes(ids[:-2])
    with pytest.raises(RunFolderError, match=r"ids-0000.bin has"):
        TextData.open(tmp_path / "a")
    shard.write_bytes(ids)
    index.write_bytes(b"{}\n" + lines)
    with pytest.raises(RunFolderError, match=r"batches.jsonl: line 1"):
        TextData.open(tmp_path / "a")
    with pytest.raises(RunFolderError, match="train data"):
        TextData.open(tmp_path / "nothing")


def test_a_folder_without_texts_is_no_data(tmp_path):
    with TextFolder(tmp_path / "a") as folder:
        folder.start({"vocab_size": 9, "target": "x"}, {})
    with pytest.raises(RunFolderError, match="holds no texts"):
        TextData.open(tmp_path / "a")


def test_texts_of_another_target_are_refused(tmp_path, pair, quick):
    data = write(tmp_path / "a", pair, tokens=40)
    data.require_for(pair.tokenizer, pair.target.vocab_size)
    with pytest.raises(ConfigError, match="vocabulary of 4,096, but the target's has 9"):
        data.require_for(pair.tokenizer, 9)
    other = outline_pair("embedded", "none").tokenizer
    other.add_tokens(["<one more>"])
    with pytest.raises(ConfigError, match="the tokenizer of embedded"):
        data.require_for(other, pair.target.vocab_size)
