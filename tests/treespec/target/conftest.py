"""A small random model whose text varies, and a CPU stand-in for CUDA graphs."""

from taped_passes import make_model, taped

__all__ = ["make_model", "taped"]
