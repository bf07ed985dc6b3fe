"""SWE-bench's way of grading: the repository's own tests ran, and named ones must have passed.

What is compared are the results in what the tests printed between two markers. Nothing is read into an output
that does not show the end of a run: no marker, no result at all, or an exit status that contradicts the results
is no verdict. With no result, the tests' own last words may still show that they were tried and met errors (a
module that cannot be imported any more); then none has passed, as in SWE-bench.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

from pytest_infranoise.trials.evidence import MAX_TEXT
from pytest_infranoise.trials.evidence import Artefact
from pytest_infranoise.trials.evidence import ArtefactStatus
from pytest_infranoise.trials.pytest_summary import whole_end
from pytest_infranoise.trials.suite_output import PARSERS
from pytest_infranoise.trials.suite_output import Status
from pytest_infranoise.trials.suite_output import errors_met
from pytest_infranoise.trials.suite_output import status_of

if TYPE_CHECKING:
    from pytest_infranoise.trials.readers import Reading

START = ">>>>> Start Test Output"
END = ">>>>> End Test Output"

_GOOD = frozenset({Status.PASSED, Status.XFAIL})
_BAD = frozenset({Status.FAILED, Status.ERROR})
_SHOWN = 5  # tests that are named in a summary


def read(reading: Reading) -> Artefact:
    """Return the verdict in what the verifier's command printed."""
    return grade(reading.text(), reading.options, reading.nonce)


def grade(output: str, options: Mapping[str, Any], nonce: str) -> Artefact:
    """Return the verdict in an output; ``options`` are ``parser``, ``fail_to_pass`` and ``pass_to_pass``.

    A test of FAIL_TO_PASS must have passed; one of PASS_TO_PASS may also have been skipped. One without any
    result has not passed: that is how a repository that cannot be imported any more shows.
    """
    _, started, rest = output.partition(START)
    suite, ended, after = rest.rpartition(END)
    if not started or not ended:
        what = "start" if not started else "end"
        return Artefact(ArtefactStatus.MISSING, text=_tail(f"the tests' output has no {what}: ", output))
    results = PARSERS[options["parser"]](suite)
    # Errors alone may be those of what should have started the tests, unless the tests' own last words count them.
    tried = not set(results.values()) <= {Status.ERROR, Status.SKIPPED}
    errors = None if tried else errors_met(suite)
    if not tried and errors is None:
        return Artefact(ArtefactStatus.MALFORMED, text=_tail("no test's result can be read: ", suite))
    status = _exit_status(after, nonce)
    if status != 0 and errors is None and not _BAD & set(results.values()):
        said = "is not known" if status is None else f"is {status}"
        return Artefact(
            ArtefactStatus.MALFORMED, text=_tail(f"no test failed, but their exit status {said}: ", suite)
        )
    fixed, kept = options["fail_to_pass"], options["pass_to_pass"]
    missed = _missed(fixed, results, _GOOD)
    broken = _missed(kept, results, _GOOD | {Status.SKIPPED})
    text = (
        f"{len(fixed) - len(missed)} of {len(fixed)} FAIL_TO_PASS and {len(kept) - len(broken)} of {len(kept)} "
        f"PASS_TO_PASS passed{_names(missed + broken)}{f' (the tests ended with: {errors})' if errors else ''}"
    )
    reward = 0.0 if missed or broken else 1.0
    source = "" if errors is None else "the tests' last line"
    return Artefact(ArtefactStatus.COMPLETE, reward, len(fixed) + len(kept), text[:MAX_TEXT], source)


def _missed(tests: Sequence[str], results: Mapping[str, Status], good: frozenset[Status]) -> list[str]:
    found = {test: status_of(test, results) for test in tests}
    return [f"{test} ({status or 'no result'})" for test, status in found.items() if status not in good]


def _names(tests: Sequence[str]) -> str:
    if not tests:
        return ""
    more = f" and {len(tests) - _SHOWN} more" if len(tests) > _SHOWN else ""
    return f"; not: {', '.join(tests[:_SHOWN])}{more}"


def _exit_status(after: str, nonce: str) -> int | None:
    match = re.search(rf"^the tests ended with exit status (\d+) \({re.escape(nonce)}\)$", after, re.MULTILINE)
    return int(match[1]) if match else None


def _tail(problem: str, output: str) -> str:
    return problem + whole_end(output, MAX_TEXT - len(problem))
