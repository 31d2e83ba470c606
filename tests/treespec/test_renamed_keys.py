import pytest

from treespec.reading_models import with_new_names


def test_models_grow_is_read_as_models_enlarge():
    old = {
        "name": "x",
        "models": {"device": "cpu", "grow": {"hidden_size": 768}, "attention": "auto"},
    }
    new = with_new_names(old)
    assert list(new) == list(old)
    assert list(new["models"].items()) == [
        ("device", "cpu"),
        ("enlarge", {"hidden_size": 768}),
        ("attention", "auto"),
    ]
    assert "grow" in old["models"]


@pytest.mark.parametrize(
    "data", [{}, {"models": None}, {"models": ["grow"]}, {"grow": 3}, {"models": {"enlarge": None}}]
)
def test_other_data_stays_as_it_is(data):
    assert with_new_names(data) is data
