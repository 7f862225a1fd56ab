"""What `make up` prints works when it is pasted: each example, to the end of an answer longer than a window."""

import re
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from headrace_launcher.management import Account, DemoData
from headrace_launcher.welcome import welcome
from tests.support.environment import child_environment
from tests.support.live_stack import LiveStack

TOKENS = 512
"""Of an answer of `slow`; a client that acknowledges nothing gets half of it."""
PATIENCE_SECONDS = 300


@pytest.fixture(scope="module")
def printed(live_stack: LiveStack) -> dict[str, subprocess.CompletedProcess[str]]:
    """How the examples have ended, by the first word of their titles."""
    admin, user = (Account(one.email, one.password) for one in (live_stack.admin, live_stack.user))
    text = welcome(
        DemoData(admin, user, live_stack.api_key, "slow"),
        base_url=live_stack.base_url,
        ws_url=live_stack.ws_url,
        up_json="up.json",
        simulated=True,
        seconds=1.0,
    )
    _, *parts = re.split(r"^  (curl|Python|WebSocket)\b.*$", text, flags=re.MULTILINE)
    examples = dict(zip(parts[::2], parts[1::2], strict=True))
    with ThreadPoolExecutor() as threads:
        return dict(zip(examples, threads.map(pasted, examples.values()), strict=True))


def pasted(example: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", example],
        capture_output=True,
        text=True,
        env=child_environment(),
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.parametrize(
    ("title", "last"),
    [
        ("curl", r"data: \[DONE\]"),
        ("Python", r"\w+"),
        ("WebSocket", rf"'type': 'end'.*'finish_reason': 'length'.*'completion_tokens': {TOKENS}\b"),
    ],
)
def test_a_printed_example_gets_its_whole_answer(
    printed: dict[str, subprocess.CompletedProcess[str]], title: str, last: str
) -> None:
    run = printed[title]
    assert run.returncode == 0, run.stderr
    assert re.search(last, run.stdout.strip().splitlines()[-1]), run.stdout[-2000:]
    assert len(re.findall(r"\w+", run.stdout)) > TOKENS // 2
