"""What stands in an adapter's folder, judged without loading it: headers are read, and no code of its makers runs."""

import hashlib
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace_wire.adapters import PLACE, AdapterCheck, AdapterQuestion, refusal
from headrace_worker.safetensors_header import HeaderError, TensorShape, read_header

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

MOST_BYTES = 8 << 30
_CONFIG_BYTES = 1 << 20
_CHUNK = 1 << 20

_PICKLES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"})
_FLOATS = frozenset({"F32", "F16", "BF16"})
_PREFIX = "base_model.model."
_UNSUPPORTED = {
    "use_dora": "DoRA",
    "modules_to_save": "whole modules beside the low-rank ones (modules_to_save)",
    "lora_bias": "biases (lora_bias)",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activation by tokens (aLoRA)",
}


class AdapterFilesError(Exception):
    """The adapter cannot be used; the message names no path of this machine."""


def adapter_folder(root: Path | None, place: str) -> Path:
    """Return the folder of an adapter, with its two files inside the operator's folder, wherever links lead.

    Raises:
        AdapterFilesError: there is no such adapter here.
    """
    if root is None:
        raise AdapterFilesError("This machine has no folder for adapters (HEADRACE_ADAPTER_DIR).")
    if not PLACE.fullmatch(place):
        raise AdapterFilesError("The place is not one below the folder for adapters.")
    top = root.resolve()
    folder = (top / place).resolve()
    if not folder.is_relative_to(top) or not folder.is_dir():
        raise AdapterFilesError(f"There is no folder “{place}” in the folder for adapters.")
    for name in (CONFIG, WEIGHTS):
        file = (folder / name).resolve()
        if not file.is_file() or not file.is_relative_to(top):
            raise AdapterFilesError(f"“{place}” has no {name}.")
    if pickles := sorted(path.name for path in folder.rglob("*") if path.suffix.lower() in _PICKLES):
        raise AdapterFilesError(f"“{place}” has files that can run code when they are read: {', '.join(pickles[:3])}.")
    return folder


def revision_of(folder: Path) -> str:
    """Return the digest of an adapter's files."""
    digest = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        with (folder / name).open("rb") as file:
            digest.update(name.encode())
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def check_adapter(root: Path | None, question: AdapterQuestion) -> AdapterCheck:
    """Return whether an adapter fits a model, with everything that speaks against it."""
    try:
        folder = adapter_folder(root, question.place)
        config = _config(folder / CONFIG)
        shapes = _weights(folder / WEIGHTS)
        revision = revision_of(folder)
    except (AdapterFilesError, HeaderError) as error:
        return refusal(str(error))
    except OSError as error:
        return refusal(f"The files cannot be read: {error.strerror}.")
    modules, problems = _modules(shapes)
    rank = max((a.shape[0] for a, _ in modules.values()), default=0)
    problems += _unsupported(config)
    problems += [f"“{name}” is not served: only linear layers are." for name in modules if _is_vocabulary(name)]
    if rank > question.max_rank:
        problems.append(
            f"Its rank is {rank}; the deployment's engine takes {question.max_rank} at most (max_lora_rank)."
        )
    base, notes = str(config.get("base_model_name_or_path") or ""), []
    is_named_alike = Path(base).name.casefold() == Path(question.model).name.casefold()
    model = model_shapes(question.model)
    if model is not None:
        problems += _misfits(modules, model)
        if not is_named_alike:
            notes.append(f"It was made for “{base}”; its modules fit {question.model}, which it goes over here.")
    elif not is_named_alike:
        problems.append(f"It was made for “{base}”, and this machine has no files of {question.model} to compare with.")
    else:
        notes.append(f"This machine has no files of {question.model}: what its modules are, only a worker sees.")
    return AdapterCheck(
        problems=problems,
        notes=notes,
        revision=revision,
        rank=rank,
        base_model=base,
        target_modules=sorted({name.rpartition(".")[2] for name in modules}),
        checked_at=time.time(),
    )


