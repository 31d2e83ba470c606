"""EAGLE-3: states of several layers of the target, an own vocabulary and an own head."""

from treespec.draft.trained.head_drafter import HeadDrafter


class Eagle3(HeadDrafter):
    """Drafts with a head that reads states of three layers of the target and learns its own.

    Li et al. 2025, EAGLE-3, arXiv:2503.01840. The states of three boundaries (`treespec.features`) are
    projected once, by `fc`; the first layer's attention reads [norm(embedding), norm(state)] side by side;
    a drafted child reads the layer's output. Most heads have rows for the most frequent tokens only: others
    are never drafted, and rows are distributions over those that it has. EAGLE-3.1 norms the states before
    `fc` (`norm_before_fc`, `fc_norm`) and recycles the normed output (`norm_output`). Ours differs in that
    every law and rule is possible, where the authors' code takes the best tokens only.

    Args: see `HeadDrafter`; `load_eagle3` reads a head.
    """
