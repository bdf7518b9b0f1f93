"""What comes along with a workspace: editable installs, and the packages of its lock file."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import shutil
import sys
import time
import zipfile
from pathlib import Path

import pytest

from monarch.actor import Actor, HostMesh, endpoint
from monarch.job import ProcessJob
from monarch.runtime.workspace.packages import environment, host_environment
from monarch.runtime.workspace.packages.cache import UNFINISHED, trim, used
from monarch.runtime.workspace.packages.environment import (
    EnvironmentFailed,
    HostPython,
    build,
    run_pip,
)
from monarch.runtime.workspace.packages.host_environment import HostEnvironment, UnfitEnvironment
from monarch.runtime.workspace.packages.lock_files import needs_of
from monarch.runtime.workspace.packages.python_here import installed, platforms, python_tag
from monarch.runtime.workspace.packages.surroundings import Surroundings
from monarch.runtime.workspace.packages.wheels import (
    FOLDER,
    LIST,
    BadWheel,
    collect,
    read_list,
    unpack,
)
from monarch_sync import Workspace
from monarch_sync.editable import editable_folders, editable_installs
from tests.support import wait_for
from tests.wheels import make_wheel
from tests.workspace.conftest import Project, replica_of, restart, state_of

pytestmark = pytest.mark.timeout(300)  # pip is called many times, which takes long under load.


class Importer(Actor):
    @endpoint
    def value_of(self, module: str) -> object:
        imported = importlib.import_module(module)
        return imported.VALUE, imported.__file__

    @endpoint
    def path(self) -> list[str]:
        return sys.path[:2]


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


def install_editable(site: Path, name: str, project: Path, *, finds: str = "") -> None:
    """What pip leaves behind: a `.pth` file, or a finder for `finds` with a mapping."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    url = {"dir_info": {"editable": True}, "url": project.as_uri()}
    (info / "direct_url.json").write_text(json.dumps(url))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    file = f"__editable___{name}_finder.py" if finds else f"__editable__.{name}.pth"
    mapping = {finds.rpartition("/")[2]: str(project / finds)}
    (site / file).write_text(
        f"import sys\nMAPPING: dict[str, str] = {mapping!r}\n" if finds else f"{project}\n"
    )
    (info / "RECORD").write_text(f"{file},,\n{info.name}/RECORD,,\n")


def host(packages: dict[str, str], tag: str = "") -> HostPython:
    return HostPython("far", tag or python_tag(), packages)


@pytest.mark.long
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


def environment_of(job: ProcessJob, index: int = 0) -> Path:
    return state_of(job, index) / "environment"


@pytest.mark.long
def test_hosts_install_the_packages_of_a_lock_file(
    project: Project, job: ProcessJob, hosts: HostMesh, wheels: Path, own_cache: Path
) -> None:
    make_wheel(wheels, "tinylib", "1.0", "tinydep")
    make_wheel(wheels, "tinydep", "5.0")
    project.write(".gitignore", "*.py[co]\n")
    project.write("requirements.txt", "tinylib\n")
    assert project.sync(hosts).notes == []
    early = hosts.spawn_procs(name="early").spawn("early", Importer)
    assert len(early.path.call().get(timeout=30)) == 2
    report = project.sync(hosts, conda=True)
    assert report.ok, report
    root, behind = next(iter(early.path.call().get(timeout=30).values()))
    assert (root, behind) == (str(replica_of(job)), str(environment_of(job)))
    assert {v for v, _ in early.value_of.call("tinylib").get(timeout=30).values()} == {"1.0"}
    assert report.notes == [
        "packages of requirements.txt come along as wheels, and hosts install them"
    ]
    came = [path.name[13:] for path in (replica_of(job) / FOLDER).glob("*.whl")]
    assert sorted(came) == ["tinydep-5.0-py3-none-any.whl", "tinylib-1.0-py3-none-any.whl"]
    names = sorted(path.name for path in environment_of(job).glob("*.py"))
    assert names == ["tinydep.py", "tinylib.py"]
    importers = hosts.spawn_procs(name="importers").spawn("importers", Importer)
    found = importers.value_of.call("tinylib").get(timeout=30).values()
    assert list(found) == [("1.0", str(environment_of(job, i) / "tinylib.py")) for i in (0, 1)]

    # Unpacked once for both agents, which share a cache.
    inodes = {(environment_of(job, i) / "tinylib.py").stat().st_ino for i in (0, 1)}
    assert len(inodes) == 1
    assert len(list((own_cache / "unpacked").glob("*.lock"))) == 1

    # A later push, of whatever, leaves it where it is.
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")
    assert project.sync(hosts).changed_files == ["stepper.py"]
    assert (environment_of(job) / "tinylib.py").stat().st_ino in inodes

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
    assert (environment_of(job) / "tinylib.py").read_text() == "VALUE = '1.0'\n"

    # Live processes run the new package in the same moment as the code.
    make_wheel(wheels, "tinylib", "2.0")
    assert project.sync(hosts, conda=True).ok
    found = importers.value_of.call("tinylib").get(timeout=30).values()
    assert list(found) == [("2.0", str(environment_of(job, i) / "tinylib.py")) for i in (0, 1)]
    assert project.sync(hosts).notes == []
    assert not (environment_of(job) / "tinydep.py").exists()
    assert not list((own_cache / "wheels").glob("unfinished-*"))
    state = state_of(job)
    wait_for(lambda: {path.name for path in state.glob("environment*")} == {"environment"})


