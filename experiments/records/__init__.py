"""The records of a run: its rows, its manifest, and the folder that holds them; written and read here."""
