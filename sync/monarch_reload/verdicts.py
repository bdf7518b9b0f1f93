"""The result of a reload: a verdict for every module, warnings about edited functions, and the
caches that may contain results of old code."""

from __future__ import annotations

import ast
import contextlib
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import FunctionType

from msgspec.structs import replace

from monarch_reload.at_start import (
    counts_from_next_start,
    helpers_of_the_start,
    makes_torch_modules,
)
from monarch_reload.live.patch import parts_of
from monarch_reload.plan.code_warnings import CodeWarnings
from monarch_reload.plan.dirty_marks import DirtyMark, EditPlan
from monarch_reload.report import ModuleVerdict, ReloadReport
from monarch_reload.source.source import ModuleSource, RunningSources


def judge(
    report: ReloadReport,
    plan: EditPlan,
    running: RunningSources,
    changed: Mapping[str, ModuleSource],
    *,
    refused: Mapping[str, Mapping[str, str]],
    patched: Collection[FunctionType],
    moved: Collection[str],
) -> None:
    """Fill in the report, its verdicts included, from the plan.

    ``refused`` has the classes of each module that cannot change in place, with the reasons;
    ``patched`` are the functions that get new code, ``moved`` the names of classes that moved.
    """
    verdicts = report.verdicts
    for name, module_plan in plan.modules.items():
        path = running[name].path
        if name not in changed and not module_plan.run:
            continue
        statements = [module_plan.edit.new[index] for index in sorted(module_plan.run)]
        reran = [s for s in statements if not (s.is_definition or s.is_import)]
        reasons = refused.get(name, {})
        report.modules.append(name)
        report.reran += [f"{name}:{s.first} {s.title}" for s in reran]
        report.classes += [
            f"{name}.{s.name}" for s in statements if s.is_class and s.name not in reasons
        ]
        if reasons:
            why = "; ".join(f"{cls}: {reason}" for cls, reason in reasons.items())
            verdict = ModuleVerdict(name, path, "respawn", why, tuple(reasons))
        elif reran:
            lines = ", ".join(str(statement.first) for statement in reran)
            verdict = ModuleVerdict(name, path, "rerun", f"statements at lines {lines} run again")
        else:
            why = "definitions change in place" if name in changed else "follows an import"
            verdict = ModuleVerdict(name, path, "patch", why)
        verdicts[name] = verdict
    for function in patched:
        qualname = function.__qualname__
        report.functions.append(f"{function.__module__}.{qualname}")
        if counts_from_next_start(function):
            report.at_start.append(report.functions[-1])
        owner = qualname.rpartition(".")[0]
        if owner and "<locals>" not in owner:
            report.classes.append(f"{function.__module__}.{owner}")
    report.classes += moved
    report.at_start += _makers_that_come_or_go(plan, changed)
    report.at_start += _actions_of_scripts(plan, running, changed)
    report.functions = sorted(set(report.functions))
    # Code that cannot be analysed gets no warnings.
    with contextlib.suppress(SyntaxError, ValueError, RecursionError):
        report.at_start += _helpers(plan, running, changed, patched)
    report.at_start = sorted(set(report.at_start))
    report.classes = sorted(set(report.classes))
    for owner in report.classes:
        module = next((n for n in verdicts if owner.startswith(f"{n}.")), None)
        if module is not None and verdicts[module].action in ("patch", "rerun"):
            class_name = owner.removeprefix(f"{module}.")
            classes = (*verdicts[module].classes, class_name)
            verdicts[module] = replace(verdicts[module], classes=classes)


def _makers_that_come_or_go(plan: EditPlan, changed: Mapping[str, ModuleSource]) -> Iterator[str]:
    """Yield the names of the `__init__` methods that torch module classes have gained or lost."""
    for name in changed:
        edit = plan.modules[name].edit
        for index, statement in enumerate(edit.new):
            if not statement.is_class or index in edit.alignment.same:
                continue
            live = vars(sys.modules[name]).get(str(statement.name))
            if isinstance(live, type) and makes_torch_modules(live):
                has_one = any("__init__" in member.binds for member in statement.body)
                if has_one != ("__init__" in vars(live)):
                    yield f"{name}.{statement.name}.__init__"


def _actions_of_scripts(
    plan: EditPlan, running: RunningSources, changed: Mapping[str, ModuleSource]
) -> Iterator[str]:
    """Yield the edited statements of scripts that run only once and are not run again, such as a
    training loop."""
    for name in changed:
        edit = plan.modules[name].edit
        for index, statement in enumerate(edit.new):
            if edit.never_runs(statement) and index not in edit.alignment.same:
                file = os.path.basename(running[name].path)
                yield f"{file}:{statement.first}: `{statement.title}`"


def _helpers(
    plan: EditPlan,
    running: RunningSources,
    changed: Mapping[str, ModuleSource],
    patched: Collection[FunctionType],
) -> Iterator[str]:
    """Yield the edited functions and values that only code at the start of a run uses."""
    functions = [
        (function.__module__, function.__qualname__)
        for function in patched
        if "." not in function.__qualname__ and not counts_from_next_start(function)
    ]
    values = [
        (name, *statement.binds)
        for name, module_plan in plan.modules.items()
        for statement in (module_plan.edit.new[index] for index in sorted(module_plan.run))
        if isinstance(statement.node, (ast.Assign, ast.AnnAssign)) and len(statement.binds) == 1
    ]
    if functions or values:
        sources = dict(running.running()) | dict(changed)
        yield from helpers_of_the_start(sources, functions, values)  # type: ignore[arg-type]


def warnings_of(
    plan: EditPlan,
    running: RunningSources,
    changed: Mapping[str, ModuleSource],
    namespaces: Mapping[str, Mapping[str, object]],
) -> Iterator[str]:
    """Yield warnings about edited definitions: undefined names, calls that do not fit the function.

    ``namespaces`` are the new namespaces of edited modules.
    """

    def source_of(name: str) -> ModuleSource | None:
        if name in changed:
            return changed[name]
        return running[name] if name in running else None  # noqa: SIM401  no mapping

    def names_of(name: str) -> Mapping[str, object]:
        module = sys.modules.get(name)
        # `vars` would import a lazy one.
        live = object.__getattribute__(module, "__dict__") if module is not None else {}
        return {**live, **namespaces.get(name, {})}

    for name, source in changed.items():
        edit = plan.modules[name].edit
        # Code that cannot be analysed gets no warnings.
        with contextlib.suppress(SyntaxError, ValueError, RecursionError):
            yield from CodeWarnings(edit, source, source_of, names_of)


def caches_of(plan: EditPlan) -> Iterator[Callable[[], None]]:
    """Yield the ``cache_clear`` of each cached function that behaves differently now. A function
    that only calls an edited one keeps its cache."""
    for name, module_plan in plan.modules.items():
        module = sys.modules[name]
        touched = {b for i in module_plan.twin for b in module_plan.edit.new[i].binds}
        # The cache of a function that only calls an edited one may hold a loaded model: it stays.
        marked = {key for key, mark in module_plan.marks.items() if mark is not DirtyMark.CALLING}
        for key in touched | marked:
            for part in parts_of(vars(module).get(key), name):
                if not isinstance(part, type) and callable(getattr(part, "cache_clear", None)):
                    yield part.cache_clear