@pytest.mark.long
def test_a_host_that_cannot_install_keeps_all_from_switching(
    project: Project, job: ProcessJob, hosts: HostMesh, wheels: Path, own_cache: Path
) -> None:
    make_wheel(wheels, "tinylib", "1.0")
    project.write("requirements.txt", "tinylib\n")
    assert project.sync(hosts, conda=True).ok
    importers = hosts.spawn_procs(name="importers").spawn("importers", Importer)
    before = list(importers.value_of.call("tinylib").get(timeout=30).values())
    make_wheel(wheels, "tinylib", "2.0")
    project.write("requirements.txt", "tinylib==2.0\n")
    project.edit("stepper.py", "SCALE = 1", "SCALE = 2")

    # One of them finds no room beside its environment.
    (state_of(job, 1) / "environment.next").write_text("in the way")
    report = project.sync(hosts, conda=True)
    assert not report.ok
    [error] = report.errors
    assert error.startswith("trainers1")
    assert "packages could not be unpacked" in error
    assert list(importers.value_of.call("tinylib").get(timeout=30).values()) == before
    assert {(replica_of(job, i) / "stepper.py").read_text().count("SCALE = 2") for i in (0, 1)} == {
        0
    }

    (state_of(job, 1) / "environment.next").unlink()
    report = project.sync(hosts)
    assert report.ok, report
    assert {v for v, _ in importers.value_of.call("tinylib").get(timeout=30).values()} == {"2.0"}


@pytest.mark.long
def test_a_refused_push_leaves_the_packages_as_they_were(
    project: Project, job: ProcessJob, hosts: HostMesh, wheels: Path
) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(wheels, "tinylib", version)
    project.write("requirements.txt", "tinylib==1.0\n")
    assert project.sync(hosts, conda=True).ok
    importers = hosts.spawn_procs(name="importers").spawn("importers", Importer)
    before = list(importers.value_of.call("tinylib").get(timeout=30).values())
    hosts.spawn_procs(name="steppers").spawn(
        "steppers", project.load("stepper").Stepper
    ).stamp.call().get()
    project.write("requirements.txt", "tinylib==2.0\n")
    project.edit("stepper.py", "SCALE = 1", "SCALE = = 2")
    assert not project.sync(hosts, conda=True).ok
    assert list(importers.value_of.call("tinylib").get(timeout=30).values()) == before
    assert (environment_of(job) / "tinylib.py").read_text() == "VALUE = '1.0'\n"
    project.edit("stepper.py", "SCALE = = 2", "SCALE = 2")
    assert project.sync(hosts).ok
    assert (environment_of(job) / "tinylib.py").read_text() == "VALUE = '2.0'\n"


@pytest.mark.long
def test_an_agent_that_starts_again_has_its_packages(
    project: Project, job: ProcessJob, hosts: HostMesh, wheels: Path
) -> None:
    make_wheel(wheels, "tinylib", "1.0")
    project.write("requirements.txt", "tinylib\n")
    assert project.sync(hosts, conda=True).ok

    def lose_it() -> None:
        shutil.rmtree(environment_of(job, 1))

    restart(job, 1, lose_it)
    wait_for((environment_of(job, 1) / "tinylib.py").exists, what="its packages")


