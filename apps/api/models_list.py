"""`GET /v1/models` and `GET /v1/models/{name}`."""

import msgspec

from apps.api.http import Exchange
from apps.streams.config_view import Caller
from apps.streams.gateway import Gateway
from headrace_wire.api_key import ApiKeyScope
from headrace_wire.snapshot import DeploymentConfig, EngineKind


async def models_list(exchange: Exchange, gateway: Gateway) -> None:
    """List the deployments that the key may use.

    Raises:
        HeadraceError: the key is not good for this.
    """
    caller = _caller(exchange, gateway)
    rows = [_model(gateway, deployment) for deployment in gateway.config.deployments(caller)]
    await exchange.answer_json(200, msgspec.json.encode({"object": "list", "data": rows}))


async def model_retrieve(exchange: Exchange, gateway: Gateway, name: str) -> None:
    """Describe one deployment.

    Raises:
        HeadraceError: the key is not good for this, or there is no such deployment for it.
    """
    caller = _caller(exchange, gateway)
    row = _model(gateway, gateway.config.deployment(caller, name))
    await exchange.answer_json(200, msgspec.json.encode(row))


def _caller(exchange: Exchange, gateway: Gateway) -> Caller:
    caller = gateway.authenticate(exchange.bearer())
    if caller.api_key is not None and ApiKeyScope.INFERENCE.value not in caller.api_key.scopes:
        gateway.config.require_scope(caller, ApiKeyScope.MODELS)
    return caller


def _model(gateway: Gateway, deployment: DeploymentConfig) -> dict[str, object]:
    workers = gateway.fleet.workers(deployment.name)
    return {
        "id": deployment.public_name,
        "object": "model",
        "created": 0,
        "owned_by": "headrace",
        "ready": gateway.fleet.ready(deployment.name),
        "max_model_len": min((w.max_model_len for w in workers if w.max_model_len), default=deployment.max_model_len),
        # A simulated engine never passes for a real one.
        "simulated": deployment.engine is EngineKind.SIMULATED,
    }
