from typing import Any

from headrace_wire.messages import SamplingParams, StructuredOutput
from headrace_wire.snapshot import DeploymentConfig
from headrace_worker.engine import EngineRequest
from headrace_worker.engine_core.checkpoints.settings import CheckpointSettings
from headrace_worker.vllm_arguments import DEFAULT_SHARE, engine_arguments, sampling_arguments, structured_arguments


def deployment(**changes: object) -> DeploymentConfig:
    return DeploymentConfig(**{"id": "d", "name": "d", "model": "m", **changes})  # type: ignore[arg-type]


def request(**sampling: Any) -> EngineRequest:
    return EngineRequest("r", [1, 2], SamplingParams(**sampling), "salt")


def test_on_cpu() -> None:
    arguments = engine_arguments(deployment(max_model_len=512), on_cpu=True)
    assert arguments["dtype"] == "float32"
    assert arguments["block_size"] == 32
    assert arguments["enforce_eager"] is True
    assert arguments["max_model_len"] == 512
    assert arguments["distributed_executor_backend"].endswith("UniProcExecutor")
    assert "quantization" not in arguments


def test_on_gpu() -> None:
    arguments = engine_arguments(deployment(quantization="fp8"), on_cpu=False)
    assert arguments["dtype"] == "auto"
    assert arguments["quantization"] == "fp8"
    assert not {"block_size", "enforce_eager", "distributed_executor_backend", "max_model_len"} & arguments.keys()


def test_a_deployment_tunes_but_does_not_take_over() -> None:
    own = {"enable_prefix_caching": False, "block_size": 64, "model": "other", "scheduling_policy": "fcfs"}
    arguments = engine_arguments(deployment(engine_args=own), on_cpu=True)
    assert arguments["enable_prefix_caching"] is False
    assert arguments["block_size"] == 64
    assert arguments["model"] == "m"
    assert arguments["scheduling_policy"] == "priority"


def test_a_reserve_lowers_the_share_of_a_device() -> None:
    wanted = deployment(engine_args={"gpu_memory_reserve_gib": 2.0, "gpu_memory_utilization": 0.9})
    assert "gpu_memory_reserve_gib" not in engine_arguments(wanted, on_cpu=True), "vLLM does not know it"
    small, large = (
        engine_arguments(wanted, on_cpu=False, device_bytes=gib << 30)["gpu_memory_utilization"] for gib in (8, 80)
    )
    assert (small, large) == (0.75, 0.9)
    without_share = deployment(engine_args={"gpu_memory_reserve_gib": 8.0})
    arguments = engine_arguments(without_share, on_cpu=False, device_bytes=200 << 30)
    assert arguments["gpu_memory_utilization"] == DEFAULT_SHARE


def test_checkpoints() -> None:
    assert "kv_transfer_config" not in engine_arguments(deployment(), on_cpu=True)
    own = {"kv_transfer_config": {"kv_connector": "another"}}
    checkpoints = CheckpointSettings(directory="/kv", mib_per_tenant=7)
    arguments = engine_arguments(deployment(engine_args=own), on_cpu=True, checkpoints=checkpoints)
    transfer = arguments["kv_transfer_config"]
    assert (transfer["kv_connector"], transfer["kv_load_failure_policy"]) == ("CheckpointConnector", "recompute")
    (plain,) = transfer["kv_connector_extra_config"].values()
    assert CheckpointSettings.from_plain(plain) == checkpoints


def test_checkpoints_below_a_tier_in_main_memory() -> None:
    checkpoints = CheckpointSettings(directory="/kv", offload_gib=16)
    transfer = engine_arguments(deployment(), on_cpu=False, checkpoints=checkpoints)["kv_transfer_config"]
    assert (transfer["kv_connector"], transfer["kv_load_failure_policy"]) == ("MultiConnector", "recompute")
    tier, ours = transfer["kv_connector_extra_config"]["connectors"]
    assert tier["kv_connector_extra_config"]["cpu_bytes_to_use"] == 16 << 30
    assert ours["kv_connector"] == "CheckpointConnector"


def test_a_request_carries_whose_checkpoint_it_has() -> None:
    assert "headrace_checkpoint" not in sampling_arguments(request(max_tokens=1))["extra_args"], "a warm-up has none"
    streams = EngineRequest(
        "r", [1], SamplingParams(max_tokens=1), "salt", ahead=True, tenant_id="tenant", stream_id="stream"
    )
    assert sampling_arguments(streams)["extra_args"]["headrace_checkpoint"] == ["tenant", "stream", True]


def test_sampling() -> None:
    arguments = sampling_arguments(
        request(max_tokens=5, temperature=0.7, seed=3, stop=("x",), stop_token_ids=(9,), logit_bias={4: 1.5})
    )
    assert arguments["seed"] == 3
    assert arguments["stop_token_ids"] == [9]
    assert arguments["logit_bias"] == {4: 1.5}
    assert arguments["detokenize"] is False
    assert "stop" not in arguments


def test_no_seed_where_nothing_is_drawn() -> None:
    assert "seed" not in sampling_arguments(request(max_tokens=5, temperature=0.0, seed=3))


def test_constraints() -> None:
    assert structured_arguments(StructuredOutput(json_schema="{}")) == {"json": "{}"}
    assert structured_arguments(StructuredOutput(json_object=True)) == {"json_object": True}
    assert structured_arguments(StructuredOutput(regex="a+")) == {"regex": "a+"}
    assert structured_arguments(StructuredOutput(choice=("a", "b"))) == {"choice": ["a", "b"]}
    assert structured_arguments(StructuredOutput(grammar="root ::= x")) == {"grammar": "root ::= x"}
