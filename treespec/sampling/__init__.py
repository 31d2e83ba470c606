"""Distributions, the laws of children, and coins: everything random that drafting and acceptance share."""
