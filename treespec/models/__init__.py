"""Models that can run the nodes of a tree (`treespec.protocols.TreeModel`), and loading them."""
