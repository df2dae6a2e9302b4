"""A client of `plmu serve`, in Python: send samples, print predictions, go on after a lost connection.

    plmu serve runs/mackey-glass-plmu-seed0 --states states
    python examples/client.py series.csv

Needs `pip install websockets`. The session has a name and a secret, with which the server continues it: after a
reconnection it says how many samples it has taken, and the outputs of its last message.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from pathlib import Path
from typing import Any

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

PER_MESSAGE = 5  # samples


def main() -> None:
    parser = argparse.ArgumentParser(description="Send the lines of a file, numbers with commas between them.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--url", default="ws://127.0.0.1:8000/ws")
    parser.add_argument("--session", default="example")
    parser.add_argument("--secret", help="of the session, 16 characters or more; to continue that of an earlier run")
    parser.add_argument("--token")
    given = parser.parse_args()
    samples = [[float(field) for field in line.split(",")] for line in given.file.read_text().split()]
    secret = given.secret or secrets.token_urlsafe(16)
    if given.secret is None:
        print(f"to continue this session later, add --secret={secret}", file=sys.stderr)
    headers = {"Session-Secret": secret} | ({"Authorization": f"Bearer {given.token}"} if given.token else {})
    printed: int | None = None  # samples whose predictions are out
    while printed is None or printed < len(samples):
        try:
            with connect(f"{given.url}?session={given.session}", additional_headers=headers) as socket:
                hello = json.loads(socket.recv())
                if printed is None:
                    printed = hello["step"]  # what an earlier run of this program has sent
                elif hello["step"] > printed:  # taken, but its answer was lost
                    show(hello["last"][printed - hello["step"] :])
                    printed = hello["step"]
                while printed < len(samples):
                    socket.send(json.dumps({"samples": samples[printed : printed + PER_MESSAGE]}))
                    answer = json.loads(socket.recv())
                    if "error" in answer:
                        sys.exit(f"sample {answer['step']}: {answer['error']}")
                    show(answer["outputs"])
                    printed = answer["step"]
        except (ConnectionClosed, ConnectionRefusedError):
            print("no connection, trying again", file=sys.stderr)
            time.sleep(1)


def show(outputs: list[list[Any]]) -> None:
    for output in outputs:
        print(",".join(f"{value:.9g}" for value in output), flush=True)


if __name__ == "__main__":
    main()
