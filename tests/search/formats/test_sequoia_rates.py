"""Sequoia's acceptance vectors are read and written as its own scripts do; nothing in a file is run."""

import io
import os
import pickle

import pytest
import torch

from treespec.search import InvalidAcceptance, formats, optimal_tree


def saved(vector):
    file = io.BytesIO()
    torch.save(vector, file)
    return file.getvalue()


def as_test_accept_does(accepted, width):
    """The vector that `test_accept.py` saves: `accepted[i]` is the child of a step, -1 for none."""
    counts, vector = torch.zeros(width + 1), torch.zeros(width + 2)
    for child in accepted:
        counts[child] += 1
    vector[1:] = counts / counts.sum()
    return vector


def test_a_vector_of_sequoia_is_read_and_written():
    vector = as_test_accept_does([0, 0, 0, 1, 2, -1, -1, 0, 1, 0], 3)
    assert formats.load_rates(saved(vector)).tolist() == pytest.approx([0.5, 0.2, 0.1])
    assert formats.load_rates(vector.double()).tolist() == pytest.approx([0.5, 0.2, 0.1])
    written = torch.load(io.BytesIO(formats.dump_rates([0.5, 0.2, 0.1])), weights_only=True)
    assert torch.allclose(written, vector)
    assert optimal_tree(formats.load_rates(vector), 8).size == 8


class Program:
    def __reduce__(self):
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (saved(Program()), "weights_only refuses"),
        (pickle.dumps(Program()), "not an archive of torch.save"),
        (b"", "not an archive"),
        (saved({"p": torch.zeros(4)}), "one row"),
        (saved([0.0, 0.6, 0.4]), "one row"),
        (saved(torch.tensor([0, 1, 0])), "one row"),
        (saved(torch.zeros(3, 3)), "one row"),
        (saved(torch.tensor([0.0, 1.0])), "one row"),
        (saved(torch.tensor([0.0, 0.6, 0.4]).to_sparse()), "one row"),
        (saved(torch.tensor([0.6, 0.2, 0.1, 0.1])), "begins with 0.6"),
        (saved(torch.tensor([0.0, 0.6, 0.2])), "sums to 0.8"),
        (saved(torch.tensor([0.0, float("nan"), 0.2])), "sums to nan"),
        (saved(torch.tensor([0.0, 1.5, -0.5, 0.0])), "acceptance"),
    ],
)
def test_anything_else_is_refused_and_not_run(data, words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidAcceptance, match=words):
        formats.load_rates(data)
    assert not list(tmp_path.iterdir())


def test_rates_by_depth_have_no_place_in_a_vector():
    with pytest.raises(InvalidAcceptance, match="by rank"):
        formats.dump_rates([[0.5], [0.4]])
