"""The OpenAPI document of a server."""

from __future__ import annotations

from typing import Any

_JSON = "application/json"
_WRONG = (400, 401, 403, 404, 409, 413, 422, 429, 503, 507)  # statuses of errors of a message


def document(model: dict[str, Any]) -> dict[str, Any]:
    """The addresses of a server in OpenAPI 3.1. `model` is its answer to `/model`."""
    numbers = {"type": "array", "items": {"type": "number"}}
    features = model["features"]
    sample: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": (model["tokens"] or 1) - 1}
    if features is not None:
        sample = {"type": "array", "items": {"type": ["number", "null"]}, "minItems": features, "maxItems": features}
        if features == 1:
            sample = {"anyOf": [{"type": ["number", "null"]}, sample]}
    requests = {"sample": sample, "samples": {"type": "array", "items": sample, "minItems": 1}}
    if features is None:
        requests["text"] = {"type": "string"}
    requests |= {name: {"type": "boolean", "const": True} for name in ("reset", "close")}
    extras = {
        "session": {"type": "string", "pattern": "^[A-Za-z0-9_.-]{1,64}$"},
        "id": {"type": ["string", "integer"], "description": "Repeated in the answer."},
        "outputs": {"type": "boolean", "description": "Whether a language model answers with all outputs."},
    }
    forecast: dict[str, Any] = {}
    if model["next_time"] is not None:
        extras["time"] = {
            "type": ["string", "number"],
            "description": "Of a forecast: the time of the first sample. Without one, a session begins at"
            f" {model['next_time']}.",
        }
        columns = {"type": "object", "additionalProperties": numbers}
        forecast = {
            "time": {"type": "string", "description": "Of the last sample."},
            "times": {"type": "array", "items": {"type": "string"}, "description": "Of the steps ahead."},
            "forecast": {**columns, "description": "The steps ahead of each column."},
            "intervals": {**columns, "description": "Ends of prediction intervals, such as load-lo-80."},
            "warning": {"type": "string", "description": "That no time was given, and which one is taken."},
        }
    message = {
        "type": "object",
        "properties": {**requests, **extras},
        "oneOf": [{"required": [name]} for name in requests],
        "additionalProperties": False,
    }
    answer = {
        "type": "object",
        "properties": {
            "session": {"type": "string"},
            "step": {"type": "integer", "description": "Samples that the session has taken."},
            "output": numbers,
            "outputs": {"type": "array", "items": numbers},
            "label": {"type": "string"},
            "probability": {"type": "number"},
            "probabilities": {"type": "object", "additionalProperties": {"type": "number"}},
            "next": {"type": "array", "items": {"type": "object"}},
            "id": {"type": ["string", "integer"]},
            "closed": {"type": "boolean"},
            **forecast,
        },
    }
    session = {"name": "name", "in": "path", "required": True, "schema": extras["session"]}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "plmu serve",
            "version": model["version"],
            "description": "A trained model as a stream. The same messages go over the WebSocket /ws, where each"
            " connection is a session: /ws?session=NAME continues the session of that name.",
        },
        "paths": {
            "/step": {
                "post": {
                    "summary": "Advance a session by one or more samples; a new one if the message names none.",
                    "requestBody": {
                        "required": True,
                        "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Message"}}},
                    },
                    "responses": _responses(
                        "#/components/schemas/Answer", 400, 401, 403, 404, 409, 413, 422, 429, 503, 507
                    ),
                }
            },
            "/sessions/{name}": {
                "get": {
                    "summary": "The number of samples that a session has taken, and its last outputs.",
                    "parameters": [session],
                    "responses": _responses(None, 401, 404),
                },
                "delete": {
                    "summary": "End a session.",
                    "parameters": [session],
                    "responses": _responses(None, 401, 404, 503, 507),
                },
            },
            "/model": {"get": {"summary": "The inputs and outputs of the model.", "responses": _responses(None, 401)}},
            "/memory": {
                "get": {
                    "summary": "Ā, B̄ and decoder C of a Delay Network.",
                    "parameters": [
                        {"name": name, "in": "query", "required": True, "schema": {"type": kind}}
                        for name, kind in (("order", "integer"), ("theta", "number"))
                    ],
                    "responses": _responses(None, 400, 401),
                }
            },
            "/health": {"get": {"summary": "Whether the server works.", "responses": _responses(None, 503)}},
            "/metrics": {"get": {"summary": "Counts and times for Prometheus.", "responses": _responses(None, 401)}},
        },
        "components": {
            "schemas": {
                "Message": message,
                "Answer": answer,
                "Error": {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]},
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _responses(schema: str | None, *errors: int) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "As asked."}
    if schema is not None:
        good["content"] = {_JSON: {"schema": {"$ref": schema}}}
    wrong = {"description": "What is wrong.", "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}}
    return {"200": good, **{str(status): wrong for status in errors}}
