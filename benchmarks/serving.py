"""`python -m benchmarks.serving`: a server under load, under malformed messages, and killed.

This process is the client, the server is another one. The model is that of Mackey-Glass, untrained: its weights do not
matter for time. The parts "learning" and "learning-killed" serve a forecast of 24 steps with `--learn`. Each part fails
if its conditions do not hold. All figures go to results/serving.json.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import plmu
from benchmarks.websocket import Connection, frame
from plmu.runs import deployed
from plmu.runs.folder import read_json, write_json
from plmu.runs.provenance import provenance

RATE = 50  # samples of a session a second
SLOWEST = 50.0  # milliseconds of all but one in a hundred answers
LOADS = {"load-200": (200, 1), "load-1000": (1000, 5)}  # sessions, and samples of a message
PERIOD = 101  # different samples
LEARNING = (200, 10)  # sessions that learn, and samples of each a second
PARTS = (*LOADS, "malformed", "killed", "learning", "learning-killed")


def save_model(folder: Path) -> Path:
    """A run's folder with the model of Mackey-Glass."""
    torch.manual_seed(0)
    layer = plmu.ParallelLMU(1, 140, order=40, theta=50.0, output_activation="gelu")
    folder.mkdir(parents=True, exist_ok=True)
    model = plmu.Sequential(layer, nn.Linear(140, 80), nn.GELU(), nn.Linear(80, 1))
    plmu.save(model, folder / "model.plmu")
    return folder


