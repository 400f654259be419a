"""The planted mistakes of tests/engine_mutants.py: each text is there, and each is noticed."""

import subprocess
import sys

import engine_calls
import engine_mutants
import mutants
import pytest


def test_at_least_sixty_mistakes_and_none_is_stale() -> None:
    planted = engine_mutants.MUTANTS
    assert len({mutant.name for mutant in planted}) == len(planted) >= 60
    for mutant in planted:
        text = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
        found = text.count(mutant.old)
        assert found == 1, f"{mutant.name}: its text is in {mutant.file} {found} times, not once"
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")
        file, _, test = mutant.first.partition("::")
        there = (mutants.ROOT / "tests" / f"{file}.py").read_text(encoding="utf-8")
        assert f"def {test}" in there, mutant.name


def test_nothing_contradicts_the_sound_program() -> None:
    sound = engine_calls.outcome()
    assert (sound.contradicted, sound.errors) == ([], {})
    assert not engine_calls.outcome().wrong(sound)


@pytest.mark.slow
def test_the_named_tests_catch_every_mistake() -> None:
    words = [sys.executable, "tests/engine_mutants.py"]
    ended = subprocess.run(words, cwd=mutants.ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout
