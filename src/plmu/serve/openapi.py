"""The OpenAPI document of a server: all addresses, messages and answers."""

from __future__ import annotations

from typing import Any

from plmu.serve.access import SECRET
from plmu.serve.limits import Limits
from plmu.serve.messages import LIKELIEST, NAME

Schema = dict[str, Any]
TEXT, NUMBER, INTEGER, TRUE = {"type": "string"}, {"type": "number"}, {"type": "integer"}, {"const": True}
NULLABLE: Schema = {"type": ["number", "null"]}
NUMBERS = {"type": "array", "items": NULLABLE}
ID = {"type": ["string", "integer"], "description": "Repeated in the answer."}
STEP = {"type": "integer", "minimum": 0, "description": "Samples that the session has taken."}
ALWAYS = (400, 403)  # of a wrong header Host, and of a host or a page of another site that is not allowed
WITH_TOKEN = (401, 429)
WRONG = {
    400: "The message or a header is wrong.",
    401: "The token is missing or wrong.",
    403: "The host, the page or the client may not do this.",
    404: "There is no such session.",
    409: "The message's time is not that of the session's next sample.",
    413: "The message is too long.",
    422: "A sample would make the state infinite. It was not taken; those before it were.",
    429: "Too many samples or wrong tokens in this time: try again later.",
    503: "The server is full, stops or has failed.",
    507: "The states cannot be stored, so the message was not taken: try again later.",
}


def document(model: dict[str, Any], limits: Limits, root: str) -> dict[str, Any]:
    """The addresses of a server in OpenAPI 3.1. `model` is its answer to `/model`."""
    secret = [_parameter("Session-Secret", _secret(), "header"), _parameter("secret", _secret())]
    session = [_parameter("name", _name(), "path"), *secret]
    order_and_theta = [
        {**_parameter("order", INTEGER), "required": True},
        {**_parameter("theta", NUMBER), "required": True},
    ]
    step = _operation(
        "Advance a session by one or more samples; a new one if the message names none.",
        _json("Answer"),
        *(404, 409, 413, 422, 503, 507),
        parameters=secret,
        requestBody={"required": True, "content": _json("Message")},
    )
    health = _operation("Whether a request passes through a batch now, and can be stored.", _json("Health"), open=True)
    health["responses"]["503"] = {"description": "Not: `status` says why.", "content": _json("Health")}
    socket = _operation(
        "A WebSocket, whose first message is a Session, and then an Answer or Error to each Message.",
        None,
        *(503, 507),
        parameters=[_parameter("session", _name()), *secret],
    )
    files = [_parameter("path", TEXT, "path")]
    paths = {
        "/": {"get": _operation("The page.", {"text/html": {}}, open=True)},
        "/static/{path}": {"get": _operation("A file of it.", {"*/*": {}}, 404, open=True, parameters=files)},
        "/health": {"get": health},
        "/openapi.json": {"get": _operation("This document.", {"application/json": {}}, open=True)},
        "/metrics": {"get": _operation("Counts and times for Prometheus.", {"text/plain": {}})},
        "/model": {"get": _operation("The inputs and outputs of the model.", _json("Model"))},
        "/memory": {"get": _operation("Ā, B̄ and C of a Delay Network.", _json("Memory"), parameters=order_and_theta)},
        "/step": {"post": step},
        "/sessions/{name}": {
            "get": _operation("Its number of samples, and last outputs.", _json("Session"), 404, parameters=session),
            "delete": _operation("End a session.", _json("Closed"), 404, 503, 507, parameters=session),
        },
        "/ws": {"get": socket},
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "plmu serve",
            "version": model["version"],
            "description": "A trained model as a stream. Each connection to the WebSocket /ws is a session; /step takes"
            " the same messages, with the session's name. A session belongs to the client that made it, which sends its"
            " secret with each request.",
        },
        "servers": [{"url": root or "/"}],
        "paths": paths,
        "components": {"schemas": _schemas(model, limits), "securitySchemes": _security()},
        "security": [{"bearer": []}, {"query": []}, {}],
    }


def _security() -> dict[str, Schema]:
    return {"bearer": {"type": "http", "scheme": "bearer"}, "query": {"type": "apiKey", "in": "query", "name": "token"}}


def _name() -> Schema:
    return {"type": "string", "pattern": f"^{NAME.pattern}$"}


def _secret() -> Schema:
    return {"type": "string", "pattern": f"^{SECRET.pattern}$", "description": "That of the session."}


def _json(schema: str) -> Schema:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}


def _parameter(name: str, schema: Schema, place: str = "query", required: bool = False) -> Schema:
    return {"name": name, "in": place, "schema": schema, "required": required or place == "path"}


def _operation(summary: str, good: Schema | None, *errors: int, open: bool = False, **fields: Any) -> dict[str, Any]:
    """An operation.

    Args:
        summary: what it does.
        good: content of the answer; None for a WebSocket.
        errors: statuses of its errors, apart from those of all operations.
        open: whether it needs no token.
        fields: of the operation, such as its parameters.
    """
    success: Schema = {"101": {"description": "A WebSocket."}}
    if good is not None:
        success = {"200": {"description": "As asked.", "content": good}}
    statuses = sorted({*errors, *ALWAYS, *(() if open else WITH_TOKEN)})
    wrong = {str(status): {"description": WRONG[status], "content": _json("Error")} for status in statuses}
    return {"summary": summary, "responses": success | wrong, **fields} | ({"security": []} if open else {})


