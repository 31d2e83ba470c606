"""Rows on a disk that is full, damaged, or written by another version."""

import resource
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from run_folders import rows

from treespec.experiments.errors import RunFolderError
from treespec.experiments.records.folder import RunFolder
from treespec.experiments.records.rows import (
    PromptRow,
    StepRow,
    TreeRow,
    append_lines,
    read_lines,
    schema_of,
    to_frame,
    write_lines,
)

prompt_row = partial(rows.prompt_row, method="tree")
step_row = partial(rows.step_row, method="tree")


def tree_row(prompt=0, method="tree", step=0, **changes):
    row = {"prompt": prompt, "sampling": "T=0", "method": method, "step": step}
    row |= {"repeat": 0, "parents": [-1, 0, 0], "tokens": [5, 6, 7], "pieces": ["a", "\n", "�"]}
    return TreeRow(**row | {"path": [0, 2], "bonus": 8, "bonus_piece": " ü"} | changes)


@contextmanager
def room_for(size):
    """Limit files to this many bytes, as if the disk were full then."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("more", [0, 1, 100, 250, 399])
def test_a_write_that_fails_in_its_middle_is_taken_back(tmp_path, more):
    path = tmp_path / "trees.jsonl"
    append_lines(path, [tree_row(0)])
    before = path.read_bytes()
    rows = [tree_row(1, step=i) for i in range(3)]
    assert len(before) > 150
    with room_for(len(before) + more), pytest.raises(OSError, match="File too large"):
        append_lines(path, rows)
    assert path.read_bytes() == before
    append_lines(path, rows)
    assert len(read_lines(path, TreeRow)) == 4


def test_a_rewrite_that_fails_leaves_the_file_alone(tmp_path):
    path = tmp_path / "steps.jsonl"
    append_lines(path, [step_row(step=i) for i in range(9)])
    before = path.read_bytes()
    with room_for(100), pytest.raises(OSError, match="File too large"):
        write_lines(path, [step_row(step=i) for i in range(3)])
    assert path.read_bytes() == before


def test_a_full_disk_names_the_folder_and_loses_no_finished_unit(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        folder.append([prompt_row(0)], [step_row(0)], [tree_row(0)])
        sizes = [p.stat().st_size for p in folder.path.glob("*.jsonl")]
        more = [prompt_row(1)], [step_row(1)], [tree_row(1)]
        one, two = {(0, "T=0", 0)}, {(0, "T=0", 0), (1, "T=0", 0)}

        def units():
            rows = [read_lines(folder.path / f"{n}.jsonl", k) for n, k in TABLES.items()]
            return [{row.unit for row in table} for table in rows]

        for room in range(1, max(sizes) + 9, 97):
            with room_for(room), pytest.raises(RunFolderError, match="resume with") as caught:
                folder.append(*more)
            assert str(folder.path) in str(caught.value)
            assert folder.recover(["tree"]) == one
            assert units() == [one] * 3
        folder.append(*more)
        assert folder.recover(["tree"]) == two
        assert units() == [two] * 3


TABLES = {"prompts": PromptRow, "steps": StepRow, "trees": TreeRow}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_what_to_do_about_a_full_disk_is_said(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        folder.append([prompt_row(0)], [step_row(0)])
        (folder.path / "steps.jsonl").unlink()
        (folder.path / "steps.jsonl").symlink_to("/dev/full")
        with pytest.raises(RunFolderError, match=r"No space left.*free some space on its disk"):
            folder.append([prompt_row(1)], [step_row(1)])


@pytest.mark.parametrize("bad", [b"{oops\n", b"\x00\x00\x00\n", b"\n", b'{"prompt": 1, "sam\x00'])
def test_a_damaged_last_line_is_dropped(tmp_path, bad):
    path = tmp_path / "p.jsonl"
    append_lines(path, [prompt_row(0), prompt_row(1)])
    with path.open("ab") as file:
        file.write(bad)
    assert [row.prompt for row in read_lines(path, PromptRow)] == [0, 1]


def test_a_last_line_of_another_kind_is_an_error_not_damage(tmp_path):
    path = tmp_path / "p.jsonl"
    append_lines(path, [prompt_row(0)])
    with path.open("ab") as file:
        file.write(b'{"prompt": 1}\n')
    with pytest.raises(RunFolderError, match="line 2: not a valid row"):
        read_lines(path, PromptRow)


def test_a_unit_whose_last_line_is_garbage_runs_again(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        folder.append([prompt_row(0)], [step_row(0)], [tree_row(0)])
        folder.append([prompt_row(1)], [step_row(1)], [tree_row(1)])
        path = folder.path / "prompts.jsonl"
        data = path.read_bytes()
        path.write_bytes(data[:-40] + b"#" * 39 + b"\n")
        assert folder.recover(["tree"]) == {(0, "T=0", 0)}
        folder.append([prompt_row(1)], [step_row(1)], [tree_row(1)])
        assert path.read_bytes() == data


def test_repeats_are_units_of_their_own(tmp_path):
    with RunFolder(tmp_path / "run") as folder:
        methods = "tree", "plain"
        folder.append(
            [prompt_row(0, method=m) for m in methods], [step_row(0, method=m) for m in methods]
        )
        folder.append([prompt_row(0, repeat=1)], [step_row(0, repeat=1)])
        assert folder.recover(["tree", "plain"]) == {(0, "T=0", 0)}
        again = [step_row(0, method=m, repeat=1) for m in methods]
        folder.append([prompt_row(0, method=m, repeat=1) for m in methods], again)
        assert folder.recover(["tree", "plain"]) == {(0, "T=0", 0), (0, "T=0", 1)}


def test_trees_come_back_as_they_were(tmp_path):
    rows = [tree_row(step=i) for i in range(2)]
    append_lines(tmp_path / "trees.jsonl", rows)
    assert read_lines(tmp_path / "trees.jsonl", TreeRow) == rows
    frame = to_frame(rows, TreeRow)
    assert frame.schema == schema_of(TreeRow)
    assert frame["pieces"].to_list() == [["a", "\n", "�"]] * 2
    assert to_frame([], TreeRow).schema == schema_of(TreeRow)
