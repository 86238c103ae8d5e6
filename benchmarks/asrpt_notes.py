"""What the page of `benchmarks.asrpt` says beside its tables."""

from __future__ import annotations

SETTING = ""
JOBS = ""
WHOLE = ""
SHARE = ""
NETWORK = ""
PREDICTED = ""
PATIENT = ""
OVERHEAD = ""
CAUSE = {"order": "", "line": "", "network": "", "prediction": ""}
CAUSES = ""
