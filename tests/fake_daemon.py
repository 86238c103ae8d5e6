"""A fake carmad on a unix socket, with canned answers that conform to the API."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

NOW = "2026-11-20T12:00:00.000Z"


def job(**changes: Any) -> dict[str, Any]:
    """A running job with these `changes`."""
    made = {
        "id": 42,
        "label": "42",
        "name": "train",
        "user": "alice",
        "state": "running",
        "code": "R",
        "reason": None,
        "submitted_at": "2026-11-20T11:00:00.000Z",
        "started_at": "2026-11-20T11:10:00.000Z",
        "ended_at": None,
        "time_limit_s": 7200.0,
        "elapsed_s": 3000.0,
        "wait_s": 600.0,
        "gpus_wanted": 1,
        "gpus": [{"id": "GPU-a", "index": 0, "first_kernel_at": NOW}],
        "mode": "streams",
        "memory": {
            "declared_mib": None,
            "estimate_mib": 11264,
            "estimate_low": 10650,
            "estimate_high": 12083,
            "estimate_source": "history",
            "used_mib": 9318,
            "peak_mib": 9400,
        },
        "attempt": 1,
        "recovering": False,
        "held": False,
        "position": None,
        "exclusive": False,
        "shared": True,
        "nice": 0,
        "exit": None,
        "failures": [],
        "retry": None,
        "notes": [],
        "estimate": {
            "seconds": 0.1,
            "firm": False,
            "notes": ["n=7", "not declared: no --gpu-mem was given"],
            "parts": {},
        },
        "argv": ["python", "train.py", "--name", "two words"],
        "cwd": "/home/alice",
        "stdout": "/home/alice/carma-42.out",
        "stderr": "/home/alice/carma-42.out",
        "conda_env": None,
        "after": [],
        "begin_at": None,
        "requeue": True,
        "umask": "0022",
        "energy_j": 36000.0,
        "gpu_seconds": 3000.0,
        "sm_active_mean": 0.61,
    }
    return made | changes


def waiting(**changes: Any) -> dict[str, Any]:
    made = job(
        id=43,
        label="43",
        name="big",
        state="queued",
        code="PD",
        reason="(GpuMemory: GPU1 30.0G free, need 82.0G)",
        started_at=None,
        elapsed_s=0.0,
        gpus=[],
        mode=None,
        position=1,
        time_limit_s=None,
        memory={
            "declared_mib": 83968,
            "estimate_mib": 83968,
            "estimate_low": None,
            "estimate_high": None,
            "estimate_source": "declared",
            "used_mib": None,
            "peak_mib": 0,
        },
        estimate={"seconds": 0.0, "firm": True, "notes": [], "parts": {}},
    )
    return made | changes


def ended(code: int | None = 0, signal: int | None = None, **changes: Any) -> dict[str, Any]:
    succeeded = code == 0
    made = job(
        state="succeeded" if succeeded else "failed",
        code="CD" if succeeded else "F",
        ended_at=NOW,
        exit={
            "cause": "success" if succeeded else "failure",
            "code": code,
            "signal": signal,
            "evidence": "" if succeeded else "ValueError: no such dataset",
            "fragmented": False,
            "tried_mib": None,
            "free_mib": None,
            "neighbours": [],
        },
    )
    return made | changes


def private(theirs: dict[str, Any]) -> dict[str, Any]:
    """A job as other users see it."""
    public = [
        "id",
        "label",
        "user",
        "state",
        "code",
        "gpus",
        "gpus_wanted",
        "submitted_at",
        "started_at",
        "elapsed_s",
        "memory",
    ]
    return {key: theirs[key] for key in public} | {"name": "-"}


def gpu(index: int = 0, **changes: Any) -> dict[str, Any]:
    made = {
        "id": f"GPU-{'abcdefgh'[index]}",
        "index": index,
        "name": "NVIDIA A100-SXM4-40GB",
        "mig": False,
        "parent": None,
        "island": "",
        "memory_mib": 40960,
        "memory_used_mib": 12288,
        "memory_free_mib": 28672,
        "admissible_free_mib": 27000,
        "sm_active": 0.81,
        "sm_occupancy": 0.33,
        "dram_active": 0.28,
        "utilization": 0.97,
        "power_w": 287.4,
        "energy_j": 1.5e6,
        "temperature_c": 61,
        "risk": {
            "sm_active": 0.84,
            "sm_occupancy": 0.35,
            "dram_active": 0.3,
            "sm_source": "sm_active",
            "risky": True,
            "samples": 30,
        },
        "state": "ok",
        "state_detail": "",
        "jobs": [
            {
                "id": 42,
                "label": "42",
                "user": "alice",
                "name": "train",
                "memory_mib": 9318,
                "mode": "streams",
            }
        ],
        "outsiders": [{"pid": 999, "user": "bob", "command": "python", "memory_mib": 2048}],
    }
    return made | changes


def blank_gpu(index: int) -> dict[str, Any]:
    """A GPU with hardly any measurements."""
    unknown = [
        "memory_used_mib",
        "memory_free_mib",
        "sm_active",
        "sm_occupancy",
        "dram_active",
        "utilization",
        "power_w",
        "energy_j",
        "temperature_c",
    ]
    risk = dict.fromkeys(("sm_active", "sm_occupancy", "dram_active", "sm_source"))
    return gpu(
        index,
        **dict.fromkeys(unknown),
        risk={**risk, "risky": False, "samples": 0},
        state="stale",
        state_detail="no reading yet",
        jobs=[],
        outsiders=[],
    )


HEALTH = {
    "schema": 1,
    "status": "ok",
    "version": "0.1.0",
    "pid": 4242,
    "uptime_s": 93784.0,
    "policy": "magm",
    "troubles": [],
}
STATUS = {
    "schema": 1,
    "server": {**HEALTH, "source": "nvml", "mps": False},
    "gpus": [gpu(0), blank_gpu(1)],
    "jobs": [
        job(),
        waiting(),
        private(job(id=44, label="44", user="bob")),
        ended(id=41, label="41"),
    ],
    "counts": {"running": 2, "queued": 1, "recovering": 0},
    "me": {"user": "alice", "uid": 1000, "admin": False},
}
REFUSALS = [
    {
        "gpu": {"id": "GPU-a", "index": 0},
        "refused": [
            {
                "code": "risk",
                "need": 0.8,
                "have": 0.84,
                "unit": "",
                "detail": "",
                "text": "is too busy to share: SM activity 0.84 (limit 0.80)",
            },
            {
                "code": "memory",
                "need": 83968,
                "have": 27000,
                "unit": "MiB",
                "detail": "",
                "text": "needs 82.0G of free memory; only 26.4G is neither used nor promised",
            },
        ],
        "rank": None,
    },
    {"gpu": {"id": "GPU-b", "index": 1}, "refused": [], "rank": 0.25},
]
WHY = {
    "schema": 1,
    "job": waiting(),
    "headline": "waits: no GPU can take it now",
    "position": 3,
    "behind": {"id": 40, "label": "40"},
    "ahead": [],
    "facts": [],
    "tail": [],
    "policy": "magm",
    "decided_at": NOW,
    "verdicts": REFUSALS,
    "reasons": [],
    "remedies": ["fits GPU 0 now with --gpu-mem 26G"],
    "chosen": [],
    "past": [],
}
TOTALS = {
    "user": "alice",
    "jobs": 11,
    "succeeded": 5,
    "failed": 1,
    "oom": 1,
    "cancelled": 4,
    "gpu_hours": 12.5,
    "energy_kwh": 3.25,
    "wait_mean_s": 61.0,
    "wait_p95_s": None,
    "run_mean_s": 5400.0,
}
RESERVATIONS = {
    "schema": 1,
    "reservations": [
        {
            "id": 1,
            "gpus": ["GPU-a"],
            "indices": [0],
            "users": ["ada"],
            "starts_at": NOW,
            "ends_at": NOW,
            "times_left": 1,
            "active": False,
            "by": "root",
            "text": "GPU 0 for ada, from Monday",
            "in_the_way": ["job 42 of eve may still be there then"],
        }
    ],
}

REPORT = {
    "schema": 1,
    "since": "2026-11-15T23:00:00.000Z",
    "until": "2026-11-22T23:00:00.000Z",
    "hours": 168.0,
    "jobs": 3,
    "gpus": [
        {
            "id": "GPU-0",
            "index": 0,
            "name": "A100",
            "busy_hours": 84.0,
            "shared_hours": 42.0,
            "idle_hours": 84.0,
            "jobs": 3,
        }
    ],
    "users": [
        {"user": "alice", "jobs": 2, "gpu_hours": 80.0, "share": 0.95, "energy_kwh": 2.0},
        {"user": "", "jobs": 1, "gpu_hours": 4.0, "share": 0.05, "energy_kwh": 0.0},
    ],
    "sharing": {
        "shared": 0.5,
        "jobs": 2,
        "saved_gpu_hours": 40.0,
        "slowdown": 1.04,
        "known": 1.0,
        "sources": {"steps": 2},
        "unknown_at_most_gpu_hours": 0.0,
    },
    "estimates": [{"source": "trace", "jobs": 3, "ratio_median": 1.1, "under": 0.0}],
    "ooms": {"crashes": 0, "jobs": 0, "saved": 0, "waiting": 0},
    "waits": [],
    "idle": [],
    "external": [],
}
ANSWERS: dict[tuple[str, str], Any] = {
    ("GET", "/v1/report"): REPORT,
    ("GET", "/v1/health"): HEALTH,
    ("GET", "/v1/status"): STATUS,
    ("POST", "/v1/jobs"): {"schema": 1, "id": 42, "ids": [42], "label": "42", "warnings": []},
    ("GET", "/v1/jobs"): {"schema": 1, "jobs": [job(), waiting()]},
    ("GET", "/v1/jobs/42"): job()
    | {"history": [{"at": NOW, "before": None, "after": "queued", "attempt": 0}]},
    ("POST", "/v1/jobs/42/step"): job(),
    ("GET", "/v1/jobs/43/why"): WHY,
    ("GET", "/v1/jobs/42/wait"): ended(),
    ("GET", "/v1/jobs/43/wait"): ended(code=7, id=43, label="43"),
    ("GET", "/v1/gpus"): {
        "schema": 1,
        "gpus": [gpu(0), blank_gpu(1)],
        "source": {"name": "nvml", "provides": [], "missing": [], "notes": ["no SM activity"]},
        "thresholds": {"risk": {"sm_active": 0.8, "dram_active": 0.4}, "window_s": 30.0},
    },
    ("POST", "/v1/gpus/0/drain"): {
        "schema": 1,
        "gpus": [{"id": "GPU-a", "index": 0, "drained": True}],
    },
    ("POST", "/v1/gpus/0/resume"): {
        "schema": 1,
        "gpus": [{"id": "GPU-a", "index": 0, "drained": False}],
    },
    ("GET", "/v1/history"): {
        "schema": 1,
        "jobs": [ended(), ended(code=None, signal=9)],
        "more": 0,
    },
    ("GET", "/v1/reservations"): RESERVATIONS,
    ("POST", "/v1/reservations"): RESERVATIONS,
    ("POST", "/v1/reservations/1/cancel"): {"schema": 1, "reservations": []},
    ("GET", "/v1/starts"): {
        "schema": 1,
        "starts": [
            {
                "id": 43,
                "label": "43",
                "user": "eve",
                "earliest_at": NOW,
                "expected_at": NOW,
                "latest_at": None,
                "text": "at noon",
            }
        ],
        "more": 0,
    },
    ("GET", "/v1/stats"): {
        "schema": 1,
        "since": None,
        "until": None,
        "users": [TOTALS],
        "months": [],
        "total": TOTALS | {"user": "all"},
        "external": [{"user": "eve", "processes": 2, "gpu_hours": 1.5, "peak_mib": 900}],
        "external_processes": [],
    },
    ("GET", "/v1/estimators"): {
        "schema": 1,
        "estimator": "auto",
        "jobs": 12,
        "estimators": [
            {
                "name": "trace",
                "jobs": 12,
                "bias_mib": -40.0,
                "p50_mib": 90,
                "p95_mib": 1331,
                "early_p50_mib": 120,
                "recent_p50_mib": 60,
                "untaught_p50_mib": 210,
                "under": 0.0833,
            },
            {
                "name": "horus",
                "jobs": 0,
                "bias_mib": None,
                "p50_mib": None,
                "p95_mib": None,
                "early_p50_mib": None,
                "recent_p50_mib": None,
                "untaught_p50_mib": None,
                "under": None,
            },
        ],
        "contexts": [{"stack": "A100 / torch 2.9", "jobs": 12, "context_mib": 531}],
    },
    ("GET", "/v1/config"): {
        "schema": 1,
        "settings": {"policy": "magm"},
        "path": None,
        "toml": 'policy = "magm"\n',
    },
    ("GET", "/v1/doctor"): {
        "schema": 1,
        "checks": [
            {"name": "store", "ok": True, "detail": "writable", "hint": ""},
            {"name": "telemetry", "ok": None, "detail": "no DCGM", "hint": "install it"},
        ],
    },
    ("POST", "/v1/estimate"): {
        "schema": 1,
        "crash": None,
        "estimates": [
            {
                "source": "history",
                "mib": 9000,
                "low": 8000,
                "high": 11000,
                "seconds": 0.2,
                "chosen": True,
                "why": None,
                "notes": ["7 runs"],
                "parts": {},
                "phases": {},
            }
        ],
        "explanation": None,
        "fits": [{"gpu": 0, "free_mib": 27000, "fits": True}],
        "verdicts": REFUSALS,
        "reasons": [],
    },
}
for verb in ("cancel", "hold", "release", "requeue"):
    ANSWERS["POST", f"/v1/{verb}"] = {
        "schema": 1,
        "results": [{"id": 42, "label": "42", "ok": True, "message": "done"}],
    }


class FakeDaemon:
    """`answers` may be changed; `refuse_all` makes every answer that error; `asked` is a record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers = dict(ANSWERS)
        self.refuse_all: tuple[int, str] | None = None
        self.asked: list[tuple[str, str, dict[str, str], Any]] = []

    @property
    def body(self) -> Any:
        """The body of the last request."""
        return self.asked[-1][3]

    @property
    def query(self) -> dict[str, str]:
        return self.asked[-1][2]

    def answer(self, method: str, target: str, body: Any) -> tuple[int, Any]:
        parts = urlsplit(target)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self.asked.append((method, parts.path, query, body))
        if self.refuse_all is not None:
            status, code = self.refuse_all
            return status, {"error": "no", "hint": "ask nicely", "code": code}
        found = self.answers.get((method, parts.path))
        if found is None:
            return 404, {"error": "there is no such job", "hint": "", "code": "not_found"}
        return 201 if (method, parts.path) == ("POST", "/v1/jobs") else 200, found


@contextmanager
def serving(path: Path) -> Iterator[FakeDaemon]:
    fake = FakeDaemon(path)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._serve(None)

        def do_POST(self) -> None:
            self._serve(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _serve(self, body: Any) -> None:
            status, answer = fake.answer(self.command, self.path, body)
            payload = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(payload)))
            self.send_header("X-Carma-Version", "0.1.0")
            self.end_headers()
            self.wfile.write(payload)

        def address_string(self) -> str:
            return "a unix socket"  # http.server's own looks for an IP address

        def log_message(self, *_: object) -> None:
            pass

    class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
        daemon_threads = True

    with Server(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield fake
        finally:
            server.shutdown()
            thread.join()
