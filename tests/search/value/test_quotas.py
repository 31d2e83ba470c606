import pytest

from treespec.search.value.quotas import share


@pytest.mark.parametrize(
    ("wanted", "room", "optional", "expected"),
    [
        (1, [3, 2], [False, False], [0, 1]),
        (3, [3, 2], [False, False], [1, 2]),
        (2, [1, 5], [True, True], [1, 1]),
        (2, [2, 5], [True, True], [2, 0]),
        (4, [2, 1, 1], [False, True, True], [2, 1, 1]),
        (3, [1, 1, 4], [False, True, True], [0, 1, 2]),
    ],
)
def test_as_few_children_as_hold_them_and_the_youngest_first(wanted, room, optional, expected):
    assert share(wanted, room, optional) == expected
    assert sum(expected) == wanted
