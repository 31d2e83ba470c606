"""Choose the shape with the most predicted tokens per second: candidates, their speeds, advice."""
