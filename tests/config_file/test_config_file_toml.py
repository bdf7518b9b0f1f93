import pytest
from hypothesis import given
from hypothesis import strategies as st

from monarch.config_file.toml_text import key_lines, loads

TRICKY = '''\
# comment = "not a key"
plain = 1  # other = 2
"quoted key" = "a # b = c"
dotted.inner."with.dot" = true

text = """
fake = 1
[fake.table]
  \\""" still = inside
"""
raw = \'\'\'
fake2 = 2 \'\' \'\'\'
five = """"two quotes: """""

list = [
  1, # ] not the end
  "]",
  [ "[", 3 ],
  { x = 1, y = "}" },
]
point = { x = 1, deep = { z = [1, 2] }, "q" = 3 }
day = 1979-05-27 07:32:00
empty = ""
nothing = []
none = {}

[table]
key = -inf
[ table . "sub table" ]
key = 0x_not_parsed_here
'''.replace("0x_not_parsed_here", "0xff")


def line_of(text: str, start: str) -> int:
    return next(i for i, line in enumerate(text.split("\n"), 1) if line.startswith(start))


def test_the_tricky_text_is_legal() -> None:
    assert loads(TRICKY)["text"].startswith("fake = 1")


@pytest.mark.parametrize(
    ("key", "start"),
    [
        ("plain", "plain"),
        ("quoted key", '"quoted'),
        ("dotted", "dotted"),
        ("dotted/inner", "dotted"),
        ("dotted/inner/with.dot", "dotted"),
        ("text", "text"),
        ("raw", "raw"),
        ("five", "five"),
        ("list", "list"),
        ("list/x", "  { x"),
        ("point/x", "point"),
        ("point/deep/z", "point"),
        ("point/q", "point"),
        ("day", "day"),
        ("empty", "empty"),
        ("nothing", "nothing"),
        ("none", "none"),
        ("table", "[table]"),
        ("table/key", "key = -inf"),
        ("table/sub table", "[ table"),
        ("table/sub table/key", "key = 0xff"),
    ],
)
def test_lines_of_a_tricky_text(key: str, start: str) -> None:
    assert key_lines(TRICKY)[tuple(key.split("/"))] == line_of(TRICKY, start)


def test_nothing_is_found_inside_strings_and_comments() -> None:
    names = {name for path in key_lines(TRICKY) for name in path}
    assert not names & {"fake", "fake2", "comment", "other", "still"}


def test_arrays_of_tables_share_a_name_and_keep_the_first_line() -> None:
    assert key_lines("[[a]]\nx = 1\n[[a]]\nx = 2\ny = 3\n") == {
        ("a",): 1,
        ("a", "x"): 2,
        ("a", "y"): 5,
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment", "a = 1", "a=1\r\nb=2\r\n"])
def test_small_texts(text: str) -> None:
    assert [path[0] for path in key_lines(text)] == list(loads(text))


def test_windows_line_ends_count_once() -> None:
    assert key_lines('a = """\r\nx\r\n"""\r\nb = 2\r\n')[("b",)] == 4


values = st.sampled_from(
    ["1", "true", '"a # ]"', "'}'", "[1, [2]]", '"""\nx = 1\n"""', "{k = 1}", "[\n 1, # ]\n]", "[]"]
)
names = st.sampled_from(["a", "b-c", '"d e"', "'f'", "g.h", 'i . "j.k"'])


@given(st.lists(st.tuples(names, values, st.integers(0, 2)), unique_by=lambda entry: entry[0]))
def test_every_key_that_the_parser_sees_has_the_line_where_it_was_written(
    entries: list[tuple[str, str, int]],
) -> None:
    text, expected = "", []
    for name, value, blank_lines in entries:
        text += "\n" * blank_lines
        expected.append(text.count("\n") + 1)
        text += f"{name} = {value} # note\n"
    assert len(loads(text)) == len(entries)
    lines = key_lines(text)
    assert [lines[(key,)] for key in loads(text)] == expected
