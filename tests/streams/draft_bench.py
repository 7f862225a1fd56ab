"""A gateway that drafts are sent to, and the worker that is asked to compute them, for tests of drafts."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from apps.deployments.prompt_rendering import PromptRenderer
from apps.streams.config_view import Caller
from apps.streams.drafts import DraftLine, DraftOff
from apps.streams.gateway import Gateway
from apps.streams.services import draft_prefill
from headrace_wire import codec, redis_keys
from headrace_wire.api_key import ApiKeyToken
from headrace_wire.fleet import ModelAssets, TemplateProbe, WorkerInfo, WorkerState
from headrace_wire.functions import Reply
from headrace_wire.guard_policy import AnyRule, GuardAttachment, GuardPolicy, encode_policy, policy_digest
from headrace_wire.messages import ChatTurn, ControlMessage, Prefill
from headrace_wire.snapshot import ConfigSnapshot
from tests.support.snapshots import KEY_A, publish_snapshot, simulated, snapshot

HISTORY = [ChatTurn("user", "What is a headrace?"), ChatTurn("assistant", "The channel to the wheel. " * 20)]
TYPED = "And where does the water go when it has done its work and leaves the mill? " * 10


@dataclass
class Bench:
    """A gateway, and a worker that exists by its registration and its control channel alone."""

    gateway: Gateway
    renderer: PromptRenderer
    worker: str
    line: DraftLine = field(default_factory=DraftLine)
    version: int = 1

    def caller(self, key: ApiKeyToken = KEY_A) -> Caller:
        return self.gateway.config.authenticate(key.reveal())

    async def draft(
        self, text: str, *, history: list[ChatTurn] = HISTORY, key: ApiKeyToken = KEY_A, line: DraftLine | None = None
    ) -> DraftOff | None:
        caller = self.caller(key)
        return await draft_prefill(
            gateway=self.gateway,
            caller=caller,
            deployment=self.gateway.config.deployment(caller, "sim"),
            conversation=[*history, ChatTurn("user", text)],
            line=line or self.line,
        )

    async def told(self, worker: str = "") -> list[ControlMessage]:
        """Return what has reached a worker's control channel; its first entry only creates it."""
        rows: Reply = await self.gateway.redis.xrange(redis_keys.control_key(worker or self.worker))
        return [codec.decode_control(fields[b"d"]) for _, fields in rows if fields[b"d"]]

    async def prefills(self) -> list[Prefill]:
        return [message for message in await self.told() if isinstance(message, Prefill)]

    async def texts(self) -> list[str]:
        return [self.renderer._tokenizer.decode(codec.unpack_token_ids(p.prompt_ids)) for p in await self.prefills()]

    async def register(self, worker: str = "", **changes: object) -> None:
        """Have the worker say something else of itself."""
        worker = worker or self.worker
        info = WorkerInfo(
            worker, "sim", "simulated", WorkerState.READY, "here", 1, 0.0, fingerprint="f", max_model_len=4096,
            max_num_seqs=8,
        )  # fmt: skip
        info = msgspec.structs.replace(info, **changes)
        await self.gateway.redis.hset(redis_keys.workers_key(), worker, codec.encode(info))
        await self.gateway.fleet.refresh()

    async def configure(self, **changes: Any) -> None:
        """Publish the test configuration with other fields of the tenants and the deployment."""
        self.version += 1
        config = snapshot(self.version, simulated("sim", **changes.pop("deployment", {})))
        config = msgspec.structs.replace(config, guardrails=changes.pop("guardrails", []))
        tenants = [msgspec.structs.replace(tenant, **changes) for tenant in config.tenants]
        await self.publish(msgspec.structs.replace(config, tenants=tenants))

    async def publish(self, config: ConfigSnapshot) -> None:
        await publish_snapshot(self.gateway.redis, config)
        await self.gateway.config_reader.refresh()

    async def guard(self, *rules: AnyRule) -> None:
        """Have a policy applied to everything."""
        body = encode_policy(GuardPolicy(key="p", name="p", version=1, rules=rules))
        await self.gateway.redis.set(redis_keys.guard_policy_key(policy_digest(body)), body)
        await self.configure(guardrails=[GuardAttachment(digest=policy_digest(body), name="p")])


async def started_bench(gateway: Gateway, tiny_model: Path, worker: str) -> Bench:
    """Return a bench whose worker, which is enlisted, has said what it serves."""
    special = json.loads((tiny_model / "tokenizer_config.json").read_text())
    names = {name: text for name, text in special.items() if name.endswith("_token") and isinstance(text, str)}
    template = (tiny_model / "chat_template.jinja").read_text()
    assets = ModelAssets("f", (tiny_model / "tokenizer.json").read_bytes(), template, names, max_model_len=4096)
    renderer = PromptRenderer(assets)
    probe = TemplateProbe(tuple(HISTORY[:1]), tuple(renderer.render(HISTORY[:1])))
    assets = msgspec.structs.replace(assets, probes=(probe,))
    await gateway.redis.set(redis_keys.model_assets_key("f"), codec.encode(assets))
    bench = Bench(gateway, renderer, worker)
    await bench.register()
    return bench
