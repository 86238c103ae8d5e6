"""http-api.md: paths and shapes, from the OpenAPI schema that the daemon serves."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from types import SimpleNamespace
from typing import Any

from carmad import config
from carmad.api.app import create_app
from docs.pages.text import cell, one_line


@cache
def schema() -> dict[str, Any]:
    service = SimpleNamespace(settings=config.Settings())
    made: dict[str, Any] = create_app(service).openapi()  # type: ignore[arg-type]
    return made


def page() -> str:
    openapi = schema()
    known = openapi["components"]["schemas"]
    out = [
        "# HTTP API",
        "",
        "JSON over HTTP on a unix socket, `/run/carma/carmad.sock` by default. The kernel"
        " identifies the caller (`SO_PEERCRED`), never the request. There is no TCP listener."
        " The full schema is at `/v1/openapi.json`:",
        "",
        "```sh",
        "curl --unix-socket /run/carma/carmad.sock http://carma/v1/status",
        "```",
        "",
        "Every response has `schema`, which increases when a field changes its meaning or is"
        " removed. New fields may be added at any time. Times are ISO 8601 in UTC, memory is in"
        " MiB, durations are in seconds. A request is limited to 8 MiB, and must arrive within"
        " 30 s; one user may have 256 connections.",
        "",
        "Errors are `{error, hint, code}`:",
        "",
        "| Status | Meaning |",
        "|---|---|",
    ]
    responses = openapi["paths"]["/v1/jobs"]["get"]["responses"]
    for status, response in responses.items():
        if status != "200":
            out.append(f"| {status} | {response['description']} |")
    out += ["", "## Paths"]
    for path, methods in openapi["paths"].items():
        for method, what in methods.items():
            out += ["", f"### `{method.upper()} {path}`", ""]
            said = one_line(what.get("description", ""))
            if said:
                out += [said, ""]
            out += _query(what.get("parameters", []))
            if "requestBody" in what:
                out += [f"Takes {_type(_body(what['requestBody']))}.", ""]
            good = [(s, r) for s, r in what["responses"].items() if s.startswith("2")]
            for status, response in good:
                out.append(f"Answers {status}: {_type(_body(response))}.")
    out += ["", "## Shapes"]
    for name, shape in sorted(known.items()):
        out += ["", f"### {name}", ""]
        if shape.get("description"):
            out += [one_line(shape["description"]), ""]
        out += ["| Field | Type | Always present |", "|---|---|---|"]
        required = set(shape.get("required", ()))
        for field, kind in shape.get("properties", {}).items():
            default = "no" if "default" not in kind else f"no: `{json.dumps(kind['default'])}`"
            here = "yes" if field in required else default
            out.append(f"| `{field}` | {_type(kind)} | {here} |")
    return "\n".join(out)


def _query(parameters: Iterable[dict[str, Any]]) -> list[str]:
    rows = [
        f"| `{one['name']}` | in the {one['in']} | {_type(one['schema'])}"
        f" | {cell(one['schema'].get('description', ''))} |"
        for one in parameters
    ]
    return ["| Name | Where | Type | Meaning |", "|---|---|---|---|", *rows, ""] if rows else []


def _body(part: dict[str, Any]) -> dict[str, Any]:
    content = part.get("content", {})
    told = content.get("application/json") or content.get("text/plain", {})
    shape: dict[str, Any] = told.get("schema", {})
    return shape


def _type(kind: dict[str, Any]) -> str:
    if "$ref" in kind:
        name = kind["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in kind:
        return " or ".join(_type(one) for one in kind["anyOf"])
    if "enum" in kind:
        return " or ".join(f"`{json.dumps(one)}`" for one in kind["enum"])
    if "const" in kind:
        return f"`{json.dumps(kind['const'])}`"
    if kind.get("type") == "array":
        return f"list of {_type(kind.get('items', {}))}"
    if kind.get("format") == "date-time":
        return "time"
    return str(kind.get("type", "anything"))
