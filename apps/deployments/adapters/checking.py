"""The check of an adapter's files, by a process of the worker's kind on the gateway's machine."""

import subprocess
import sys

import msgspec
from django.utils.translation import gettext as _

from apps.deployments.models import LoraAdapter
from headrace_wire.adapters import AdapterCheck, AdapterQuestion, refusal
from headrace_wire.snapshot import EngineKind

DEADLINE_SECONDS = 120.0
"""A large adapter is read once, for its digest."""

_DEFAULT_RANK = 16
"""vLLM's own `max_lora_rank`."""


def adapter_check(adapter: LoraAdapter) -> AdapterCheck:
    """Returns what is to be said of an adapter as it stands in its folder now."""
    deployment = adapter.deployment
    options = deployment.engine_args
    if deployment.engine == EngineKind.VLLM and not options.get("enable_lora"):
        return refusal(_("The deployment's engine is started without LoRA adapters; switch them on there first."))
    question = AdapterQuestion(
        place=adapter.place, model=deployment.model, max_rank=options.get("max_lora_rank", _DEFAULT_RANK)
    )
    command = [sys.executable, "-m", "headrace_worker", "--check-adapter"]
    try:
        answer = subprocess.run(
            command, input=msgspec.json.encode(question), capture_output=True, timeout=DEADLINE_SECONDS, check=True
        )
        return msgspec.json.decode(answer.stdout, type=AdapterCheck)
    except subprocess.TimeoutExpired:
        return refusal(_("The files were not read within %d seconds.") % DEADLINE_SECONDS)
    except (subprocess.CalledProcessError, msgspec.DecodeError) as error:
        told = error.stderr.decode(errors="replace") if isinstance(error, subprocess.CalledProcessError) else str(error)
        return refusal(_("The check ended without an answer: %s") % (told.strip().rpartition("\n")[2][-300:] or "-"))
