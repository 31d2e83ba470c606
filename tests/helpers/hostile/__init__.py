"""Input that is hostile or absurd, and how it is given to the command line."""
