"""The value of a tree under given rates, and the exactly best tree of a size."""
