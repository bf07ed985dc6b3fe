from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_infranoise.model import Reads
from pytest_infranoise.model import Spec
from pytest_infranoise.model import Task
from pytest_infranoise.tasks.defaults import DefaultResources
from pytest_infranoise.tasks.errors import Problem
from pytest_infranoise.tasks.errors import TaskError
from pytest_infranoise.tasks.patches import Touched
from pytest_infranoise.tasks.patches import touched
from pytest_infranoise.tasks.swebench import Instance
from pytest_infranoise.tasks.swebench import is_instances
from pytest_infranoise.tasks.swebench import load
from pytest_infranoise.tasks.swebench_instance import LOG_PARSERS
from pytest_infranoise.trials.suite_output import PARSERS
from tests.tasks.instances import ABSENT
from tests.tasks.instances import EVAL_SCRIPT
from tests.tasks.instances import GOLD
from tests.tasks.instances import TEST_PATCH
from tests.tasks.instances import instance
from tests.tasks.instances import write_instances

GIB = 1024**3
DEFAULTS = DefaultResources((1, 2), (2 * GIB, 6 * GIB))


def loaded(tmp_path: Path, *lines: dict[str, Any] | str, defaults: DefaultResources = DEFAULTS) -> list[Instance]:
    return list(load(write_instances(tmp_path / "instances.jsonl", *lines), defaults))


def task_of(tmp_path: Path, **changes: Any) -> Task:
    (found,) = loaded(tmp_path, instance(**changes))
    assert isinstance(found.task, Task), found.task
    return found.task


def mistakes(tmp_path: Path, *lines: dict[str, Any] | str, defaults: DefaultResources = DEFAULTS) -> list[str]:
    """Return the lines of all errors, without the file's path."""
    errors = [found.task for found in loaded(tmp_path, *lines, defaults=defaults)]
    told = [line for error in errors if isinstance(error, TaskError) for line in str(error).split("\n")]
    return [line.removeprefix(f"{tmp_path}/instances.jsonl: ") for line in told]


