"""Includes that a compiler never sees, and those that only look as if it did not."""

import pytest

from gpulab.check import includes
from gpulab.errors import BuildError

OTHER = '#include "../common/utils.cuh"'


@pytest.fixture
def headers(tmp_path):
    (tmp_path / "cuda_fp16.h").touch()
    return [tmp_path]


@pytest.mark.parametrize(
    "text",
    [
        f"// {OTHER}",
        '// #include "/etc/passwd"',
        f"int x; // {OTHER}",
        f"/* a */ // {OTHER}",
        f"/* as {OTHER} */",
        f'const char* s = "{OTHER[:9]}<stdio.h>";',
        "const char* s = \"/* #include <stdio.h>\"; int x = '#';",
        f'const char* s = R"({OTHER})";',
        f"// \\\n{OTHER}",
    ],
)
def test_what_cannot_be_a_directive_is_compiled_as_it_is(text, headers):
    assert includes.check(text, "x.cu", headers) == text


@pytest.mark.parametrize(
    ("text", "compiled"),
    [
        (f"/*\n{OTHER}\n*/", f"/*\n {OTHER[1:]}\n*/"),
        (f"// don't\n/*\n  {OTHER}\n*/", f"// don't\n/*\n   {OTHER[1:]}\n*/"),
        ("int x = 1'000; /*\n#include X\n*/", "int x = 1'000; /*\n include X\n*/"),
        ("/* \\\n*\n#inc\\\nlude X\n*/", "/* \\\n*\n inc\\\nlude X\n*/"),
        ("/*\n?\\\n?=include X\n*/", "/*\n \\\n  include X\n*/"),
        ("/* __has_include */", "/*   has_include */"),
    ],
)
def test_the_compiler_gets_no_mark_in_a_comment(text, compiled, headers):
    assert includes.check(text, "x.cu", headers) == compiled


@pytest.mark.parametrize(
    "before",
    [
        "",
        "/* */ ",
        '"/*"\n',
        "'/*'\n",
        "'\"' /* ' */\n",
        "1'000; /* ' */\n",
        "// /*\n",
        "// '\n// \"\n",
        "/* \" ' // */",
        "/* \\\n*\\\n/ ",
        'R"(/*)"\n',
        'R"x(")" /* )x"\n',
        'R"(\n',
        'nR"(" // )" /* */\n',
        "#if 0\ndon't /*\n#endif\n",
        "// #include /*\n",
        "// ??/\n",
        "??/\n",
        "// \\ \n",
        "// \\\r\n",
        "// \r",
        "\v\f",
        "#if 0\n",
        "#ifdef STANDALONE\n",
    ],
)
@pytest.mark.parametrize("directive", [OTHER, "#\rinclude <x>", "%:include X", "#inc\\\nlude <x>"])
def test_what_may_be_a_directive_is_refused_with_its_line(before, directive, headers):
    with pytest.raises(BuildError) as caught:
        includes.check(f'{before}{directive}\n// */ \' " )"', "x.cu", headers)
    assert caught.value.details["line"] == before.count("\n") + 1
    assert "delete the line" in caught.value.fix


def test_many_comments_in_a_directive_take_no_time(headers):
    assert includes.check("#" + "/**/" * 40 + "x", "x.cu", headers)