def train_forecast(folder: Path) -> Path:
    """A run of forecast of 24 steps, of a season of 24 with noise."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(0)
    steps = torch.arange(1000)
    values = torch.sin(2 * torch.pi * steps / 24) + 0.3 * torch.randn(1000, generator=generator)
    (folder / "load.csv").write_text("\n".join(["load", *(f"{value:.4f}" for value in values.tolist()), ""]))
    command = [sys.executable, "-m", "plmu", "train", "forecast", "--data.file", "load.csv", "--horizon", "24"]
    subprocess.run([*command, "--quiet"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / "runs" / "forecast-load-seed0"


class Program:
    """A running server."""

    def __init__(self, run: Path, *options: str) -> None:
        command = [sys.executable, "-m", "plmu", "serve", str(run), "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        address = self.process.stdout.readline().split()
        if not address:
            raise RuntimeError("the server did not start")
        self.port = int(address[-1].rsplit(":", 1)[1])

    def cpu(self) -> float:
        """Seconds of CPU so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident megabytes."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024

    def stop(self, kind: int = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(kind)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextmanager
def server(run: Path, *options: str) -> Iterator[Program]:
    program = Program(run, *options)
    try:
        yield program
    finally:
        program.stop()


class Client:
    """A session that sends samples and checks that the answers come in order."""

    def __init__(self, number: int, per_message: int) -> None:
        self.number, self.per_message = number, per_message
        self.sent: list[float] = []  # when messages that are not answered yet should have gone out
        self.latencies: list[float] = []
        self.steps = 0  # answered
        self.count = 0  # samples sent
        self.outputs: list[float] = []
        self.faults: list[str] = []
        self.secret = secrets.token_urlsafe(16)
        self.keeps = False
        self.unread: list[bytes] = []  # answers, which are read when there is time
        self.connection: Connection

    async def connect(self, port: int, name: str = "") -> None:
        path = f"/ws?session={name}&secret={self.secret}" if name else "/ws"
        self.hello: dict[str, Any] | None = None
        self.connection = await Connection.open(port, self.heard, path)

    def sample(self, step: int) -> float:
        return _value(step * 7 + self.number * 13)

    def send(self, due: float) -> None:
        first = (self.count * 7 + self.number * 13) % PERIOD
        self.count += self.per_message
        self.sent.append(due)
        self.connection.transport.write(_message(first, self.per_message))

    def heard(self, text: bytes) -> None:
        now = time.perf_counter()
        if self.hello is None:
            self.hello = json.loads(text)
            return
        self.unread.append(text)
        self.latencies.append(now - self.sent.pop(0))

    def read(self) -> None:
        """Check the answers that have arrived."""
        for text in self.unread:
            answer = json.loads(text)
            outputs = answer.get("outputs") or [answer.get("output")]
            if answer.get("step") != self.steps + self.per_message or len(outputs) != self.per_message:
                self.faults.append(text.decode()[:200])
            self.steps = answer.get("step", self.steps)
            if self.keeps:
                self.outputs += [row[0] for row in outputs]
        self.unread.clear()


def _value(place: int) -> float:
    return (place % PERIOD - 50) / 40


@cache
def _message(first: int, count: int) -> bytes:
    """So many samples from this place on, made once: the client must cost little beside the server."""
    some = [_value(first + 7 * i) for i in range(count)]
    return frame(json.dumps({"samples": some} if count > 1 else {"sample": some[0]}).encode())


async def send_evenly(clients: list[Client], seconds: float, rate: float = RATE) -> None:
    """Let each client send so many samples a second, at staggered times, for `seconds`; then wait for all answers."""
    each = clients[0].per_message / rate  # seconds between the messages of a client
    gap, start, place = each / len(clients), time.perf_counter(), 0
    while place * gap < seconds:
        due = (time.perf_counter() - start) / gap
        while place < due and place * gap < seconds:
            clients[place % len(clients)].send(start + place * gap)
            place += 1
        await asyncio.sleep(0.001)
    for _ in range(500):
        if not any(client.sent for client in clients):
            return
        await asyncio.sleep(0.01)


async def load(
    run: Path,
    sessions: int,
    per_message: int,
    seconds: float,
    states: Path | None,
    rate: float = RATE,
    learn: bool = False,
    warm: float = 2.0,
) -> dict[str, Any]:
    """Latency of many sessions, after some seconds that are not measured."""
    options = [] if states is None else ["--states", str(states)]
    options += ["--learn"] * learn
    with server(run, "--sessions", str(sessions), *options) as program:
        clients = [Client(number, per_message) for number in range(sessions)]
        for client in clients:
            await client.connect(program.port)
        await send_evenly(clients, min(warm, seconds), rate)
        for client in clients:
            client.latencies.clear()
        start, client_time = program.cpu(), time.process_time()
        await send_evenly(clients, seconds, rate)
        server_time, client_time = program.cpu() - start, time.process_time() - client_time
        for client in clients:
            client.read()
        latencies = sorted(value for client in clients for value in client.latencies)
        lost = sum(client.count - client.steps for client in clients)
        faults = [fault for client in clients for fault in client.faults]
        return {
            "sessions": sessions,
            "samples_per_message": per_message,
            "samples_per_second": sessions * rate,
            "seconds": seconds,
            "journal": states is not None,
            "messages": len(latencies),
            "lost_samples": lost,
            "wrong_answers": len(faults),
            "p50_ms": 1000 * latencies[len(latencies) // 2],
            "p99_ms": 1000 * latencies[int(len(latencies) * 0.99)],
            "max_ms": 1000 * latencies[-1],
            "server_cpu": server_time / seconds,
            "client_cpu": client_time / seconds,
            "server_us_per_message": 1e6 * server_time / len(latencies),
        }


def malformed(number: int, rng: random.Random) -> bytes:
    """A frame that no server should take: wrong types, NaN, huge, truncated, binary."""
    good = json.dumps({"samples": [rng.random() for _ in range(5)]})
    texts = [
        '{"sample": "0.1"}', '{"sample": NaN}', '{"sample": 1e999}', '{"sample": null}', '{"sample": [0.1, 0.2]}',
        '{"samples": 3}', '{"samples": []}', '{"samples": [[[1]]]}', '{"sample": true}', "[]", "null", "", "{}",
        '{"sample": 1, "reset": true}', '{"reset": 1}', '{"sample": 1, "more": 2}', '{"text": "abc"}',
        '{"sample": 1, "id": {}}', "[" * 30_000, '{"sample": ' + "9" * 5000 + "}", good[: rng.randrange(1, len(good))],
        '{"samples": [' + ",".join(["0.5"] * 1001) + "]}", '{"sample": "' + "x" * 70_000 + '"}', "\u0000\ud7ff",
    ]  # fmt: skip
    if number % 25 == 24:
        return frame(rng.randbytes(rng.randrange(1, 400)), opcode=2)
    return frame(texts[number % 25 % len(texts)].encode())


async def hostile(run: Path, messages: int, healthy: int) -> dict[str, Any]:
    """Malformed messages beside healthy sessions."""
    with server(run) as program:
        clients = [Client(number, 1) for number in range(healthy)]
        for client in clients:
            await client.connect(program.port)
        answers: list[bytes] = []
        connections = [await Connection.open(program.port, answers.append) for _ in range(20)]
        await asyncio.sleep(0.2)
        answers.clear()
        rng, memory = random.Random(0), []

        async def attack() -> None:
            for number in range(messages):
                place = number % len(connections)
                connections[place].transport.write(malformed(number, rng))
                if number % 500 == 499:
                    while len(answers) < number + 1 - 50:
                        await asyncio.sleep(0.001)
                    memory.append(program.memory())
            while len(answers) < messages:
                await asyncio.sleep(0.005)

        attacking = asyncio.create_task(attack())
        while not attacking.done():
            await send_evenly(clients, 0.5)
        await asyncio.wait_for(attacking, 60)
        for client in clients:
            client.read()
        named = sum("error" in json.loads(answer) for answer in answers)
        closed = sum(connection.closed.is_set() for connection in connections)
        for connection in (*connections, *(client.connection for client in clients)):
            connection.transport.close()
            await connection.closed.wait()
        half = len(memory) // 2
        return {
            "messages": messages,
            "answered_with_an_error": named,
            "closed_connections": closed,
            "healthy_sessions": healthy,
            "healthy_samples": sum(client.count for client in clients),
            "healthy_lost": sum(client.count - client.steps for client in clients),
            "healthy_wrong": sum(len(client.faults) for client in clients),
            "memory_mb_at_half": memory[half] if memory else program.memory(),
            "memory_mb_at_end": memory[-1] if memory else program.memory(),
        }


async def killed(
    run: Path, states: Path, sessions: int, kills: int, seconds: float, learn: bool = False
) -> dict[str, Any]:
    """Kill the server under load and start it again; all outputs must be those of a server that was never killed."""
    rng = random.Random(0)
    clients = [Client(number, 5) for number in range(sessions)]
    for client in clients:
        client.keeps = True
    unanswered = 0
    threads = str(torch.get_num_threads())  # the outputs are computed again here: another number could give other bits
    for kill in range(kills + 1):
        options = ["--states", str(states), "--sessions", str(sessions), "--threads", threads, *["--learn"] * learn]
        program = Program(run, *options)
        try:
            for client in clients:
                await client.connect(program.port, f"client-{client.number}")
                while client.hello is None:
                    await asyncio.sleep(0.001)
                unanswered += _catch_up(client)
            sending = asyncio.create_task(send_evenly(clients, seconds))
            if kill < kills:
                await asyncio.sleep(seconds * rng.uniform(0.3, 0.8))
                program.stop(signal.SIGKILL)
                sending.cancel()
                await asyncio.gather(*(client.connection.closed.wait() for client in clients))
            else:
                await sending
        finally:
            program.stop()
        for client in clients:
            client.read()
    different = 0
    again = deployed.load(run, deployed.Learning() if learn else None)
    sessions_again = plmu.Sessions(again.frozen, _width(states))
    rows = [sessions_again.add() for _ in clients]
    if again.forecasts is not None:
        for row in rows:
            sessions_again.reset(row, again.forecasts.state_at(again.forecasts.first_step))
    dtype = torch.float32 if again.frozen.place is None else again.frozen.place.dtype
    longest = max(len(client.outputs) for client in clients)
    for step in range(longest):
        some = [(row, client) for row, client in zip(rows, clients, strict=True) if step < len(client.outputs)]
        x = torch.tensor([[client.sample(step)] for _, client in some], dtype=dtype)
        out, _ = sessions_again.step([row for row, _ in some], x)
        different += sum(
            value != client.outputs[step] for value, (_, client) in zip(out[:, 0].tolist(), some, strict=True)
        )
    return {
        "sessions": sessions,
        "kills": kills,
        "answered_samples": sum(client.steps for client in clients),
        "taken_but_unanswered_at_a_kill": unanswered,
        "outputs_compared": sum(len(client.outputs) for client in clients),
        "outputs_with_other_bits": different,
        "wrong_answers": sum(len(client.faults) for client in clients),
        "lost_samples": sum(client.steps != len(client.outputs) for client in clients),
    }


def _catch_up(client: Client) -> int:
    """Where the server is after a kill: at the last answer, or one message after it, whose outputs it repeats."""
    assert client.hello is not None
    step, last = client.hello["step"], client.hello["last"]
    ahead = step - client.steps
    if ahead not in (0, client.per_message) or (ahead and len(last) != ahead):
        client.faults.append(f"server at {step}, client at {client.steps}")
    client.outputs += [row[0] for row in last] if ahead else []
    client.steps = client.count = step
    client.sent.clear()
    return int(ahead)


def _width(states: Path) -> int:
    from plmu.modelfiles.files import reading

    with reading(max(states.glob("sessions-*.plmu")), ("sessions",)) as file:
        return int(file.description["width"])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS, help="what to measure (all)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each load (60)")
    parser.add_argument("--messages", type=int, default=10_000, help="malformed ones (10000)")
    parser.add_argument("--kills", type=int, default=5, help="how often the server is killed (5)")
    parser.add_argument("--out", type=Path, default=Path("results/serving.json"), help="file; its other parts stay")
    options = parser.parse_args()
    import uvloop  # a loop that costs the client less

    torch.set_num_threads(1)
    result: dict[str, Any] = read_json(options.out) if options.out.is_file() else {}
    with tempfile.TemporaryDirectory() as folder:
        run = save_model(Path(folder) / "run")
        for part in options.parts:
            part_result: dict[str, Any] = {"command": f"python -m benchmarks.serving --parts {part}"}
            if part == "malformed":
                part_result |= asyncio.run(hostile(run, options.messages, 20))
            elif part in ("learning", "learning-killed"):
                forecast, states = train_forecast(Path(folder) / "forecast"), Path(folder) / f"states-{part}"
                part_result["load_average_before"] = os.getloadavg()[0]
                if part == "learning":
                    running = load(forecast, LEARNING[0], 1, options.seconds, states, LEARNING[1], True, 40.0)
                    part_result |= uvloop.run(running)
                else:
                    part_result |= asyncio.run(killed(forecast, states, 40, options.kills, 6.0, learn=True))
            elif part == "killed":
                part_result |= asyncio.run(killed(run, Path(folder) / "states", 200, options.kills, 6.0))
            else:
                sessions, per_message = LOADS[part]
                states = Path(folder) / f"states-{sessions}"
                part_result |= uvloop.run(load(run, sessions, per_message, options.seconds, states))
            print(json.dumps({"part": part, **part_result}), flush=True)
            result[part] = {**part_result, **provenance(torch.device("cpu"))}
    write_json(options.out, result)
    wrong = [part for part in options.parts if not holds(result[part])]
    if wrong:
        sys.exit(f"does not hold: {', '.join(wrong)}")


def holds(result: dict[str, Any]) -> bool:
    """Whether a part's conditions hold."""
    faults = ("lost_samples", "wrong_answers", "healthy_lost", "healthy_wrong", "outputs_with_other_bits")
    if any(result.get(name) for name in faults) or result.get("p99_ms", 0.0) >= SLOWEST:
        return False
    return "answered_with_an_error" not in result or result["answered_with_an_error"] == result["messages"]


if __name__ == "__main__":
    main()
