"""A real sshd on loopback, with keys and settings of its own, none of the machine's."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from monarch.tools.network import free_port
from tests.guard import write_guard
from tests.job.cleaner import clean_up_after_us
from tests.support import GUARD_FOLDER, wait_for

_SEPARATION = Path("/run/sshd")  # where root's sshd confines the part that speaks to strangers


class Sshd:
    """``config`` is for ``ssh -F``: every name that begins with "gpu" is this machine, by the
    user's own account. Skips the test where there is no sshd."""

    def __init__(self, folder: Path) -> None:
        program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None or shutil.which("ssh") is None:
            pytest.skip("no sshd here: `tools/system.sh` installs openssh-server")
        if os.getuid() == 0 and not _SEPARATION.exists():
            pytest.skip(f"no {_SEPARATION} here: `tools/system.sh` makes it")
        self.folder = folder
        self.port = free_port()
        self.config = folder / "config"
        self.known_hosts = folder / "known_hosts"
        self.host_key = self.make_key("host_key")
        self.key = self.make_key("key")
        (folder / "authorized_keys").write_text(self.key.with_suffix(".pub").read_text())
        self.trust(self.host_key)
        # A login has an environment of its own: tell it what the tests' processes have.
        env = {
            "MONARCH_RUNTIME_DIR": os.environ["MONARCH_RUNTIME_DIR"],
            "PYTHONPATH": str(GUARD_FOLDER),
            **{name: os.environ[name] for name in (write_guard.ROOTS, write_guard.REPORT)},
        }
        self._running = folder / "running"
        self._running.mkdir()
        clean_up_after_us(self._running, 'kill $(cat "$folder/pid")')
        settings = folder / "sshd_config"
        settings.write_text(
            f"ListenAddress 127.0.0.1:{self.port}\nHostKey {self.host_key}\n"
            f"PidFile {self._running}/pid\nAuthorizedKeysFile {folder}/authorized_keys\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nMaxStartups 100\n"
            f"SetEnv {' '.join(f'{name}={value}' for name, value in env.items())}\n"
        )
        self.config.write_text(
            f"Host gpu*\n  HostName 127.0.0.1\n  Port {self.port}\n  IdentityFile {self.key}\n"
            f"  IdentitiesOnly yes\n  UserKnownHostsFile {self.known_hosts}\n"
            "  HostKeyAlias monarch-tests\n"
        )
        self._log = folder / "sshd.log"
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [program, "-D", "-e", "-f", str(settings)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        wait_for(self._listens, what="sshd to listen")

    def make_key(self, name: str) -> Path:
        key = self.folder / name
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        return key

    def trust(self, host_key: Path) -> None:
        """Note the key by which the user knows the host."""
        kind, key, *_ = host_key.with_suffix(".pub").read_text().split()
        self.known_hosts.write_text(f"monarch-tests {kind} {key}\n")

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            return True
        return False

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        shutil.rmtree(self._running)
