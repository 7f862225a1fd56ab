"""What a dry run of a deployment's engine options says: from `headrace_worker --check`, for the admin's form."""

import msgspec


class EngineCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's own configuration was made, and no model loaded."""

    is_accepted: bool
    engine: str = ""
    """Which engine and kind of device judged, like `vLLM 0.32.0 on CPU`; other devices may judge otherwise."""
    problem: str = ""
    """The engine's own reason for a refusal."""
    advice: str = ""
    """What to do about it, where we know."""
    settings: dict[str, str] = {}
    """What the engine made of the options, by vLLM's names."""
    notes: list[str] = []
    """What is accepted and has no effect on this device."""


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(EngineCheck)


def encode_check(report: EngineCheck) -> bytes:
    """Returns one line of JSON."""
    return _encoder.encode(report) + b"\n"


def decode_check(data: bytes) -> EngineCheck:
    """Reads what `encode_check` wrote; a broken one raises `msgspec.DecodeError`."""
    return _decoder.decode(data)
