"""What other processes take of the machine now: times measured beside them are not reliable."""

__all__ = ["BUSY_PERCENT", "busy_percent"]

BUSY_PERCENT = 15
"""From when on it is worth a word."""

WATCH_S = 0.25


def busy_percent() -> float:
    """Use of all cores by other processes, watched for `WATCH_S`."""
    import psutil

    ours = psutil.Process()
    ours.cpu_percent()
    everyone = psutil.cpu_percent(interval=WATCH_S)
    return round(max(0.0, everyone - ours.cpu_percent() / (psutil.cpu_count() or 1)), 1)
