"""The OpenAPI document: all addresses, and schemas that messages and answers keep to."""

import re
from pathlib import Path
from typing import Any

import pytest
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import WebSocketDenialResponse
from test_serve import ask, saved, saved_language, serving, socket

from plmu.text.symbols import Characters

TYPES = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
    "null": type(None),
}


def faults(value: Any, schema: Any, document: Any, place: str = "") -> list[str]:
    """What of a value does not keep to a schema, of those words of JSON Schema that the document uses."""
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
    unknown = schema.keys() - WORDS
    assert not unknown, unknown
    kinds = schema.get("type", [])
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds and not any(
        isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds
    ):
        return [f"{place}: {value!r} is not {kinds}"]
    wrong: list[str] = []
    if "const" in schema and value != schema["const"]:
        wrong.append(f"{place}: {value!r} is not {schema['const']!r}")
    for word, holds in {
        "minimum": lambda bound: value >= bound,
        "maximum": lambda bound: value <= bound,
        "minItems": lambda bound: len(value) >= bound,
        "maxItems": lambda bound: len(value) <= bound,
        "minLength": lambda bound: len(value) >= bound,
        "pattern": lambda pattern: re.search(pattern, value),
    }.items():
        if word in schema and not holds(schema[word]):  # type: ignore[no-untyped-call]
            wrong.append(f"{place}: {value!r} against {word}")
    if isinstance(value, list) and "items" in schema:
        wrong += [
            fault for i, item in enumerate(value) for fault in faults(item, schema["items"], document, f"{place}/{i}")
        ]
    if isinstance(value, dict):
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        wrong += [f"{place}: no {name}" for name in schema.get("required", ()) if name not in value]
        for name, item in value.items():
            if name in properties or isinstance(rest, dict):
                wrong += faults(item, properties.get(name, rest), document, f"{place}/{name}")
            elif not rest:
                wrong.append(f"{place}: {name} is not in the schema")
    for word, fits in (("anyOf", lambda count: count > 0), ("oneOf", lambda count: count == 1)):
        if word in schema and not fits(sum(not faults(value, each, document) for each in schema[word])):  # type: ignore[no-untyped-call]
            wrong.append(f"{place}: {value!r:.60} against {word}")
    return wrong


WORDS = {
    *("type", "const", "minimum", "maximum", "minItems", "maxItems", "minLength", "pattern", "items", "properties"),
    *("additionalProperties", "required", "anyOf", "oneOf", "description"),
}


def check(client: Any, document: Any, method: str, path: str, address: str, status: int, **request: Any) -> Any:
    """Send a request; the answer has this status, which the document has for `path`, with the schema."""
    answer = client.request(method, address, **request)
    assert answer.status_code == status, answer.text
    content = document["paths"][path][method.lower()]["responses"][str(status)]["content"]
    kind = answer.headers["content-type"].split(";")[0]
    assert kind in content or "*/*" in content
    if kind == "application/json":
        assert faults(answer.json(), content[kind].get("schema", {}), document) == []
        return answer.json()
    return answer.text


def test_every_address_is_in_the_document(tmp_path: Path) -> None:
    with serving(saved(tmp_path / "run")) as client:
        document = client.get("/openapi.json").json()
        routes = {}
        for route in client.server.app().routes:  # type: ignore[attr-defined]
            assert isinstance(route, Route | WebSocketRoute)
            methods = {"GET"} if isinstance(route, WebSocketRoute) else set(route.methods or ()) - {"HEAD"}
            routes[route.path] = {method.lower() for method in methods}
        assert routes == {path: set(operations) for path, operations in document["paths"].items()}
        assert document["servers"] == [{"url": "/"}]
    with serving(tmp_path / "run", root="/plmu/") as client:
        assert client.get("/openapi.json").json()["servers"] == [{"url": "/plmu"}]


