"""What is measured before a run and between its prompts: traces, times, and the trees chosen from them."""
