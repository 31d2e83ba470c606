"""Valid requests for laws, and the messages for all others."""

from dataclasses import replace

import pytest

from treespec.errors import TreespecError
from treespec.search import InvalidAcceptance, InvalidLimit, best_tree


@pytest.mark.parametrize("laws", ["iid", ""])
def test_a_text_is_no_list_of_laws(flat, laws):
    """Its letters would be ranked as laws, with times that hold for any law."""
    with pytest.raises(InvalidLimit, match=r"laws = '.*a list of names"):
        best_tree([0.6], flat, max_size=4, laws=laws)


@pytest.mark.parametrize("acceptance", [[0.6], {"iid": [0.6]}])
def test_no_law_at_all_is_refused(two_laws, acceptance):
    with pytest.raises(InvalidLimit, match=r"laws = .*at least one of iid, without_replacement"):
        best_tree(acceptance, two_laws(), max_size=4, laws=[])


@pytest.mark.parametrize("acceptance", [[0.6], {"determinstic": [0.6]}])
def test_a_misspelt_law_is_refused(flat, acceptance):
    """Also where the times hold for any law."""
    with pytest.raises(TreespecError, match=r"'determinstic' is not a law: .*deterministic"):
        best_tree(acceptance, flat, max_size=4, laws=["determinstic"])
    assert best_tree([0.6], flat, max_size=4, laws=["deterministic"]).best.law == "deterministic"


def test_names_in_any_list_are_laws(two_laws):
    assert best_tree([0.6], two_laws(), max_size=4, laws=("iid",)).best.law == "iid"


def test_times_of_other_models_are_refused_with_both_names(flat, make_trace):
    def models(target, **more):
        return {"models": {"target": target, "draft": "small", **more}}

    trace = replace(make_trace(), about=models("big", enlarge="50M"))
    options = {"max_size": 4, "draws": 40}
    other = replace(flat, about=models("huge"))
    refused = pytest.raises(
        InvalidAcceptance, match="of target big, but the times are of target huge"
    )
    with refused:
        best_tree(trace, other, **options)
    with refused:
        best_tree([0.6], other, chains={trace.law: trace}, laws=[trace.law], **options)
    for times in (flat, replace(flat, about=models("big", enlarge="1B"))):
        assert best_tree(trace, times, **options).rows
