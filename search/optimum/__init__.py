"""What a tree is worth under given rates, and the best tree of a size, exactly."""