def test_answers_keep_to_the_document(tmp_path: Path) -> None:
    run = saved(tmp_path / "run", 2, 3, labels=("a", "b", "c"))
    with serving(run, token="a-long-secret", limits={"sessions": 2, "rate": 6.0, "samples": 6}) as client:
        document = client.get("/openapi.json").json()

        def asks(method: str, path: str, status: int, address: str = "", **request: Any) -> Any:
            return check(client, document, method, path, address or path, status, **request)

        for path in ("/", "/health", "/openapi.json"):
            asks("GET", path, 200)
            asks("GET", path, 400, headers={"Host": "["})
            asks("GET", path, 403, headers={"Origin": "http://evil.example"})
        asks("GET", "/static/{path}", 200, "/static/page.js")
        asks("GET", "/static/{path}", 404, "/static/none.js")
        for path in ("/metrics", "/model"):
            asks("GET", path, 401)
        for _ in range(10):
            client.get("/model?token=wrong")
        asks("GET", "/model", 429)
    with serving(run, limits={"sessions": 2, "rate": 6.0, "samples": 6}) as client:
        for path in ("/metrics", "/model"):
            asks("GET", path, 200)
        asks("GET", "/memory", 200, "/memory?order=3&theta=4")
        asks("GET", "/memory", 400)
        named = {"session": "mine", "id": 7}
        answer = asks("POST", "/step", 200, json={"sample": [1, 2], **named})
        assert answer.keys() == {"session", "id", "step", "output", "label", "probability", "probabilities"}
        asks("POST", "/step", 200, json={"samples": [[1, 2], [0, 1]], **named})
        asks("POST", "/step", 200, json={"reset": True, **named})
        asks("POST", "/step", 400, json={"sample": 1, **named})
        asks("POST", "/step", 403, json={"sample": [1, 2], **named}, headers={"Session-Secret": "x" * 16})
        asks("POST", "/step", 413, content=b"x" * 70_000)
        asks("POST", "/step", 429, json={"samples": [[1, 2]] * 6, **named})
        asks("GET", "/sessions/{name}", 200, "/sessions/mine")
        asks("GET", "/sessions/{name}", 404, "/sessions/none")
        del client.headers["Session-Secret"]
        assert "secret" in asks("POST", "/step", 200, json={"sample": [1, 2]})
        asks("POST", "/step", 503, json={"sample": [1, 2]})
        asks("DELETE", "/sessions/{name}", 403, "/sessions/mine")
        asks("DELETE", "/sessions/{name}", 200, "/sessions/mine?secret=of-the-client-of-tests")
        answers = document["components"]["schemas"]
        with socket(client) as connection:
            hello = connection.receive_json()
            assert "secret" in hello
            assert faults(hello, answers["Session"], document) == []
            with pytest.raises(WebSocketDenialResponse) as denied, socket(client):
                pass
            assert denied.value.status_code == 503
            for message, kind in [
                ({"sample": [1, 2], "id": "a"}, "Answer"),
                ({"sample": [1, 2], "session": "/"}, "Error"),
                ({"close": True}, "Answer"),
            ]:
                assert faults(ask(connection, message), answers[kind], document) == []


def test_messages_keep_to_the_document(tmp_path: Path) -> None:
    """What the schema of messages takes the server takes, and what it refuses the server refuses."""
    for run, messages in [
        (
            saved(tmp_path / "two", 2),
            [
                {"sample": [1, 2.5]}, {"samples": [[1, 2], [3, 4]]}, {"samples": []}, {"samples": [[1, 2]] * 4},
                {"sample": [1]}, {"sample": 1}, {"sample": "1"}, {"reset": True}, {"reset": False}, {},
                {"sample": [1, 2], "id": "x", "outputs": True, "session": "a.b"}, {"sample": [1, 2], "reset": True},
                {"sample": [1, 2], "id": 1.5}, {"sample": [1, 2], "session": "a b"}, {"sample": [1, 2], "more": 1},
                {"text": "a"}, {"sample": [1, True]},
            ],
        ),
        (saved(tmp_path / "single"), [{"sample": 1}, {"sample": [1]}, {"sample": [1, 2]}, {"samples": [1, [2]]}]),
        (
            saved_language(tmp_path / "text", Characters(tuple(" abc"))),
            [
                {"text": "ab"}, {"text": ""}, {"text": 1}, {"sample": 3}, {"sample": 4}, {"sample": -1},
                {"sample": [1]}, {"samples": [1, 2]}, {"sample": 1.5},
            ],
        ),
    ]:  # fmt: skip
        with serving(run, limits={"samples": 3}) as client:
            document = client.get("/openapi.json").json()
            for message in messages:
                fits = not faults(message, {"$ref": "/Message"}, document)
                answer = client.post("/step", json=message)
                assert (answer.status_code == 200) == fits, message
                kind = {"$ref": "/Answer" if fits else "/Error"}
                assert faults(answer.json(), kind, document) == [], message
