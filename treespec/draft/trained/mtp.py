"""The module for multi-token prediction that targets are published with: one more layer of their kind."""

from treespec.draft.trained.head_drafter import HeadDrafter


class Mtp(HeadDrafter):
    """Drafts with the module that a target was trained with to predict one token further.

    DeepSeek-AI 2024, DeepSeek-V3, arXiv:2412.19437, section 2.2; also in GLM-4.5, Qwen3-Next and MiMo. One
    decoder layer of the target's architecture reads a projection of norm(embedding of x_{t+1}) and
    norm(f_t), side by side; f_t is the target's last state. A last norm and the target's head, or copies of
    it, give the logits. The paper has D modules for D tokens, but published checkpoints have one, which
    reads its own output at drafted tokens, as engines run it. Ours differs from engines in that it drafts
    trees, by every law.

    Args: see `HeadDrafter`; `load_mtp` reads a module.
    """
