"""The planted mistakes of tests/mutants.py: each text is there, and each mistake is noticed."""

import subprocess
import sys
from types import FunctionType

import generated_mutants
import mutants
import pytest
from syntax_mutants import changes
from warm_tests import in_place, new_code


def test_at_least_forty_mistakes_and_none_is_stale() -> None:
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 40
    for mutant in mutants.MUTANTS:
        text = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
        found = text.count(mutant.old)
        assert found == 1, f"{mutant.name}: its text is in {mutant.file} {found} times, not once"
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")


def test_generated_mutants_that_survived_do_no_harm() -> None:
    """Those that were run, of changes that are still made: each was noticed or has its reason. Each
    reason is for such a change.
    """
    assert generated_mutants.report()


SOUND = """LIMIT = 3

class Shape:
    sides: int = 4

    def area(self, a, b=2):
        return [a * each for each in range(b)]
"""


def test_changes_of_functions_alone_are_exchanged_in_place() -> None:
    """The exchanged code computes what the changed text does; other changes are imported afresh."""
    afresh = {"(module): 3 -> 4", "Shape: 4 -> 5", "Shape.area: 2 -> 3"}
    for change in changes(SOUND):
        sound: dict[str, type] = {}
        changed: dict[str, type] = {}
        exec(SOUND, sound)
        exec(change.source, changed)
        codes = new_code(SOUND, change.source, "<string>")
        assert (codes is None) == (change.name in afresh), change.name
        if codes:
            area = sound["Shape"].__dict__["area"]
            (area.__code__,) = codes.values()
            assert _ended(sound["Shape"]) == _ended(changed["Shape"]) != [0, 3], change.name


DECORATOR = """
def scaled(factor):
    def decorated(function):
        def times(x):
            return factor * function(x)
        return times
    return decorated

@scaled(3)
def successor(x):
    return x + 1
"""


def test_changes_of_what_has_decorated_functions_are_imported_afresh() -> None:
    names: dict[str, FunctionType] = {}
    exec(compile(DECORATOR, "a.py", "exec"), names)
    codes = [names["scaled"].__code__, names["successor"].__code__]
    there = [(code.co_filename, code.co_qualname, code.co_firstlineno) for code in codes]
    assert [name for _, name, _ in there] == ["scaled", "scaled.<locals>.decorated.<locals>.times"]
    found = new_code(DECORATOR, DECORATOR.replace("factor *", "factor +"), "a.py")
    assert found and list(found) == there[:1]
    assert in_place(found, there[:1])
    assert not in_place(found, there) and not in_place(found, [])
    assert in_place(found, [there[0], ("b.py", *there[1][1:])])


def _ended(shape: type) -> object:
    try:
        return shape().area(3)
    except (TypeError, ArithmeticError) as error:
        return str(error)


@pytest.mark.slow
def test_the_fast_privacy_tests_catch_every_mistake() -> None:
    words = [sys.executable, "tests/mutants.py"]
    ended = subprocess.run(words, cwd=mutants.ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
