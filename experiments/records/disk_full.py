"""How the operating system says that a disk has no room for more."""

import errno

__all__ = ["DISK_FULL"]

DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Numbers of such errors."""
