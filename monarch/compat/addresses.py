"""The table of Monarch's addresses, and of the names that programs find at each.

An address is another name of one module of ours (``same_as``), or a list of names: each group has
the module that they come from and the names, as in ``"monarch.actor: Actor old_name=name"``. Names
of features that do not exist here are left out: programs test for them with ``try: import``.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


class Address(NamedTuple):
    """What a module name of Monarch, such as ``monarch._src.actor.actor_mesh``, has here.

    It is another name of the module ``same_as``, or it has the names in ``groups``.
    """

    groups: tuple[str, ...] = ()
    #: The module of ours that the address is another name of.
    same_as: str = ""
    #: The module that programs should use, if the address is deprecated.
    instead: str = ""

    def names(self) -> dict[str, tuple[str, str]]:
        """Return, for each name in ``groups``, the module that has it here and its name there."""
        by_name: dict[str, tuple[str, str]] = {}
        for group in self.groups:
            home, _, names = group.partition(":")
            for word in names.split():
                name, _, attribute = word.partition("=")
                by_name[name] = (home, attribute or name)
        return by_name


@cache
def is_package(name: str) -> bool:
    return any(other.startswith(name + ".") for other in ADDRESSES)


_GEOMETRY = "monarch.mesh: Extent Point Region Shape Slice NDSlice=Slice MeshTrait ValueMesh"
_ACTORS = (
    "monarch.actor: Accumulator Actor ActorAddr ActorId=ActorAddr ActorError ActorMesh Channel "
    "ChannelTransport BindSpec Context Endpoint Future Instance MeshFailure Port PortReceiver "
    "RankedPortReceiver SupervisionError as_endpoint attach config context current_actor_name "
    "current_rank current_size enable_transport endpoint send shutdown_context"
)
_HOSTS = (
    "monarch.actor: HostMesh BootstrapCommand default_bootstrap_cmd this_host this_proc "
    "hosts_from_config",
    "monarch.compat.hosts: create_local_host_mesh fake_in_process_host host_mesh_from_alloc",
)
_PROCS = ("monarch.actor: ProcMesh get_or_spawn_controller local_proc_mesh proc_mesh",)
_ALLOCATORS = (
    "monarch.compat.alloc: Alloc AllocConstraints AllocHandle=Alloc AllocSpec LocalAllocator "
    "ProcessAllocator RemoteAllocator RemoteAllocInitializer StaticRemoteAllocInitializer "
    "TorchXRemoteAllocInitializer"
)
_WORKERS = (
    "monarch.actor: attach_to_workers run_worker_loop_forever run_worker_loop_until_shutdown "
    "start_worker_loop_forever"
)
_ENDPOINTS = (
    "monarch.actor.endpoint: EndpointProperty NotAnEndpoint",
    "monarch.compat.words: Propagator Selection",
)
_JOBS = (
    "monarch.job: BatchJob DEFAULT_JOB_PATH JobState JobTrait LocalJob LoginJob MeshAdminConfig "
    "PortForwarder ProcessJob SSHJob SlurmJob TelemetryConfig exec_command job_load "
    "job_loads load_current_job set_current_job shell",
    "monarch.job.kinds.process: ProcessState=HostProcess",
)
_CONFIG = (
    "monarch.config: Encoding clear_runtime_config configure configured get_configuration="
    "get_global_config get_global_config get_runtime_config parametrize_config "
    "parametrize_config_pointwise reset_config_to_defaults=clear_runtime_config"
)
_RDMA = (
    "monarch.rdma: RDMAAction RDMABuffer RDMAReadTransferWarning RDMATcpFallbackWarning "
    "RDMAWriteTransferWarning get_rdma_backend is_ibverbs_available is_rdma_available"
)
_SPMD = (
    "monarch.spmd: SPMDActor host_mesh_from_store setup_torch_elastic_env "
    "setup_torch_elastic_env_async"
)
_WORKSPACES = (
    "monarch.compat.launch: ACTIVE_CONDA_ENV CondaEnvironment Environment",
    "monarch_sync: Workspace",
)

_SRC: dict[str, Address] = {
    "": Address(),
    "actor": Address(),
    "actor.actor_mesh": Address(
        (
            _ACTORS,
            _GEOMETRY,
            *_ENDPOINTS,
            _CONFIG,
            "monarch.compat.actor_side: _client_context _context",
            "monarch.compat.words: IN_PAR",
            "monarch.compat.internals: ActorKind _actor_kind",
        )
    ),
    "actor.allocator": Address((_ALLOCATORS, "monarch.compat.alloc: ALLOC_LABEL_PROC_MESH_NAME")),
    "actor.bootstrap": Address((_WORKERS, "monarch.compat.words: CA PrivateKey")),
    "actor.channel": Address(("monarch.actor: Channel Port PortReceiver RankedPortReceiver",)),
    "actor.code_sync": Address(),
    "actor.code_sync.auto_reload": Address(same_as="monarch.compat.auto_reload"),
    "actor.concurrent": Address(same_as="monarch.actor.endpoint"),
    "actor.config": Address(same_as="monarch.actor.config"),
    "actor.debugger": Address(),
    "actor.debugger.debug_command": Address(same_as="monarch.compat.debug_command"),
    "actor.debugger.debug_controller": Address(same_as="monarch.compat.debug_controller"),
    "actor.debugger.debug_io": Address(same_as="monarch.compat.debug_io"),
    "actor.debugger.debug_session": Address(same_as="monarch.compat.debug_session"),
    "actor.device_utils": Address(("monarch.compat.hosts: _local_device_count",)),
    "actor.endpoint": Address(
        ("monarch.actor: Endpoint Future endpoint", "monarch.mesh: Extent", *_ENDPOINTS)
    ),
    "actor.future": Address(("monarch.actor: Future",)),
    "actor.host_mesh": Address(
        (
            *_HOSTS,
            "monarch.actor: HyHostMesh=HostMesh ProcMesh",
            _GEOMETRY,
            "monarch.compat.internals: _spawn_admin",
        )
    ),
    "actor.ipython_check": Address(("monarch.compat.actor_side: is_ipython",)),
    "actor.logging": Address(
        (
            "monarch.compat.words: _pending_flush_tasks",
            "monarch.compat.internals: LoggingManager flush_all_proc_mesh_logs",
        )
    ),
    "actor.mock": Address(same_as="monarch.compat.mock"),
    "actor.mpsc": Address(("monarch.compat.internals: Receiver",)),
    "actor.pickle": Address(("monarch.compat.internals: flatten unflatten",)),
    "actor.proc_mesh": Address(
        (
            *_PROCS,
            "monarch.actor: HostMesh HyProcMesh=ProcMesh",
            _GEOMETRY,
            "monarch.compat.hosts: _get_bootstrap_args get_active_proc_meshes "
            "register_proc_mesh_spawn_callback unregister_proc_mesh_spawn_callback",
        )
    ),
    "actor.returns_future": Address(("monarch.actor: returns_future",)),
    "actor.shape": Address((_GEOMETRY, "monarch.compat.geometry: ShapeExt Slices iter_ranks")),
    "actor.source_loader": Address(same_as="monarch.compat.source_loader"),
    "actor.supervision": Address(
        ("monarch.actor: MeshFailure SupervisionError unhandled_fault_hook",)
    ),
    "actor.sync_state": Address(("monarch.compat.actor_side: fake_sync_state in_fake_sync_state",)),
    "actor.telemetry": Address(
        (
            "monarch.actor: get_meter span traced",
            "monarch.compat.actor_side: METER TracingForwarder get_monarch_tracer",
        )
    ),
    "actor.v1": Address(("monarch.compat.words: enabled", *_HOSTS, *_PROCS)),
    "actor.v1.host_mesh": Address((*_HOSTS,)),
    "actor.v1.proc_mesh": Address((*_PROCS,)),
    "gather_mount": Address(),
    "gather_mount.gather_mount": Address(("monarch.job.mounts: GatherMount gather_mount",)),
    "job": Address(),
    "job._job_sidecar_worker": Address(("monarch.compat.internals: main",)),
    "job._telemetry_query_client": Address(
        ("monarch.observe.query: QueryEngineClient=QueryEngine",)
    ),
    "job._slurm_batch": Address(
        ("monarch.compat.words: subprocess", "monarch.compat.internals: main _run")
    ),
    "job.host_mesh": Address(("monarch.actor: hosts_from_config",)),
    "job.job": Address(
        (
            *_JOBS,
            "monarch.actor: attach",
            "monarch.compat.internals: BashActor stop_job_sidecar",
        )
    ),
    "job.job_components": Address(
        (
            "monarch.job: MeshAdminConfig TelemetryConfig",
            "monarch.compat.internals: JobComponent JobComponents JobContext MountComponent "
            "Telemetry _spawn_admin",
            "monarch.observe.query: QueryEngineClient=QueryEngine",
        )
    ),
    "job.job_sidecar": Address(
        (
            "monarch.actor: attach",
            "monarch.compat.words: _IN_PAR=IN_PAR socket",
            "monarch.compat.internals: ClearMountsRequest MountsRequest _run_job_sidecar "
            "create_job_sidecar ensure_job_sidecar job_sidecar_lock_path request_job_sidecar "
            "sidecar_transport_from_runtime spawn_module stop_job_sidecar",
        )
    ),
    "job.job_state": Address(("monarch.job: JobState",)),
    "job.kubernetes": Address(
        (
            "monarch.job.kinds.kubernetes: ImageSpec KubeConfig KubernetesJob",
            "monarch.compat.launch: _WORKER_BOOTSTRAP_SCRIPT",
        )
    ),
    "job.mount_config": Address(
        ("monarch.compat.internals: Mounts create_job_sidecar request_job_sidecar",)
    ),
    "job.port_forward": Address(("monarch.job: PortForwarder",)),
    "job.process": Address(
        (
            "monarch.job: JobState JobTrait ProcessJob",
            "monarch.job.kinds.process: ProcessState=HostProcess",
        )
    ),
    "job.process_guard": Address(
        ("monarch.compat.internals: ProcessGuard _Shutdown _wait_for_socket",)
    ),
    "job.service_identity": Address(
        (
            "monarch.job: SERVICE_PROC_IDS_ENV SERVICE_PROC_RANK_ENV deserialize_service_proc_ids "
            "new_service_proc_id ranked_service_proc_id_from_env serialize_service_proc_ids "
            "service_proc_addr service_proc_addrs",
        )
    ),
    "job.shell": Address(("monarch.job: shell",)),
    "job.slurm": Address(
        (
            "monarch.job: SlurmJob",
            "monarch.actor: attach_to_workers",
            "monarch.compat.words: subprocess",
        )
    ),
    "job.spmd": Address(same_as="monarch.compat.spmd_job"),
    "job.telemetry_config": Address(("monarch.job: TelemetryConfig",)),
    "rdma": Address((_RDMA,)),
    "rdma.rdma": Address((_RDMA,)),
    "spmd": Address((_SPMD,)),
    "spmd.actor": Address((_SPMD,)),
    "spmd.host_mesh": Address(
        (
            _SPMD,
            "monarch.spmd.store: StoreLike _spawn_worker_process=start_worker "
            "_worker_addr_key=worker_key",
            "monarch.compat.words: _IN_PAR=IN_PAR",
        )
    ),
    "tools": Address(),
    "tools.commands": Address(same_as="monarch.compat.commands"),
}

_INNER = "monarch.compat.internals: "
_HYPERACTOR: dict[str, Address] = {
    "": Address(),
    "actor": Address(
        (
            _INNER + "Actor ActorKind CallbacksPending DroppingPort MethodSpecifier PanicFlag "
            "PortProtocol PythonActorHandle PythonMessage PythonMessageKind QueuedMessage "
            "QueuedSupervision QueuedUndeliverable SyncCleanup SyncInbox UnflattenArg",
        )
    ),
    "actor_mesh": Address(
        (_INNER + "ActorMeshProtocol ActorSupervisionEvent PythonActorMesh hold_gil_for_test",)
    ),
    "alloc": Address((_ALLOCATORS,)),
    "buffers": Address((_INNER + "Buffer FrozenBuffer",)),
    "bootstrap": Address((_WORKERS,)),
    "channel": Address(
        ("monarch.actor: BindSpec ChannelTransport", "monarch.compat.hosts: ChannelAddr")
    ),
    "config": Address((_CONFIG, "monarch.compat.hosts: reload_config_from_env")),
    "context": Address(("monarch.actor: Instance",)),
    "endpoint": Address(("monarch.actor: Future",)),
    "handle": Address(
        (
            "monarch.actor.returns_future: WouldBlockRuntime",
            _INNER + "Handle _HandleCompleter _new_handle_pair",
        )
    ),
    "host_mesh": Address(
        ("monarch.actor: BootstrapCommand HostMesh", _INNER + "PyMeshAdminRef _spawn_admin")
    ),
    "logging": Address((_INNER + "LoggingMeshClient log_endpoint_exception",)),
    "mailbox": Address(
        (
            "monarch.runtime.cells.undelivered: UndeliverableMessageEnvelope=Undelivered",
            _INNER + "Mailbox OncePortHandle OncePortReceiver OncePortRef PortHandle PortId "
            "PortReceiver PortReceiverBase PortRef UndeliverablePortReceiver",
        )
    ),
    "pickle": Address(
        (
            _INNER + "PendingMessage PicklingState pickle _get_mesh_pop_count "
            "_get_pending_reserve_count _reset_mesh_pop_count _reset_pending_reserve_count",
        )
    ),
    "proc": Address(
        (
            "monarch.actor: ActorAddr ActorId=ActorAddr ProcId Uid",
            _INNER + "Proc Serialized init_proc",
        )
    ),
    "proc_mesh": Address(("monarch.actor: ProcMesh",)),
    "pympsc": Address((_INNER + "PyTestSender Receiver channel_for_test",)),
    "pytokio": Address(
        (
            "monarch.actor.returns_future: WouldBlockRuntime",
            "monarch.compat.words: is_tokio_thread=_is_in_tokio_runtime",
            _INNER + "Handle PythonTask Shared",
        )
    ),
    "runtime": Address(
        (
            "monarch.compat.words: _is_in_tokio_runtime",
            _INNER + "sleep_indefinitely_for_unit_tests",
        )
    ),
    "selection": Address((_INNER + "Selection",)),
    "shape": Address((_GEOMETRY,)),
    "supervision": Address(("monarch.actor: MeshFailure SupervisionError",)),
    "v1": Address(),
    "v1.host_mesh": Address(("monarch.actor: BootstrapCommand HostMesh",)),
    "v1.proc_mesh": Address(("monarch.actor: ProcMesh",)),
    "testing": Address((_INNER + "_PROBE_SUCCESS_VALUE _make_handle_probe _make_test_struct",)),
    "value_mesh": Address(("monarch.mesh: ValueMesh", _INNER + "_make_test_value_mesh")),
}

_TOOLS: dict[str, Address] = {
    "cli": Address(same_as="monarch.compat.command_line"),
    "colors": Address(same_as="monarch.compat.colors"),
    "commands": Address(same_as="monarch.compat.commands"),
    "components": Address(),
    "components.hyperactor": Address(("monarch.compat.commands: host_mesh",)),
    "config": Address((*_WORKSPACES, "monarch.compat.launch: NOT_SET Config")),
    "config.environment": Address(_WORKSPACES),
    "config.workspace": Address(_WORKSPACES),
    "debug_env": Address(same_as="monarch.compat.debug_controller"),
    "utils": Address(("monarch.compat.launch: MONARCH_HOME conda",)),
}


_ENGINE = "monarch.tensors."
_LOG = "log_remote set_logging_level_remote"
_RANDOM = _ENGINE + (
    "api.builtin_functions: set_manual_seed_remote get_rng_state_remote set_rng_state_remote "
    "random_seed_remote seed_remote initial_seed_remote manual_seed_cuda_remote "
    "manual_seed_all_cuda_remote get_rng_state_all_cuda_remote set_rng_state_all_cuda_remote"
)
_TENSORS: dict[str, Address] = {
    "_testing": Address(("monarch.compat.tensor_testing: BackendType TestingContext",)),
    "builtins": Address((_RANDOM, _ENGINE + "api.builtin_functions: " + _LOG)),
    "builtins.log": Address((_ENGINE + "api.builtin_functions: " + _LOG + " logger=_logger",)),
    "builtins.random": Address((_RANDOM,)),
    "cached_remote_function": Address(
        (_ENGINE + "api.autograd_functions: remote_autograd_function",)
    ),
    "common": Address(),
    "common._coalescing": Address(
        (
            _ENGINE + "api.recordings: coalescing is_active=is_coalescing",
            "monarch.compat.tensor_groups: CacheEntry=RecordedFunction "
            "_record_and_define=record_and_define compile",
        )
    ),
    "common.device_mesh": Address(
        (
            _ENGINE + "client.device_mesh: DeviceMesh RemoteProcessGroup",
            _ENGINE + "client.ambient: get_active_mesh no_mesh",
            _ENGINE + "api.trees: slice_mesh to_mesh",
        )
    ),
    "common.function": Address(
        (_ENGINE + "api.functions: resolvers=function_resolvers ResolvableFunctionFromPath",)
    ),
    "common.function_caching": Address(
        (
            "monarch.compat.tensor_groups: AliasOf PatternEntry Storage=OwnStorage TensorGroup "
            "TensorGroupPattern hashable_tensor_flatten",
        )
    ),
    "common.future": Address(("monarch.actor: Future",)),
    "common.invocation": Address((_ENGINE + "client.remote_exception: RemoteException",)),
    "common.borrows": Address((_ENGINE + "client.streams: Borrow",)),
    "common.opaque_ref": Address((_ENGINE + "api.opaque: OpaqueRef",)),
    "common.remote": Address(
        (
            _ENGINE + "api.remote: Remote call_on_shard_and_fetch remote",
            "monarch.compat.tensor_testing: _hit _miss",
        )
    ),
    "common.selection": Address(("monarch.compat.words: Selection",)),
    "common.stream": Address((_ENGINE + "client.ambient: Stream=TensorStream get_active_stream",)),
    "common.tensor": Address(
        (
            _ENGINE + "client.tensor: Tensor",
            _ENGINE + "client.collectives: MeshSliceTensor",
            _ENGINE + "api.trees: reduce reduce_ slice_mesh to_mesh",
        )
    ),
    "common.tree": Address(("monarch.compat.tensor_testing: flatten flattener tree_map",)),
    "fetch": Address(
        (
            _ENGINE + "api.trees: fetch_shard inspect show",
            _ENGINE + "api.remote: call_on_shard_and_fetch",
        )
    ),
    "gradient": Address((_ENGINE + "api.gradients: GradientGenerator",)),
    "gradient._gradient_generator": Address((_ENGINE + "api.gradients: GradientGenerator",)),
    "gradient_generator": Address(
        (
            _ENGINE + "api.gradients: GradientGenerator grad_function grad_generator "
            "gradient_execution_order",
        )
    ),
    "mesh_controller": Address(
        (
            _ENGINE + "client.remote_exception: RemoteException",
            _ENGINE + "engine: spawn_tensor_engine",
        )
    ),
    "opaque_module": Address((_ENGINE + "api.opaque: OpaqueModule",)),
    "opaque_object": Address((_ENGINE + "api.opaque: OpaqueObject opaque_method",)),
    "python_local_mesh": Address(("monarch.compat.tensor_testing: python_local_mesh",)),
    "random": Address(
        (_ENGINE + "api.random_state: State get_state make_deterministic new_state set_state",)
    ),
    "remote_class": Address(
        (
            _ENGINE + "api.remote_class: ControllerRemoteClass",
            _ENGINE + "worker.remote_classes: WorkerRemoteClass",
        )
    ),
    "worker": Address(),
    "worker._testing_function": Address(same_as="monarch.compat.tensor_functions"),
}


def _below(top: str, addresses: dict[str, Address]) -> dict[str, Address]:
    return {f"{top}.{name}".rstrip("."): address for name, address in addresses.items()}


ADDRESSES: dict[str, Address] = {
    **_below("monarch._src", _SRC),
    "monarch._rust_bindings": Address(("monarch.compat.words: has_tensor_engine",)),
    **_below("monarch._rust_bindings.monarch_hyperactor", _HYPERACTOR),
    "monarch._rust_bindings.monarch_extension": Address(),
    "monarch._rust_bindings.monarch_extension.blocking": Address((_INNER + "blocking_function",)),
    "monarch._rust_bindings.monarch_extension.panic": Address((_INNER + "panicking_function",)),
    "monarch._rust_bindings.hyperactor_extension": Address(),
    "monarch._rust_bindings.hyperactor_extension.alloc": Address((_ALLOCATORS,)),
    **_below("monarch", _TENSORS),
    **_below("monarch.tools", _TOOLS),
    "monarch.actor.alloc": Address(same_as="monarch.compat.alloc"),
    "monarch.actor.concurrent": Address(same_as="monarch.actor.endpoint"),
    "monarch.job.kubernetes": Address(same_as="monarch.job.kinds.kubernetes"),
    "monarch.job.process": Address(same_as="monarch.job.kinds.process"),
    "monarch.job.spmd": Address(same_as="monarch.compat.spmd_job"),
    "monarch.actor_mesh": Address((_ACTORS, _GEOMETRY), instead="monarch.actor"),
    "monarch.allocator": Address((_ALLOCATORS,)),
    "monarch.proc_mesh": Address((_ACTORS, *_PROCS, *_HOSTS, _GEOMETRY), instead="monarch.actor"),
    "monarch.experimental": Address(),
    "monarch.experimental.thread_timeout": Address(same_as="monarch.compat.thread_timeout"),
    "monarch.gather_mount": Address(("monarch.job.mounts: gather_mount",)),
    "monarch.remotemount": Address(("monarch.job.mounts: remotemount",)),
    "monarch.utils": Address(same_as="monarch.compat.utils"),
}
