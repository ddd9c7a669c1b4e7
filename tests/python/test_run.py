# SPDX-License-Identifier: Apache-2.0
"""python -m flashmask.run: a program runs as if it were started directly, with FlashMask registered in Transformers."""

import os
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.slow
SHOWS = """
import sys
print(__name__, __file__, __package__, sys.argv, sys.path[0], sys.flags.optimize, sys.flags.dev_mode)
print(sorted({name.partition(".")[0] for name in sys.modules} & {"numpy", "torch", "transformers", "flashmask"}))
print(any("_startup" in entry for entry in sys.path))
"""


def python(*arguments, cwd=None, **variables):
    """What a Python that runs these prints, and its status."""
    command = [sys.executable, *map(str, arguments)]
    environment = {**os.environ, **variables}
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=cwd, env=environment)


def written(folder, name, text):
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def assert_same(options, program, cwd):
    ours = python(*options, "-m", "flashmask.run", *program, cwd=cwd)
    directly = python(*options, *program, cwd=cwd)
    assert ours.returncode == directly.returncode
    assert (ours.stdout, ours.stderr) == (directly.stdout, directly.stderr)
    return ours


@pytest.mark.parametrize("options", [[], ["-O", "-X", "dev"]])
def test_a_script_sees_what_it_sees_when_it_is_started_directly(tmp_path, options):
    written(tmp_path, "script.py", SHOWS)
    shown = assert_same(options, ["script.py", "a", "--b=c d", "-m", "--help"], tmp_path)
    assert shown.stdout.startswith("__main__ ") and "'--b=c d'" in shown.stdout
    assert "\n[]\nFalse\n" in shown.stdout  # nothing is imported before the script says so


def test_a_module_runs_as_one(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    written(package, "__init__.py", "")
    written(package, "part.py", SHOWS)
    assert " package [" in assert_same([], ["-m", "package.part", "--help"], tmp_path).stdout


def test_a_command_runs_with_its_own_python(tmp_path):
    command = written(tmp_path, "told", f"#!{sys.executable}\nimport sys\nprint(sys.argv)\nsys.exit(5)\n")
    command.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    ran = python("-m", "flashmask.run", "told", "a", "--help", PATH=path)
    assert ran.returncode == 5 and ran.stdout == f"['{command}', 'a', '--help']\n"


@pytest.mark.parametrize(
    "ends", ["raise ValueError('broken')", "raise SystemExit('text')", "1 +", "import os; os.abort()"]
)
def test_errors_and_exit_statuses_are_the_programs_own(tmp_path, ends):
    written(tmp_path, "script.py", f"def fails():\n    {ends}\n\nfails()\n")
    assert assert_same([], ["script.py"], tmp_path).returncode != 0


def test_a_missing_script_is_pythons_error(tmp_path):
    assert "can't open file" in assert_same([], ["missing.py"], tmp_path).stderr


def test_help_and_what_cannot_be_run():
    for option in ("-h", "--help"):
        told = python("-m", "flashmask.run", option)
        assert told.returncode == 0 and "usage: python -m flashmask.run script.py" in told.stdout
    nothing = python("-m", "flashmask.run")
    assert nothing.returncode == 2 and "usage:" in nothing.stderr and not nothing.stdout
    for given, said in (("no-such-command", "there is no command 'no-such-command'"), ("-q", "-q is no option of it")):
        wrong = python("-m", "flashmask.run", given)
        assert wrong.returncode == 2 and wrong.stderr.startswith(f"python -m flashmask.run: {said}")


def test_a_sitecustomize_of_the_machine_still_runs(tmp_path):
    written(tmp_path, "sitecustomize.py", "print('the one of the machine')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    script = written(tmp_path, "script.py", "import sitecustomize; print(sitecustomize.__file__)")
    ran = python("-m", "flashmask.run", script, PYTHONPATH=path)
    assert ran.stdout.split("\n")[-3:] == ["the one of the machine", str(tmp_path / "sitecustomize.py"), ""]


def test_transformers_knows_the_name_in_the_program_and_in_what_it_starts(tmp_path):
    pytest.importorskip("transformers", reason="it is what the name is registered in")
    written(
        tmp_path,
        "script.py",
        """
        import subprocess, sys
        if len(sys.argv) == 1:
            sys.exit(subprocess.run([sys.executable, __file__, "child"]).returncode)
        import transformers
        from transformers import AutoModelForCausalLM, LlamaConfig
        sizes = dict(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
        model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes), attn_implementation="flashmask")
        print(model.config._attn_implementation, sys.modules["flashmask.transformers"].__name__)
        """,
    )
    ran = python("-m", "flashmask.run", "script.py", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "flashmask flashmask.transformers\n"


def test_importing_auto_registers():
    pytest.importorskip("transformers", reason="it is what the name is registered in")
    known = "'flashmask' in transformers.AttentionInterface().valid_keys()"
    asks = f"import transformers; before = {known}; import flashmask.transformers.auto; print(before, {known})"
    assert python("-c", asks).stdout == "False True\n"