class TestInstances:
    def test_a_line_is_a_task(self, tmp_path: Path) -> None:
        task = task_of(tmp_path)
        assert task.name == "acme__adder-1"
        assert task.file == tmp_path / "instances.jsonl"
        assert task.instruction == "add.sh subtracts.\n"
        assert (task.image, task.workdir, task.unsupported) == ("infranoise/base:bookworm", "/testbed", None)
        assert task.verifier.reads is Reads.SWEBENCH
        assert task.verifier.options == {
            "parser": "pytest",
            "fail_to_pass": ["tests/run.sh::test_sum"],
            "pass_to_pass": ["tests/run.sh::test_zero"],
        }
        assert task.timeouts.verifier == 1800
        assert {upload.target: upload.source for upload in task.verifier.uploads}[
            "/infranoise/verifier/test.patch"
        ] == TEST_PATCH.encode()
        assert task.solution is not None
        assert [upload.source for upload in task.solution.uploads] == [GOLD.encode()]

    def test_blank_lines_and_a_byte_order_mark_are_no_mistakes(self, tmp_path: Path) -> None:
        found = loaded(tmp_path, "\ufeff" + json.dumps(instance()), "", "  ", instance(instance_id="b"))
        assert [line.label for line in found] == ["acme__adder-1", "b"]
        assert all(isinstance(line.task, Task) for line in found)

    @pytest.mark.parametrize("key", ["image", "image_name", "docker_image"])
    def test_the_image_under_its_names(self, tmp_path: Path, key: str) -> None:
        image = "swebench/sweb.eval.x86_64.acme_1776_adder-1:latest"
        assert task_of(tmp_path, **{"image": ABSENT, key: image}).image == image

    @pytest.mark.parametrize("key", ["test_cmd", "test_command", "test_cmds"])
    @pytest.mark.parametrize("value", ["sh tests/run.sh", ["cd tests", "sh run.sh"]])
    def test_the_command_under_its_names(self, tmp_path: Path, key: str, value: object) -> None:
        task = task_of(tmp_path, **{"test_cmd": ABSENT, key: value})
        assert len(task.verifier.uploads) == 2

    def test_no_test_patch_to_apply(self, tmp_path: Path) -> None:
        task = task_of(tmp_path, test_patch="")
        assert [upload.target for upload in task.verifier.uploads] == ["/infranoise/verifier/run.sh"]

    def test_nothing_to_restore_needs_no_commit(self, tmp_path: Path) -> None:
        header = "diff --git a/new b/new\nnew file mode 100644\n--- /dev/null\n+++ b/new\n"
        for patch in ("", f"{header}@@ -0,0 +1 @@\n+x\n"):
            task_of(tmp_path, base_commit=ABSENT, test_patch=patch)

    def test_an_eval_script_applies_the_test_patch_itself(self, tmp_path: Path) -> None:
        task = task_of(tmp_path, test_cmd=ABSENT, test_patch=ABSENT, eval_script=EVAL_SCRIPT % TEST_PATCH)
        (upload,) = task.verifier.uploads
        assert isinstance(upload.source, bytes)
        lines = upload.source.decode().splitlines()
        end = lines.index(": '>>>>> End Test Output'")
        assert lines[end - 3 : end] == ["sh tests/run.sh", ")", "infranoise_status=$?"]
        assert lines[end + 1] == 'echo "the tests ended with exit status $infranoise_status ($infranoise_nonce)"'

    def test_a_patch_whose_last_line_does_not_end_is_ended(self, tmp_path: Path) -> None:
        task = task_of(tmp_path, patch=GOLD.removesuffix("\n"))
        assert task.solution is not None
        assert task.solution.uploads[0].source == GOLD.encode()

    def test_the_hash_is_of_the_line_alone(self, tmp_path: Path) -> None:
        one = task_of(tmp_path)
        (tmp_path / "other").mkdir()
        reordered = dict(reversed(instance().items()))
        (two,) = loaded(tmp_path / "other", reordered)
        assert isinstance(two.task, Task)
        assert two.task.content_hash == one.content_hash
        assert task_of(tmp_path, test_cmd="sh other.sh").content_hash != one.content_hash

    def test_our_own_table(self, tmp_path: Path) -> None:
        own = {
            "resources": {"cpus": {"floor": 1, "ceiling": 2}, "memory": "2G", "pids": 64, "shm": "1M"},
            "timeouts": {"agent": 5},
            "workdir": "/repo",
            "setup": "true",
            "network": False,
            "pull": "never",
        }
        task = task_of(tmp_path, infranoise=own)
        assert task.spec == Spec(1, 2 * GIB, 2)
        assert (task.pids_ceiling, task.shm_ceiling) == (64, 1024**2)
        assert (task.timeouts.setup, task.timeouts.agent, task.timeouts.verifier) == (60, 5, 1800)
        assert (task.workdir, task.setup, task.network, task.pull) == ("/repo", "true", False, "never")

    def test_resources_from_the_defaults(self, tmp_path: Path) -> None:
        assert task_of(tmp_path, infranoise=ABSENT).spec == Spec(1, 2 * GIB, 2, 6 * GIB)

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            (
                {"log_parser": "parse_log_jest"},
                "log_parser 'parse_log_jest': the results of these tests cannot be read",
            ),
            ({"eval_type": "fail_only"}, "eval_type fail_only: a test without any result would count as passed"),
            ({"eval_type": "sometimes"}, "eval_type 'sometimes' is not known"),
            (
                {"image_assets": '{"test_patch": [{"path": "a.png", "url": "https://example.org/a.png"}]}'},
                "image_assets: the tests need files that must be fetched while grading",
            ),
        ],
    )
    def test_what_cannot_be_graded_faithfully(self, tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
        assert task_of(tmp_path, **changes).unsupported == reason

    @pytest.mark.parametrize("assets", ["", "{}", {}, None, '{"test_patch": []}', {"test_patch": []}])
    def test_no_assets(self, tmp_path: Path, assets: object) -> None:
        assert task_of(tmp_path, image_assets=assets).unsupported is None

    def test_every_parser_is_there(self) -> None:
        assert set(LOG_PARSERS.values()) == set(PARSERS)


class TestMistakes:
    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            ({"instance_id": ABSENT}, "instance_id: is missing; add it"),
            ({"instance_id": "../x"}, "instance_id: '../x' cannot be a name; use up to 100 letters, *"),
            ({"instance_id": 7}, "instance_id: 7 is not text; *"),
            ({"image": ABSENT}, "image: is missing; add it; image_name or docker_image is read as well"),
            ({"image": "A B"}, "image: 'A B' is not an image reference; *"),
            ({"image_name": "other"}, "image_name: is another image than image; remove one of them"),
            ({"problem_statement": " "}, "problem_statement: ' ' is no text; *"),
            ({"problem_statement": "\ud800"}, "problem_statement: has half of a surrogate pair, *"),
            ({"patch": ABSENT}, "patch: is missing; add it"),
            ({"patch": ""}, "patch: '' is no text; *"),
            ({"patch": "fix it"}, "patch: is no patch: it names no file; *"),
            ({"patch": GOLD[:-20]}, "patch: *hunk*"),
            ({"patch": GOLD.replace("/add.sh", "/../add.sh")}, "patch: the path '../add.sh' leads out of *"),
            ({"test_patch": ABSENT}, "test_patch: is missing; add it"),
            ({"test_patch": "x"}, "test_patch: is no patch: it names no file; *"),
            ({"test_cmd": ABSENT}, "eval_script: is missing; add it, or test_cmd: the command that runs the tests"),
            ({"test_cmd": []}, "test_cmd: [] is neither a command nor a list of commands; *"),
            ({"test_cmd": ["a", 1]}, "test_cmd: [[]'a', 1] is neither a command nor a list of commands; *"),
            ({"test_cmds": ["a"]}, "test_cmds: is given together with test_cmd; remove one of them"),
            ({"eval_script": "true"}, "eval_script: is given together with test_cmd; remove one of them"),
            (
                {"test_cmd": ABSENT, "eval_script": "true"},
                "eval_script: does not print the marker '>>>>> Start Test Output'; *",
            ),
            (
                {"base_commit": "main; rm -rf /"},
                "base_commit: 'main; rm -rf /' is not a commit; write its whole hash",
            ),
            # What these names mean, the agent decides.
            ({"base_commit": "HEAD"}, "base_commit: 'HEAD' is not a commit; write its whole hash"),
            ({"base_commit": "0123456789ab"}, "base_commit: '0123456789ab' is not a commit; write its whole hash"),
            ({"base_commit": ABSENT}, "base_commit: is missing, but test_patch changes 'tests/run.sh', *; add *"),
            ({"base_commit": ""}, "base_commit: '' is no text; *"),
            (
                {
                    "test_cmd": ABSENT,
                    "eval_script": "echo '>>>>> Start Test Output'; t; echo '>>>>> End Test Output'",
                },
                "eval_script: does not print the start marker in a line before the end marker; *",
            ),
            (
                {"test_cmd": ABSENT, "eval_script": ": '>>>>> End Test Output'\n: '>>>>> Start Test Output'\n"},
                "eval_script: does not print the start marker in a line before the end marker; *",
            ),
            ({"FAIL_TO_PASS": ABSENT}, "FAIL_TO_PASS: is missing; add it"),
            ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS: names no test, so nothing would be graded; *"),
            ({"FAIL_TO_PASS": "[]"}, "FAIL_TO_PASS: names no test, so nothing would be graded; *"),
            ({"FAIL_TO_PASS": "test_a"}, "FAIL_TO_PASS: 'test_a' is no list of tests; *"),
            ({"PASS_TO_PASS": ABSENT}, "PASS_TO_PASS: is missing; add it"),
            ({"PASS_TO_PASS": ["a", None]}, "PASS_TO_PASS: [[]'a', None] is no list of tests; *"),
            ({"log_parser": 3}, "log_parser: 3 is not text; *"),
            ({"infranoise": []}, "infranoise: [[]] is not a mapping; *"),
            (
                {"infranoise": {"ressources": {}}},
                "infranoise.ressources: is an unknown key; did you mean resources?",
            ),
            (
                {"infranoise": {"resources": {"cpus": 1, "memory": "lots"}}},
                "infranoise.resources.memory: 'lots' is not an amount of memory; *",
            ),
            ({"infranoise": {"timeouts": {"agent": 0}}}, "infranoise.timeouts.agent: 0 is too small; *"),
            ({"infranoise": {"workdir": "x"}}, "infranoise.workdir: 'x' is not an absolute path; *"),
        ],
    )
    def test_line_field_problem_and_remedy(self, tmp_path: Path, changes: dict[str, Any], told: str) -> None:
        lines = mistakes(tmp_path, instance(instance_id="first"), instance(**changes))
        pytest.LineMatcher(lines).fnmatch_lines([f"line 2: {told}"])
        assert all(line.startswith("line 2: ") for line in lines)

    def test_all_mistakes_of_a_line_at_once(self, tmp_path: Path) -> None:
        lines = mistakes(tmp_path, {"instance_id": "a"})
        fields = [line.split(": ")[1] for line in lines]
        assert fields == [
            *("problem_statement", "image", "FAIL_TO_PASS", "PASS_TO_PASS", "test_patch", "eval_script", "patch")
        ]

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ('{"instance_id": "a", "test_pat', "line 1: is not valid JSON: Unterminated string *; correct it"),
            ("[1]", "line 1: [[]1[]] is not an object; write one JSON object in each line"),
            ('{"instance_id": "a", "instance_id": "b"}', "line 1: the key 'instance_id' is given twice; *"),
            ('{"instance_id": NaN}', "line 1: NaN is not valid JSON; write a number"),
            ('{"a": ' * 100_000, "line 1: is nested too deep to be read; make it flatter"),
            ('{"a": 1' + "0" * 5000 + "}", "line 1: cannot be read: *"),
        ],
    )
    def test_what_is_no_instance(self, tmp_path: Path, line: str, told: str) -> None:
        lines = mistakes(tmp_path, line, instance())
        pytest.LineMatcher(lines).fnmatch_lines([told])
        assert len(lines) == 1

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        file = tmp_path / "instances.jsonl"
        file.write_bytes(b'{"instance_id": "\xff"}\n')
        (found,) = load(file)
        assert str(found.task) == f"{file}: line 1: is not UTF-8 text; save the file as UTF-8"

    def test_an_id_that_is_there_twice(self, tmp_path: Path) -> None:
        found = loaded(tmp_path, instance(), instance(instance_id="b"), instance())
        assert [line.label for line in found] == ["acme__adder-1", "b", "line-3"]
        assert str(found[2].task).endswith(
            "line 3: instance_id: 'acme__adder-1' is also in line 1; remove one of them"
        )

    def test_no_resources_anywhere(self, tmp_path: Path) -> None:
        assert mistakes(tmp_path, instance(infranoise=ABSENT), defaults=DefaultResources(cpus=(1, 1))) == [
            "line 1: infranoise.resources: is missing; give e.g. --infranoise-default-memory 4G, or add it: "
            "{cpus: 1, memory: 4G}"
        ]

    @given(data=st.dictionaries(st.sampled_from(sorted(instance())), st.none() | st.text() | st.integers()))
    def test_any_values_give_a_task_or_mistakes(
        self, tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
    ) -> None:
        (found,) = loaded(tmp_path_factory.mktemp("any"), instance(**data))
        assert isinstance(found.task, Task | TaskError)


