"""Which laws may be asked for, and what is said of anything else."""

import pytest

from treespec.search import InvalidLimit, best_tree


@pytest.mark.parametrize("laws", ["iid", ""])
def test_a_text_is_no_list_of_laws(flat, laws):
    """Its letters would be ranked as laws, with the times that hold for any."""
    with pytest.raises(InvalidLimit, match=r"laws = '.*give laws=\["):
        best_tree([0.6], flat, max_size=4, laws=laws)


@pytest.mark.parametrize("acceptance", [[0.6], {"iid": [0.6]}])
def test_no_law_at_all_is_refused(two_laws, acceptance):
    with pytest.raises(
        InvalidLimit, match=r"laws is empty.*iid, without_replacement.*leave it out"
    ):
        best_tree(acceptance, two_laws(), max_size=4, laws=[])


def test_what_is_no_list_is_refused(flat):
    with pytest.raises(InvalidLimit, match="laws = 3, but must be a list of names"):
        best_tree([0.6], flat, max_size=4, laws=3)


def test_names_in_any_list_are_laws(two_laws):
    assert best_tree([0.6], two_laws(), max_size=4, laws=("iid",)).best.law == "iid"
