from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from treespec import TreeShape
from treespec.tree.pictures import draw_svg, draw_text


def text_by_recursion(children, node=0, head="", indent=""):
    """A plain recursive reference of `draw_text`."""
    lines = [f"{head}{node}"]
    for child in children[node]:
        last = child == children[node][-1]
        lines += text_by_recursion(
            children,
            child,
            indent + ("└─ " if last else "├─ "),
            indent + ("   " if last else "│  "),
        )
    return lines


@given(st.lists(st.integers(0, 10**6), max_size=20))
def test_text_is_the_recursive_drawing(numbers):
    shape = TreeShape.from_parents([-1, *(n % i for i, n in enumerate(numbers, start=1))])
    assert str(shape).splitlines() == text_by_recursion(shape.children)


def test_text_and_svg():
    shape = TreeShape.expansion([2, 1])
    assert str(shape) == "0\n├─ 1\n│  └─ 3\n└─ 2\n   └─ 4"
    svg = shape._repr_svg_()
    assert svg.startswith("<svg")
    assert svg.count("<line") == 4
    assert svg.count("<text") == 5


def test_places_by_hand():
    """Leaves side by side in depth-first order, parents centred over their children."""
    svg = ElementTree.fromstring(
        draw_svg(TreeShape.from_parents([-1, 0, 0, 1, 1]).children, "abcde")
    )
    places = {
        text.text: (float(text.get("x", "")) // 23, float(text.get("y", "")) // 58)
        for text in svg.iter("{http://www.w3.org/2000/svg}text")
    }
    # In half columns: leaves d, e, c at 1, 3, 5; b over d and e; a over b and c.
    assert places == {"d": (1, 2), "e": (3, 2), "c": (5, 1), "b": (2, 1), "a": (3, 0)}


def test_labels_are_escaped():
    assert "&lt;b&gt;" in draw_svg([[]], ["<b>"])
    assert draw_text([[1], []], ["<b>", "x"]) == "<b>\n└─ x"


def test_trees_deeper_than_the_call_stack():
    shape = TreeShape.chain(1200)
    assert str(shape).count("\n") == 1200
    assert shape._repr_svg_().count("<text") == 1201
