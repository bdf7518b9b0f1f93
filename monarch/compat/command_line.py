"""Monarch's command line as an ``argparse`` parser, at ``monarch.tools.cli``.

It is for programs that build on it. The command itself is ``monarch.cli``, which can do more.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.resources import files

from monarch.compat.commands import (
    apply_job,
    context_create,
    context_ls,
    context_rm,
    context_use,
    debug,
    exec_on_job,
    kill_job,
    shell_on_job,
)

_META = "MAST is a scheduler of Meta's own, which this release does not know"


def get_parser() -> argparse.ArgumentParser:
    """Return the parser of these commands.

    Parsed arguments have ``func``, which runs the command when it is called with them.
    """
    parser = argparse.ArgumentParser(
        prog="monarch",
        description=files("monarch.tools").joinpath("SKILL.md").read_text(encoding="utf-8"),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="COMMANDS")

    apply = commands.add_parser("apply", help="bring the hosts of a job up")
    apply.add_argument(
        "module_path", nargs="?", help="MODULE.NAME of a job [default: the context's]"
    )
    apply.set_defaults(func=lambda args: apply_job(args.module_path))

    run = commands.add_parser("exec", help="run a command on hosts of the job")
    target = run.add_mutually_exclusive_group()
    target.add_argument("--all", action="store_true", dest="run_all", help="on all hosts")
    target.add_argument("--mesh", metavar="NAME", help="on all hosts of a mesh")
    target.add_argument("--one", action="store_true", help="on the first host [default]")
    target.add_argument("--point", metavar="DIM=N,DIM=N", help="at these coordinates")
    run.add_argument("--per-host", metavar="DIM=N", help="so many processes on each host")
    run.add_argument("--script", metavar="FILE", help="run a file's text by bash; '-': stdin")
    run.add_argument("-m", dest="module", metavar="MODULE", help="run a Python module")
    _add_process_options(run)
    run.add_argument("cmd", nargs=argparse.REMAINDER, help="the command, with its arguments")
    run.set_defaults(func=_exec)

    shell = commands.add_parser("shell", help="a shell on a host of the job")
    shell.add_argument("--mesh", metavar="NAME", help="the mesh of the host [default: the first]")
    shell.add_argument(
        "--point", metavar="DIM=N,DIM=N", help="its coordinates [default: the first]"
    )
    _add_process_options(shell)
    shell.set_defaults(func=_shell)

    kill = commands.add_parser("kill", help="end the allocation")
    kill.add_argument("name", nargs="?", help="of this context [default: the one in use]")
    kill.set_defaults(func=lambda args: kill_job(args.name))

    context = commands.add_parser("context", help="several allocations in one folder")
    contexts = context.add_subparsers(required=True)
    for name, act in (("create", context_create), ("use", context_use), ("rm", context_rm)):
        action = contexts.add_parser(name)
        action.add_argument("name")
        action.set_defaults(func=lambda args, act=act: act(args.name))
    contexts.add_parser("ls").set_defaults(func=lambda args: context_ls())

    console = commands.add_parser("debug", help="the console of held calls")
    console.add_argument("--host", default=os.environ.get("MONARCH_DEBUG_SERVER_HOST", "localhost"))
    console.add_argument(
        "--port", type=int, default=int(os.environ.get("MONARCH_DEBUG_SERVER_PORT") or 27000)
    )
    console.set_defaults(func=lambda args: debug(args.host, args.port))

    dashboard = commands.add_parser("dashboard", help="Meta's own")
    mast = dashboard.add_subparsers(required=True).add_parser("mast")
    mast.add_argument("job")
    mast.add_argument("--role-name")
    mast.add_argument("--dashboard-port", type=int, default=8265)
    mast.set_defaults(func=lambda args: sys.exit(f"monarch: {_META}: `monarch dashboard`"))
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command of the arguments, by default this program's."""
    parser = get_parser()
    args = parser.parse_args(argv)
    if not hasattr(args, "func"):
        parser.print_help()
        sys.exit(1)
    args.func(args)


def _add_process_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-e", "--env", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--workdir", help="the folder that it begins in")
    parser.add_argument(
        "--kill", dest="kills", action="store_true", help="end the allocation afterwards"
    )


def _exec(args: argparse.Namespace) -> None:
    command = args.cmd[1:] if args.cmd[:1] == ["--"] else args.cmd
    if args.module:
        command = ["-m", args.module, *command]
    if not command and args.script is None:
        sys.exit("monarch exec: give a command, -m MODULE or --script FILE")
    dim, _, number = (args.per_host or "").partition("=")
    _leave_with(
        exec_on_job(
            command,
            run_all=args.run_all,
            mesh_name=args.mesh,
            point_str=args.point,
            env=args.env or None,
            workdir=args.workdir,
            kill=args.kills,
            script=args.script,
            per_host={dim.strip(): int(number)} if dim else None,
        )
    )


def _shell(args: argparse.Namespace) -> None:
    _leave_with(
        shell_on_job(
            mesh_name=args.mesh,
            point_str=args.point,
            env=args.env or None,
            workdir=args.workdir,
            kill=args.kills,
        )
    )


def _leave_with(status: int) -> None:
    if status:
        sys.exit(status)
