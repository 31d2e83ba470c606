"""Models that can run the nodes of a tree (`treespec.protocols.TreeModel`), and loading them."""

import logging

# transformers imports torchao if it is installed, which warns of kernels that were built for other devices.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