class TestRecognition:
    def test_instances(self, tmp_path: Path) -> None:
        assert is_instances(write_instances(tmp_path / "a.jsonl", "", instance()))

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "not JSON",
            '{"instance_id": "a", "model_patch": "", "model_name_or_path": "m"}',
            '{"FAIL_TO_PASS": []}',
            json.dumps({"text": json.dumps(instance())}),
        ],
    )
    def test_others(self, tmp_path: Path, line: str) -> None:
        assert not is_instances(write_instances(tmp_path / "a.jsonl", line))

    def test_only_json_lines(self, tmp_path: Path) -> None:
        assert not is_instances(write_instances(tmp_path / "a.json", instance()))
        assert not is_instances(tmp_path / "missing.jsonl")
        (tmp_path / "directory.jsonl").mkdir()
        assert not is_instances(tmp_path / "directory.jsonl")


class TestPatches:
    def test_changed_and_made(self) -> None:
        made = "diff --git a/new file b/new file\nnew file mode 100644\n--- /dev/null\n+++ b/new file\n"
        gone = "diff --git a/gone b/gone\ndeleted file mode 100644\n--- a/gone\n+++ /dev/null\n"
        patch = f"{TEST_PATCH}{made}@@ -0,0 +1 @@\n+--- x\n{gone}@@ -1 +0,0 @@\n--- y\n"
        assert touched(patch) == Touched(changed=("tests/run.sh", "gone"), made=("new file",))

    def test_empty_and_binary_files(self) -> None:
        patch = (
            "diff --git a/p/__init__.py b/p/__init__.py\nnew file mode 100644\nindex 0000000..e69de29\n"
            "diff --git a/old b/old\ndeleted file mode 100644\nindex e69de29..0000000\n"
            "diff --git a/x.png b/x.png\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZ\n\n"
            "diff --git a/new.png b/new.png\nnew file mode 100644\nGIT binary patch\nliteral 1\nIcmZ\n\n"
        )
        assert touched(patch) == Touched(changed=("old", "x.png"), made=("p/__init__.py", "new.png"))

    def test_renamed(self) -> None:
        patch = "diff --git a/old b/new\nsimilarity index 100%\nrename from old\nrename to new\n"
        assert touched(patch) == Touched(changed=("old",), made=("new",))

    def test_names_that_git_quotes(self) -> None:
        old, new = r'"a/\303\274\t"', r'"b/\303\274\t"'
        patch = f"diff --git {old} {new}\n--- {old}\n+++ {new}\n@@ -1 +1 @@\n-a\n+b\n"
        assert touched(patch) == Touched(changed=("ü\t",), made=())

    def test_what_follows_a_hunk_is_not_counted(self) -> None:
        assert touched(GOLD + "-- \n2.39.5\n\n") == Touched(changed=("add.sh",), made=())

    @given(text=st.text(st.sampled_from('-+@ ab/\n,1"\\'), max_size=200))
    def test_any_text_after_a_patch_is_read_or_a_problem(self, text: str) -> None:
        with contextlib.suppress(Problem):
            assert "add.sh" in touched(GOLD + text).changed
