"""Jobs on hosts that are reached with the user's own ``ssh``."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from monarch.errors import JobError
from monarch.job.job import JobTrait
from monarch.job.kinds.login import LoginJob
from monarch.job.kinds.remote import GatewayLogin

_CONNECT_SECONDS = 10


class SSHJob(LoginJob):
    """``job = SSHJob(); job.add_mesh("trainers", ["gpu1", "gpu2"])``

    ``ssh`` is the one on the path, with the user's configuration, agent and jump hosts; it does not
    ask for passwords. ``ssh_args`` come before the host. ``python_exe`` is the Python to use there,
    3.10 or later: if it has no monarch, or another version, it gets ours. Each host listens at
    ``monarch_port`` (0: any free port), on the interface at which ssh arrives; ``transport`` is
    "tcp". ``env`` is added to the hosts' environment, ``preload`` names modules that each imports
    ahead.

    ``gateway`` is the only machine that this one reaches, a host of the job or another: ssh jumps
    over it to the hosts, and all messages pass through one connection to it. If ssh has a jump host
    or a proxy command for a host, the first host is the gateway by default.
    """

    kind = "ssh"

    def __init__(
        self,
        python_exe: str = "python",
        ssh_args: Sequence[str] = (),
        monarch_port: int = 22222,
        transport: str = "tcp",
        *,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
        gateway: str | None = None,
    ) -> None:
        if transport != "tcp":
            raise ValueError(f"transport {transport!r}: hosts are reached over 'tcp'")
        super().__init__(python_exe, monarch_port, env=env, preload=preload)
        self.ssh_args = list(ssh_args)
        self.gateway = gateway

    def _gateway_login(self) -> GatewayLogin | None:
        names = [name for hosts in self.names.values() for name in hosts]
        gateway = self.gateway
        if gateway is None:
            # If ssh itself needs a jump host, so does everything else. The jump host may have no
            # Python; a host of the job has.
            gateway = next((names[0] for name in names if self._is_behind(name)), None)
        if gateway is None:
            return None
        python = self.python_exe if gateway in names else "python3"
        return GatewayLogin(gateway, self._login(gateway), python)

    def _is_behind(self, host: str) -> bool:
        settings = self._settings(host)
        return any(settings.get(key, "none") != "none" for key in ("proxyjump", "proxycommand"))

    def _login(self, host: str) -> list[str]:
        # ssh uses the first value of an option: the user's arguments precede ours, and his files
        # come last.
        options = ["-o", "BatchMode=yes"]
        if "connecttimeout" not in self._settings(host):
            options += ["-o", f"ConnectTimeout={_CONNECT_SECONDS}"]
        if self.gateway not in (None, host) and not self._is_behind(host):
            options += ["-J", str(self.gateway)]
        return ["ssh", "-T", *self.ssh_args, *options, "--", host]

    def _address(self, host: str) -> str:
        address = self._settings(host)["hostname"]
        if ":" in address:
            raise JobError(f"{host}: {address} is an IPv6 address; hosts are reached over IPv4")
        return address

    def _why_unreachable(self, host: str) -> str:
        login = self._gateway_login()
        if login is not None:
            return f"is there a firewall? {login.name}, which is the gateway, must reach that port"
        return super()._why_unreachable(host)

    def _settings(self, host: str) -> dict[str, str]:
        return _settings_for(host, tuple(self.ssh_args))

    def take_ways(self, now: JobTrait) -> None:
        super().take_ways(now)
        if isinstance(now, SSHJob):
            self.ssh_args, self.gateway = now.ssh_args, now.gateway

    def _wanted(self) -> dict[str, Any]:
        return super()._wanted() | {"ssh_args": self.ssh_args, "gateway": self.gateway}


@functools.lru_cache(maxsize=1024)
def _settings_for(host: str, ssh_args: tuple[str, ...]) -> dict[str, str]:
    """Return the settings that ``ssh`` would use for a host, from its files, without connecting."""
    try:
        result = subprocess.run(
            ["ssh", *ssh_args, "-G", "--", host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise JobError(
            f"cannot run `ssh`: {reason}. A job of kind ssh needs an OpenSSH client on the path"
        ) from None
    if result.returncode != 0:
        raise JobError(f"{host}: {result.stderr.strip() or 'ssh refuses its settings'}")
    settings: dict[str, str] = {}
    for line in result.stdout.splitlines():
        key, space, value = line.partition(" ")
        if space:
            settings.setdefault(key, value)
    if settings.get("connecttimeout") == "none":
        del settings["connecttimeout"]
    return settings
