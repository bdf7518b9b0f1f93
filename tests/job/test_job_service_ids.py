"""Names of workers that launchers choose."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from monarch.actor import attach_to_workers
from monarch.job import (
    SERVICE_PROC_IDS_ENV,
    SERVICE_PROC_RANK_ENV,
    deserialize_service_proc_ids,
    new_service_proc_id,
    ranked_service_proc_id_from_env,
    serialize_service_proc_ids,
    service_proc_addr,
    service_proc_addrs,
)
from tests.actors import Echo


def test_a_list_of_names_travels_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [new_service_proc_id() for _ in range(3)]
    assert len(set(names)) == 3
    text = serialize_service_proc_ids(names)
    assert deserialize_service_proc_ids(text) == names
    assert ranked_service_proc_id_from_env() is None
    monkeypatch.setenv(SERVICE_PROC_IDS_ENV, text)
    assert ranked_service_proc_id_from_env() is None, "which one is not said"
    monkeypatch.setenv(SERVICE_PROC_RANK_ENV, "1")
    assert ranked_service_proc_id_from_env() == names[1]
    monkeypatch.setenv("SLURM_NODEID", "2")
    assert ranked_service_proc_id_from_env(rank_env="SLURM_NODEID") == names[2]


def test_each_address_has_its_name() -> None:
    names = [new_service_proc_id(), new_service_proc_id()]
    urls = ["tcp://a:1", "tcp://b:1"]
    assert service_proc_addrs(urls, names) == [f"{names[0]}@tcp://a:1", f"{names[1]}@tcp://b:1"]
    assert service_proc_addrs(urls, None) == urls
    assert service_proc_addr("tcp://a:1", None) == "tcp://a:1"
    with pytest.raises(ValueError, match="2 addresses of workers, but 1 names"):
        service_proc_addrs(urls, names[:1])


def test_a_worker_with_a_name_is_attached_to(tmp_path: Path) -> None:
    address = service_proc_addr(f"ipc://{tmp_path}/w", new_service_proc_id())
    code = (
        "import sys; from monarch.actor import run_worker_loop_forever\n"
        "run_worker_loop_forever(address=sys.argv[1], ca='trust_all_connections')"
    )
    worker = subprocess.Popen([sys.executable, "-c", code, address])
    try:
        hosts = attach_to_workers(ca="trust_all_connections", workers=[address])
        echo = hosts.spawn_procs().spawn("echo", Echo)
        assert echo.pid.call_one().get(timeout=30) not in (0, worker.pid)
        hosts.shutdown().get(timeout=30)
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