@pytest.mark.long
def test_wheels_for_hosts_of_another_kind(tmp_path: Path, wheels: Path) -> None:
    """A laptop's Python need not be the hosts': each kind gets wheels that fit it."""
    (tmp_path / "requirements.txt").write_text("tinylib\nfastlib\n")
    make_wheel(wheels, "tinylib", "1.0")
    make_wheel(wheels, "fastlib", "1.0", tag="cp310-cp310-manylinux_2_17_aarch64")
    make_wheel(wheels, "fastlib", "1.0", tag="py2.py3-none-any")
    needs = needs_of(Workspace([tmp_path]))
    arm = "cpython-310 on linux-aarch64"
    others = [
        HostPython("arm0", arm, {}, ["manylinux_2_28_aarch64", "manylinux_2_17_aarch64"]),
        HostPython("arm1", arm, {}, ["manylinux_2_17_aarch64"]),
    ]
    built = build(needs, [host({}), *others], tmp_path / "cache")
    assert built is not None
    wanted = {tag: [w.file[13:] for w in found] for tag, found in read_list(built / LIST).items()}
    assert wanted == {
        arm: ["fastlib-1.0-cp310-cp310-manylinux_2_17_aarch64.whl", "tinylib-1.0-py3-none-any.whl"],
        python_tag(): ["fastlib-1.0-py2.py3-none-any.whl", "tinylib-1.0-py3-none-any.whl"],
    }
    # What this host's Python is not among is refused by name there.
    with pytest.raises(EnvironmentFailed, match="far runs pypy310"):
        build(needs, [host({}, "pypy310-pp73 on linux-x86_64")], tmp_path / "cache")
    with pytest.raises(EnvironmentFailed, match="far runs cpython-27 on pdp11"):
        build(needs, [host({}, "cpython-27 on pdp11")], tmp_path / "cache")


def test_this_programs_own_environment_is_its_owners(tmp_path: Path, wheels: Path) -> None:
    make_wheel(wheels, "tinylib", "1.0")
    (tmp_path / "requirements.txt").write_text("tinylib\n")
    here = HostPython("this host", python_tag(), {}, is_here=True)
    with pytest.raises(EnvironmentFailed, match=r"own environment, which lacks tinylib==1\.0"):
        build(needs_of(Workspace([tmp_path])), [here], tmp_path / "cache")


def test_which_platforms_fit_here() -> None:
    """As pip itself sees it."""
    tags = pytest.importorskip("pip._vendor.packaging.tags")
    assert set(platforms()) == set(tags.platform_tags())


@pytest.mark.long
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
    assert [w.file[13:] for w in read_list(built / LIST)[python_tag()]] == [
        "tinylib-1.0-py3-none-any.whl"
    ]


def test_every_kind_of_package_of_a_uv_lock_is_read(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "uv.lock").write_text(
        """
        [[package]]
        name = "g"
        version = "1"
        source = { git = "https://h/g.git?subdirectory=py&rev=main#0123abc" }
        [[package]]
        name = "plain"
        source = { git = "ssh://git@h/plain#4567def" }
        [[package]]
        name = "u"
        source = { url = "https://h/u-1.tar.gz", subdirectory = "in" }
        [[package]]
        name = "p"
        source = { path = "dist/p-1-py3-none-any.whl" }
        [[package]]
        name = "member"
        source = { editable = "packages/member" }
        [[package]]
        name = "d"
        source = { directory = "../d" }
        [[package]]
        name = "work"
        source = { editable = "." }
        """
    )
    needs = needs_of(Workspace([work]))
    assert needs.constraints == (
        f"d @ {(tmp_path / 'd').as_uri()}",
        "g @ git+https://h/g.git@0123abc#subdirectory=py",
        f"member @ {(work / 'packages/member').as_uri()}",
        f"p @ {(work / 'dist/p-1-py3-none-any.whl').as_uri()}",
        "plain @ git+ssh://git@h/plain@4567def",
        "u @ https://h/u-1.tar.gz#subdirectory=in",
    )
    assert needs.sources == {"d": tmp_path / "d", "member": work / "packages/member"}
    with pytest.raises(EnvironmentFailed, match=r"d as the folder .*which does not come along"):
        Surroundings(Workspace([work])).install([host({})])


@pytest.mark.long
def test_a_package_of_a_path_is_had_from_there(tmp_path: Path, wheels: Path) -> None:
    """Not one of that name from an index."""
    (tmp_path / "work/dist").mkdir(parents=True)
    make_wheel(tmp_path / "work/dist", "tinylib", "1.0", "tinydep")
    make_wheel(wheels, "tinylib", "9.0")
    make_wheel(wheels, "tinydep", "5.0")
    (tmp_path / "work/pyproject.toml").write_text(
        '[project]\nname = "w"\ndependencies = ["tinylib"]\n'
    )
    (tmp_path / "work/uv.lock").write_text(
        '[[package]]\nname = "tinylib"\nversion = "1.0"\n'
        'source = { path = "dist/tinylib-1.0-py3-none-any.whl" }\n'
    )
    built = build(needs_of(Workspace([tmp_path / "work"])), [host({})], tmp_path / "cache")
    assert built is not None
    assert sorted(w.file[13:] for w in read_list(built / LIST)[python_tag()]) == [
        "tinydep-5.0-py3-none-any.whl", "tinylib-1.0-py3-none-any.whl",
    ]  # fmt: skip


