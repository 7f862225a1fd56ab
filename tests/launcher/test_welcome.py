"""The examples that a person pastes."""

import ast
import re
import subprocess

from headrace_launcher.management import Account, DemoData
from headrace_launcher.welcome import welcome

DEMO = DemoData(Account("admin@example.org", "pw-a"), Account("user@example.org", "pw-u"), "sk-hr-1-2", "tiny")


def text() -> str:
    return welcome(
        DEMO,
        base_url="http://127.0.0.1:8000",
        ws_url="ws://127.0.0.1:8000/v1/ws",
        up_json="/state/up.json",
        simulated=True,
        seconds=12.3,
    )


def test_everything_a_person_needs_is_there() -> None:
    for wanted in ("admin@example.org   pw-a", "user@example.org   pw-u", "sk-hr-1-2", "simulated", "/state/up.json"):
        assert wanted in text()


def test_here_documents_are_python_and_the_shell_understands_the_rest() -> None:
    scripts = re.findall(r"<<'PY'\n(.*?)\nPY\n", text(), flags=re.DOTALL)
    assert len(scripts) == 2
    for script in scripts:
        ast.parse(script)
    commands = text()[text().index("  curl\n") + len("  curl\n") :]
    pasted = "\n".join(line for line in commands.splitlines() if not re.match(r"  \w.*(package|headrace\.v1)$", line))
    subprocess.run(["bash", "-n"], input=pasted, text=True, check=True)
