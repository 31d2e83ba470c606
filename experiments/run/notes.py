"""Notes of what was measured once on this machine, beside the machine code of compiled passes."""

import json
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from treespec.experiments.records.manifest import environment
from treespec.files import write_whole


def note(kind: str, depends: Any) -> Path:
    """The file of a measurement that depends on this plain data and on the machine."""
    from treespec.models.passes.compiled_pass import code_folder

    about = json.dumps([depends, environment()["hardware"]])
    return code_folder() / "treespec" / f"{kind}-{sha256(about.encode()).hexdigest()}.json"


def keep(file: Path, data: Any) -> None:
    """Write a note; where that is impossible, it is measured again next time."""
    with suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(data))


def kept(file: Path) -> Any:
    """The content of a note; None if there is none, or it is damaged."""
    with suppress(OSError, ValueError):
        return json.loads(file.read_text(encoding="utf-8"))
    return None