def model_shapes(model: str) -> dict[str, TensorShape] | None:
    """Return the tensors of a model that this machine has (a folder, or what was downloaded); None where it has not."""
    folder = Path(model)
    try:
        if not folder.is_dir():
            from huggingface_hub import snapshot_download  # noqa: PLC0415  workers without it have folders

            folder = Path(snapshot_download(model, local_files_only=True, allow_patterns=["*.safetensors"]))
        found: dict[str, TensorShape] = {}
        for file in folder.glob("*.safetensors"):
            found |= read_header(file)
    except Exception:  # noqa: BLE001  the hub's own kinds; whatever it is, nothing is known of the model here
        return None
    return found or None


def _config(file: Path) -> dict[str, Any]:
    if file.stat().st_size > _CONFIG_BYTES:
        raise AdapterFilesError(f"{CONFIG} is larger than 1 MiB.")
    try:
        config = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise AdapterFilesError(f"{CONFIG} is no JSON: {error}.") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterFilesError(f"{CONFIG} does not describe a LoRA adapter (peft_type).")
    return config


def _weights(file: Path) -> dict[str, TensorShape]:
    if file.stat().st_size > MOST_BYTES:
        raise AdapterFilesError(f"{WEIGHTS} is larger than {MOST_BYTES >> 30} GiB.")
    return read_header(file)


def _unsupported(config: Mapping[str, Any]) -> list[str]:
    problems = [f"It has {what}, which vLLM does not serve." for name, what in _UNSUPPORTED.items() if config.get(name)]
    if config.get("bias", "none") != "none":
        problems.append("It has biases, which vLLM does not serve.")
    return problems


_Modules = dict[str, tuple[TensorShape, TensorShape]]


def _modules(shapes: Mapping[str, TensorShape]) -> tuple[_Modules, list[str]]:
    """Return the two matrices of each module that is changed, and what is wrong with them."""
    halves: dict[str, dict[str, TensorShape]] = {}
    problems = []
    for name, tensor in shapes.items():
        module, _, half = name.removesuffix(".weight").rpartition(".")
        if not name.startswith(_PREFIX) or half not in {"lora_A", "lora_B"} or len(tensor.shape) != 2:
            problems.append(f"“{name}” is no low-rank matrix of a linear layer; nothing else is served.")
        elif tensor.dtype not in _FLOATS:
            problems.append(f"“{name}” has numbers of the kind {tensor.dtype}.")
        else:
            halves.setdefault(module.removeprefix(_PREFIX), {})[half] = tensor
    modules: _Modules = {}
    for module, pair in halves.items():
        a, b = pair.get("lora_A"), pair.get("lora_B")
        if a is None or b is None or a.shape[0] != b.shape[1] or not math.prod((*a.shape, *b.shape)):
            problems.append(f"The two matrices of “{module}” do not fit each other.")
        else:
            modules[module] = (a, b)
    if not modules and not problems:
        problems.append("It changes nothing.")
    return modules, problems[:5]


def _is_vocabulary(module: str) -> bool:
    return module.rpartition(".")[2] in {"embed_tokens", "wte", "lm_head"}


def _misfits(modules: _Modules, model: Mapping[str, TensorShape]) -> list[str]:
    """Return which modules the model does not have, or has in another size; packed (quantised) ones have no sizes."""
    names = {name.rpartition(".")[0] for name in model}
    problems = []
    for module, (a, b) in modules.items():
        home = module if module in names else next((name for name in names if name.endswith(f".{module}")), None)
        weight = model.get(f"{home}.weight")
        if home is None:
            problems.append(f"The model has no module “{module}”.")
        elif weight is not None and weight.dtype in _FLOATS and weight.shape != (b.shape[0], a.shape[1]):
            problems.append(f"“{module}” has another size in the model.")
    return problems[:5]
