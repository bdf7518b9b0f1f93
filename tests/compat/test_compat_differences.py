"""docs/differences.md tells the truth about which of Monarch's public names are here."""

from __future__ import annotations

import importlib
import importlib.util
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "differences.md").read_text()

UPSTREAM = {
    "monarch": """
        Extent Future NDSlice OpaqueRef RemoteProcessGroup Selection Shape Simulator Stream Tensor
        clear_runtime_config coalescing configure configured fetch_shard function_resolvers
        get_active_mesh get_active_stream get_global_config get_runtime_config grad_function
        grad_generator inspect no_mesh reduce reduce_ remote set_meta show slice_mesh timer to_mesh
        world_mesh
    """,
    "monarch.actor": """
        Accumulator Actor ActorError Channel ChannelTransport Context Endpoint Extent Future
        HostMesh MeshFailure Point Port PortReceiver ProcId ProcMesh Uid ValueMesh as_endpoint
        attach
        attach_to_workers concurrent_endpoint config context current_actor_name current_rank
        current_size debug_controller default_bootstrap_cmd enable_transport endpoint get_meter
        get_or_spawn_controller hosts_from_config returns_future run_worker_loop_forever
        run_worker_loop_until_shutdown send shutdown_context span start_worker_loop_forever
        this_host this_proc traced unhandled_fault_hook
    """,
    "monarch.actor.concurrent": "concurrent_endpoint",
    "monarch.config": """
        Encoding clear_runtime_config configure configured get_global_config get_runtime_config
        parametrize_config parametrize_config_pointwise
    """,
    "monarch.job": """
        DEFAULT_JOB_PATH JobState JobTrait LocalJob MeshAdminConfig PortForwarder ProcessJob
        SERVICE_PROC_IDS_ENV SERVICE_PROC_RANK_ENV SlurmJob TelemetryConfig
        deserialize_service_proc_ids exec_command hosts_from_config job_load job_loads
        load_current_job new_service_proc_id ranked_service_proc_id_from_env
        serialize_service_proc_ids service_proc_addr service_proc_addrs set_current_job shell
    """,
    "monarch.job.spmd": "SPMDJob StoreJob serve",
    "monarch.rdma": """
        RDMAAction RDMABuffer RDMAReadTransferWarning RDMATcpFallbackWarning
        RDMAWriteTransferWarning get_rdma_backend is_ibverbs_available is_rdma_available
    """,
    "monarch.spmd": "SPMDActor setup_torch_elastic_env setup_torch_elastic_env_async",
    "monarch.tools.config": "Config NOT_SET Workspace",
    "monarch.tools.network": "AddrType get_ipaddr get_sockaddr",
    "monarch.tools.utils": "MONARCH_HOME conda",
}


def listed_as_missing() -> dict[str, set[str]]:
    rows = re.findall(r"^\| `(monarch[\w.]*)` \| ((?:`\w+` ?)+)\|", PAGE, re.MULTILINE)
    return {module: set(re.findall(r"`(\w+)`", names)) for module, names in rows}


def test_the_page_has_its_table() -> None:
    assert set(listed_as_missing()) == {"monarch"}


@pytest.mark.parametrize("name", UPSTREAM)
def test_each_public_name_is_here_or_listed(name: str) -> None:
    module = importlib.import_module(name)
    names = set(UPSTREAM[name].split())
    missing = {one for one in names if not hasattr(module, one)}
    assert missing == listed_as_missing().get(name, set()), "what is missing is what is listed"


def test_modules_that_are_listed_as_missing_are() -> None:
    listed = PAGE.partition("Modules that are not there:")[2].partition("\n\n")[0]
    names = re.findall(r"`(monarch[\w.]+)`", listed)
    assert len(names) > 5
    assert [name for name in names if importlib.util.find_spec(name) is not None] == []


def test_what_refuses_with_a_sentence_is_there() -> None:
    listed = PAGE.partition("There, and refusing")[2].partition("\n\n")[0]
    for name in re.findall(r"`(monarch[\w.]+)`", listed):
        if importlib.util.find_spec(name.rpartition(".")[0]) is not None:
            module, _, attribute = name.rpartition(".")
            found = importlib.import_module(module)
            assert hasattr(found, attribute) or importlib.util.find_spec(name) is not None
