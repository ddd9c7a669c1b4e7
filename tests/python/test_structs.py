# SPDX-License-Identifier: Apache-2.0
"""The structs, enumerations and functions that Python knows, held against the C header and the compiled library."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flashmask._abi import structs
from flashmask._abi.library import library
from flashmask._abi.struct_layouts import STRUCTS, check_layouts, fields

INCLUDE = Path(__file__).parents[2] / "include"
HEADER = re.sub(r"//.*|/\*.*?\*/", "", (INCLUDE / "flashmask" / "c_api.h").read_text())
FUNCTIONS = re.findall(r"FLASHMASK_API\s+[\w ]+?[ *]+flashmask_(\w+)\(", HEADER)
ENUMERATORS = {name: value for name, value in vars(structs).items() if name.isupper() and isinstance(value, int)}
# Functions and structs of the header that Python does without, and why.
UNUSED = {"mask_from_predicate": "a call into Python a score; from_mask_mod evaluates tensors instead"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """What a C program prints: sizes of structs, offsets and sizes of fields, values of enumerators."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    assert compiler, "the tests need a C compiler named cc, gcc or clang"
    lines = []
    for name, kind in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field in fields(kind):
            lines.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof({name}, {field}), sizeof((({name}*)0)->{field}));'
            )
    lines += [f'printf("{name} %d\\n", (int)FLASHMASK_{name});' for name in ENUMERATORS]
    folder = tmp_path_factory.mktemp("structs")
    source = folder / "structs.c"
    source.write_text(
        '#include <stddef.h>\n#include <stdio.h>\n#include "flashmask/c_api.h"\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = folder / "structs"
    subprocess.run([compiler, "-std=c11", f"-I{INCLUDE}", source, "-o", program], check=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {line.split()[0]: tuple(map(int, line.split()[1:])) for line in told.splitlines()}


def layouts():
    """What the library says of its structs."""
    text = ctypes.c_char_p()
    library.flashmask_struct_layouts(ctypes.byref(text))
    return text.value.decode()


def fields_of_header(name):
    """Members of a struct, in the order of the header."""
    body = re.search(rf"typedef struct {name} \{{(.*?)\n?\}} {name};", HEADER, re.S).group(1)
    members = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        pointer = re.search(r"\(\*(\w+)\)", declaration)
        if pointer:
            members.append(pointer.group(1))
            continue
        first, *others = declaration.split(",")
        members += [re.search(r"(\w+)(\[\d+\])?$", part.strip()).group(1) for part in (first, *others)]
    return members


@pytest.mark.parametrize("name", STRUCTS)
def test_structs_lie_as_in_c(name, compiled):
    kind = STRUCTS[name]
    assert ctypes.sizeof(kind) == compiled[name][0]
    for field in fields(kind):
        descriptor = getattr(kind, field)
        assert (descriptor.offset, descriptor.size) == compiled[f"{name}.{field}"], field
    assert fields(kind) == fields_of_header(name)


@pytest.mark.parametrize("name", ENUMERATORS)
def test_enumerators_have_their_values(name, compiled):
    assert ENUMERATORS[name] == compiled[name][0]


def test_every_struct_of_the_header_is_known():
    declared = set(re.findall(r"typedef struct (\w+) \{", HEADER))
    assert declared == STRUCTS.keys()
    assert declared == {line.split()[0] for line in layouts().splitlines()}


@pytest.mark.parametrize(
    ("told", "other", "difference"),
    [
        (
            "dropout:80:8",
            "dropout:88:8",
            "has flashmask_problem.dropout at byte 88 with 8 bytes where this package expects "
            "flashmask_problem.dropout at byte 80 with 8 bytes",
        ),
        (
            " change:112:8\nflashmask_executor",
            "\nflashmask_executor",
            "has the end of flashmask_problem where this package expects flashmask_problem.change",
        ),
        (
            "dropout:80:8",
            "dropout:80:8 softcap:80:8",
            "has flashmask_problem.softcap at byte 80 with 8 bytes where this package expects "
            "flashmask_problem.softcap at byte 88",
        ),
        ("flashmask_span 16 ", "flashmask_span 24 ", "has 24 bytes in flashmask_span where this package expects 16"),
        ("flashmask_span ", "flashmask_range ", "has no flashmask_span"),
    ],
)
def test_a_library_with_other_structs_is_refused(told, other, difference):
    assert told in layouts()
    with pytest.raises(ImportError) as refusal:
        check_layouts(layouts().replace(told, other), "there/libflashmask.so")
    assert f"flashmask: there/libflashmask.so {difference}" in str(refusal.value)
    assert str(refusal.value).endswith(
        "library and package are of different versions: reinstall both with `pip install .`, or unset FLASHMASK_LIBRARY"
    )


def test_a_package_with_another_struct_is_not_imported(tmp_path):
    package = shutil.copytree(Path(structs.__file__).parents[1], tmp_path / "flashmask")
    other = package / "_abi" / "structs.py"
    other.write_text(other.read_text().replace('("scale", c_float),', '("scale", c_double),'))
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "FLASHMASK_LIBRARY": library._name}
    command = [sys.executable, "-c", "import flashmask"]
    imported = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert imported.returncode != 0
    assert "has flashmask_problem.scale at byte 76 with 4 bytes where this package expects" in imported.stderr


def test_every_function_of_the_header_has_a_prototype():
    assert len(FUNCTIONS) > 80
    for name in FUNCTIONS:
        function = getattr(library, f"flashmask_{name}")
        if name in UNUSED:
            assert function.argtypes is None, f"flashmask_{name} is used; take it off the list"
            continue
        assert function.argtypes is not None or name in ("version", "last_error"), f"flashmask_{name} has no prototype"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_prototypes_take_as_many_arguments(name):
    arguments = re.search(rf"flashmask_{name}\((.*?)\);", HEADER, re.S).group(1)
    arguments = re.sub(r"\([^()]*\)", "", arguments)
    count = 0 if arguments.strip() == "void" else arguments.count(",") + 1
    declared = getattr(library, f"flashmask_{name}").argtypes
    assert declared is None or len(declared) == count
