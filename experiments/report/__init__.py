"""What a run says: its numbers, its tables, its figures and its page."""
