"""choice: to be said."""
