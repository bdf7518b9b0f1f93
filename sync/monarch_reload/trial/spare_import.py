"""Imports a new state of some files in a fresh interpreter, and writes down the result.

Run as a script, with the paths of a description and of the answer. It imports nothing of ours,
because a module that it imports would be loaded before the code on trial.
"""

# mypy: ignore-errors

import importlib
import importlib.util
import json
import os
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader


class NewText(SourceFileLoader):
    """Loads a module from its new text, which is not at the module's file yet but at ``text_path``.
    The commit will move it there.
    """

    def __init__(self, name, path, text_path):
        super().__init__(name, path)
        self.place = text_path

    def get_data(self, path):
        with open(self.place, "rb") as file:
            return file.read()

    def get_code(self, fullname):
        return self.source_to_code(self.get_data(self.path), self.path)


class NewStateFinder:
    """A finder of the new state's files. ``files`` has, by real path, the path of each file's text,
    or None for a deleted file."""

    def __init__(self, files):
        self.files = files
        self.folders = {
            folder for path, text_path in files.items() if text_path for folder in above(path)
        }

    def find_spec(self, fullname, path=None, target=None):
        last = fullname.rpartition(".")[2]
        portions, is_gone = [], False
        for folder in sys.path if path is None else path:
            base = os.path.join(os.path.realpath(folder or os.getcwd()), last)
            for candidate, inside in (
                (os.path.join(base, "__init__.py"), [base]),
                (f"{base}.py", None),
            ):
                if self.files.get(candidate):
                    loader = NewText(fullname, candidate, self.files[candidate])
                    return importlib.util.spec_from_file_location(
                        fullname, candidate, loader=loader, submodule_search_locations=inside
                    )
            spec = PathFinder.find_spec(fullname, [folder])
            if spec is not None and spec.origin and os.path.realpath(spec.origin) in self.files:
                spec, is_gone = None, True
            if spec is not None and spec.loader is not None and spec.origin:
                return spec
            if base in self.folders or os.path.isdir(base):
                portions.append(base)
        if not portions and is_gone:  # else a later finder would find the old file
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        if not portions:
            return None
        spec = ModuleSpec(fullname, None, is_package=True)
        spec.submodule_search_locations = portions
        return spec


def above(path):
    while os.path.dirname(path) != path:
        path = os.path.dirname(path)
        yield path


def place_of(error, files):
    """Return (file, line, column) of an error, in a file of ``files`` if one is in the traceback;
    all None if the error has no place. The column is known only for a SyntaxError."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno, error.offset
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<frozen") and frame.filename != __file__
    ]
    ours = [frame for frame in frames if os.path.realpath(frame.filename) in files]
    if not frames:
        return None, None, None
    frame = (ours or frames)[-1]
    return frame.filename, frame.lineno, None


def main(description, answer):
    with open(description, encoding="utf-8", errors="surrogateescape") as file:
        state = json.load(file)
    sys.path[:] = state["path"]
    sys.argv[:] = state["argv"]
    sys.dont_write_bytecode = True
    files = state["files"]
    at = next(
        (i for i, finder in enumerate(sys.meta_path) if finder is PathFinder), len(sys.meta_path)
    )
    sys.meta_path.insert(at, NewStateFinder(files))
    failure = {}
    for name, path in state["modules"]:
        try:
            if importlib.util.find_spec(name) is None:
                spec = importlib.util.spec_from_file_location(name, path)
                sys.modules[name] = importlib.util.module_from_spec(spec)
                spec.loader.exec_module(sys.modules[name])
            else:
                importlib.import_module(name)
        except BaseException as error:
            where, line, column = place_of(error, files)
            text = getattr(error, "msg", None) if isinstance(error, SyntaxError) else str(error)
            failure = {
                "module": name,
                "message": f"{type(error).__name__}: {text}",
                "path": where,
                "line": line,
                "column": column,
                "traceback": "".join(
                    traceback.format_exception(type(error), error, error.__traceback__)
                ),
            }
            break
    with open(f"{answer}.part", "w", encoding="utf-8", errors="surrogateescape") as file:
        json.dump(failure, file)
    os.replace(f"{answer}.part", answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
    os._exit(0)  # ends all threads that it has started
