"""Kept answers, shared streams and prefixes of LoRA adapters: nothing of one serves another, or the model as it is."""

from typing import Any

import pytest

from apps.streams.services import CacheWord
from headrace_wire.adapters import AdapterConfig
from headrace_wire.errors import ModelNotFoundError
from headrace_wire.prefix_hashes import prefix_hashes
from tests.support.snapshots import TENANT_A, TENANT_B

from .answers_desk import Desk

TIDES, EBB = "sim:tides", "sim:ebb"


def adapter(name: str, *, revision: str = "1", tenant_id: str = TENANT_A, **changes: Any) -> AdapterConfig:
    fields = {"id": f"{tenant_id[0]}-{name}", "deployment": "sim", "name": name, "place": f"acme/{name}", **changes}
    return AdapterConfig(tenant_id=tenant_id, revision=revision * 64, **fields)


@pytest.fixture
async def adapted(desk: Desk) -> Desk:
    """Two adapters of one tenant, one of the same name of another; static answers are kept."""
    await desk.configure(adapters=[adapter("tides"), adapter("ebb"), adapter("tides", tenant_id=TENANT_B)])
    return desk


async def words(desk: Desk, *asked: tuple[str, str]) -> list[CacheWord]:
    return [await desk.asked(deployment=name, of=tenant) for tenant, name in asked]


async def test_each_adapter_has_answers_of_its_own_and_so_has_the_model(adapted: Desk) -> None:
    await adapted.computed(deployment=TIDES)
    others = [(TENANT_A, "sim"), (TENANT_A, EBB), (TENANT_B, TIDES), (TENANT_B, "sim")]
    assert await words(adapted, *others) == [CacheWord.MISS] * 4
    assert await words(adapted, (TENANT_A, TIDES)) == [CacheWord.HIT]
    computed, *_, hit = await adapted.ledger()
    assert (computed.adapter, hit.adapter) == ("tides", "tides")


async def test_the_models_answer_is_no_adapters(adapted: Desk) -> None:
    await adapted.computed(deployment="sim")
    assert await words(adapted, (TENANT_A, TIDES), (TENANT_A, EBB), (TENANT_A, "sim")) == [
        CacheWord.MISS,
        CacheWord.MISS,
        CacheWord.HIT,
    ]


async def test_a_running_stream_is_given_only_to_who_asked_for_the_same_weights(adapted: Desk) -> None:
    started = [await adapted.ask(deployment=name) for name in (TIDES, "sim", EBB, TIDES, "sim")]
    assert [one.is_shared for one in started] == [False, False, False, True, True]
    claimed = await adapted.claim()
    assert [one.request.adapter and one.request.adapter.name for one in claimed] == ["tides", None, "ebb"]
    texts = ["of tides", "of the model", "of ebb"]
    for one, text in zip(claimed, texts, strict=True):
        await adapted.answer(one, text)
    assert [await adapted.read(one) for one in started] == [*texts, *texts[:2]]


async def test_changed_weights_are_asked_anew_and_the_old_answer_is_not_shared(adapted: Desk) -> None:
    await adapted.computed(deployment=TIDES)
    running = await adapted.ask("And what follows?", deployment=TIDES)
    (old,) = await adapted.claim()
    await adapted.configure(adapters=[adapter("tides", revision="2")])
    assert await words(adapted, (TENANT_A, TIDES)) == [CacheWord.MISS]
    again = await adapted.ask("And what follows?", deployment=TIDES)
    assert not again.is_shared
    (new,) = await adapted.claim()
    assert old.request.adapter is not None
    assert new.request.adapter is not None
    assert (old.request.adapter.revision[0], new.request.adapter.revision[0]) == ("1", "2")
    await adapted.answer(old, "old weights")
    await adapted.recorded()
    late = await adapted.ask("And what follows?", deployment=TIDES)
    assert late.is_shared, "with the new one, though the old one has ended and was kept"
    await adapted.answer(new, "new weights")
    assert [await adapted.read(one) for one in (running, again, late)] == ["old weights", "new weights", "new weights"]


async def test_a_revoked_adapter_gives_no_answers(adapted: Desk) -> None:
    await adapted.computed(deployment=TIDES)
    await adapted.configure(adapters=[adapter("ebb")])
    with pytest.raises(ModelNotFoundError):
        await adapted.ask(deployment=TIDES)
    assert await words(adapted, (TENANT_A, "sim"), (TENANT_A, EBB)) == [CacheWord.MISS] * 2
    # Another one that is given its name, even with the same files, is another one.
    await adapted.configure(adapters=[adapter("tides", id="made anew")])
    assert await words(adapted, (TENANT_A, TIDES)) == [CacheWord.MISS]


async def test_prefixes_have_partitions_of_their_own(adapted: Desk) -> None:
    async def salts(text: str) -> dict[tuple[str, str], str]:
        for tenant, name in ((TENANT_A, "sim"), (TENANT_A, TIDES), (TENANT_A, EBB), (TENANT_B, TIDES)):
            (await adapted.ask(text, deployment=name, of=tenant)).subscription.close()
        requests = [claimed.request for claimed in await adapted.claim()]
        return {(one.tenant_id, one.adapter.name if one.adapter else ""): one.cache_salt for one in requests}

    before = await salts("Where?")
    changed = [adapter("tides", revision="2"), adapter("ebb"), adapter("tides", tenant_id=TENANT_B)]
    await adapted.configure(adapters=changed)
    after = await salts("When?")
    assert [one for one in before if before[one] != after[one]] == [(TENANT_A, "tides")]
    assert len({*before.values(), *after.values()}) == 5
    assert len({prefix_hashes(salt, "sim", [7] * 64)[-1] for salt in before.values()}) == 4
