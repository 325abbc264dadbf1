"""A long list within JSON, read while it comes."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurm_hadar.slurm.output import JsonListReader

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
DOCUMENTS = st.dictionaries(st.sampled_from(["jobs", "meta", "a", '"]}']), VALUES, max_size=4)


def read(text: str, step: int) -> tuple[list[object], dict[str, object]]:
    found: list[object] = []
    members = JsonListReader("jobs", found.append)
    for start in range(0, len(text), step):
        members.feed(text[start : start + step])
    return found, members.end()


@given(DOCUMENTS, st.integers(1, 40), st.sampled_from([None, 0, 2]), st.booleans())
@example({"jobs": [1, 12, 123], "a": 12}, 1, None, True)
def test_any_document_in_any_parts_is_what_json_says(document, step, indent, ascii_) -> None:
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_)
    found, rest = read(f" {text}\n", step)
    if isinstance(document.get("jobs"), list):
        assert found == document["jobs"]
        document = {**document, "jobs": []}
    else:
        assert found == []
    assert rest == document and list(rest) == list(document)


@given(DOCUMENTS, st.integers(1, 40), st.floats(0, 0.999))
def test_a_part_of_a_document_is_none(document, step, fraction) -> None:
    text = json.dumps(document)
    with pytest.raises(ValueError, match="not whole"):
        read(text[: int(len(text) * fraction)], step)


@given(DOCUMENTS, st.data())
def test_what_json_refuses_is_refused(document, data) -> None:
    text = json.dumps({**document, "jobs": [{"a": 1}, 2]})
    at = data.draw(st.integers(0, len(text)))
    broken = text[:at] + data.draw(st.sampled_from([",", "]", "}", "x", '"', "[", "1", ":"]))
    broken += text[at + data.draw(st.integers(0, 2)) :]
    try:
        whole = json.loads(broken, strict=False)
    except ValueError:
        with pytest.raises(ValueError, match="broken"):
            read(broken, 7)
        return
    if isinstance(whole, dict) and len(whole) == len(document | {"jobs": 0}):
        assert set(read(broken, 7)[1]) == set(whole)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{", "{}{}", '{"jobs": [1,]}', '{"jobs": [,1]}', '{"jobs": [1 2]}', '{"a" 1}',
        '{"jobs": [1], }', '{1: 2}', '{"jobs": [], "jobs": {}}', '{"jobs": ' + "[" * 100_000,
        '{"a": ' + "1" * 5000 + "}",
    ],
)  # fmt: skip
def test_no_document(text: str) -> None:
    for step in (1 + len(text) // 20, 10**6):
        with pytest.raises(ValueError, match="broken or not whole"):
            read(text, step)


def test_control_characters_in_strings_are_taken() -> None:
    assert read('{"jobs": ["a\nb\x01"]}', 3)[0] == ["a\nb\x01"]
