"""The report of a run: statistics, tables, figures, verdicts and the HTML page."""