def _schemas(model: dict[str, Any], limits: Limits) -> dict[str, Schema]:
    """Messages and answers of the server of this model."""
    likeliest = _object({"token": INTEGER, "text": TEXT, "probability": NUMBER}, "token", "text", "probability")
    by_name: Schema = {"type": "object", "additionalProperties": NUMBERS}
    channel = _object(dict.fromkeys(("score", "expected", "lower", "upper"), NULLABLE), "score")
    outputs = {"output": NUMBERS, "outputs": {"type": "array", "items": NUMBERS}}
    answer = {
        "session": {**_name(), "description": "In HTTP."},
        "secret": {**_secret(), "description": "In HTTP, of a new session whose client has sent none."},
        "id": ID,
        "step": STEP,
        **outputs,
        "label": TEXT,
        "probability": NUMBER,
        "probabilities": {"type": "object", "additionalProperties": NUMBER},
        "time": {**TEXT, "description": "Of a forecast or a score: of the last sample."},
        "times": {"type": "array", "items": TEXT, "description": "Of the steps ahead."},
        "forecast": {**by_name, "description": "Of each column, step by step."},
        "intervals": {**by_name, "description": "Ends of prediction intervals, such as load-lo-80."},
        "mae": {"type": "object", "description": "With --learn: the running mean absolute error of each column."},
        "mae without learning": {"type": "object", "description": "That of the model that was trained."},
        "score": {**NULLABLE, "description": "Of anomalies: of the last sample, from 0 to 1."},
        "alarm": {"type": "boolean", "description": "Whether the score is above 1 − threshold."},
        "channel": {**TEXT, "description": "That with the highest score."},
        "channels": {"type": "object", "additionalProperties": channel, "description": "The reason, by column."},
        "warning": {**TEXT, "description": "That no time was given, and which one is taken."},
        "next": {"type": "array", "items": likeliest, "maxItems": LIKELIEST},
        "closed": TRUE,
    }
    nullable_integer = {"type": ["integer", "null"]}
    about = {
        "experiment": {"type": ["string", "null"]},
        "kind": TEXT,
        "features": {**nullable_integer, "description": "Numbers of a sample; null for tokens."},
        "tokens": {**nullable_integer, "description": "Size of the vocabulary."},
        "outputs": INTEGER,
        "labels": {"type": "array", "items": TEXT},
        "ahead": INTEGER,
        "columns": {"type": "array", "items": TEXT},
        "horizon": INTEGER,
        "clock": {
            "type": ["object", "null"],
            "description": "Of forecasts and anomalies: the steps of time of the training data.",
        },
        "season": INTEGER,
        "time": {**TEXT, "description": "The column of times, if there is one."},
        "threshold": {**NUMBER, "description": "Of anomalies: the share of normal samples that alarm; else 0."},
        "next_time": {"type": ["string", "null"], "description": "Where a session begins without a time."},
        "memory": {"anyOf": [{"type": "null"}, _object({"order": INTEGER, "theta": NUMBER}, "order", "theta")]},
        "version": TEXT,
    }
    matrix = {"type": "array", "items": {"type": "array", "items": NUMBER}}
    numbers = {"type": "array", "items": NUMBER}
    memory = {"order": INTEGER, "theta": NUMBER, "delays": numbers, "A": matrix, "B": numbers, "C": matrix}
    session = {"session": _name(), "secret": answer["secret"], "step": STEP, "last": outputs["outputs"]}
    session["next_time"] = {**TEXT, "description": "Of a forecast: of the next sample."}
    return {
        "Message": _message(model, limits),
        "Answer": _object(answer, "step"),
        "Error": _object({"error": TEXT, "status": {**INTEGER, "description": "In a WebSocket."}, **answer}, "error"),
        "Session": _object(session, "session", "step", "last"),
        "Closed": _object({"session": _name(), "closed": TRUE}, "session", "closed"),
        "Health": _object({"status": TEXT, "sessions": INTEGER}, "status", "sessions"),
        "Model": _object(about, *about),
        "Memory": _object(memory, *memory),
    }


def _message(model: dict[str, Any], limits: Limits) -> Schema:
    features = model["features"]
    sample: Schema = {"type": "integer", "minimum": 0, "maximum": (model["tokens"] or 1) - 1}
    if features is not None:
        sample = {**NUMBERS, "minItems": features, "maxItems": features}
        if features == 1:
            sample = {"anyOf": [NUMBERS["items"], sample]}
    samples = {"type": "array", "items": sample, "minItems": 1, "maxItems": limits.samples}
    kinds: Schema = {"sample": sample, "samples": samples, "reset": TRUE, "close": TRUE}
    if features is None:
        kinds["text"] = {**TEXT, "minLength": 1}
    rest = {
        "session": {**_name(), "description": "In HTTP; a new one without it."},
        "id": ID,
        "outputs": {"type": "boolean", "description": "Whether a language model answers with all outputs."},
    }
    if model["next_time"] is not None:
        first = f"Of the first sample. Without one, a session begins at {model['next_time']}."
        rest["time"] = {"type": ["string", "number"], "description": first}
    message = _object(kinds | rest)
    return {**message, "oneOf": [{"required": [kind]} for kind in kinds]}


def _object(properties: Schema, *required: str) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }
