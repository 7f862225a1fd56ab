"""`manage.py seed_demo`: demo data for the embedded default."""

import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand

from apps.deployments.enums import EngineKind
from apps.ops.demo import DemoState, demo_deployment, demo_seed


class Command(BaseCommand):
    """Makes demo data once; later runs print the same."""

    help = "Makes a demo tenant, admin, user, API key and deployment; a second run changes nothing."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declares the options."""
        parser.add_argument("--state-file", type=Path, required=True, help="Keeps what was made up (mode 0600).")
        parser.add_argument("--model", required=True, help="Public model name.")
        parser.add_argument("--model-path", required=True, help="Folder or Hugging Face id.")
        parser.add_argument("--engine", choices=EngineKind.values, default=EngineKind.VLLM.value)
        parser.add_argument("--json", action="store_true", help="Print JSON, passwords and key included.")

    def handle(self, *_: Any, **options: Any) -> None:  # noqa: ANN401
        """Seeds, keeps and prints."""
        path: Path = options["state_file"]
        deployment = demo_deployment(
            name=options["model"], model=options["model_path"], engine=EngineKind(options["engine"])
        )
        before = DemoState.read(path)
        state = demo_seed(state=before, deployment=deployment)
        if state != before:
            state.write(path)
        if options["json"]:
            self.stdout.write(json.dumps(state.to_builtins()))
        else:
            self.stdout.write(f"Demo data is there; sign-in data and the key stand in {path}.")
