"""The planted mistakes of tests/mutants.py: each text is there, and each mistake is noticed."""

from pathlib import Path

import generated_mutants
import mutants
import pytest


def test_at_least_forty_mistakes_and_none_is_stale() -> None:
    assert len({mutant.name for mutant in mutants.MUTANTS}) == len(mutants.MUTANTS) >= 40
    for mutant in mutants.MUTANTS:
        text = (mutants.ROOT / mutant.file).read_text(encoding="utf-8")
        found = text.count(mutant.old)
        assert found == 1, f"{mutant.name}: its text is in {mutant.file} {found} times, not once"
        compile(text.replace(mutant.old, mutant.new), mutant.file, "exec")


def test_the_documentation_lists_them() -> None:
    page = Path(mutants.ROOT, "docs", "privacy.md").read_text(encoding="utf-8")
    for mutant in mutants.MUTANTS:
        assert f"- {mutant.name}\n" in page, mutant.name


def test_generated_mutants_that_survived_do_no_harm() -> None:
    """Those that were run, of changes that are still made: each was noticed or has its reason."""
    assert generated_mutants.report()


@pytest.mark.slow
def test_the_fast_privacy_tests_pass_and_catch_every_mistake() -> None:
    with mutants.copy() as folder:
        assert mutants.failure(folder, mutants.TESTS) == ""
    fates = mutants.run()
    assert not {name: found for name, found in fates.items() if found.end != "caught"}