def test_a_lock_file_that_asks_for_nothing(tmp_path: Path, wheels: Path) -> None:
    (tmp_path / "uv.lock").write_text('[[package]]\nname = "w"\nsource = { virtual = "." }\n')
    assert build(needs_of(Workspace([tmp_path])), [host({})], tmp_path / "cache") is None


def test_packages_for_another_python_are_refused_on_a_host(tmp_path: Path) -> None:
    """One that came late, or sees a folder that another host writes."""
    environment = HostEnvironment(str(tmp_path), str(tmp_path / "state"))
    assert environment.why_unfit() == ""
    wheels = tmp_path / FOLDER
    wheels.mkdir()
    (wheels / LIST).write_text('{"cpython-27 on pdp11": []}')
    paths = [(f"{FOLDER}/{LIST}".encode(), str(wheels / LIST).encode())]
    with pytest.raises(UnfitEnvironment, match="packages have come along for cpython-27 on pdp11"):
        environment.stage(paths)
    with pytest.raises(UnfitEnvironment):
        environment.follow()
    (wheels / LIST).write_text(f'{{"{python_tag()}": [{{"file": "a.whl", "digest": ""}}]}}')
    with pytest.raises(UnfitEnvironment, match="do ignore rules leave it out"):
        environment.stage(paths)
    place = tmp_path / "state/environment"
    place.mkdir(parents=True)
    index = {"digest": "", "tag": "cpython-27 on pdp11", "files": {"a.py": 1}}
    (place / ".monarch-index").write_text(json.dumps(index))
    again = HostEnvironment(str(tmp_path), str(tmp_path / "state"))
    assert "packages for cpython-27 on pdp11" in again.why_unfit()

    # When no packages come along any more, those that were there go.
    assert again.stage([(f"{FOLDER}/{LIST}".encode(), b"")]) == [("environment/a.py", "")]
    (wheels / LIST).unlink()
    again.follow()
    again.settle()
    assert not any((tmp_path / "state").iterdir())


def test_what_is_unpacked_of_a_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "odd.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("odd/__init__.py", "VALUE = 1\n")
        archive.writestr("odd-1.data/purelib/more.py", "VALUE = 2\n")
        archive.writestr("odd-1.data/scripts/run", "#!python\n")
        program = zipfile.ZipInfo("odd/tool")
        program.external_attr = 0o100755 << 16
        archive.writestr(program, "#!/bin/sh\n")
    target = tmp_path / "target"
    written = unpack(str(wheel), str(target))
    assert sorted(written) == ["more.py", "odd/__init__.py", "odd/tool"]
    assert os.access(target / "odd/tool", os.X_OK)
    assert not (target / "more.py").stat().st_mode & 0o222  # other agents have it too


@pytest.mark.parametrize("name", ["../out.py", "/out.py", "a/../../out.py"])
def test_a_wheel_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    wheel = tmp_path / "evil.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(zipfile.ZipInfo(name), "VALUE = 1\n")
    with pytest.raises(BadWheel, match="leads out"):
        unpack(str(wheel), str(tmp_path / "a/b"))
    assert not list(tmp_path.rglob("out.py"))


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    make_wheel(tmp_path, "tinylib", "1.0")
    [wheel] = tmp_path.glob("*.whl")
    data = wheel.read_bytes()
    at = data.index(b"VALUE")
    wheel.write_bytes(data[:at] + b"WRONG" + data[at + 5 :])
    with pytest.raises(BadWheel, match="damaged"):
        unpack(str(wheel), str(tmp_path / "target"))


def test_what_is_installed_here_is_found_by_its_name() -> None:
    found = installed()
    for name in ("pytest", "msgspec", "import-linter"):
        assert found[name] == importlib.metadata.version(name)


