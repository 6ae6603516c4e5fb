"""JSON and TOML that a hostile hand wrote: refused in one line, before anything is made of it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino._input.strict_json import parse
from sordino._input.strict_toml import LARGEST_TEXT, Table
from sordino._input.strict_toml import parse as parse_toml
from sordino.errors import UsageError


def test_plain_json_is_what_it_says():
    assert parse(b'{"a": [1, 2.5, "x", null, true], "b": {}}') == {"a": [1, 2.5, "x", None, True], "b": {}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"steps": 1, "steps": 2}', "has the key 'steps' twice"),
        ('[{"inner": {"a": 1, "b": 2, "a": 3}}]', "has the key 'a' twice"),
        ('{"rate": NaN}', "the number NaN"),
        ('{"rate": -Infinity}', "the number -Infinity"),
        ('{"rate": 1e999}', "the number 1e999"),
        ("[" * 10**6 + "]" * 10**6, "nested deeper than 32"),
        ('{"a":' * 40 + "1" + "}" * 40, "nested deeper than 32"),
        ("9" * 10_000, "too many digits"),
        ('"\\ud800"', "half a surrogate pair"),
        ('{"\\ud800": 1}', "half a surrogate pair"),
        (b'"\xff"', "must be UTF-8"),
        (b'\xef\xbb\xbf"marked"', "not JSON"),
        ("{'a': 1}", "not JSON: .* line 1, column 2"),
        ("[1] [2]", "not JSON"),
        ("", "not JSON"),
    ],
    ids=range(15),
)
def test_json_that_could_be_read_in_two_ways_or_never_ends_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse(text)


def test_json_of_the_deepest_allowed_nesting_is_read():
    assert parse("[" * 32 + "]" * 32) is not None


def test_json_that_is_too_long_is_refused_unread():
    with pytest.raises(UsageError, match="longer than 10 bytes"):
        parse("[" * 11, at_most=10)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps = 1\nsteps = 2", "not TOML: Cannot overwrite a value"),
        ("rate = nan", "the number nan"),
        ("deep = [[1.0], [{a = -inf}]]", "the number -inf"),
        ("a = " + "[" * 10**5, "nested deeper"),
        ("a" + ".a" * 10**5 + " = 1", "nested deeper"),
        ("[" + "a . " * 10**4 + "a]", "nested deeper"),
        ('t = {a = "#", ' + '"a".' * 10**4 + "a = 1}", "nested deeper"),
        ("a = '''\n#''' \n", "a multi-line string"),
        ("a = " + "9" * 10_000, "cannot be parsed"),
        ("#" * (LARGEST_TEXT + 1), "longer than"),
        (b"a = '\xff'", "must be UTF-8"),
        ("a = 1979-99-99", "not TOML|cannot be parsed"),
    ],
    ids=range(12),
)
def test_toml_that_could_be_read_in_two_ways_or_never_ends_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        parse_toml(text, what="the recipe")


def test_dots_in_texts_and_remarks_are_no_nesting():
    text = "# " + "." * 100 + '\nname = "' + "a." * 100 + '"\nnumbers = [' + "1.5, " * 100 + "]"
    assert len(parse_toml(text, what="the recipe")["numbers"]) == 100


@pytest.mark.parametrize(
    ("read", "said"),
    [
        (lambda table: table.allow("steps", "rate"), "unknown key 'stepz': did you mean 'steps'"),
        (lambda table: table.allow("colour"), "unknown key 'stepz': allowed are colour"),
        (lambda table: table.text("stepz"), "stepz must be a string, got True"),
        (lambda table: table.whole("stepz"), "stepz must be a whole number, got True"),
        (lambda table: table.whole("few"), "few must be from 1 to 1000000000, got 0"),
        (lambda table: table.text("absent"), "absent is missing; it must be a string"),
        (lambda table: table.numbers("names"), "names must be a list of numbers"),
        (lambda table: table.table("names"), "names must be a table"),
    ],
    ids=range(8),
)
def test_a_wrong_entry_is_named_with_what_is_allowed(read, said):
    with pytest.raises(UsageError, match=f"^the recipe.*{said}"):
        read(Table.parse("stepz = true\nfew = 0\nnames = ['a']", what="the recipe"))


@given(st.text(alphabet="{}[]\",:.=ae01\\\n #'nanif-", max_size=40))
def test_any_text_is_read_or_refused_but_never_crashes(text):
    for read in (parse, lambda text: parse_toml(text, what="the recipe")):
        with contextlib.suppress(UsageError):
            read(text)
