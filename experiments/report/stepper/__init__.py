"""stepper: to be said."""