def test_a_folder_without_a_lock_file_has_no_environment(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("not toml [")
    assert not needs_of(Workspace([tmp_path]))
    assert not (Path(os.environ["XDG_CACHE_HOME"]) / "monarch").exists()


def unpacked_at(root: Path, version: str, max_cache_bytes: int = 1 << 20) -> HostEnvironment:
    """A host with the wheel of a version."""
    (root / "made").mkdir(parents=True)
    (root / FOLDER).mkdir()
    make_wheel(root / "made", "tinylib", version)
    collect({python_tag(): root / "made"}, root / FOLDER)
    environment = HostEnvironment(str(root), str(root / "state"), max_cache_bytes)
    environment.follow()
    return environment


def test_packages_that_were_unpacked_in_part_are_not_taken_for_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def link(source: str, target: str) -> None:
        if source.endswith("tinylib.py"):
            raise OSError("the disk is full")
        shutil.copy2(source, target)

    with monkeypatch.context() as full:
        full.setattr(host_environment, "_link", link)
        with pytest.raises(UnfitEnvironment, match="the disk is full"):
            unpacked_at(tmp_path / "host", "1.0")
    HostEnvironment(str(tmp_path / "host"), str(tmp_path / "host/state")).follow()
    assert (tmp_path / "host/state/environment/tinylib.py").exists()


def test_a_pip_that_does_not_end_is_stopped() -> None:
    with pytest.raises(EnvironmentFailed, match="had not ended after 0 minutes, and was stopped"):
        run_pip("list", seconds=0.0)


def test_the_cache_of_unpacked_packages_is_bounded(tmp_path: Path, own_cache: Path) -> None:
    for version in ("1.0", "2.0", "1.0"):
        root = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        unpacked_at(root, version, max_cache_bytes=0)
        assert [path.name for path in (own_cache / "unpacked").iterdir() if path.is_dir()] == [
            json.loads((root / "state/environment/.monarch-index").read_text())["digest"]
        ]
        text = (root / "state/environment/tinylib.py").read_text()
        assert text.startswith(f"VALUE = {version!r}")


def test_what_was_used_longest_ago_is_trimmed_first(tmp_path: Path) -> None:
    for age, name in enumerate(("new", "old", "kept", "oldest", f"{UNFINISHED}now")):
        (tmp_path / name / "in").mkdir(parents=True)
        (tmp_path / name / "in/file").write_bytes(bytes(100))
        used_at = time.time() - 100 * age
        os.utime(tmp_path / name, (used_at, used_at))
    (tmp_path / f"{UNFINISHED}long-ago").mkdir()
    os.utime(tmp_path / f"{UNFINISHED}long-ago", (0, 0))
    trim(tmp_path, 310, {"kept"})
    assert {path.name for path in tmp_path.iterdir()} == {
        "new", "old", "kept", f"{UNFINISHED}now",
    }  # fmt: skip
    used(tmp_path / "old")
    trim(tmp_path, 100)
    assert {path.name for path in tmp_path.iterdir()} == {"old", f"{UNFINISHED}now"}


def quick_pip(wheels: Path, command: str, *arguments: str) -> None:
    """What pip does with one package: a pip takes seconds to start, and is not what is tested."""
    given = arguments[-1]
    pinned = Path(given).read_text().strip() if command == "install" else given
    name, version = pinned.split("==")
    if command == "install":
        report = arguments[arguments.index("--report") + 1]
        told = {"install": [{"metadata": {"name": name, "version": version}}]}
        Path(report).write_text(json.dumps(told))
    else:
        [wheel] = wheels.glob(f"{name}-{version}-*.whl")
        shutil.copy(wheel, arguments[arguments.index("-w") + 1])


def test_wheels_stay_as_long_as_a_workspace_has_them(
    tmp_path: Path, wheels: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "run_pip", functools.partial(quick_pip, wheels))

    def installed_for(name: str, version: str) -> Surroundings:
        make_wheel(wheels, "tinylib", version)
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "requirements.txt").write_text(f"tinylib=={version}\n")
        found = Surroundings(Workspace([tmp_path / name], editable=False), max_wheel_bytes=0)
        assert "come along" in found.install([host({})])
        return found

    def num_kept() -> int:
        return len(list((own_cache / "wheels").iterdir()))

    first = installed_for("one", "1.0")
    installed_for("two", "2.0")
    assert num_kept() == 2
    assert [folder.remote for folder in first.whole().folders] == ["one", FOLDER]
    installed_for("two", "3.0")
    assert num_kept() == 2, "nobody has 2.0 any more"
    shutil.rmtree(tmp_path / "one")
    installed_for("two", "4.0")
    assert num_kept() == 1

    # Somebody clears the whole cache.
    last = installed_for("two", "4.0")
    shutil.rmtree(own_cache / "wheels")
    [note] = last.changes()
    assert "`monarch sync --env` brings them again" in note
    assert "come along" in last.install([host({})])
    assert last.changes() == []
