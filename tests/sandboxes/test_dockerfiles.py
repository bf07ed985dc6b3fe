from __future__ import annotations

from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.sandboxes.dockerfiles import Needs
from pytest_infranoise.sandboxes.dockerfiles import instructions
from pytest_infranoise.sandboxes.dockerfiles import read_needs


def needs(text: str) -> list[tuple[int, str]]:
    return [(need.line, need.what) for need in read_needs(dedent(text)).needs]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM a\nRUN --mount=type=cache,target=/x make\n", [(2, "RUN --mount")]),
        ("FROM a\nrun  --network=none true\n", [(2, "RUN --network")]),
        ("FROM a\nCOPY --from=b --link --chmod=755 x /x\n", [(2, "COPY --link"), (2, "COPY --chmod")]),
        ("FROM a\nADD --checksum=sha256:00 http://x /x\n", [(2, "ADD --checksum")]),
        ("FROM a\nRUN <<EOF\necho 1\nEOF\nRUN true\n", [(2, "a here-document in RUN")]),
        ("FROM a\nCOPY <<'ONE' <<-\"TWO\" /x/\n1\nONE\n\t2\n\tTWO\n", [(2, "a here-document in COPY")]),
        ("FROM a\nRUN x && \\\n  # why\n\n  cat <<EOF > /y\nEOF\n", [(2, "a here-document in RUN")]),
        ("ARG TARGETARCH\nFROM a\nARG TARGETOS OTHER=1\n", [(1, "ARG TARGETARCH"), (3, "ARG TARGETOS")]),
        ("FROM --platform=$BUILDPLATFORM a\n", [(1, "$BUILDPLATFORM")]),
        ("FROM --platform=${TARGETPLATFORM} a\n", [(1, "$TARGETPLATFORM")]),
        ("# syntax=example.org/other:1\nFROM a\n", [(1, "`# syntax=example.org/other:1`")]),
        ("# escape=`\nFROM a\nRUN one `\n  --mount=x\nRUN --mount=x y\n", [(5, "RUN --mount")]),
    ],
)
def test_what_only_buildkit_can_do_is_found_with_its_line(text: str, expected: list[tuple[int, str]]) -> None:
    found = needs(text)

    assert [line for line, _ in found] == [line for line, _ in expected]
    for (_, what), (_, start) in zip(found, expected, strict=True):
        assert what.startswith(start)


@pytest.mark.parametrize(
    "text",
    [
        "# syntax=docker/dockerfile:1\nFROM a\nRUN true\n",
        "#syntax = docker.io/docker/dockerfile:1.4-labs\nFROM a\n",
        "FROM a AS b\nCOPY --from=b --chown=1:1 x /x\n",
        "FROM a\nRUN echo --mount=type=cache\n",
        "FROM a\nRUN make --link --chmod\n",
        "FROM a\n# RUN --mount=x y\n",
        'FROM a\nRUN echo "a <<EOF b"\nRUN echo $((1 << 2)) $((1<<x)) <<< word\n',
        "FROM a\nRUN bash -c 'cat <<EOF' > /x\n",
        "FROM a\nRUN cat <<EOF\n",
        "FROM a\nARG TARGETARCH=amd64\nARG TARGET\nENV X=$TARGETARCH\n",
        "FROM --platform=linux/amd64 a\n",
        "FROM a\nRUN one \\\n  --mount=x\n",
        "",
    ],
)
def test_what_any_builder_can_do_needs_nothing(text: str) -> None:
    assert needs(text) == []


def test_the_body_of_a_here_document_is_no_instruction() -> None:
    text = "FROM a\nRUN <<EOF\nRUN --mount=x y\nEOF\nCOPY --link b /b\n"

    assert [line for line, _ in needs(text)] == [2, 5]


def test_old_buildkit_knows_less_unless_the_file_names_its_own_front_end() -> None:
    plain = read_needs("FROM a\nRUN --mount=x y\nCOPY --link b /b\n")
    named = read_needs("# syntax=docker/dockerfile:1\nFROM a\nCOPY --link b /b\n")

    beyond = plain.beyond((20, 10))
    assert beyond is not None
    assert (beyond.line, beyond.what) == (3, "COPY --link")
    assert plain.beyond((23, 0)) is None
    assert named.beyond((20, 10)) is None
    assert Needs((), None).beyond((1, 0)) is None


LINES = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(
            [
                "FROM a",
                "RUN --mount=x y",
                "RUN <<EOF",
                "EOF",
                "RUN x \\",
                "# c",
                "",
                "ARG TARGETARCH",
                "COPY --link a b",
            ]
        ),
    ),
    max_size=12,
)


@given(lines=LINES)
def test_any_text_can_be_read(lines: list[str]) -> None:
    text = "\n".join(lines)

    for need in read_needs(text).needs:
        assert 1 <= need.line <= len(text.splitlines())


@given(lines=LINES, place=st.integers(0, 12))
def test_comments_between_instructions_change_no_instruction(lines: list[str], place: int) -> None:
    whole = "\n".join(lines).splitlines()
    starts = [found.line - 1 for found in instructions(whole)]
    if starts:
        at = starts[place % len(starts)]
        commented = [*whole[:at], "# a comment", "", *whole[at:]]

        assert [found[1:] for found in instructions(commented)] == [found[1:] for found in instructions(whole)]
