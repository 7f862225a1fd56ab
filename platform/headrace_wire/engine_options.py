"""Which engine options a worker runs: a fingerprint of what of a deployment only a new start of the engine applies."""

import hashlib

import msgspec

from headrace_wire.snapshot import DeploymentConfig

_encoder = msgspec.msgpack.Encoder(order="deterministic")


def engine_part(deployment: DeploymentConfig) -> tuple[object, ...]:
    """Return what an engine start depends on."""
    return (
        deployment.model,
        deployment.engine,
        deployment.engine_args,
        deployment.max_model_len,
        deployment.max_num_seqs,
        deployment.dtype,
        deployment.quantization,
    )


def options_fingerprint(deployment: DeploymentConfig) -> str:
    """Return the name of the options: the same in every process, another one as soon as one of them differs."""
    return hashlib.sha256(_encoder.encode(engine_part(deployment))).hexdigest()[:16]
