# SPDX-License-Identifier: Apache-2.0
"""Every example on every page runs as it is printed, by itself; where one cannot run here, the skipped test says why.

A page may leave the name of a model to its reader, in a line that ends in "# your model": a tiny one stands in. Blocks
that say how many ranks torchrun starts are started so. C++ is compiled and run by tests/docs.
"""

import ast
import doctest
import functools
import importlib.util
import linecache
import re
import shlex
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="most pages compute with it")

from ranks import torchrun  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@dataclass
class Block:
    page: str
    line: int
    language: str
    code: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks():
    """Every block of every page that names its language."""
    for path in PAGES:
        page = path.read_text()
        for found in re.finditer(r"^( *)```(\w+)\n(.*?)^\1```$", page, re.MULTILINE | re.DOTALL):
            line = page.count("\n", 0, found.start()) + 2
            yield Block(str(path.relative_to(ROOT)), line, found[2], textwrap.dedent(found[3]))


BLOCKS = list(blocks())


def is_slow(block):
    """Whether it starts programs or makes models."""
    return block.language == "sh" or re.search("transformers|torchrun", block.code)


def in_language(language):
    chosen = [each for each in BLOCKS if each.language == language]
    given = [pytest.param(each, marks=pytest.mark.slow if is_slow(each) else ()) for each in chosen]
    return pytest.mark.parametrize("block", given, ids=str)


def imported(code):
    """The packages that a block imports."""
    for node in ast.walk(ast.parse(code)):
        names = [each.name for each in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) else []
        yield from (name.split(".")[0] for name in names)
    extended = {"flashmask.trl": "trl", "flashmask.integrations.ms_swift": "swift"}
    yield from (package for ours, package in extended.items() if ours in code)


def without_prompts(block):
    """A block's statements, those of a doctest without their marks."""
    if not block.code.startswith(">>>"):
        return block.code
    return "".join(each.source for each in doctest.DocTestParser().get_examples(block.code))


def skip_where_it_cannot_run(code):
    """By what the block imports and says."""
    missing = [package for package in sorted(set(imported(code))) if not importlib.util.find_spec(package)]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    if '"cuda"' in code and "is_available" not in code and not torch.cuda.is_available():
        pytest.skip("it needs a GPU")


def with_a_tiny_model(code, folder):
    """The block with a saved model in place of its reader's."""
    yours = re.compile(r'^(\w+) = ".*"  # your model$', re.MULTILINE)
    if not yours.search(code):
        return code
    import tiny_llama

    model = tiny_llama.save(folder / "model")
    return yours.sub(lambda line: f"{line[1]} = {model!r}", code)


def promised(code):
    """What a block says that its lines print."""
    return re.findall(r"^print\(.*\)  # (.*)$", code, re.MULTILINE)


@pytest.fixture(autouse=True)
def a_folder_and_one_thread(tmp_path, monkeypatch):
    """Blocks may write files; what they compute is too small to share."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(Path(__file__).parent / "trainers")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
    torch._dynamo.reset()


@in_language("python")
def test_python_runs_alone(block, tmp_path, capsys):
    skip_where_it_cannot_run(without_prompts(block))
    if block.code.startswith(">>>"):
        examples = doctest.DocTestParser().get_doctest(block.code, {}, str(block), str(block), block.line)
        assert doctest.DocTestRunner().run(examples).failed == 0, capsys.readouterr().out
        return
    code = with_a_tiny_model(block.code, tmp_path)
    ranks = re.search(r"torchrun --nproc-per-node (\d+) ", code)
    if ranks:
        (tmp_path / "block.py").write_text(code)
        ran = torchrun(tmp_path / "block.py", ranks=int(ranks[1]))
        assert ran.returncode == 0, ran.stderr
        return
    linecache.cache[str(block)] = (len(code), None, code.splitlines(True), str(block))  # torch.compile reads the source
    exec(compile(code, str(block), "exec"), {"__name__": "block"})
    printed = capsys.readouterr().out
    for line in promised(code):
        assert line in printed


def commands(block):
    """The words of each command of a shell block, without comments, settings before it and what it is piped into."""
    for line in re.split(r"\n|&&", block.code.replace("\\\n", " ")):
        words = shlex.split(line, comments=True)
        while words and re.match(r"\w+=", words[0]):
            words.pop(0)
        if words:
            yield words


def program_of(words):
    """The file of this tree that a command runs, or the module after -m; else None: other people's programs."""
    ours = re.compile(r"scripts/[\w-]+|(bench|examples|docs)/.*\.py|flashmask\.[\w.]+")
    return next((found[0] for word in words if (found := ours.match(word))), None)


@functools.cache
def help_of(program, *device):
    """What a program says to --help, for a device where it asks that first."""
    interpreter = [] if program.startswith("scripts/") else [sys.executable]
    command = [*interpreter, str(ROOT / program), *device, "--help"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@in_language("sh")
def test_shell_names_what_is_there(block):
    """Programs of this tree with options that they have; what they do is for their own tests."""
    syntax = subprocess.run(["bash", "-n"], input=block.code, capture_output=True, text=True, check=False)
    assert syntax.returncode == 0, syntax.stderr
    ours = [(program, words) for words in commands(block) if (program := program_of(words))]
    if not ours:
        pytest.skip(f"runs {next(commands(block))[0]}, which is no script of this tree")
    for program, words in ours:
        if program.startswith("flashmask."):
            assert importlib.util.find_spec(program)
            continue
        assert (ROOT / program).exists()
        options = [word.split("=")[0] for word in words[words.index(program) :] if word.startswith("--")]
        device = ["--device", "cuda"] if {"--device", "cuda"} <= set(words) else []
        for option in set(options) - set(device):
            assert re.search(rf"{option}\b", help_of(program, *device)), f"{program} has no {option}"


@in_language("cpp")
def test_quoted_sources_are_the_sources(block):
    """C++ that begins with the name of a file of the library is text of that file."""
    file = re.match(r"// (src/\S+)\n", block.code)
    if not file:
        pytest.skip("compiled and run by ctest: tests/docs")
    assert block.code[file.end() :] in (ROOT / file[1]).read_text()
