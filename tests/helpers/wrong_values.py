"""One value of every kind that an argument may wrongly be given."""

import numpy as np
import torch


class Bare:
    """Has no method."""

    def __repr__(self):
        return "<bare>"


WRONG = {
    "None": None,
    "text": "ab",
    "bytes": b"ab",
    "mixed": [1.5, "x"],
    "mapping": {"a": 1},
    "set": {1.5, "x"},
    "float": 1.5,
    "NaN": float("nan"),
    "infinite": float("inf"),
    "truth": True,
    "negative": -1,
    "object": Bare(),
    "class": Bare,
    "array": np.array([0.5, 0.25]),
    "floats": torch.tensor([0.5, 0.25]),
    "truths": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 1j]),
    "one float": torch.tensor(1.5),
    "deep": torch.full((2, 2, 2), 0.5),
    "empty": torch.empty(0),
    "nested": [[1.5, 2], [3]],
}
"""Wrong for nearly all arguments; what is right for one, its test names beside it."""
