"""The structure report finds large classes, crowded folders and circles of imports."""

from __future__ import annotations

from pathlib import Path

import structure_report

LARGE = "class Large:\n    def __init__(self):\n        {stores}\n"


def test_what_is_large_and_what_goes_in_circles_is_listed(tmp_path: Path) -> None:
    package = tmp_path / "some"
    package.mkdir()
    for number in range(21):
        (package / f"m{number}.py").write_text("")
    (package / "m0.py").write_text("from some import m1\n")
    (package / "m1.py").write_text("import some.m2\n")
    (package / "m2.py").write_text("if TYPE_CHECKING:\n    from some.m0 import x\n")
    stores = "; ".join(f"self.a{number} = 0" for number in range(21))
    (package / "m3.py").write_text(LARGE.format(stores=stores) + "from some.m0 import x\n")
    assert list(structure_report.report(tmp_path)) == [
        "classes with more than 25 methods or 20 attributes: 1",
        "  some.m3:Large: 1 methods, 21 attributes",
        "folders with more than 20 files: 1",
        "  some: 21 files",
        "circles of imports: 1",
        "  3: some.m0, some.m1, some.m2",
    ]


def test_inherited_methods_and_attributes_count(tmp_path: Path) -> None:
    package = tmp_path / "some"
    package.mkdir()
    methods = "".join(f"    def m{number}(self):\n        pass\n" for number in range(25))
    (package / "base.py").write_text(f"class Base(Generic[T]):\n    x: int\n{methods}")
    (package / "one.py").write_text(
        "from some.base import Base\n"
        "class One(Base[int]):\n    def m0(self):\n        self.y, self.x = 1, 2\n"
    )
    (package / "two.py").write_text(
        "from some import one\nclass Two(one.One):\n    def other(self):\n        self.z += 1\n"
    )
    assert [tuple(each) for each in structure_report.structure(tmp_path).classes] == [
        ("some.two:Two", 26, 3)
    ]
