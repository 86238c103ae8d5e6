"""What CARMA has added to a job's environment: it is listed there, so that whatever the job submits
does not take it for its user's own. Imports stay light.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

ADDED = "CARMA_ADDED"  # as JSON: names with values, or with the folder that a list of folders got


def take_back(env: Mapping[str, str]) -> dict[str, str]:
    """The environment without what CARMA has added, where it still has that value."""
    left = dict(env)
    try:
        added = json.loads(left.pop(ADDED, "{}"))
    except (ValueError, RecursionError):
        return left
    for name, value in added.items() if isinstance(added, dict) else ():
        if name in left:
            rest = [each for each in left[name].split(os.pathsep) if each != value]
            left[name] = os.pathsep.join(rest)
            if not rest:
                del left[name]
    return left
