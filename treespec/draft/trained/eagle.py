"""EAGLE-1, EAGLE-2 (the same network; its trees are the growth `eagle2`) and HASS (another training)."""

from treespec.draft.trained.head_drafter import HeadDrafter


class Eagle(HeadDrafter):
    """Drafts with a head that extrapolates the target's final state by one decoder layer.

    Li et al. 2024, EAGLE, arXiv:2401.15077; the same head in EAGLE-2 (arXiv:2406.16858), whose trees are
    the growth `eagle2`, and in HASS (arXiv:2408.15766), which differs in training alone. The layer reads
    fc([embedding of x_{t+1}, f_t]), where f_t is the target's state after the final norm. Its output is
    both the state that a drafted child reads and, through the target's head, the logits. Ours differs in
    that every law and rule is possible, where the authors' code takes the best tokens only.

    Args: see `HeadDrafter`; `load_eagle` reads a head.
    """
