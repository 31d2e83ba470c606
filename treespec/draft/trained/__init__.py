"""Trained drafts: heads on the target's hidden states, in the formats in which they are published."""
