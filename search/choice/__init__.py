"""The fastest shape by predicted tokens per second: candidates, their speed, and a verdict."""
