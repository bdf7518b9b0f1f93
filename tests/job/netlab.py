"""Machines with addresses, links, files and processes of their own, all of them on this one.

Each is a set of namespaces over a copy-on-write view of this machine's files, with an sshd that
lets the others in. Killing its first process is a machine that crashes; its link has a delay, a
rate and a loss, and can be cut and healed. Nothing of it has a route out. Needs root, and a kernel
that allows namespaces, TAP devices and overlays.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.job.cleaner import clean_up_after_us
from tests.support import wait_for

_SWITCH = Path(__file__).with_name("netlab_switch.py")
_NET = "198.18.0"
_INIT = """
set -e
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir={base}/up,workdir={base}/work {base}/root
cd {base}/root
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs tmpfs dev/shm
mount -t tmpfs -o mode=1777 tmpfs tmp
mount -t tmpfs tmpfs run
mkdir -p run/sshd .old
cp {base}/hosts etc/hosts
mkdir -p root/.ssh
cp {base}/ssh/* root/.ssh/
chmod 700 root/.ssh
chmod 600 root/.ssh/*
pivot_root . .old
umount -l /.old
hostname {name}
/usr/sbin/sshd -f /root/.ssh/sshd_config
touch /run/up
sleep infinity & wait
"""


# The switch ends by itself, as the other end of its input does.
_AFTERWARDS = """
for space in {spaces}; do
    ip netns pids "$space" | xargs -r kill -9
    ip netns del "$space"
done
grep " $folder/" /proc/mounts | cut -d' ' -f2 | xargs -r -n 1 umount -l
"""


class NetLab:
    """Hosts h0 to hN; h0 is for programs that drive the others. Skips the test where that cannot
    be made. ``folder`` must have a short path."""

    def __init__(self, folder: Path, num_hosts: int) -> None:
        _check()
        self.folder = folder
        self.names = [f"h{number}" for number in range(num_hosts + 1)]
        self._mark = f"mt{os.getpid()}"
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        self._switch: subprocess.Popen[bytes] | None = None
        self._mounts: list[Path] = []
        clean_up_after_us(folder, _AFTERWARDS.format(spaces=" ".join(map(self._space, self.names))))
        try:
            self._make()
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = getattr(error, "stderr", b"") or b""
            pytest.skip(f"namespaces cannot be made here: {said.decode().strip() or error}")
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        for key in ("id", "hostkey"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key))
        for name in self.names:
            _run("ip", "netns", "add", self._space(name))
        control = self.folder / "control"
        self._switch = subprocess.Popen(
            [sys.executable, str(_SWITCH), str(control), *map(self._space, self.names)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert self._switch.stdout is not None
        if self._switch.stdout.readline() != b"ready\n":
            raise OSError("no TAP devices")
        for name in self.names:
            space = self._space(name)
            _run("ip", "-n", space, "link", "set", "lo", "up")
            _run("ip", "-n", space, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            self._boot(name)
        for name in self.names:
            wait_for(lambda name=name: self._is_up(name), what=f"{name} to boot")  # type: ignore[misc]

    def _boot(self, name: str) -> None:
        base = self.folder / name
        base.mkdir(exist_ok=True)
        _run("mount", "-t", "tmpfs", "tmpfs", str(base))
        self._mounts.append(base)
        for part in ("up", "work", "root", "ssh"):
            (base / part).mkdir()
        hosts = "".join(f"{self.address(other)} {other}\n" for other in self.names)
        (base / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
        ssh, public = base / "ssh", (self.folder / "hostkey.pub").read_text().split()[:2]
        shutil.copy(self.folder / "id", ssh / "id_ed25519")
        shutil.copy(self.folder / "id.pub", ssh / "authorized_keys")
        shutil.copy(self.folder / "hostkey", ssh / "hostkey")
        (ssh / "known_hosts").write_text(
            "".join(f"{other},{self.address(other)} {' '.join(public)}\n" for other in self.names)
        )
        (ssh / "sshd_config").write_text(
            f"ListenAddress {self.address(name)}\nHostKey /root/.ssh/hostkey\nPidFile none\n"
            "PermitRootLogin prohibit-password\nPasswordAuthentication no\nUsePAM no\n"
            "StrictModes no\nMaxStartups 100\nSubsystem sftp internal-sftp\n"
        )
        with open(base / "log", "wb") as log:
            self._inits[name] = subprocess.Popen(
                ["ip", "netns", "exec", self._space(name), "unshare", "-m", "-u", "-i", "-p", "-f",
                 "--kill-child", "sh", "-c", _INIT.format(base=base, name=name)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def _is_up(self, name: str) -> bool:
        if self._inits[name].poll() is not None:
            raise OSError((self.folder / name / "log").read_text())
        with contextlib.suppress(subprocess.CalledProcessError, OSError, IndexError):
            _run(*self.inside(name, ["test", "-e", "/run/up"]))
            return True
        return False

    def _space(self, name: str) -> str:
        return f"{self._mark}{name}"

    def address(self, name: str) -> str:
        return f"{_NET}.{10 + int(name[1:])}"

    def _first(self, name: str) -> int:
        """The pid of a host's first process, as it is out here."""
        parent = self._inits[name].pid
        children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        return int(children[0])

    def inside(self, name: str, command: Sequence[str]) -> list[str]:
        """The command that runs another one on a host."""
        first = str(self._first(name))
        # With no more of this program's environment than a login has: its files are its own.
        return [
            "nsenter", "-t", first, "-m", "-u", "-i", "-n", "-p", "--", "env", "-i", "HOME=/root",
            "MONARCH_TRUST=1",
            f"PATH={os.environ['PATH']}:/usr/sbin", *command,
        ]  # fmt: skip

    def start(self, name: str, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(self.inside(name, command), text=True, **options)

    def run(self, name: str, command: Sequence[str], **options: Any) -> str:
        """Returns the output of a command on a host. Raises ``CalledProcessError``."""
        done = subprocess.run(
            self.inside(name, command), text=True, check=True, capture_output=True, **options
        )
        return done.stdout

    def link(self, name: str, *, delay: float = 0.0, rate: float = 0.0, loss: float = 0.0) -> None:
        """A host's link: seconds and bytes a second, each way, and the part that is lost."""
        change = {"port": self._space(name), "delay": delay, "rate": rate, "loss": loss}
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.sendto(json.dumps(change).encode(), str(self.folder / "control"))

    def crash(self, name: str) -> None:
        """All of its processes end, at once and without a word."""
        os.kill(self._first(name), signal.SIGKILL)
        self._inits[name].wait()

    def revive(self, name: str) -> None:
        """Boot a host that has crashed, with empty disks; its link is as it was."""
        if self._inits[name].poll() is None:
            return
        base = self.folder / name
        subprocess.run(["umount", "-l", str(base)], check=True, capture_output=True)
        self._mounts.remove(base)
        self._boot(name)
        wait_for(lambda: self._is_up(name), what=f"{name} to boot")

    def write(self, name: str, path: str, text: str) -> None:
        """Make a file on a host, and its folder."""
        self.run(name, ["sh", "-c", 'mkdir -p "$(dirname "$0")"; cat > "$0"', path], input=text)

    def close(self) -> None:
        for name, init in self._inits.items():
            # All other processes of a host end with its first, which its parent waits for.
            try:
                os.kill(self._first(name), signal.SIGKILL)
            except (OSError, IndexError):
                init.kill()
            init.wait()
        if self._switch is not None:
            assert self._switch.stdin is not None
            assert self._switch.stdout is not None
            self._switch.stdin.close()
            self._switch.wait()
            self._switch.stdout.close()
        for path in self._mounts:
            subprocess.run(["umount", "-l", str(path)], check=False, capture_output=True)
        for name in self.names:
            space = self._space(name)
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


def _check() -> None:
    if os.getuid() != 0:
        pytest.skip("hosts in namespaces need root")
    wanted = {"ip": "iproute2", "sshd": "openssh-server", "ssh": "openssh-client"}
    path = f"{os.environ['PATH']}:/usr/sbin:/sbin"
    for program, package in wanted.items():
        if shutil.which(program, path=path) is None:
            pytest.skip(f"no {program} here: `tools/system.sh` installs {package}")
    if not os.path.exists("/dev/net/tun"):
        pytest.skip("no /dev/net/tun here: hosts in namespaces need TAP devices")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
