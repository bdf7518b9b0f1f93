"""What comes along with a workspace: editable installs, and the packages of its lock file."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import zipfile
from pathlib import Path

import pytest

from monarch.actor import Actor, HostMesh, endpoint
from monarch.job import ProcessJob
from monarch.runtime.workspace.environment import (
    FOLDER,
    EnvironmentFailed,
    HostPython,
    build,
    installed,
    python_tag,
)
from monarch.runtime.workspace.lock_files import needs_of
from monarch_sync import Workspace
from monarch_sync.editable import editable_folders, editable_installs
from tests.workspace.conftest import Project, replica_of


class Importer(Actor):
    @endpoint
    def value_of(self, module: str) -> object:
        imported = importlib.import_module(module)
        return imported.VALUE, imported.__file__


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/monarch"


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place that pip looks at."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_wheel(folder: Path, name: str, version: str, *needs: str) -> None:
    info = f"{name}-{version}.dist-info"
    lines = [f"Requires-Dist: {need}" for need in needs]
    files = {
        f"{name}.py": f"VALUE = {version!r}\n",
        f"{info}/METADATA": "\n".join(
            ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""]
        ),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record}.items():
            wheel.writestr(path, text)


def install_editable(site: Path, name: str, project: Path, *, finds: str = "") -> None:
    """What pip leaves behind: a `.pth` file, or a finder for `finds` with a mapping."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    url = {"dir_info": {"editable": True}, "url": project.as_uri()}
    (info / "direct_url.json").write_text(json.dumps(url))
    file = f"__editable___{name}_finder.py" if finds else f"__editable__.{name}.pth"
    mapping = {finds.rpartition("/")[2]: str(project / finds)}
    (site / file).write_text(
        f"import sys\nMAPPING: dict[str, str] = {mapping!r}\n" if finds else f"{project}\n"
    )
    (info / "RECORD").write_text(f"{file},,\n{info.name}/RECORD,,\n")


def host(packages: dict[str, str], tag: str = "") -> HostPython:
    return HostPython("far", tag or python_tag(), packages)


