"""Whatever rule files say, what is taken is what git would take."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from monarch_sync.ignoring.git_index import git_dir_of
from monarch_sync.ignoring.gitignore import RuleFile
from monarch_sync.ignoring.ignore import other_rule_files, walk

PATTERNS = [
    b"*.log", b"!keep.log", b"build/", b"/build", b"a/b", b"/a/", b"a/**", b"**/b", b"a/**/c",
    b"**", b"!a", b"!*/", b"*", b"/*", b"!/a", b"[ab]", b"[!a]", b"[^a]*", b"[a-c].txt", b"[]a]",
    b"[a", b"?", b"??", b"a?c", b"\\#x", b"#x", b"\\!x", b"!x", b"tail ", b"tail\\ ", b"a\\",
    b"\\a", b"a**c", b"a/*c", b"*/b", b"foo/", b"foo//", b"/", b"", b" ", b"*.l[!o]g",
    b"[[:alpha:]]", b"[[:digit:]x]*", b"a/b/", b"\xff", b"[\xff]", b"*\xff", b"x\r", b"b/**/",
    b"**/a/**", b"***", b"a/***/c", b"!**/keep.log", b"[a-]", b"[-a]", b"[\\]]", b"a[/]b",
    b"c/../a", b"./a", b"*a*c*", b"**/*.log", b"!build/", b"[!c]", b"\xc3\xa9", b"\xc3?",
    b"*a*b*c*", b"*.*.*", b"**/*a*/**/*.*o*", b"*/**/*/**/*", b"?*?*?*", b"a*b*c/**/*l*g*",
    b"[[:space:]]", b"[\xc3-\xc4]\xa9", b"[z-a]", b"[b-a]x*", b"[!c-a]",
]  # fmt: skip
NAMES = [b"a", b"b", b"c", b"abc", b"x.log", b"keep.log", b"build", b"#x", b"!x", b"tail ", b"tail",
         b"\xff", b"a.txt", b"]", b"1x", b"foo", b"-", b"\xc3\xa9", b"\x0b"]  # fmt: skip

rule_files = st.lists(st.sampled_from(PATTERNS), max_size=5).map(lambda lines: b"\n".join(lines))
places = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(b"/".join)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    paths=st.lists(places, min_size=1, max_size=12),
    root_rules=rule_files,
    inner_rules=st.dictionaries(places, rule_files, max_size=2),
    exclude=rule_files,
)
def test_any_rules_are_read_as_git_reads_them(
    tmp_path_factory: pytest.TempPathFactory,
    paths: list[bytes],
    root_rules: bytes,
    inner_rules: dict[bytes, bytes],
    exclude: bytes,
) -> None:
    folder = tmp_path_factory.mktemp("work")
    subprocess.run(["git", "init", "-q", "--template="], cwd=folder, check=True)
    (folder / ".git/info").mkdir()
    (folder / ".git/info/exclude").write_bytes(exclude)
    for path in paths:
        plant(folder, path, b"1")
    plant(folder, b".gitignore", root_rules)
    for place, rules in inner_rules.items():
        plant(folder, place + b"/.gitignore", rules)
    command = ["git", "ls-files", "-co", "-z", "--exclude-standard"]
    listed = subprocess.run(command, cwd=folder, check=True, capture_output=True).stdout
    expected = sorted(os.fsdecode(name) for name in listed.split(b"\0") if name)
    taken = [path for path in walk(folder) if not (folder / path).is_dir()]
    assert sorted(taken) == expected


tokens = st.sampled_from(
    ["*", "*", "**", "/**/", "**/", "/**", "/", "?", "a", "b", "[ab]", "[!a]", "\\/", "\\a"]
)


@pytest.mark.long
@settings(max_examples=500, deadline=None)
@given(
    pattern=st.lists(tokens, max_size=10).map("".join),
    path=st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=6).map("/".join),
)
def test_many_stars_mean_what_few_do(pattern: str, path: str) -> None:
    name = path.rpartition("/")[2]
    verdicts = []
    for max_stars in (99, -1):
        verdicts.append(RuleFile(pattern.encode(), max_stars).verdict(name, path, True))
    assert verdicts[0] == verdicts[1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("patterns", "path"),
    [
        (["*a" * 10 + "*b"], "a" * 100),
        (["a*" * 30 + "b"], "a" * 200),
        (["?*" * 40 + "!"], "b" * 240),
        (["**/" * 30 + "b"], "a/" * 60 + "c"),
        (["a*/" * 20 + "**/b"], "aaaaa/" * 40 + "c"),
        (["**/" + "*a" * 25 + "/**/z"], f"{'a' * 100}/" * 10 + "c"),
        (["*" * 500_000 + "a" + "?" * 500_000], "a" * 250),
        ([f"p{number}*x?{number}" for number in range(100_000)], "p1/f1"),
    ],
    ids=["*a*a", "a*a*", "?*?*", "**/**/", "a*/a*/", "**/*a*a/**/", "1 MB", "100,000 patterns"],
)
def test_no_pattern_takes_long(patterns: list[str], path: str) -> None:
    started = time.process_time()
    rules = RuleFile("\n".join(patterns).encode())
    for _ in range(20):
        assert rules.verdict(path.rpartition("/")[2], path, False) is None
    assert time.process_time() - started < 5


def test_a_name_is_found_among_very_many_patterns() -> None:
    lines = [f"p{number}*x?{number}" for number in range(1000)]
    lines += [f"*.end{number}" for number in range(200)] + ["!p7yx77", "*.end7/"]
    rules = RuleFile("\n".join(lines).encode())
    for name, is_dir, expected in (
        ("p8yx88", False, True),
        ("p7yx77", False, False),
        ("p7zx77", False, True),
        ("a.end7", False, True),
        ("a.end7x", False, None),
    ):
        assert rules.verdict(name, f"folder/{name}", is_dir) is expected


def plant(folder: Path, path: bytes, content: bytes) -> None:
    local = folder / os.fsdecode(path)
    try:
        local.parent.mkdir(parents=True, exist_ok=True)
        local.write_bytes(content)
    except OSError:
        pass  # a file stands where a folder is needed


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout


def test_names_are_matched_byte_by_byte() -> None:
    assert RuleFile(b"?\n[!a]\n").verdict("é", "é", False) is None
    assert RuleFile(b"??\n").verdict("é", "é", False) is True
    assert RuleFile(b"[[:space:]]\n").verdict("\x0b", "\x0b", False) is None
    assert RuleFile("é*.log\n".encode()).verdict("é.log", "logs/é.log", False) is True


def test_a_range_that_ends_before_it_begins_is_its_beginning() -> None:
    rules = RuleFile(b"[b-a]\n[a-[z-a]x\n")
    told = {name: rules.verdict(name, name, False) for name in ("a", "b", "ax", "zx", "[x", "bx")}
    assert told == {"a": None, "b": True, "ax": True, "zx": True, "[x": None, "bx": None}


def test_two_stars_stand_alone_before_a_slash_that_is_escaped() -> None:
    rules = RuleFile(b"**\\/b\n")
    told = {path: rules.verdict("b", path, False) for path in ("b", "a/b", "a/c/b")}
    assert told == {"b": None, "a/b": True, "a/c/b": True}, "as git has it"


@pytest.mark.parametrize("path", ["build/out", "buildout", "build1/out", "build1/a/out"])
def test_two_stars_behind_plain_letters_go_through_folders(path: str) -> None:
    assert RuleFile(b"build**/out\n").verdict("out", path, False) is True, "as git has it"
    assert RuleFile(b"[b]uild**/out\n").verdict("out", "build1/a/out", False) is None


def test_git_reads_no_rules_through_a_link(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    plant(tmp_path, b"rules", b"*.log\n")
    plant(tmp_path, b"a.log", b"1")
    (tmp_path / ".gitignore").symlink_to("rules")
    listed = git(tmp_path, "ls-files", "-co", "--exclude-standard").split()
    assert sorted(walk(tmp_path)) == sorted(listed) == [".gitignore", "a.log", "rules"]


def test_a_quick_no_is_a_no() -> None:
    rules = RuleFile(b"*.log\nbuild\n/a/b\nx[0-9]\n!keep.log\n")
    assert rules.verdict("a.py", "src/a.py", False) is None
    assert rules.verdict("a.log", "src/a.log", False) is True
    assert rules.verdict("keep.log", "keep.log", False) is False
    assert rules.verdict("b", "a/b", True) is True
    assert rules.verdict("b", "c/a/b", True) is None
    assert rules.verdict("x7", "x7", False) is True


def test_own_rules_have_the_last_word(tmp_path: Path) -> None:
    for name in ("a.log", "b.log", "c.py", "sub/d.py"):
        plant(tmp_path, name.encode(), b"1")
    plant(tmp_path, b".gitignore", b"*.log\n")
    plant(tmp_path, b".monarchignore", b"!a.log\nsub/\n.*ignore\n")
    assert sorted(walk(tmp_path)) == ["a.log", "c.py"]


def test_the_users_own_rules_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, folder = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    plant(folder, b"a.tmp", b"1")
    plant(folder, b"b", b"1")
    plant(home, b".config/git/ignore", b"*.tmp\n")
    assert list(walk(folder)) == ["b"]
    plant(home, b".gitconfig", b"[core]\n\texcludesFile = ~/mine\n")
    plant(home, b"mine", b"b\n")
    assert list(walk(folder)) == ["a.tmp"]


@pytest.mark.parametrize(
    "config",
    [
        b"[core]\n\texcludesFile = ~/mine # of all my repositories\n",
        b'[core] excludesfile = "~/mine" ; the same\n',
        b'[CORE]\nexcludesFile=~/other\nexcludesFile = ~/mi"ne"\n[alias]\nexcludesfile = ~/other\n',
        b'[core]\r\n\texcludesFile = ~/mine\r\n[core "sub"]\n\texcludesFile = ~/other\n',
        b"[core]\n# excludesFile = ~/other\n\texcludesFile = ~/mine\n;excludesFile = ~/other\n",
        b"[core]\n\texcludesFile = ~/other\n[include]\n\tpath = ~/more\n\tpath = ~/nowhere\n",
        b"[include]\n\tpath = ~/wrong\n[core]\n\texcludesFile = ~/mine\n",
    ],
)
@pytest.mark.parametrize(
    "whose", ["the user's", "the user's elsewhere", "the repository's", "a second work tree's"]
)
def test_where_git_looks_for_the_users_own_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: bytes, whose: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    main, second = tmp_path / "main", tmp_path / "second"
    git(tmp_path, "init", "-q", "main")
    plant(main, b"a", b"1")
    git(main, "add", "a")
    git(main, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "1")
    git(main, "worktree", "add", "-q", str(second))
    where = tmp_path / ".gitconfig" if whose == "the user's" else main / ".git/config"
    if whose == "the user's elsewhere":
        where = tmp_path / "elsewhere"
        monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(where))
        plant(tmp_path, b".gitconfig", b"[core]\n\texcludesFile = ~/other\n")
    with open(where, "ab") as f:
        f.write(config)
    plant(tmp_path, b"more", b"[include]\n\tpath = dir/even\n")
    plant(tmp_path, b"dir/even", b"[core]\n\texcludesFile = ~/mine\n")
    plant(tmp_path, b"wrong", b"[core]\n\texcludesFile = ~/other\n")
    plant(tmp_path, b"mine", b"*.mine\n")
    plant(tmp_path, b"other", b"*.other\n")
    folder = second if whose == "a second work tree's" else main
    for name in (b"b.mine", b"b.other"):
        plant(folder, name, b"1")
    listed = git(folder, "ls-files", "-co", "--exclude-standard").split()
    assert sorted(walk(folder)) == sorted(listed) == ["a", "b.other"]
    read = [os.path.normpath(file) for file in other_rule_files(git_dir_of(str(folder)) or "")]
    assert str(tmp_path / "mine") in read
    assert str(where) in read
    assert (str(tmp_path / "dir/even") in read) == (b"more" in config)


def test_another_repository_inside_has_its_own_rules(tmp_path: Path) -> None:
    plant(tmp_path, b".gitignore", b"*.log\n")
    plant(tmp_path, b".git/HEAD", b"")
    plant(tmp_path, b"inner/.git/HEAD", b"")
    plant(tmp_path, b"inner/.git/info/exclude", b"*.tmp\n")
    for name in (b"a.log", b"a.tmp", b"inner/b.log", b"inner/b.tmp"):
        plant(tmp_path, name, b"1")
    assert sorted(walk(tmp_path)) == [".gitignore", "a.tmp", "inner", "inner/b.log"]
