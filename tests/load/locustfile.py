"""The classic load test: users who ask for an answer of 200 tokens, think, and ask again.

`locust -f tests/load/locustfile.py --host http://127.0.0.1:8000 --model demo --key hr_... -u 50 -r 10`

It stands alone, so that any locust can run it against any OpenAI-compatible server. Beside locust's own request it
reports TTFT (ms) and TPOT (microseconds: locust rounds to whole numbers) of each answer; `--figures FILE` keeps all.
"""

import json
import random
import string
import time
from pathlib import Path
from typing import Any

from locust import HttpUser, between, events, task  # type: ignore[import-not-found]  # has an environment of its own

TOKENS = 200
FIGURES: dict[str, Any] = {"ttft_ms": [], "tpot_ms": [], "answer_ms": [], "errors": []}


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: Any) -> None:
    """What to ask for, and where exact figures go."""
    parser.add_argument("--model", default="demo")
    parser.add_argument("--key", default="", is_secret=True)
    parser.add_argument("--figures", default="", help="a file for every measured value, as JSON")


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def keep_figures(environment: Any, **_: Any) -> None:
    """Writes them."""
    if environment.parsed_options.figures:
        Path(environment.parsed_options.figures).write_text(json.dumps(FIGURES), "utf-8")


class Asker(HttpUser):  # type: ignore[misc]
    """Someone who reads an answer and thinks for one to three seconds."""

    wait_time = between(1, 3)

    @task  # type: ignore[untyped-decorator]
    def ask(self) -> None:
        """Asks once."""
        options = self.environment.parsed_options
        text = "".join(random.choices(string.ascii_lowercase + " ", k=random.randint(50, 200)))
        body = {
            "model": options.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": TOKENS,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        headers = {"Authorization": f"Bearer {options.key}"}
        asked_at = time.perf_counter()
        with self.client.post(
            "/v1/chat/completions", json=body, headers=headers, stream=True, catch_response=True
        ) as response:
            if response.status_code != 200:
                problem = f"{response.status_code}: {response.text[:200]}"
            else:
                problem = self._read(response, asked_at)
            if problem:
                FIGURES["errors"].append(problem)
                response.failure(problem)
            else:
                response.success()

    def _read(self, response: Any, asked_at: float) -> str:
        """Reads an answer to its end; returns what was wrong with it."""
        first_at = last_at = 0.0
        tokens = 0
        for line in response.iter_lines(chunk_size=None):
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            if "error" in chunk:
                return str(chunk["error"])
            if any(choice["delta"].get("content") for choice in chunk["choices"]):
                last_at = time.perf_counter()
                first_at = first_at or last_at
            tokens = (chunk.get("usage") or {}).get("completion_tokens", tokens)
        if not first_at or tokens < 2:
            return f"the answer broke off: {tokens} tokens"
        self._tell("TTFT ms", (first_at - asked_at) * 1000, "ttft_ms", 1)
        self._tell("TPOT us", (last_at - first_at) / (tokens - 1) * 1000, "tpot_ms", 1000)
        FIGURES["answer_ms"].append((time.perf_counter() - asked_at) * 1000)
        return ""

    def _tell(self, name: str, value_ms: float, kept_as: str, times: float) -> None:
        FIGURES[kept_as].append(value_ms)
        events.request.fire(
            request_type="SSE",
            name=name,
            response_time=value_ms * times,
            response_length=0,
            exception=None,
            context={},
        )