def test_an_editable_install_comes_along(
    project: Project, job: ProcessJob, hosts: HostMesh, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    library, site = tmp_path / "my lib", tmp_path / "site"
    library.mkdir()
    (library / "mylib.py").write_text("VALUE = 7\n")
    install_editable(site, "mylib", library)
    monkeypatch.setattr(sys, "path", [*sys.path, str(site), str(library)])
    report = project.sync(hosts)
    assert report.ok
    assert [str(library) in note for note in report.notes] == [True]
    landed = replica_of(job) / "__editable__.mylib/mylib.py"
    assert landed.read_text() == "VALUE = 7\n"
    procs = hosts.spawn_procs(name="importers")
    importers = procs.spawn("importers", Importer)
    values = importers.value_of.call("mylib").get(timeout=30).values()
    assert list(values) == [
        (7, str(replica_of(job, i) / "__editable__.mylib/mylib.py")) for i in range(2)
    ]
    (library / "mylib.py").write_text("VALUE = 8\n")
    report = project.sync(hosts)
    assert report.changed_files == ["__editable__.mylib/mylib.py"]
    assert report.notes == []  # said once
    assert {v for v, _ in importers.value_of.call("mylib").get(timeout=30).values()} == {8}


def test_which_installs_are_editable_and_from_where(tmp_path: Path) -> None:
    site, flat, src = tmp_path / "site", tmp_path / "flat", tmp_path / "src"
    (flat / "one").mkdir(parents=True)
    (src / "src/two").mkdir(parents=True)
    install_editable(site, "flat_lib", flat)
    install_editable(site, "src_lib", src, finds="src/two")
    install_editable(site, "gone", tmp_path / "gone")
    install_editable(site, "monarch_loop", flat)
    (site / "plain-1.0.dist-info").mkdir()
    found = editable_installs([str(site), str(tmp_path / "nowhere")])
    assert found == [("flat-lib", (flat,)), ("src-lib", (src / "src",))]


def test_an_editable_install_inside_the_workspace_is_there_already(tmp_path: Path) -> None:
    site, project = tmp_path / "site", tmp_path / "project"
    (project / "inner").mkdir(parents=True)
    install_editable(site, "inner", project / "inner")
    path = [str(site)]
    assert editable_folders(Workspace([project]), path) == []
    other = Workspace({tmp_path / "site": ""})
    assert [folder.remote for folder in editable_folders(other, path)] == ["__editable__.inner"]
    unwanted = Workspace({tmp_path / "site": ""}, editable=False)
    assert editable_folders(unwanted, path) == []


def test_the_packages_of_a_lock_file_come_along(
    project: Project, job: ProcessJob, hosts: HostMesh, wheels: Path, own_cache: Path
) -> None:
    make_wheel(wheels, "tinylib", "1.0", "tinydep")
    make_wheel(wheels, "tinydep", "5.0")
    project.write(".gitignore", "*.py[co]\n")
    project.write("requirements.txt", "tinylib\n")
    assert project.sync(hosts).notes == []
    report = project.sync(hosts, conda=True)
    assert report.ok
    assert report.notes == [f"packages of requirements.txt come along as {FOLDER}"]
    assert sorted(path.name for path in (replica_of(job) / FOLDER).glob("*.py")) == [
        "tinydep.py", "tinylib.py",
    ]  # fmt: skip
    importers = hosts.spawn_procs(name="importers").spawn("importers", Importer)
    found = importers.value_of.call("tinylib").get(timeout=30).values()
    assert list(found) == [("1.0", str(replica_of(job, i) / FOLDER / "tinylib.py")) for i in (0, 1)]

    # A later push, of whatever, leaves it where it is.
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    assert project.sync(hosts).changed_files == ["stepper.py"]
    assert (replica_of(job) / FOLDER / "tinylib.py").exists()

    # A change is pointed out until it is installed; what cannot be had changes nothing.
    project.write("requirements.txt", "tinylib==2.0\n")
    for _ in range(2):
        [note] = project.sync(hosts).notes
        assert note.startswith("requirements.txt changed")
    generation = project.sync(hosts).generation
    with pytest.raises(EnvironmentFailed, match="no host has changed") as failed:
        project.sync(hosts, conda=True)
    assert "tinylib==2.0" in str(failed.value)
    report = project.sync(hosts)
    assert report.generation == generation
    assert (replica_of(job) / FOLDER / "tinylib.py").read_text() == "VALUE = '1.0'\n"

    make_wheel(wheels, "tinylib", "2.0")
    assert project.sync(hosts, conda=True).ok
    assert project.sync(hosts).notes == []
    assert (replica_of(job) / FOLDER / "tinylib.py").read_text() == "VALUE = '2.0'\n"
    assert not (replica_of(job) / FOLDER / "tinydep.py").exists()
    assert not list((own_cache / "environments").glob("unfinished-*"))


def test_a_host_with_another_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "requirements.txt").write_text("tinylib\n")
    needs = needs_of(Workspace([tmp_path]))
    with pytest.raises(EnvironmentFailed, match="far runs cpython-27 on pdp11"):
        build(needs, [host({}, "cpython-27 on pdp11")], tmp_path / "cache")


def test_what_every_host_has_does_not_travel(tmp_path: Path, wheels: Path) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(wheels, "tinylib", version, "tinydep")
    make_wheel(wheels, "tinydep", "5.0")
    work = tmp_path / "work"
    work.mkdir()
    (work / "pyproject.toml").write_text('[project]\nname = "w"\ndependencies = ["tinylib"]\n')
    newest = needs_of(Workspace([work]))
    assert newest.files == ("work/pyproject.toml",)
    (work / "uv.lock").write_text(
        '[[package]]\nname = "tinylib"\nversion = "1.0"\nsource = { registry = "https://x" }\n'
        '[[package]]\nname = "w"\nversion = "0"\nsource = { virtual = "." }\n'
    )
    needs = needs_of(Workspace([work]))
    assert (needs.files, needs.constraints) == (("work/uv.lock",), ("tinylib==1.0",))
    assert needs.digest != newest.digest
    full, half = host({"tinylib": "1.0", "tinydep": "5.0"}), host({"tinydep": "5.0"})
    assert build(needs, [full, full], tmp_path / "cache") is None
    built = build(needs, [full, half], tmp_path / "cache")
    assert built is not None
    assert sorted(path.name for path in built.iterdir()) == ["tinylib-1.0.dist-info", "tinylib.py"]


def test_what_is_installed_here_is_found_by_its_name() -> None:
    found = installed()
    for name in ("pytest", "msgspec", "import-linter"):
        assert found[name] == importlib.metadata.version(name)


def test_a_folder_without_a_lock_file_has_no_environment(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("not toml [")
    assert not needs_of(Workspace([tmp_path]))
    assert not (Path(os.environ["XDG_CACHE_HOME"]) / "monarch").exists()
